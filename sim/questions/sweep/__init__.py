"""One question asked of many variants of a scenario: grids in, tables with intervals and an answer out.

`axes` reads what varies, `cells` makes the scenarios and finds every mistake, `runs` has them simulated,
`tables` turns results into rows, `findings` says which is best and up to which rate promises are kept,
`document` words it and `pictures` draws it.
"""

from sim.questions.sweep.sweep import Sweep, sweep

__all__ = ["Sweep", "sweep"]
