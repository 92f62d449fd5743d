# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Where does performance fall off when the KV cache shrinks, and is it thrashing?
#
# A cache a little smaller costs nothing, and again nothing, and then everything. This notebook shrinks
# the KV cache on a fine grid under one and the same load, finds the cliff, and asks whether the engine
# falls off it because requests push one another out, or because the queue no longer drains.

# %%
import os

import matplotlib.pyplot as plt
import pandas as pd

from dryserve import RunOptions, figures, load_scenario, scenario_text, simulate, sweep

FAST = bool(os.environ.get("CI"))

# %% [markdown]
# ## Answer

# %%
SEEDS = list(range(2 if FAST else 3))
BLOCKS = [600, 700, 800, 900, 1000, 1100, 1200, 1300, 1400, 1600, 2000]
LOAD = ["workload.rate_per_s=8", "slo=null"]
REQUESTS = 250
POOL = "engine.num_gpu_blocks_override"
found = sweep(
    "kv-starved",
    {POOL: BLOCKS},
    overrides=LOAD,
    requests=REQUESTS,
    seeds=SEEDS,
    options=RunOptions(workers=1, store=None),
)
table = found.table.assign(kv_blocks=found.table[POOL])
_, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
_ = figures.plot_kv_cliff(table, ax)

# %% [markdown]
# Between 2,000 and 1,300 blocks median TTFT hardly moves; a few hundred blocks further down it has grown by
# two orders of magnitude. The tail goes first: p99 TTFT climbs as soon as a burst fills the cache, long
# before the median feels anything. It is not thrashing: nearly everybody who loses its blocks loses them
# once or twice. It is the queue, which no longer drains.
#
# ## Set-up

# %%
print(scenario_text("kv-starved"))
print("changed:", *LOAD, f"workload.num_requests={REQUESTS}")

# %% [markdown]
# All sizes get the same requests (common random numbers); with 250 of them p99 is "the worst few" and drawn
# hollow.
#
# ## One run seen closely
#
# Both sides of the cliff: requests above, blocks below.

# %%
sides = {
    f"{blocks:,} blocks": simulate(
        load_scenario("kv-starved", [*LOAD, f"workload.num_requests={REQUESTS}", f"{POOL}={blocks}"])
    )
    for blocks in (800, 1400)
}
figure, (load, kv) = plt.subplots(2, 1, figsize=(8, 5), sharex=True, layout="constrained")
figures.plot_load_timeline({label: run.steps for label, run in sides.items()}, load)
figures.plot_kv_timeline({label: run.steps for label, run in sides.items()}, kv)
_ = load.set_xlabel("")

# %% [markdown]
# ## Is it thrashing?
#
# Thrashing would be requests that are preempted and resumed again and again, while useful work stops. How
# often each was hit, the longest chain of preemptions without a token between them, and useful tokens a
# busy second tell. (The summary's verdict is strict: it says thrashing as soon as one request is hit more
# than four times.)

# %%
facts = {
    label: {
        "preempted at least once": int((run.requests.num_preemptions > 0).sum()),
        "most often": int(run.requests.num_preemptions.max()),
        "longest chain without a token": run.summary["longest_preemption_chain"],
        "recomputed tokens (%)": 100 * run.summary["recomputed_token_share"],
        "useful tokens a busy second": run.summary["useful_tokens_per_busy_s"],
        "verdict": run.summary["progress"],
    }
    for label, run in sides.items()
}
_, ax = plt.subplots(figsize=(6, 2.8), layout="constrained")
figures.plot_preemptions_per_request({label: run.requests for label, run in sides.items()}, ax)
pd.DataFrame(facts)

# %% [markdown]
# ## Comparison
#
# The columns side by side: what the small cache loses is batch size. Fewer requests run at once, so each
# step, hardly shorter, yields fewer tokens; below the cliff the rate that comes in is more than the engine
# can give.

# %%
shown = ["output_throughput", "kv_usage_p50", "recomputed_token_share", "median_ttft_ms", "p99_ttft_ms"]
by_blocks = table.groupby("kv_blocks")
by_blocks[shown].mean().round(3)

# %% [markdown]
# ## Sensitivity
#
# The cliff stands where demand meets capacity, so it moves with the load:

# %%
slower = sweep(
    "kv-starved",
    {POOL: [600, 800, 1000, 1200]},
    overrides=["workload.rate_per_s=6", "slo=null"],
    requests=REQUESTS,
    seeds=SEEDS[:1],
    options=RunOptions(workers=1, store=None),
).table
both = pd.concat(
    [table.assign(label="8 req/s"), slower.assign(kv_blocks=slower[POOL], label="6 req/s")], ignore_index=True
)
_, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
_ = figures.plot_kv_cliff(both, ax)

# %% [markdown]
# ## What would change the conclusion
#
# * A finite run hides how steep it is: below the cliff the queue grows as long as requests come, and so
#   does TTFT. Its height there says how long the run was.
# * Requests that are large against the cache (two that do not fit together) can take turns in preempting
#   one another; that would be thrashing of all, and a run in which nobody gets on is ended.
#
# ## Limits
#
# Decisions mirror the release named in a run's summary; times are a model's. One model, one GPU, one length
# distribution.
#
# ## Reproduce

# %%
print(
    f"dryserve sweep kv-starved --grid {POOL}={','.join(map(str, BLOCKS))} "
    + " ".join(f"--set {change}" for change in LOAD)
    + f" --requests {REQUESTS} --replications {len(SEEDS)}"
)

# %% [markdown]
# ## The claims, checked

# %%
median, tail = by_blocks["median_ttft_ms"].mean(), by_blocks["p99_ttft_ms"].mean()
assert median[1600] < 1.5 * median[2000], "above the cliff nothing happens"
assert median[700] > 50 * median[1600], "below it everything does"
assert tail[1400] / tail[2000] > 2 * median[1400] / median[2000], "the tail goes first"
assert by_blocks["output_throughput"].mean()[600] < 0.8 * by_blocks["output_throughput"].mean()[2000]
for run in sides.values():
    assert run.stuck is None
    assert run.summary["longest_preemption_chain"] <= 2, "between two preemptions everybody gets a token"
    hit = run.requests.num_preemptions[run.requests.num_preemptions > 0]
    assert (hit <= 2).mean() > 0.8, "who is hit is mostly hit once or twice"
below, above = sides.values()
waited_s = [(r.requests.first_scheduled_s - r.requests.arrival_s).sum() for r in (below, above)]
stalled_s = [r.requests.stalled_s.sum() for r in (below, above)]
assert waited_s[0] > 20 * stalled_s[0], "time is lost in the queue, not between preemption and resumption"
slow = slower.set_index(POOL)["median_ttft_ms"]
assert slow[1000] < 0.5 * median[1000], "at a lower rate the cliff stands further down"
