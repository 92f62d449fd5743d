"""One workload under two releases: which predictions move, and which rule moved them.

Read `differences.py` first: what distinguishes the releases for this scenario, each as something one can undo
in the newer one. `runs.py` simulates both releases and the newer one with each difference undone alone, and
`tables.py` tells what came of it.
"""

from sim.evidence.releases.differences import Difference, differences
from sim.evidence.releases.runs import Comparison, Effect, Outcome, compare_releases
from sim.evidence.releases.tables import render, write

__all__ = [
    "Comparison",
    "Difference",
    "Effect",
    "Outcome",
    "compare_releases",
    "differences",
    "render",
    "write",
]
