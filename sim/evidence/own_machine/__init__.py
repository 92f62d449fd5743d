"""What one machine has of its own, found from a recording of its engine at work.

A GPU part's calibration and a release's host times hold for any machine; some constants differ from one to
the next: how quick its processor is, at what clock its GPUs run, how they are joined. `fit_machine` reads the
steps of a recording (`steps`), predicts how long each takes (`predicted`), looks at which constants the
recording shows at all (`shown`), fits those on every other minute (`fit`), and says how far off predictions
are on the minutes between, before and after (`answer`).
"""

from sim.evidence.own_machine.answer import OwnMachine
from sim.evidence.own_machine.engine import recorded_engine
from sim.evidence.own_machine.own_machine import fit_machine

__all__ = ["OwnMachine", "fit_machine", "recorded_engine"]
