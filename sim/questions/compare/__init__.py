"""Policies and configurations under common random numbers: paired differences, and when none is shown.

`variants` reads what is compared, `differences` pairs the runs, `classes` does so for each client class,
`screen` prints, `pictures` draws and `folder` keeps it.
"""

from sim.questions.compare.compare import Comparison, compare

__all__ = ["Comparison", "compare"]
