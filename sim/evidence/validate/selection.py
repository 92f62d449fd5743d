"""Which measured runs are asked for: from a file of either form to the jobs that simulate them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from sim.errors import Fault, InputError, input_error
from sim.evidence.validate.bench_json import read_bench_json
from sim.evidence.validate.replay import Job
from sim.evidence.validate.run_table import SETUP_COLUMNS, MeasuredRun, read_runs, with_columns
from sim.evidence.validate.scoring import held_out

__all__ = ["Selection", "read_jobs"]


@dataclass(frozen=True)
class Selection:
    """What to keep of a run table. Patterns are those of a shell (`a100*`); an empty list keeps all.

    `part` is "all", "fitted" or "held-out". `limit_requests` cuts every run to its first requests.
    """

    qualities: Sequence[str] = ("A", "B")
    sources: Sequence[str] = ()
    gpus: Sequence[str] = ()
    generations: Sequence[str] = ()
    run_ids: Sequence[str] = ()
    part: str = "all"
    limit_requests: int | None = None

    def keeps(self, run: MeasuredRun) -> bool:
        """Whether the run is asked for. A run that states no quality is kept: it is the user's own."""
        return (
            (not run.quality or not self.qualities or run.quality in self.qualities)
            and _matches(run.source, self.sources)
            and _matches(run.gpu or "", self.gpus)
            and _matches(run.engine_gen or "", self.generations)
            and _matches(run.run_id, self.run_ids)
            and (self.part == "all" or held_out(run.run_id) == (self.part == "held-out"))
        )


def read_jobs(
    path: Path, selection: Selection, columns: Mapping[str, str], *, keep_latencies: bool = False
) -> tuple[list[Job], list[str]]:
    """The runs of a run table (.csv) or of a load generator's result (.json), and remarks on the reading.

    `columns` are set-up cells that win over the file's, in every run. InputError for what cannot be read.
    """
    unknown = sorted(set(columns) - SETUP_COLUMNS)
    if unknown:
        raise InputError([Fault("--set", name, "is no set-up column of a run table") for name in unknown])
    remarks: list[str] = []
    if path.suffix in (".json", ".jsonl"):
        found = read_bench_json(path)
    else:
        table = read_runs(path)
        found = [(run, None) for run in table.runs]
        if table.unread_columns:
            remarks.append(f"columns not read: {', '.join(table.unread_columns)}")
    kept = [(run, rows) for run, rows in found if selection.keeps(run)]
    if len(kept) < len(found):
        dropped = Counter(run.quality or "none" for run, _ in found if not selection.keeps(run))
        listed = ", ".join(f"{count} of quality {quality}" for quality, count in sorted(dropped.items()))
        remarks.append(f"rows left out: {listed}")
    if not kept:
        raise input_error("no row of it is selected", where=str(path))
    return [
        Job(
            run=with_columns(run, columns),
            folder=path.parent,
            rows=rows,
            limit=selection.limit_requests,
            keep_latencies=keep_latencies,
        )
        for run, rows in kept
    ], remarks


def _matches(value: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch(value, pattern) for pattern in patterns)
