"""Why believe a simulation: measured runs of real engines, simulated again, and how far off the answer was.

`run_table` and `bench_json` read what was measured, `traffic` and `setup` turn a run into requests and an
engine, `replay` simulates, `observe` says what the client would have seen, `scoring` and `error_report` how
far that is from what it saw. `bands` keeps the errors found, so that every prediction can show its own.
"""

from sim.evidence.validate.replay import Job, Outcome, replay_all
from sim.evidence.validate.selection import Selection, read_jobs

__all__ = ["Job", "Outcome", "Selection", "read_jobs", "replay_all"]
