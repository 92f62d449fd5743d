"""One recorded run, read from its file: what was asked of the real engine, and what it decided.

Formats `sched-oracle/1` and `sched-oracle/2`. A file that cannot be used raises `InputError` with its place
and the reason.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, cast

from sim.errors import Fault, InputError

Record: TypeAlias = dict[str, object]
"""One step, or the end of a run, as the recording keeps it."""

FORMATS = ("sched-oracle/1", "sched-oracle/2")


class GroupScript(TypedDict, total=False):
    """A KV cache group of a case's configuration."""

    type: str
    block_size: int
    window: int
    chunk: int
    mode: str
    spec_blocks: int


class SpecScript(TypedDict, total=False):
    """Speculative decoding in a case's configuration."""

    kind: str
    k: int
    lookahead_hashes: bool
    parallel: bool
    by_batch: list[tuple[int, int, int]] | None


class ConfigScript(TypedDict, total=False):
    """The configuration of a case; absent keys take the format's defaults.

    `in_flight` counts batches in flight, `pp` pipeline stages. `hma` lets a recorder keep several KV groups
    apart with a connector; what was decided follows from the groups alone.
    """

    policy: str
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    long_prefill_token_threshold: int
    chunked_prefill: bool
    prefix_caching: bool
    num_blocks: int
    hash_block_size: int
    groups: list[GroupScript]
    async_sched: bool
    spec: SpecScript | None
    max_loras: int | None
    connector: bool
    kv_load_failure_policy: str
    include_finished_set: bool
    reserve_full_prompt: bool
    watermark: float
    max_num_scheduled_tokens: int | None
    max_active: int | None
    long_prefill_adaptive: bool
    prefill_interval: int
    retention: int | None
    in_flight: int
    pp: int
    hma: bool


TransferScript = TypedDict(
    "TransferScript",
    {
        "tokens": int,
        "async": bool,
        "delay": int,
        "defer": int,
        "times": int,
        "send": int,
        "fail": list[int],
    },
    total=False,
)
"""What the KV connector has for a request, and how its loads go."""


class RequestScript(TypedDict, total=False):
    """A request of a case, and what the pretended model will return for it."""

    prompt: list[tuple[int, int]]
    out: int
    max_tokens: int
    eos_at: list[int]
    stop_at: tuple[int, int]
    min_tokens: int
    ignore_eos: bool
    stop_ids: list[int]
    prio: int
    at: float
    client: int
    lora: int
    salt: str
    skip_cache: bool
    fsm: bool
    grammar_valid: list[int]
    drafts: list[int]
    accept: list[int]
    resumable: bool
    ext: TransferScript


@dataclass(frozen=True, slots=True)
class Event:
    """Something from outside at step `t`: its kind and arguments are as in the file."""

    t: int
    kind: str
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A recorded run: `trace` has a record per executed step, `final` the state at the end."""

    path: Path
    format: str
    name: str
    release: str
    config: ConfigScript
    requests: list[RequestScript]
    events: list[Event]
    max_steps: int
    trace: list[Record]
    final: Record
    extras: tuple[str, ...] = ()
    """Which keys the recording has beside the decisions (see `extended`)."""

    @property
    def family(self) -> str:
        """The name without its number."""
        return self.name.rpartition("-")[0] or self.name


_TOP_LEVEL: dict[str, type] = {
    "vllm": str,
    "name": str,
    "config": dict,
    "requests": list,
    "events": list,
    "max_steps": int,
    "trace": list,
    "final": dict,
}


def load_case(path: Path) -> Case:
    """Read one file. `InputError` if it is not gzip, not JSON, or not a recorded run."""

    def fault(message: str) -> InputError:
        return InputError([Fault(str(path), None, message)])

    try:
        with gzip.open(path) as file:
            content = json.loads(file.read())
    except FileNotFoundError:
        raise fault("no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise fault(f"not a gzip file ({error})") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise fault(f"not JSON inside ({error})") from None
    except OSError as error:
        raise fault(f"cannot be read ({error.strerror or error})") from None
    if not isinstance(content, dict) or content.get("format") not in FORMATS:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise fault(f"not a recorded run: format is {found!r}, expected one of {', '.join(FORMATS)}")
    wrong = [key for key, kind in _TOP_LEVEL.items() if not isinstance(content.get(key), kind)]
    if wrong:
        raise fault(f"not a recorded run: {', '.join(wrong)} missing or of the wrong type")
    try:
        events = [Event(event[0], event[1], tuple(event[2:])) for event in content["events"]]
    except (TypeError, IndexError, KeyError):
        raise fault(
            "not a recorded run: an event is not a list of a step, a kind and its arguments"
        ) from None
    return Case(
        path=path,
        format=content["format"],
        name=content["name"],
        release=content["vllm"],
        config=cast(ConfigScript, content["config"]),
        requests=cast("list[RequestScript]", content["requests"]),
        events=events,
        max_steps=content["max_steps"],
        trace=content["trace"],
        final=content["final"],
        extras=tuple(content.get("extras", ())),
    )


def find_case_files(paths: Iterable[str | Path]) -> list[Path]:
    """The files meant by files and folders (all *.json.gz below), sorted within each; `InputError` names the
    rest.
    """
    files: list[Path] = []
    faults = []
    for path in map(Path, paths):
        if path.is_dir():
            found = sorted(path.rglob("*.json.gz"))
            if not found:
                faults.append(Fault(str(path), None, "no *.json.gz files in this folder"))
            files += found
        elif path.exists():
            files.append(path)
        else:
            faults.append(Fault(str(path), None, "no such file or folder"))
    if faults:
        raise InputError(faults)
    return list(dict.fromkeys(files))
