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
# # Should a preempted request's KV be recomputed or kept in host memory?
#
# A victim's KV can be dropped and computed again, as vLLM does, or copied to host memory and loaded back.
# Recomputing takes GPU time that others would have used; loading takes the link between host and GPU, and
# time in which nobody computes anything for the request. First the two prices of one request, then both in
# a loaded engine.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from dryserve import load_scenario, paired_difference, scenario_text, simulate

FAST = bool(os.environ.get("CI"))
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False})

# %% [markdown]
# ## Answer

# %%
SEEDS = list(range(2 if FAST else 3))
REQUESTS = 220
LOAD = ["workload.rate_per_s=8", "slo=null", f"workload.num_requests={REQUESTS}"]
LINKS_GB_PER_S = [1, 4, 25, 64]  # a bad link; a shared one; PCIe 4; PCIe 5 at face value
MODES = {"recompute": "{kind: recompute}"} | {
    f"offload at {link} GB/s": f"{{kind: offload, bandwidth_gb_per_s: {link}}}" for link in LINKS_GB_PER_S
}
COLUMNS = {
    "num_preemptions": "preemptions",
    "recomputed_token_share": "recomputed (share)",
    "preemption_reloaded_tokens": "tokens loaded back",
    "mean_ttft_ms": "mean TTFT (ms)",
    "mean_e2el_ms": "mean E2E (ms)",
    "p99_itl_ms": "p99 ITL (ms)",
    "output_throughput": "output tokens/s",
}


def run(mode: str, seed: int, caching: bool = True) -> dict[str, object]:
    changes = [*LOAD, f"engine.preemption_mode={MODES[mode]}", f"seed={seed}"]
    scenario = load_scenario("kv-starved", [*changes, f"engine.enable_prefix_caching={str(caching).lower()}"])
    summary = simulate(scenario, keep_steps=False).summary
    return {"mode": mode, "seed": seed} | {key: summary[key] for key in COLUMNS}


runs = pd.DataFrame([run(mode, seed) for mode in MODES for seed in SEEDS])
means = runs.groupby("mode", sort=False)[list(COLUMNS)].mean()
means.rename(columns=COLUMNS).round(3)

# %% [markdown]
# On a good link offloading recomputes almost nothing, and wins a little: the cache is as small as before
# and the queue hardly shorter. On a bad link it loses, and everybody loses, because a request that waits
# for its blocks to be copied holds them meanwhile. Preemption is dear because memory is short, and
# neither mode makes memory.
#
# ## Set-up

# %%
print(scenario_text("kv-starved"))
print("changed:", *LOAD)

# %% [markdown]
# ## The two prices of one request
#
# What it takes to compute the KV of a context again is the time to the first token of a prompt of that
# length on an idle engine, less that of the shortest prompt; what it takes to load it back is its bytes
# over the bandwidth. Below the curves, the contexts that the workload has when requests end.

# %%
LENGTHS = [16, 256, 512, 1024, 2048, 4096, 8000]


def first_token_s(prompt_tokens: int) -> float:
    """Seconds to the first token of one request alone."""
    lengths = f"{{kind: fixed, prompt_tokens: {prompt_tokens}, output_tokens: 2}}"
    changes = ["workload.num_requests=1", "slo=null", "engine.num_gpu_blocks_override=null"]
    only = simulate(load_scenario("kv-starved", [*changes, f"workload.lengths={lengths}"])).requests.iloc[0]
    return only.first_token_s - only.first_scheduled_s


whole = load_scenario("kv-starved", ["workload.num_requests=1", "engine.num_gpu_blocks_override=null"])
plan = simulate(whole).setup.plan  # of a cache as large as the GPU allows
recompute_s = np.array([first_token_s(length) for length in LENGTHS])
recompute_s -= recompute_s[0]
prices = pd.DataFrame({"context tokens": LENGTHS, "recompute (ms)": 1000 * recompute_s})
for link in LINKS_GB_PER_S:
    prices[f"load at {link} GB/s (ms)"] = np.array(LENGTHS) * plan.bytes_per_token / link / 1e6

requests = simulate(load_scenario("kv-starved", LOAD)).requests
figure, (ax, below) = plt.subplots(
    2, 1, figsize=(7, 4.6), sharex=True, height_ratios=[3, 1], layout="constrained"
)
ax.plot(LENGTHS, prices["recompute (ms)"], "o-", label="recompute")
for link, line in zip(LINKS_GB_PER_S, (":", "-.", "--", "-"), strict=True):
    ax.plot(LENGTHS, prices[f"load at {link} GB/s (ms)"], line, color="#D55E00", label=f"load at {link} GB/s")
ax.set_ylabel("time (ms)")
ax.set_ylim(0, 1.3 * prices["recompute (ms)"].max())
ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
below.hist(requests.prompt_tokens + requests.output_tokens, bins=40, color="#C8C8C8")
below.set_xlabel("context (tokens)")
_ = below.set_ylabel("requests")

# %%
prices.round(1)

# %% [markdown]
# Both are nearly proportional to the context, so the break-even is a bandwidth and not a length: bytes of
# KV a token over seconds of compute a token.

# %%
per_token_s = recompute_s[-1] / (LENGTHS[-1] - LENGTHS[0])
break_even_gb_per_s = plan.bytes_per_token / per_token_s / 1e9
print(f"break-even at {break_even_gb_per_s:.1f} GB/s")

# %% [markdown]
# ## Comparison under common random numbers
#
# Paired differences to recomputation, with 95 % intervals over seeds: below the break-even offloading
# costs, above it gains little by little.

# %%
by_mode = runs.set_index(["mode", "seed"])


def against_recompute(column: str, mode: str):
    return paired_difference(
        by_mode.loc["recompute", column].to_numpy(float), by_mode.loc[mode, column].to_numpy(float)
    )


effects = {mode: against_recompute("mean_e2el_ms", mode) for mode in list(MODES)[1:]}
_, ax = plt.subplots(figsize=(6, 2.8), layout="constrained")
centres = [effect.estimate for effect in effects.values()]
ax.errorbar(
    centres, range(len(effects)), xerr=[effect.half_width for effect in effects.values()], fmt="o", capsize=3
)
ax.axvline(0, color="#666666", lw=1)
ax.set_yticks(range(len(effects)), list(effects))
ax.set_ylim(-0.5, len(effects) - 0.5)
_ = ax.set_xlabel("mean E2E against recomputation (ms), 95 % interval")

# %% [markdown]
# ## Sensitivity: prefix caching
#
# With prefix caching a victim finds much of its own KV again, as long as nobody has taken the blocks, so
# there is less to recompute. Without it recomputation costs twice as much, and offloading saves more.

# %%
plain = pd.DataFrame(
    [run(mode, seed, caching=False) for mode in ("recompute", "offload at 64 GB/s") for seed in SEEDS]
)
plain.groupby("mode", sort=False)[list(COLUMNS)].mean().rename(columns=COLUMNS).round(3)

# %% [markdown]
# ## What would change the conclusion
#
# * A model with small KV a token (MLA, fp8 KV) moves the break-even to slower links; a small model on a
#   large GPU recomputes faster and moves it to faster ones.
# * Several GPUs behind one host link share it.
#
# ## Limits
#
# The link moves data at the given bandwidth, with no other traffic on it; times of computation are a
# model's.
#
# ## Reproduce

# %%
print(
    "dryserve run kv-starved "
    + " ".join(f"--set {change}" for change in LOAD)
    + f" --set 'engine.preemption_mode={MODES['offload at 25 GB/s']}'"
)

# %% [markdown]
# ## The claims, checked

# %%
assert LINKS_GB_PER_S[0] < break_even_gb_per_s < LINKS_GB_PER_S[-1], "the break-even lies among these links"
half = first_token_s(4096) - first_token_s(16)
assert 0.35 < half / recompute_s[-1] < 0.65, "both prices are nearly proportional to the context"
for mode in list(MODES)[1:]:
    assert means.recomputed_token_share[mode] < 0.1 * means.recomputed_token_share["recompute"]
assert effects["offload at 1 GB/s"].estimate > 0, "on a bad link offloading loses"
assert effects["offload at 64 GB/s"].estimate < 0, "on a good one it wins"
assert abs(effects["offload at 64 GB/s"].estimate) < 0.15 * means.mean_e2el_ms["recompute"], "but not much"
assert means.mean_e2el_ms["offload at 1 GB/s"] > means.mean_e2el_ms["offload at 4 GB/s"]
twice = (
    plain.groupby("mode").recomputed_token_share.mean()["recompute"]
    / means.recomputed_token_share["recompute"]
)
assert twice > 1.3, "without prefix caching more is recomputed"
