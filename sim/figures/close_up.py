"""Which steps are worth seeing closely: the rule by which reports choose F9's window."""

from __future__ import annotations

import numpy as np
import pandas as pd


def busiest_steps(steps: pd.DataFrame, warmup_s: float = 0.0, count: int = 60) -> pd.DataFrame:
    """The `count` consecutive steps of a replica that recomputed most or, if none did, prefilled most.

    Steps before `warmup_s` are left out if any came after. Of equally busy stretches the first counts.
    """
    after = steps[steps["t_s"] >= warmup_s]
    pool = after if len(after) else steps
    column = "recompute_tokens" if pool["recompute_tokens"].any() else "prefill_tokens"
    best, most = pool.iloc[:0], -1
    for replica in np.unique(pool["replica"].to_numpy()):
        own = pool[pool["replica"].eq(int(replica))]
        total = np.append(0, np.cumsum(own[column].to_numpy()))
        width = min(count, len(own))
        stretches = total[width:] - total[:-width]
        if stretches.max() > most:
            most, at = int(stretches.max()), int(stretches.argmax())
            best = own.iloc[at : at + width]
    return best
