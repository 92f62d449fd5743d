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
# # What does a preemption cost, and who pays?
#
# When a running request needs a KV block and none is free, the engine takes all blocks from the request
# that came last and puts it back at the head of the queue. Its tokens are not lost, but their KV must be
# computed again. The log then says that preemptions occurred and advises more memory; it does not say
# what they cost. Here the same requests are simulated twice, with a KV cache that is too small and with
# one that is not, and the difference is taken request by request.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy import stats

from dryserve import figures, load_scenario, simulate

FAST = bool(os.environ.get("CI"))

# %% [markdown]
# ## Answer

# %%
LOAD = ["workload.num_requests=300", "workload.rate_per_s=8", "slo=null"]
SCARCE, AMPLE = 1100, 2400  # KV blocks of 16 tokens


def run(blocks: int, seed: int):
    overrides = [*LOAD, f"engine.num_gpu_blocks_override={blocks}", f"seed={seed}"]
    return simulate(load_scenario("kv-starved", overrides))


scarce, ample = run(SCARCE, seed=0), run(AMPLE, seed=0)
requests, steps = scarce.requests, scarce.steps
preempted = requests.num_preemptions > 0


def extra_s(tight: pd.DataFrame, roomy: pd.DataFrame) -> pd.DataFrame:
    """What each request waited longer (s) under the small cache, by part of its latency."""
    return figures.latency_parts(tight) - figures.latency_parts(roomy)


extra = extra_s(requests, ample.requests)
who = preempted.map({True: "preempted at least once", False: "never preempted"})
groups = extra.groupby(who)
answer = pd.concat({"mean (s)": groups.mean(), "sum (s)": groups.sum()}, names=["extra latency", ""]).round(3)
answer.assign(requests=[*groups.size()] * 2)

# %% [markdown]
# A victim pays with the time it waits for its blocks and recomputes, a fraction of a second. But most of
# the lost time is lost in the queue, and most of that by requests that were never preempted: memory that
# is too small for the running requests is too small to let the next ones in. Preemptions are the alarm,
# not the bill.

# %% [markdown]
# ## Set-up
#
# The scenario is `kv-starved` with fewer requests and a lower rate. Both runs get the same requests at
# the same moments (common random numbers), so the difference of two latencies of one request is the
# effect of memory alone.

# %%
same = ["arrival_s", "prompt_tokens", "output_tokens"]
facts = {
    name: {
        "KV blocks": result.setup.num_gpu_blocks,
        "preemptions": result.summary["num_preemptions"],
        "recomputed (% of tokens)": 100 * result.summary["recomputed_token_share"],
        "p50 TTFT (ms)": result.summary["median_ttft_ms"],
        "p99 TTFT (ms)": result.summary["p99_ttft_ms"],
        "p99 ITL (ms)": result.summary["p99_itl_ms"],
        "output tokens/s": result.summary["output_throughput"],
    }
    for name, result in (("scarce", scarce), ("ample", ample))
}
pd.DataFrame(facts).round(1)

# %% [markdown]
# With 300 requests, fewer than ten lie above p99: read it as "the worst few".
#
# ## One run seen closely
#
# **Memory.** The cache fills, and from then on the running requests live off one another. The pale area
# is what saves a victim work: blocks of preempted and of finished requests stay cached until the space is
# needed.

# %%
_, ax = plt.subplots(figsize=(8, 3), layout="constrained")
_ = figures.plot_kv_timeline(steps, ax, num_blocks=scarce.setup.num_gpu_blocks)

# %% [markdown]
# **Steps.** The busiest stretch of recomputation. A recompute step is as long as a prefill of the same
# size, and every running request waits for its next token until it is done: that is the part of the cost
# that others pay while they run.

# %%
few = figures.busiest_steps(steps, count=80)
_, ax = plt.subplots(figsize=(8, 3), layout="constrained")
_ = figures.plot_step_composition(few, ax, step_time=True)

# %% [markdown]
# **Requests.** The same moment by request. Those that wait in the queue (grey) wait longer than the
# victims do.

# %%
t0, t1 = few.end_s.iloc[0] - 1.0, few.end_s.iloc[-1] + 1.0
_, ax = plt.subplots(figsize=(8, 4.5), layout="constrained")
_ = figures.plot_request_waterfall(requests, ax, t0=t0, t1=t1)

# %% [markdown]
# **What is recomputed.** Less than the request had: whatever of its blocks is still cached when it comes
# back is found again, as any shared prefix would be. The longer it waits, the less is left.

# %%
victims = requests[preempted]
held = (
    victims.prompt_tokens + victims.output_tokens
)  # at most what it had when it was preempted for the last time
pd.DataFrame(
    {
        "preemptions": victims.num_preemptions.describe(),
        "waited (s)": victims.stalled_s.describe(),
        "recomputed tokens": victims.recomputed_tokens.describe(),
        "recomputed for each preemption": (victims.recomputed_tokens / victims.num_preemptions).describe(),
        "prompt and output tokens": held.describe(),
    }
).loc[["count", "mean", "min", "50%", "max"]].round(2)

# %% [markdown]
# ## Comparison and sensitivity: the cliff
#
# The same load over KV capacity, for several seeds. Bands are 95 % confidence intervals of the mean over
# seeds.

# %%
SEEDS = range(3 if FAST else 4)
CAPACITIES = (800, SCARCE, 1400, 1800)
rows = []
for blocks in CAPACITIES:
    for seed in SEEDS:
        summary = run(blocks, seed).summary
        rows.append(
            {
                "blocks": blocks,
                "kv_tokens": 16 * summary["num_gpu_blocks"],
                "seed": seed,
                "recomputed_token_share": summary["recomputed_token_share"],
                "preemptions": summary["num_preemptions"],
                "mean TTFT (ms)": summary["mean_ttft_ms"],
                "p99 ITL (ms)": summary["p99_itl_ms"],
            }
        )
sweep = pd.DataFrame(rows)

share = sweep.groupby("kv_tokens")["recomputed_token_share"]
half_width = share.sem() * stats.t.ppf(0.975, len(SEEDS) - 1)
tax = pd.DataFrame({"recomputed_token_share": share.mean()})
tax["share_low"] = (share.mean() - half_width).clip(lower=0)
tax["share_high"] = share.mean() + half_width

_, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
figures.plot_preemption_tax(tax.reset_index(), left)
_ = figures.plot_preemptions_per_request({f"{SCARCE} blocks": requests}, right)

# %%
sweep.groupby("blocks")[["preemptions", "mean TTFT (ms)", "p99 ITL (ms)"]].agg(["mean", "min", "max"]).round(
    1
)

# %% [markdown]
# The first blocks that go cost little, the next cost everything: once the queue no longer
# drains between bursts, TTFT grows with the length of the run and not with the preemption tax.
#
# ## What would change the conclusion
#
# * At a rate well below capacity the queue is short whatever happens, and the victims' own loss is the
#   cost.
# * Where admission keeps some blocks free (a watermark) or waits for room for the whole prompt, as later
#   releases do, there are fewer victims and a longer queue: less recomputed, not necessarily less
#   waiting.
# * Without prefix caching a victim recomputes everything it had.
#
# ## Limits
#
# Decisions mirror the release named in the summary; times are a model's. One model, one GPU, one length
# distribution; the intervals hold for this run length only, because a queue that does not drain has no
# mean.
#
# ## Reproduce

# %%
changes = [*LOAD, f"engine.num_gpu_blocks_override={SCARCE}"]
print("dryserve run kv-starved " + " ".join(f"--set {change}" for change in changes))

# %% [markdown]
# ## The claims, checked

# %%
assert requests[same].equals(ample.requests[same]), "both runs had the same requests"
assert scarce.summary["num_preemptions"] > 0 == ample.summary["num_preemptions"], "only memory differs"
lost = extra.sum()
assert lost.queued > lost.drop("queued").sum(), "most of the lost time is lost in the queue"
assert extra.queued[~preempted].sum() > extra.queued[preempted].sum(), "most of it by those never preempted"
own = extra.drop(columns="queued").sum(axis=1)
assert own[preempted].mean() > own[~preempted].mean(), "once running, victims lose more than others"
assert (victims.recomputed_tokens < held * victims.num_preemptions).all(), (
    "nobody recomputes more than all it had"
)
waited_and_lost = victims[["stalled_s", "recomputed_tokens"]].corr("spearman").iloc[0, 1]
assert waited_and_lost > 0.3, "the longer a victim waits, the less of its cache is left"
recompute_s = steps.step_time_s[steps.recompute_tokens > 0]
plain_s = steps.step_time_s[(steps.recompute_tokens == 0) & (steps.prefill_tokens == 0)]
assert recompute_s.mean() > plain_s.mean(), "a step that recomputes is longer than one that only decodes"
by_blocks = sweep.groupby("blocks")
assert (np.diff(by_blocks["preemptions"].mean()) < 0).all(), "more memory, fewer preemptions"
assert by_blocks["mean TTFT (ms)"].mean().is_monotonic_decreasing, "and a shorter wait"
cliff = by_blocks["mean TTFT (ms)"].mean()
assert cliff.iloc[0] > 10 * cliff.iloc[-1], "the wait grows by far more than memory shrank"
