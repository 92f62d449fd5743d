"""One workload under two releases: which predictions move, and which rule moved them.

Read `differences.py` first: what distinguishes the releases for this scenario, each as something one can undo
in the newer one. `compare.py` simulates both releases and the newer one with each difference undone alone,
and `answer.py` tells what came of it.
"""

from sim.evidence.releases.answer import Effect, ReleaseComparison, compare_releases
from sim.evidence.releases.differences import Difference, differences

__all__ = ["Difference", "Effect", "ReleaseComparison", "compare_releases", "differences"]
