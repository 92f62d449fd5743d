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
# # How much of the KV cache should admission keep free?
#
# A request is admitted when its prompt finds blocks. It then grows, and so do all that run beside it, until
# somebody has to go. A watermark makes admission leave a share of the blocks free, as room to grow. It buys
# fewer preemptions with a longer queue; this notebook looks for the price.

# %%
import os

import matplotlib.pyplot as plt

from dryserve import RunOptions, figures, load_scenario, paired_difference, scenario_text, simulate, sweep

FAST = bool(os.environ.get("CI"))
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False})

# %% [markdown]
# ## Answer

# %%
SEEDS = list(range(2 if FAST else 4))
MARKS = [0.0, 0.01, 0.02, 0.05, 0.1, 0.2]
WATERMARK = "engine.watermark"
LOAD = ["engine.version=0.33.0", "workload.rate_per_s=8", "slo=null"]
REQUESTS = 250
found = sweep(
    "kv-starved",
    {WATERMARK: MARKS},
    overrides=LOAD,
    requests=REQUESTS,
    seeds=SEEDS,
    options=RunOptions(workers=1, store=None),
)
COLUMNS = {
    "num_preemptions": "preemptions",
    "median_ttft_ms": "p50 TTFT (ms)",
    "p99_ttft_ms": "p99 TTFT (ms)",
    "mean_tpot_ms": "mean TPOT (ms)",
    "p99_itl_ms": "p99 ITL (ms)",
    "mean_e2el_ms": "mean E2E (ms)",
    "output_throughput": "output tokens/s",
}
means = found.table.groupby(WATERMARK)[list(COLUMNS)].mean()
means.rename(columns=COLUMNS).round(1)

# %% [markdown]
# One or two per cent take away most preemptions and cost next to nothing. Beyond that the queue pays: with
# the running requests kept small, TTFT and E2E grow, while the time per token, which was little disturbed,
# gains little more. A watermark trades one kind of waiting for another; only its first steps are cheap.
#
# ## Set-up

# %%
print(scenario_text("kv-starved"))
print("changed:", *LOAD, f"workload.num_requests={REQUESTS}")

# %% [markdown]
# The setting is that of later releases, so the run mirrors one of them. All watermarks get the same
# requests (common random numbers).
#
# ## One run seen closely
#
# The KV cache without a watermark and with 20 %: the running requests grow into what admission left free,
# and what is left over is memory that does nothing.

# %%
figure, axes = plt.subplots(2, 1, figsize=(8, 5), sharex=True, layout="constrained")
for ax, mark in zip(axes, (MARKS[0], MARKS[-1]), strict=True):
    run = simulate(
        load_scenario("kv-starved", [*LOAD, f"workload.num_requests={REQUESTS}", f"{WATERMARK}={mark}"])
    )
    figures.plot_kv_timeline(run.steps, ax, num_blocks=run.setup.num_gpu_blocks, watermark=mark or None)
_ = axes[0].set_xlabel("")

# %% [markdown]
# ## Comparison under common random numbers
#
# Each panel is one measure over the watermark, mean and 95 % interval over seeds.

# %%
figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), layout="constrained")
for ax, column in zip(axes, ("num_preemptions", "median_ttft_ms", "mean_tpot_ms"), strict=True):
    table = found.summary
    ax.plot(100 * table[WATERMARK], table[column], "o-")
    ax.fill_between(
        100 * table[WATERMARK], table[f"{column}_low"].clip(lower=0), table[f"{column}_high"], alpha=0.2
    )
    ax.set_xlabel("watermark (% of blocks)")
    ax.set_ylabel(COLUMNS[column])
    ax.set_ylim(bottom=0)

# %% [markdown]
# The intervals of neighbours overlap because seeds differ; what one watermark changes for the same requests
# is known far better:

# %%
by_mark = found.table.set_index([WATERMARK, "seed"])


def change(column: str, mark: float):
    """The paired difference to no watermark."""
    return paired_difference(by_mark.loc[0.0, column].to_numpy(), by_mark.loc[mark, column].to_numpy())


for mark in (0.02, 0.2):
    for column in ("num_preemptions", "median_ttft_ms", "mean_tpot_ms", "mean_e2el_ms"):
        by = change(column, mark)
        print(
            f"watermark {mark:4.0%}  {COLUMNS[column]:<15} {by.estimate:+9.2f}  "
            f"({by.low:+.2f} to {by.high:+.2f})"
        )

# %% [markdown]
# ## Sensitivity
#
# With a cache that fits the load, no watermark does anything but take memory away.

# %%
ample = sweep(
    "kv-starved",
    {WATERMARK: [0.0, 0.02]},
    overrides=[*LOAD, "engine.num_gpu_blocks_override=2400"],
    requests=REQUESTS,
    seeds=[0],
    options=RunOptions(workers=1, store=None),
).table
ample[[WATERMARK, *COLUMNS]].rename(columns=COLUMNS).round(2)

# %% [markdown]
# ## What would change the conclusion
#
# * Where a preempted request recomputes a lot (long contexts, no prefix caching) preemptions cost more, and
#   a larger watermark pays.
# * Where outputs are short, requests hardly grow and there is nothing to leave room for.
#
# A published table of vLLM's own trial (vllm-project/vllm#44594) has the same shape: from 0 to 0.15
# preemptions fall, median TTFT rises, the tail of ITL falls.
#
# ## Limits
#
# One model, one GPU, one length distribution; times are a model's.
#
# ## Reproduce

# %%
print(
    f"dryserve sweep kv-starved --grid {WATERMARK}={','.join(map(str, MARKS))} "
    + " ".join(f"--set {change}" for change in LOAD)
    + f" --requests {REQUESTS} --replications {len(SEEDS)}"
)

# %% [markdown]
# ## The claims, checked

# %%
preemptions = means["num_preemptions"]
assert preemptions.is_monotonic_decreasing, "the more is kept free, the fewer have to go"
assert preemptions[0.02] < 0.5 * preemptions[0.0], "two per cent take away most of them"
assert change("median_ttft_ms", 0.2).estimate > 500, "a fifth kept free: the queue pays"
assert abs(change("mean_e2el_ms", 0.02).estimate) < 0.1 * means.mean_e2el_ms[0.0], (
    "two per cent cost next to nothing"
)
assert means.mean_tpot_ms[0.2] < means.mean_tpot_ms[0.0], "tokens come a little faster"
assert means.output_throughput[0.2] < means.output_throughput[0.0], "memory that does nothing"
assert (ample.groupby("seed")[list(COLUMNS)].nunique() == 1).all().all(), "with enough memory it does nothing"
