"""Which steps are worth seeing closely: the rule by which reports choose F9's window."""

from __future__ import annotations

import pandas as pd


def busiest_steps(steps: pd.DataFrame, warmup_s: float = 0.0, around: int = 30) -> pd.DataFrame:
    """The steps of one replica around the one that recomputed most or, if none did, had most prefill tokens.

    At most `around` steps on either side. The middle lies after `warmup_s` if any step does.
    """
    after = steps[steps["t_s"] >= warmup_s]
    pool = after if len(after) else steps
    recomputed = pool["recompute_tokens"]
    middle = (recomputed if recomputed.any() else pool["prefill_tokens"]).to_numpy().argmax()
    chosen = pool.iloc[middle]
    own = steps[steps["replica"].eq(chosen["replica"])]
    at = int(own["t_s"].searchsorted(chosen["t_s"]))
    return own.iloc[max(0, at - around) : at + around + 1]
