"""A set of small scenarios against a committed baseline: what moved, by how much, and in which layer.

`observe.py` runs the scenarios and keeps what is compared. `recorded.py` keeps the requests themselves, so
that `layers.py` can put the baseline's own requests and settings through today's scheduler, cost model and
memory plan one by one: which of them changed is then known and not guessed. `baseline.py` reads and writes
`baseline.json`, `compare.py` finds the differences, `screen.py` and `pages.py` tell them, `changelog.py`
writes the line that goes with a new baseline.
"""

from sim.evidence.regress.baseline import Baseline, read_baseline, scenario_files, write_baseline
from sim.evidence.regress.changelog import changelog_line, check_changelog, enter, first_line
from sim.evidence.regress.compare import Regression, compare
from sim.evidence.regress.observe import observe
from sim.evidence.regress.screen import render

__all__ = [
    "Baseline",
    "Regression",
    "changelog_line",
    "check_changelog",
    "compare",
    "enter",
    "first_line",
    "observe",
    "read_baseline",
    "render",
    "scenario_files",
    "write_baseline",
]
