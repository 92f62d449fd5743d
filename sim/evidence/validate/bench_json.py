"""Result files of load generators, read as measured runs: a user's own server, to be simulated and compared.

`vllm bench serve --save-result --save-detailed` and GuideLLM's `benchmarks.json` say what was sent and what
came back, but not on what it ran: the GPU, the release and the settings are columns to be given beside.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from sim.errors import input_error
from sim.evidence.validate.guidellm import guidellm_run
from sim.evidence.validate.json_fields import Json, tables
from sim.evidence.validate.requests_file import RequestRows
from sim.evidence.validate.run_table import MeasuredRun
from sim.evidence.validate.vllm_bench import vllm_bench_run

__all__ = ["BenchRun", "read_bench_json"]

#: A measured run, and its requests where the file lists them.
BenchRun = tuple[MeasuredRun, RequestRows | None]


def read_bench_json(path: Path) -> list[BenchRun]:
    """The runs in a result file, one for each JSON object or GuideLLM benchmark; InputError if neither."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise input_error(error.strerror or str(error), where=str(path)) from None
    except UnicodeDecodeError as error:
        raise input_error(f"not UTF-8 text: byte {error.start}", where=str(path)) from None
    runs: list[BenchRun] = []
    for line, data in _objects(path, text):
        if isinstance(data.get("benchmarks"), list):
            if not all(isinstance(each, dict) for each in tables(data, "benchmarks")):
                raise input_error("benchmarks: must be JSON objects", where=f"{path}:{line}")
            runs += [guidellm_run(path, data, i) for i in range(len(tables(data, "benchmarks")))]
        elif "total_output_tokens" in data and "completed" in data:
            runs.append(vllm_bench_run(path, line, data))
        else:
            raise input_error(
                "neither a result of vllm bench serve (--save-result) nor GuideLLM's benchmarks.json",
                where=f"{path}:{line}",
            )
    return runs


def _objects(path: Path, text: str) -> Iterator[tuple[int, Json]]:
    """One JSON object, or JSON lines (`--append-result`), with the line each begins on."""
    decoder, at = json.JSONDecoder(), 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if at >= len(text):
            return
        line = text.count("\n", 0, at) + 1
        try:
            data, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise input_error(
                f"not JSON: {error.msg}", where=f"{path}:{error.lineno}:{error.colno}"
            ) from None
        except RecursionError:
            raise input_error("not JSON: nested too deeply", where=f"{path}:{line}") from None
        if not isinstance(data, dict):
            raise input_error("not a JSON object", where=f"{path}:{line}")
        yield line, data
