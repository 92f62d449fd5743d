"""Statistics of simulation output: intervals, warm-up, run length, and when to say nothing.

Own short code, for no maintained library has these; only the quantiles of Student's t come from scipy. Each
is tested on queues whose answers are known.
"""

from sim.statistics.intervals import (
    Interval,
    Trust,
    jackknife_interval,
    replication_interval,
    trials_to_show,
    trust_in_percentile,
    wilson_interval,
)
from sim.statistics.paired import PairedDifferences, paired_difference, pairs_to_show, sign_test
from sim.statistics.series import WarmUp, batch_means, mser5, replications_needed, two_stage_interval

__all__ = [
    "Interval",
    "PairedDifferences",
    "Trust",
    "WarmUp",
    "batch_means",
    "jackknife_interval",
    "mser5",
    "paired_difference",
    "pairs_to_show",
    "replication_interval",
    "replications_needed",
    "sign_test",
    "trials_to_show",
    "trust_in_percentile",
    "two_stage_interval",
    "wilson_interval",
]
