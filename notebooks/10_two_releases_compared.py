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
# # What does an upgrade of the engine change, and which of its changes does it?
#
# Two releases of vLLM differ in dozens of rules, in defaults, and in how long their host code takes. Here
# one workload runs under both, and then under the newer one with each difference undone alone, so that what
# moved is put down to what moved it.

# %%
import os

import matplotlib.pyplot as plt
import pandas as pd

from dryserve import compare_releases, figures, load_scenario, scenario_text, simulate

FAST = bool(os.environ.get("CI"))
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False})

# %% [markdown]
# ## Answer

# %%
SEEDS = range(2 if FAST else 4)
OLDER, NEWER = "0.16.0", "0.33.0"
LOAD = ["workload.num_requests=180", "workload.rate_per_s=8"]
COLUMNS = {
    "output_throughput": "output tokens/s",
    "median_ttft_ms": "p50 TTFT",
    "median_tpot_ms": "p50 TPOT",
    "median_e2el_ms": "p50 E2E",
    "recomputed_token_share": "preemption tax",
    "prefix_cache_hit_rate": "hit rate",
}
compared = {
    seed: compare_releases("kv-starved", [*LOAD, f"seed={seed}"], older=OLDER, newer=NEWER) for seed in SEEDS
}


def change(now: dict[str, object], before: dict[str, object]) -> dict[str, float]:
    """By column, the difference in %; of shares, in percentage points."""
    shares = ("recomputed_token_share", "prefix_cache_hit_rate")
    return {
        key: 100.0 * (now[key] - before[key] if key in shares else now[key] / before[key] - 1.0)
        for key in COLUMNS
    }


rows = {}
for seed, found in compared.items():
    after = found.newer_outcome.summary
    rows["all together", seed] = change(after, found.older_outcome.summary)
    for effect in found.effects:
        if effect.undone is not None:
            rows[effect.difference.name, seed] = change(after, effect.undone.summary)
effects = pd.DataFrame.from_dict(rows, orient="index")
effects.index = pd.MultiIndex.from_tuples(effects.index, names=["difference", "seed"])
means = effects.groupby("difference", sort=False).mean()
moved = means[(means.abs() > 0.005).any(axis=1)].rename(columns=COLUMNS)
moved.round(2)

# %% [markdown]
# Of everything that differs, one thing moves latency here: the newer engine's steps and front end take less
# time. The rules of scheduling that this run asks for move next to nothing. One of them changes what is
# *counted*: lookups of requests that are not admitted no longer enter the hit rate, so a dashboard shows
# another rate, mostly a lower one, where nothing has changed.
#
# ## Set-up
#
# `kv-starved`, because most rules are about what happens when memory is short. Both releases get the same
# requests. A row is the run of the newer release against the same run with this one thing as in the older;
# % of times and throughput, percentage points of shares; the mean over seeds.

# %%
print(scenario_text("kv-starved"))
print("changed:", *LOAD)

# %% [markdown]
# ## One run seen closely
#
# Latencies of the same requests under both. The curves have one shape: what differs is the pace.

# %%
requests = {
    f"vLLM {version}": simulate(
        load_scenario("kv-starved", [*LOAD, f"engine.version='{version}'"]), keep_steps=False
    ).requests
    for version in (OLDER, NEWER)
}
figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for ax, metric in zip(axes, ("ttft", "tpot"), strict=True):
    figures.plot_latency_cdf(requests, ax, metric=metric)

# %% [markdown]
# ## Which rules were asked at all
#
# A rule that nobody asks for while the run lasts cannot have moved anything; it is not undone. Another
# workload asks for others: speculation, adapters, connectors, priorities.

# %%
first = compared[0]
asked = {effect.difference.name: effect.undone is not None for effect in first.effects}
print("asked for:  ", ", ".join(name for name, was in asked.items() if was))
print("not asked:  ", ", ".join(name for name, was in asked.items() if not was))

# %% [markdown]
# ## Sensitivity: a workload with priorities
#
# Short of places and not of memory, so that other rules are asked for.

# %%
SMALL = ["workload.workloads.chat.num_requests=150", "workload.workloads.batch.num_requests=60"]
other = compare_releases("client-classes", SMALL, older=OLDER, newer=NEWER)
after = other.newer_outcome.summary
pd.DataFrame(
    {
        "all together": change(after, other.older_outcome.summary),
        **{e.difference.name: change(after, e.undone.summary) for e in other.effects if e.undone is not None},
    }
).T.rename(columns=COLUMNS).round(2)

# %% [markdown]
# ## What would change the conclusion
#
# * Effects need not add up: where two rules do the same, undoing one alone shows nothing.
# * A workload with speculation, adapters or an external cache asks for rules that this one never does.
#
# ## Limits
#
# Rules are those that were read off recorded runs of both releases; what these runs never show is not here.
# Times of a release's host code are constants with their own source (`cost_models/data/engines.toml`).
#
# ## Reproduce

# %%
print(
    f"dryserve compare-releases kv-starved --from {OLDER} --to {NEWER} "
    + " ".join(f"--set {c}" for c in LOAD)
)

# %% [markdown]
# ## The claims, checked

# %%
pace = [name for name in means.index if name.startswith("step times")]
assert len(pace) == 1, "the cost model is one difference"
assert (effects.loc[pace[0], ["median_tpot_ms", "median_e2el_ms"]] < 0).all().all(), "faster with every seed"
rest = effects.drop(index=["all together", pace[0]], level="difference")
assert (rest[["median_tpot_ms", "output_throughput"]].abs() < 1.0).all().all(), "no rule moves them by 1 %"
counted = effects.loc["count_lookups_when_admitted"]
assert (counted["prefix_cache_hit_rate"] != 0).all(), "the hit rate shown is another"
assert (counted.drop(columns="prefix_cache_hit_rate") == 0).all().all(), "and nothing else moves"
gap = (means.loc["all together"] - means.loc[pace[0]])[["median_tpot_ms", "median_e2el_ms"]].abs()
assert (gap < 0.3 * means.loc["all together", ["median_tpot_ms", "median_e2el_ms"]].abs() + 0.5).all()
assert any(asked.values())
assert not all(asked.values()), "most rules sleep in any one workload"
