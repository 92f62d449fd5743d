"""Small fixed tables in the shape of a run folder, by formula: no random generator can move a figure."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import norm


def make_requests(n: int = 200, *, slow: float = 1.0, unfinished: int = 0) -> pd.DataFrame:
    """`n` requests, two a second, with lognormal TTFT and TPOT; the last ones may be in flight."""
    i = np.arange(n)
    scatter = norm.ppf((i * 0.6180339887498949 + 0.5 / n) % 1.0)
    arrival = i * 0.5
    queue = 0.02 * slow * np.exp(0.9 * scatter)
    ttft = queue + 0.05 * slow * np.exp(0.4 * scatter)
    output = 40 + (i * 7919) % 200
    tpot = 0.02 * slow * np.exp(0.15 * norm.ppf((i * 0.7548776662466927 + 0.5 / n) % 1.0))
    table = pd.DataFrame(
        {
            "request_id": i,
            "class": "default",
            "session": -1,
            "replica": i % 2,
            "arrival_s": arrival,
            "first_scheduled_s": arrival + queue,
            "first_token_s": arrival + ttft,
            "last_token_s": arrival + ttft + tpot * (output - 1),
            "prompt_tokens": 300 + (i * 104729) % 1500,
            "output_tokens": output,
            "cached_tokens": 0,
            "num_preemptions": (i % 17 == 3).astype(int),
            "recomputed_tokens": np.where(i % 17 == 3, 350, 0),
            "stalled_s": np.where(i % 17 == 3, 0.4, 0.0),
            "status": "finished",
        }
    )
    if unfinished:
        late = table.index[-unfinished:]
        table.loc[late, "status"] = "in_flight"
        table.loc[late, "last_token_s"] = np.nan
    return table


def make_steps(n: int = 240, *, replica: int = 0, phase: float = 0.0, num_blocks: int = 1000) -> pd.DataFrame:
    """`n` steps of one replica: waves of load, and preemptions and recompute while its KV is full."""
    i = np.arange(n)
    wave = 0.5 - 0.5 * np.cos(2 * np.pi * (i / n + phase) * 1.5)
    running = np.round(4 + 36 * wave).astype(int)
    waiting = np.round(30 * np.clip(wave - 0.7, 0, 1)).astype(int)
    full = wave > 0.85
    preemptions = (full & (i % 6 == 0)).astype(int)
    recompute = np.where(full & (i % 6 == 2), 400 + 37 * (i % 11), 0)
    prefill = np.where((i % 5 == 1) & (recompute == 0), 200 + (i * 7919) % 1700, 0)
    step_time = 0.012 + 0.0001 * running + 0.00003 * (prefill + recompute)
    used = np.round(num_blocks * np.clip(0.15 + 0.95 * wave, 0, 1)).astype(int)
    return pd.DataFrame(
        {
            "end_s": np.cumsum(step_time) + np.where(i > n // 2, 0.3, 0.0),
            "replica": replica,
            "step_time_s": step_time,
            "decode_tokens": running,
            "prefill_tokens": prefill,
            "recompute_tokens": recompute,
            "num_running": running,
            "num_waiting": waiting,
            "kv_used_blocks": used,
            "kv_cached_blocks": np.round((num_blocks - used) * np.minimum(1.0, i / 80)).astype(int),
            "num_preemptions": preemptions,
            "bound": np.where(prefill > 600, "compute", "weights"),
        }
    )


def make_fleet(replicas: int = 3, n: int = 240) -> pd.DataFrame:
    """The steps of several replicas, each with its load a little later, in order of time."""
    tables = [make_steps(n, replica=r, phase=0.08 * r) for r in range(replicas)]
    return pd.concat(tables).sort_values(["end_s", "replica"], ignore_index=True)
