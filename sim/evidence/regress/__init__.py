"""A set of small scenarios against a committed baseline: what moved, by how much, and in which layer.

`observe` runs the scenarios and keeps what is compared. `recorded` keeps the requests themselves, so that
`layers` can put the baseline's own requests and settings through today's scheduler, cost model and memory
plan one by one: which of them changed is then known and not guessed. `baseline` reads and writes
`baseline.json`, `compare` finds the differences, `regress` is the answer that shows them, `changelog` writes
the line that goes with a new baseline.
"""

from sim.evidence.regress.baseline import Baseline, read_baseline, scenario_files, write_baseline
from sim.evidence.regress.changelog import changelog_line, check_changelog, enter, first_line
from sim.evidence.regress.observe import observe
from sim.evidence.regress.regress import Regression, regress

__all__ = [
    "Baseline",
    "Regression",
    "changelog_line",
    "check_changelog",
    "enter",
    "first_line",
    "observe",
    "read_baseline",
    "regress",
    "scenario_files",
    "write_baseline",
]
