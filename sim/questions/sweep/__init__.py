"""One question asked of many variants of a scenario: grids in, tables with intervals and an answer out.

`axes` reads what varies, `cells` makes the scenarios and finds every mistake, `runs` has them simulated,
`tables` turns results into rows, `findings` says which is best and up to which rate promises are kept,
`answer` shows it, with the figures of `pictures`.
"""

from sim.questions.sweep.answer import Sweep
from sim.questions.sweep.sweep import sweep

__all__ = ["Sweep", "sweep"]
