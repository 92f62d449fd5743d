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
# # Would my scheduler patch help?
#
# A change to vLLM's scheduler is ten lines; to learn whether it helps takes a GPU, a workload and a day.
# Here the same question is asked of a simulation: first of dryserve's mirror of the scheduler, where many
# ideas are a setting away, then of the patched class itself, on the vLLM that is installed.

# %%
import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from dryserve import InputError, RunOptions, compare, figures, load_scenario, scenario_text, simulate

FAST = bool(os.environ.get("CI"))

# %% [markdown]
# ## Answer

# %%
SEEDS = range(3 if FAST else 6)
LOAD = ["workload.rate_per_s=8", "workload.num_requests=200", "slo=null"]
HERE = RunOptions(workers=1, store=None, allow_plugins=True)
IDEAS = {
    "as released": "watermark=0",
    "headroom at admission": "watermark=0.05",
    "cheapest victim": "victim_policy={kind: least_computed}",
    "whole prompts only": "reserve_full_prompt=true",
}
MEASURES = {
    "num_preemptions": "preemptions",
    "recomputed_token_share": "recomputed (%)",
    "median_ttft_ms": "p50 TTFT (ms)",
    "p99_ttft_ms": "p99 TTFT (ms)",
    "p99_e2el_ms": "p99 E2E (s)",
    "output_throughput": "output tokens/s",
}
found = compare("kv-starved", *IDEAS.values(), overrides=LOAD, seeds=list(SEEDS), options=HERE)
label = dict(zip(IDEAS, found.labels, strict=True))
rows = {}
for idea in list(IDEAS)[1:]:  # the first is the reference
    for column, name in MEASURES.items():
        row = found.difference(column, label[idea])
        base = found.table[(found.table.column == column) & (found.table.variant == found.labels[0])]
        rows[name, idea] = {
            "as released": base["mean"].iloc[0],
            "difference": row["difference"],
            "from": row["low"],
            "to": row["high"],
            "verdict": row["verdict"],
        }
answer = pd.DataFrame(rows).T
answer.convert_dtypes().round(3)

# %% [markdown]
# Headroom at admission prevents nearly all preemptions, and those who wait for it pay with their time to the
# first token: the work that is saved is a few per cent of all, the wait is longer. Cheaper victims are more
# victims. Room for the whole prompt changes nothing here, not one request. A patch that promises fewer
# preemptions has promised little; the table says what they cost, with intervals.
#
# ## Set-up
#
# `kv-starved` at 8 requests a second, a KV cache for some twenty requests. All variants get the same requests
# at the same moments; differences are paired by seed, with 95 % intervals.

# %%
print(scenario_text("kv-starved"))
print("changed:", *LOAD)

# %% [markdown]
# ## One run seen closely
#
# Blocks in use and the time to the first token, as released and with headroom.

# %%
runs = {
    idea: simulate(load_scenario("kv-starved", [*LOAD, f"engine.{IDEAS[idea]}"]))
    for idea in ("as released", "headroom at admission")
}
figure, axes = plt.subplots(1, 3, figsize=(12, 3.2), layout="constrained")
for ax, (idea, run) in zip(axes, runs.items(), strict=False):
    figures.plot_kv_timeline(run.steps, ax, num_blocks=run.setup.num_gpu_blocks)
    ax.set_title(idea)
_ = figures.plot_latency_cdf({idea: run.requests for idea, run in runs.items()}, axes[2], metric="ttft")

# %% [markdown]
# ## The patch itself
#
# The same idea as a class over vLLM's own scheduler, as it would stand in a pull request: while less than
# one block in twenty is free, nobody new is admitted. `engine.scheduler: vllm` runs it under the same clock,
# cost model and workload. Where vLLM is not installed, this says so and goes on.

# %%
PATCH = '''
from vllm.v1.core.sched.async_scheduler import AsyncScheduler


class Headroom(AsyncScheduler):
    """Admits nobody while less than 5 % of the KV blocks are free."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._limit = (
            "max_num_active_reqs" if hasattr(self, "max_num_active_reqs") else "max_num_running_reqs"
        )
        self._most = getattr(self, self._limit)

    def schedule(self, *args, **kwargs):
        is_short = self.running and self.kv_cache_manager.usage > 0.95
        setattr(self, self._limit, len(self.running) if is_short else self._most)
        return super().schedule(*args, **kwargs)
'''
folder = Path(tempfile.mkdtemp())
(folder / "headroom_patch.py").write_text(PATCH)
sys.path.insert(0, str(folder))


def installed_version() -> str | None:
    """The version of the vLLM that is installed here."""
    if find_spec("vllm") is None:
        return None
    from vllm.version import __version__

    return __version__


ON_VLLM = [*LOAD, "engine.async_scheduling=true"]
on_vllm = None
if (installed := installed_version()) is None:
    print("no vLLM is installed here: pip install 'dryserve[vllm]', or its CPU build, shows this part")
else:
    try:
        on_vllm = compare(
            "kv-starved",
            "installed",
            "mirror",
            "scheduler=vllm,scheduler_cls=headroom_patch.Headroom",
            overrides=[*ON_VLLM, f"engine.version='{installed}'"],
            seeds=list(SEEDS)[:3],
            options=HERE,
        )
        print(on_vllm.as_text())
    except InputError as error:
        print(error)

# %% [markdown]
# With vLLM the first line of the verdict is worth most: the mirror and the installed scheduler are identical,
# every number and every request, so what the mirror said above holds for that release. What the patched
# class does is then a measurement of the class, not of an idea of it: this one saves far less than the
# watermark, for it looks at the free blocks once a step and not before every admission.
#
# ## Sensitivity
#
# The same with enough memory. A patch for the shortage changes nothing where there is none, and must not.

# %%
enough = compare(
    "kv-starved",
    *IDEAS.values(),
    overrides=[*LOAD, "engine.num_gpu_blocks_override=6000"],
    seeds=[0],
    options=HERE,
)
print("identical to the release where memory is enough:", ", ".join(enough.identical))

# %% [markdown]
# ## What would change the conclusion
#
# * A larger price of a preemption: longer contexts, no prefix cache. Then the work that headroom saves grows.
# * A promise on the gaps between tokens instead of the first: preemptions are long gaps.
#
# ## Limits
#
# Decisions are exact, times are a model's. A patch that makes `schedule()` itself slower is not charged for
# it: host time is that of the release. One model, one GPU, one length distribution.
#
# ## Reproduce

# %%
print("dryserve compare kv-starved " + " ".join(f"'{idea}'" for idea in IDEAS.values()))
print("dryserve compare kv-starved installed mirror \\")
print("    scheduler=vllm,scheduler_cls=headroom_patch.Headroom --allow-plugins")

# %% [markdown]
# ## The claims, checked


# %%
def change(idea: str, column: str) -> float:
    return found.difference(column, label[idea])["difference"]


assert change("headroom at admission", "num_preemptions") < 0, "headroom prevents preemptions"
assert change("headroom at admission", "median_ttft_ms") > 0, "and those who wait pay"
assert change("cheapest victim", "num_preemptions") > 0, "cheaper victims are more victims"
assert found.identical == [label["whole prompts only"]], "and this patch does nothing here"
assert set(enough.identical) == set(enough.labels[1:]), "with enough memory nothing changes"
if on_vllm is not None:
    assert on_vllm.failed == []
    assert "mirror" in on_vllm.identical, "the mirror is the installed scheduler, to the last bit"
    assert on_vllm.difference("num_preemptions")["difference"] < 0, "and the class does what the idea did"
