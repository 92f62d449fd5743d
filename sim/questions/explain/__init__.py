"""`dryserve explain`: why a latency percentile of a run is what it is, and what would change it.

`explain.py` has the whole way in order.
"""

from sim.questions.explain.explain import Explanation, check_question, explain
from sim.questions.explain.remedies import Source

__all__ = ["Explanation", "Source", "check_question", "explain"]
