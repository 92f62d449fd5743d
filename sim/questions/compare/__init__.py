"""Policies and configurations under common random numbers: paired differences, and when none is shown.

`variants` reads what is compared, `results` pairs the runs and says what their differences show, also for
each client class, and `answer` shows it.
"""

from sim.questions.compare.answer import Comparison
from sim.questions.compare.compare import compare

__all__ = ["Comparison", "compare"]
