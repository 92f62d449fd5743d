"""Why believe a simulation: measured runs of real engines, simulated again, and how far off the answer was.

`run_table`, `requests_file` and `result_files` read what was measured; `mapping` turns each run into a
scenario and its requests; `replay` has them simulated, as every other point is; `scoring` says what the
client would have seen and how far that is from what it saw; `answer` tells it, and keeps the errors as the
bands that every prediction shows. `ablations` takes terms of the cost model away one by one, and
`serving_fit` fits constants.
"""

from sim.evidence.validate.answer import Validation, validate
from sim.evidence.validate.replay import ReplayedRun, Selection, read_measured_runs, replay_all
from sim.evidence.validate.run_table import MeasuredRun

__all__ = [
    "MeasuredRun",
    "ReplayedRun",
    "Selection",
    "Validation",
    "read_measured_runs",
    "replay_all",
    "validate",
]
