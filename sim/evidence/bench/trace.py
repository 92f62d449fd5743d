"""The requests of a workload as a trace for other tools: Azure's CSV or Mooncake's JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from sim.errors import input_error
from sim.random_streams import streams
from sim.scenario import Scenario
from sim.setup import engine_setup
from sim.workload import Limits, RequestTable, build_workload

_HASH_BLOCK_TOKENS = 512
_DAY = datetime(2023, 11, 16)


def write_trace(scenario: Scenario, path: Path) -> int:
    """Write the scenario's requests to `path`, all or nothing (.csv: Azure, .jsonl: Mooncake); returns their
    number.

    Mooncake's hash ids are all distinct: prompts that share nothing stay so.
    """
    forms = {".csv": _azure, ".jsonl": _mooncake}
    form = forms.get(path.suffix.lower())
    if form is None:
        raise input_error(f"{path}: the name must end in .csv (Azure) or .jsonl (Mooncake)")
    limits = Limits(engine_setup(scenario).replica.scheduler.max_model_len)
    table = build_workload(scenario, streams(scenario.seed), limits).table
    draft = path.with_name(f".{path.name}.part")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in form(table))
        draft.replace(path)
    except OSError as error:
        raise input_error(f"{path}: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)
    return len(table)


def _rows(table: RequestTable) -> Iterator[tuple[float, int, int]]:
    columns = (table.arrival_s.tolist(), table.prompt_tokens.tolist(), table.output_tokens.tolist())
    return zip(*columns, strict=True)


def _azure(table: RequestTable) -> Iterator[str]:
    yield "TIMESTAMP,ContextTokens,GeneratedTokens"
    for arrival_s, prompt, output in _rows(table):
        yield f"{_DAY + timedelta(seconds=arrival_s):%Y-%m-%d %H:%M:%S.%f}0,{prompt},{output}"


def _mooncake(table: RequestTable) -> Iterator[str]:
    first = 0
    for arrival_s, prompt, output in _rows(table):
        num_blocks = -(-prompt // _HASH_BLOCK_TOKENS)
        yield json.dumps(
            {
                "timestamp": arrival_s * 1000.0,
                "input_length": prompt,
                "output_length": output,
                "hash_ids": list(range(first, first + num_blocks)),
            }
        )
        first += num_blocks
