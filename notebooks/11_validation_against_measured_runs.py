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
# # Why should one believe a prediction, and how far?
#
# A simulator is worth what its error against real engines is. This notebook shows the errors that
# validation found, kind of run by kind of run, then does one validation by hand: a result file of `vllm
# bench serve` goes in, the same requests are simulated, and the differences come out. Point it at a file
# of your own server.

# %%
import json
import os
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from dryserve import Selection, error_band, figures, load_scenario, read_measured_runs, replay_all, simulate

plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False})

# %% [markdown]
# ## Answer

# %%
NAMES = {
    "ttft_mean": "mean TTFT",
    "tpot_mean": "mean TPOT",
    "e2e_mean": "mean E2E",
    "ttft_p99": "p99 TTFT",
    "e2e_p99": "p99 E2E",
    "out_tput_tok_s": "output tokens/s",
}
SCENARIOS = ["quickstart", "chat-a100", "closed-loop"]
bands = {name: error_band(load_scenario(name)) for name in SCENARIOS}
rows = [
    {
        "scenario": name,
        "kind": band.kind,
        "metric": NAMES[metric],
        "median %": median,
        "p90 %": p90,
        "runs": runs,
    }
    for name, band in bands.items()
    for metric, (median, p90, runs) in band.errors.items()
]
errors = pd.DataFrame(rows).set_index(["scenario", "kind", "metric"])
errors.sort_index(sort_remaining=False)

# %% [markdown]
# Below saturation means are off by one or two per cent in the median run, tails by several; one run in
# ten is off by a few times as much. At saturation queues decide, and small errors of speed become large
# errors of waiting. These numbers stand in every summary (`error_band`), taken from the nearest kind of
# run that was measured often enough.

# %%
_, ax = plt.subplots(figsize=(9, 3.4), layout="constrained")
colours = dict(zip(SCENARIOS, ("#0072B2", "#D55E00", "#009E73"), strict=True))
for place, metric in enumerate(NAMES):
    for shift, (name, band) in enumerate(bands.items()):
        if metric in band.errors:
            median, p90, _ = band.errors[metric]
            y = -place - 0.25 * (shift - 1)
            ax.plot([median, p90], [y, y], color=colours[name], lw=1.2)
            ax.plot(
                median,
                y,
                "o",
                color=colours[name],
                label=band.kind if not place or metric == "out_tput_tok_s" else None,
            )
            ax.plot(p90, y, "|", color=colours[name], ms=8)
ax.set_yticks([-place for place in range(len(NAMES))], list(NAMES.values()))
ax.set_xscale("log")
ax.set_xlabel("absolute error (%, log): median (dot) to p90 (bar)")
handles, labels = ax.get_legend_handles_labels()
_ = ax.legend(
    dict(zip(labels, handles, strict=True)).values(),
    dict.fromkeys(labels),
    loc="upper left",
    bbox_to_anchor=(1.0, 1.0),
)

# %% [markdown]
# ## Set-up: a validation by hand
#
# A result file says when each request was sent, how long it was, and what its client saw. It does not say
# what it ran on; that is given beside it. So that this runs anywhere, the "server" here is a pretended
# one: the simulation itself, as fast as predicted, and a second one whose every latency is a quarter
# longer. The first must come out right, the second wrong by a known amount.

# %%
REQUESTS = 200
RAN_ON = {"gpu": "h100-sxm", "engine_version": "0.16.0", "max_model_len": "16384", "client": "go"}
run = simulate(
    load_scenario(
        "quickstart",
        ["cluster.replicas=1", "workload.duration_s=null", f"workload.num_requests={REQUESTS}"],
    )
)
table = run.requests


def result_file(folder: Path, name: str, slower: float) -> Path:
    """What `vllm bench serve --save-result --save-detailed` would write of these requests."""
    ttft_s = slower * (table.first_token_s - table.arrival_s)
    gaps = table.output_tokens - 1
    gap_s = slower * (table.last_token_s - table.first_token_s) / gaps.clip(lower=1)
    data = {
        "model_id": "meta-llama/Llama-3.1-8B",
        "completed": len(table),
        "total_input_tokens": int(table.prompt_tokens.sum()),
        "total_output_tokens": int(table.output_tokens.sum()),
        "input_lens": table.prompt_tokens.tolist(),
        "output_lens": table.output_tokens.tolist(),
        "start_times": table.arrival_s.tolist(),
        "ttfts": ttft_s.tolist(),
        "itls": [[gap] * count for gap, count in zip(gap_s.tolist(), gaps.tolist(), strict=True)],
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(data))
    return path


with tempfile.TemporaryDirectory() as folder:
    outcomes = {}
    for name, slower in (("as predicted", 1.0), ("a quarter slower", 1.25)):
        runs, remarks = read_measured_runs(result_file(Path(folder), name, slower), columns=RAN_ON)
        (outcomes[name],) = replay_all(runs)

METRICS = ("ttft_mean", "ttft_p99", "tpot_mean", "e2e_mean", "e2e_p99")


def signed_errors(outcome) -> dict[str, float]:
    """Simulated against measured, in %."""
    return {c.metric: c.error_percent for c in outcome.errors if c.metric in METRICS}


found = pd.DataFrame({name: signed_errors(outcome) for name, outcome in outcomes.items()})
found.rename(index=NAMES).round(1)

# %% [markdown]
# ## One run seen closely
#
# Measured solid, simulated dashed, for the slower server: the shape is right and the pace is not.

# %%
outcome = outcomes["a quarter slower"]
figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for ax, metric in zip(axes, ("ttft", "e2e"), strict=True):
    measured = getattr(outcome.measured_rows, f"{metric}_s")
    figures.plot_latency_cdf(
        outcome.latencies[f"{metric}_s"].to_numpy(), ax, metric=metric, measured=measured
    )

# %% [markdown]
# ## Real runs
#
# With the public measurements at hand (`$DRYSERVE_SHARED`, or `shared` beside the checkout) two real runs
# of a server follow; without them this part is empty.

# %%
shared = Path(os.environ.get("DRYSERVE_SHARED", Path.cwd().resolve().parents[1] / "shared"))
runs_file = shared / "validation" / "runs.csv"
REAL = ["residency/sweep_rate/agg_2rps/vanilla", "residency/sweep_rate/agg_4rps/vanilla"]
real = {}
if runs_file.exists():
    runs, _ = read_measured_runs(runs_file, Selection(run_ids=REAL))
    real = {outcome.run.run_id: outcome for outcome in replay_all(runs)}
    figure, axes = plt.subplots(
        len(real), 2, figsize=(8, 3.0 * len(real)), layout="constrained", squeeze=False
    )
    for row, outcome in zip(axes, real.values(), strict=True):
        for ax, metric in zip(row, ("ttft", "e2e"), strict=True):
            measured = getattr(outcome.measured_rows, f"{metric}_s")
            figures.plot_latency_cdf(
                outcome.latencies[f"{metric}_s"].to_numpy(), ax, metric=metric, measured=measured
            )
        row[0].set_ylabel("\n".join(outcome.run.run_id.rsplit("/", 1)), fontsize=7)

# %%
pd.DataFrame({name: signed_errors(outcome) for name, outcome in real.items()}).rename(index=NAMES).round(1)

# %% [markdown]
# ## What would change the conclusion
#
# * A kind of run that was never measured takes the band of a wider kind, and says so; read it as a lower
#   bound.
# * Errors do not shrink with more requests: they are of the model, not of chance.
#
# ## Limits
#
# The bands are of runs that somebody published: mostly dense models on a few GPUs.
#
# ## Reproduce

# %%
print("dryserve validate RESULT.json " + " ".join(f"--set {key}={value}" for key, value in RAN_ON.items()))
print("the bands:", bands["quickstart"].command)

# %% [markdown]
# ## The claims, checked

# %%
below = bands["quickstart"].errors
assert all(below[metric][0] < 5 for metric in ("ttft_mean", "tpot_mean", "e2e_mean")), (
    "means are off by little"
)
assert below["ttft_p99"][0] > below["ttft_mean"][0], "tails by more"
assert all(median <= p90 for band in bands.values() for median, p90, _ in band.errors.values())
at_limit = bands["closed-loop"].errors
assert at_limit["ttft_mean"][1] > below["ttft_mean"][1], "at saturation waiting is known least"
assert (found["as predicted"].abs() < 2).all(), "a server as predicted is found so"
slower = found["a quarter slower"][["tpot_mean", "e2e_mean", "e2e_p99"]]
assert np.allclose(slower, 100 * (1 / 1.25 - 1), atol=2), "and a slower one by how much it is slower"
for outcome in real.values():
    signed = signed_errors(outcome)
    assert abs(signed["tpot_mean"]) < 3 * below["tpot_mean"][1], "real runs lie where their band says"
