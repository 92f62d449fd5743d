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
# # Why does the time between tokens depend on max_num_batched_tokens?
#
# Every step computes at most `max_num_batched_tokens`: a token for each running request, and what is left
# goes to prompts. A step takes as long as its tokens take, and whoever decodes in it waits for all of them.
# So the budget of prefills is what decodes wait for. This notebook varies the budget and nothing else.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from dryserve import RunOptions, figures, load_scenario, simulate, sweep

FAST = bool(os.environ.get("CI"))
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False})

# %% [markdown]
# ## Answer

# %%
SEEDS = list(range(2 if FAST else 4))
BUDGETS = [256, 512, 1024, 2048, 4096, 8192]
BUDGET, RATE = "engine.max_num_batched_tokens", "workload.rate_per_s"
LOAD = [
    "cluster.replicas=1",
    "slo=null",
    "workload={kind: poisson, rate_per_s: 5, num_requests: 150, lengths: {kind: lognormal, "
    "prompt: {mean: 2500, sigma: 0.8, max: 12000}, output: {mean: 150, sigma: 0.6, max: 600}}}",
]
found = sweep(
    "quickstart", {BUDGET: BUDGETS}, overrides=LOAD, seeds=SEEDS, options=RunOptions(workers=1, store=None)
)
COLUMNS = {
    "median_itl_ms": "p50 ITL (ms)",
    "p99_itl_ms": "p99 ITL (ms)",
    "mean_tpot_ms": "mean TPOT (ms)",
    "median_ttft_ms": "p50 TTFT (ms)",
    "p99_ttft_ms": "p99 TTFT (ms)",
    "output_throughput": "output tokens/s",
}
means = found.table.groupby(BUDGET)[list(COLUMNS)].mean()
means.rename(columns=COLUMNS).round(1)

# %% [markdown]
# A larger budget hardly changes the median gap between tokens, because most steps decode and nothing
# else. It stretches the longest gaps, nearly in proportion, until no prompt is cut any more. For that,
# prompts are through in fewer steps: TTFT falls. The budget moves waiting between those who have their
# first token and those who wait for it.
#
# ## Set-up
#
# One replica of `quickstart` (Llama-3.1-8B on an H100) with longer prompts:

# %%
print("\n".join(LOAD))

# %% [markdown]
# All budgets get the same requests (common random numbers).
#
# ## One run seen closely
#
# Two strips of the same traffic, eighty of the busiest steps each: small budget above, large below. A bar
# is as wide as its step is long.

# %%
strips = {
    budget: simulate(load_scenario("quickstart", [*LOAD, f"{BUDGET}={budget}"])) for budget in (512, 8192)
}
figure, axes = plt.subplots(2, 1, figsize=(8, 5.4), layout="constrained")
for ax, (budget, run) in zip(axes, strips.items(), strict=True):
    figures.plot_step_composition(
        figures.busiest_steps(run.steps, count=80), ax, token_budget=budget, step_time=True
    )

# %% [markdown]
# And the gaps that came of them, each token's wait for the next, on a log scale of counts:

# %%
_, ax = plt.subplots(figsize=(7, 2.8), layout="constrained")
edges = np.geomspace(5, 500, 60)
for budget, run in strips.items():
    steps = run.steps
    ax.hist(
        1000 * steps.step_time_s,
        bins=edges,
        weights=steps.decode_tokens,
        histtype="step",
        label=f"budget {budget}",
    )
ax.set_xscale("log")
ax.set_yscale("log")
ax.set_xlabel("time of the step (ms, log)")
ax.set_ylabel("tokens decoded in it")
_ = ax.legend()

# %% [markdown]
# ## Comparison under common random numbers
#
# Both sides of the trade over the budget, with 95 % intervals over seeds.

# %%
figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
for ax, columns in zip(
    axes, (("median_itl_ms", "p99_itl_ms"), ("median_ttft_ms", "p99_ttft_ms")), strict=True
):
    for column, line in zip(columns, (":", "-"), strict=True):
        rows = found.summary
        ax.plot(rows[BUDGET], rows[column], line, marker="o", color="#0072B2", label=COLUMNS[column])
        ax.fill_between(
            rows[BUDGET], rows[f"{column}_low"], rows[f"{column}_high"], color="#0072B2", alpha=0.15
        )
    ax.set_xscale("log", base=2)
    ax.set_xticks(BUDGETS, BUDGETS)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("max_num_batched_tokens")
    ax.set_ylabel("ms")
    ax.legend()

# %% [markdown]
# ## Sensitivity: the rate
#
# A step of few tokens is no cheaper in proportion: below some hundreds the GPU reads its weights for next
# to nothing. So a small budget costs capacity, and at a higher rate prompts queue for it.

# %%
faster = sweep(
    "quickstart",
    {BUDGET: [256, 2048, 8192]},
    overrides=[*LOAD, f"{RATE}=9"],
    seeds=SEEDS[:2],
    options=RunOptions(workers=1, store=None),
).table
pd.concat(
    {"5 req/s": means.loc[[256, 2048, 8192]], "9 req/s": faster.groupby(BUDGET)[list(COLUMNS)].mean()}
).round(1)

# %% [markdown]
# ## What would change the conclusion
#
# * With prompts shorter than any budget there is nothing to cut, and only how many of them share a step
#   remains.
# * A separate pool for prefills takes the trade away, at the price of moving KV.
# * `long_prefill_token_threshold` caps the chunk of one long prompt and leaves the budget for others.
#
# ## Limits
#
# Step times are a model's; their errors in validation are in every run's summary (`error_band`).
#
# ## Reproduce

# %%
print(
    f"dryserve sweep quickstart --grid {BUDGET}=256..8192 " + " ".join(f"--set '{change}'" for change in LOAD)
)

# %% [markdown]
# ## The claims, checked

# %%
assert means.p99_itl_ms.is_monotonic_increasing, "a larger budget, longer gaps"
assert means.p99_itl_ms[8192] > 4 * means.p99_itl_ms[256]
assert means.median_itl_ms.max() < 1.5 * means.median_itl_ms.min(), "most gaps are decodes alone"
assert means.median_ttft_ms[256] > 1.3 * means.median_ttft_ms[2048], (
    "but a small budget keeps prompts waiting"
)
for run in strips.values():
    steps = run.steps
    mixed = (steps.prefill_tokens > 1) & (steps.decode_tokens > 0)
    assert steps.step_time_s[mixed].mean() > 1.5 * steps.step_time_s[steps.prefill_tokens == 0].mean(), (
        "who rides waits"
    )
longest_ms = {budget: 1000 * run.steps.step_time_s.max() for budget, run in strips.items()}
assert longest_ms[512] < 0.3 * longest_ms[8192], "no gap is longer than a full step"
small, large = (faster[faster[BUDGET] == budget].median_ttft_ms.mean() for budget in (256, 8192))
assert small > 3 * large, "at a higher rate a small budget costs capacity"
