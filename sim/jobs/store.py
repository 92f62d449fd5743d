"""Results of points that outlive the process: one file each, named by everything that the result depends on.

The name is a hash of the resolved scenario, the version, the code that simulates, the contents of files that
the scenario reads, and the columns asked for. So a result is found again by whoever asks the same, and never
after something that could move it has changed. Files appear whole, by renaming, and a damaged one counts as
missing.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cost_models.hf_config import config_path, quantization_path
from sim.errors import writing
from sim.installed.present import identity as installed_identity
from sim.scenario import Scenario
from sim.values import Json
from sim.version import dryserve_version

FORMAT = 1
"""Of the entries; raised when their contents change."""

Column = NDArray[np.generic]
Samples = Mapping[str, Column]

_DIGEST_BYTES = 32
_COLUMN = "column "
_PACKAGES = ("sim", "scheduler", "cost_models")
_TELL_NOTHING = {"cli", "figures", "report", "statistics", "jobs", "questions", "evidence"}
"""Folders of `sim` that move no result, but for the error bands of validation."""
_CODE = {".py", ".json", ".toml", ".csv"}


@dataclass(frozen=True, slots=True)
class Entry:
    """What is kept of a run: its summary as written to JSON, the columns asked for, and what got it stuck."""

    summary: dict[str, Json]
    samples: Samples
    stuck: str | None = None


def pack(key: str, entry: Entry) -> bytes:
    """The bytes of an entry; equal entries give equal bytes."""
    head = {"key": key, "summary": entry.summary, "stuck": entry.stuck}
    text = json.dumps(head, allow_nan=False, ensure_ascii=False).encode()
    file = io.BytesIO()
    columns = {_COLUMN + name: values for name, values in sorted(entry.samples.items())}
    np.savez(file, allow_pickle=False, head=np.frombuffer(text, dtype=np.uint8), **columns)
    body = file.getvalue()
    return hashlib.sha256(body).digest() + body


def unpack(key: str, data: bytes) -> Entry | None:
    """The entry in these bytes; None if they are damaged, or belong to another key."""
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        return None
    with np.load(io.BytesIO(body), allow_pickle=False) as file:
        head = json.loads(file["head"].tobytes())
        samples = {name.removeprefix(_COLUMN): file[name] for name in file.files if name.startswith(_COLUMN)}
    return Entry(head["summary"], samples, head["stuck"]) if head["key"] == key else None


class Store:
    """A folder of entries; several processes may use it at once."""

    def __init__(self, folder: Path) -> None:
        """Make the folder; raises `InputError` if nothing can be written there."""
        self.folder = folder
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=".try.", dir=folder)
            os.close(descriptor)
            Path(name).unlink()

    def path(self, key: str) -> Path:
        """Where the entry of this key is, or would be."""
        return self.folder / key[:2] / f"{key}.npz"

    def get(self, key: str) -> Entry | None:
        """The entry, or None if there is none that can be read."""
        try:
            data = self.path(key).read_bytes()
        except OSError:
            return None
        return unpack(key, data)

    def put(self, key: str, data: bytes) -> None:
        """Keep the bytes of an entry; raises OSError if that fails, and then leaves nothing."""
        path = self.path(key)
        path.parent.mkdir(exist_ok=True)
        descriptor, draft = tempfile.mkstemp(prefix=".draft.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            Path(draft).chmod(0o644)
            Path(draft).replace(path)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise


def default_folder() -> Path:
    """`$DRYSERVE_CACHE`, or `dryserve` in the user's folder for caches."""
    if chosen := os.environ.get("DRYSERVE_CACHE"):
        return Path(chosen)
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "dryserve"


def point_key(scenario: Scenario, columns: Sequence[str] = (), given: bytes = b"") -> str:
    """The name of a point's result, 32 hex digits: equal for equal questions to equal code.

    `given` is what the run depends on beside its scenario. Raises `InputError` if that asks for a vLLM
    that is not installed.
    """
    told = hashlib.sha256()
    told.update(fingerprint(scenario).encode())
    told.update(f"\nformat {FORMAT}\ncolumns {sorted(set(columns))}\n".encode())
    told.update(scenario.dump_resolved().encode())
    for name, digest in sorted(_files_read(scenario.model_dump(mode="json"))):
        told.update(f"{name} {digest}\n".encode())
    told.update(given)
    return told.hexdigest()[:32]


def fingerprint(scenario: Scenario) -> str:
    """What simulates the scenario here: dryserve, and the installed vLLM if that decides. Raises `InputError`
    if it should and is not there.
    """
    if scenario.engine.scheduler == "vllm":
        return f"{code_fingerprint()}, {installed_identity(scenario)}"
    return code_fingerprint()


@cache
def code_fingerprint() -> str:
    """Version of dryserve, and a hash of numpy's version and the code and facts that results come from."""
    told = hashlib.sha256(f"numpy {np.__version__}\n".encode())
    for package in _PACKAGES:
        root = Path(__file__).parents[2] / package
        for path in sorted(root.rglob("*")):
            inside = path.relative_to(root)
            aside = package == "sim" and inside.parts[0] in _TELL_NOTHING
            if path.suffix in _CODE and (not aside or "validate" in inside.parts):
                told.update(f"{package}/{inside.as_posix()}\n".encode())
                told.update(path.read_bytes())
    return f"dryserve {dryserve_version()} {told.hexdigest()[:16]}"


def _files_read(section: object) -> Iterator[tuple[str, str]]:
    """Files that a scenario's words refer to, each with the hash of its contents: traces, models,
    calibrations, plugins.
    """
    if isinstance(section, dict):
        if section.get("kind") == "plugin":
            yield from _plugin_file(str(section["path"]))
        for key, value in section.items():
            if key in ("path", "calibration", "model") and isinstance(value, str):
                files = (value, *_model_files(value)) if key == "model" else (value,)
                yield from ((name, digest) for name in files if (digest := _file_digest(name)))
            yield from _files_read(value)


def _model_files(name: str) -> tuple[str, ...]:
    """The files that a model is read from, if it is named by its folder or its config file."""
    config = config_path(name)
    return str(config), str(quantization_path(config))


def _plugin_file(dotted: str) -> Iterator[tuple[str, str]]:
    """The file of a user's own class, if it is in the current folder, where it is looked for first."""
    module = Path(*dotted.split(".")[:-1])
    for path in (module.with_suffix(".py"), module / "__init__.py"):
        if digest := _file_digest(str(path)):
            yield dotted, digest


def _file_digest(name: str) -> str | None:
    try:
        status = os.stat(name)  # noqa: PTH116  # a name, perhaps of no file
        return _digest(name, status.st_mtime_ns, status.st_size)
    except (OSError, ValueError):
        return None


@cache
def _digest(name: str, mtime_ns: int, size: int) -> str | None:
    path = Path(name)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
