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
# # Do important requests really go first, and who starves for it?
#
# Chats share an engine with batch work that would fill it alone. Priorities let chats pass; then batch
# work may wait for ever. This notebook serves the same requests in four orders and looks at what each
# class waits at worst.

# %%
import os

import matplotlib.pyplot as plt
import pandas as pd

from dryserve import figures, load_scenario, scenario_text, simulate

FAST = bool(os.environ.get("CI"))
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False})

# %% [markdown]
# ## Answer

# %%
SEEDS = range(2 if FAST else 4)
SIZE = ["workload.workloads.chat.num_requests=300", "workload.workloads.batch.num_requests=150"]
ORDERS = {
    "FCFS": ["engine.scheduling_policy=fcfs"],
    "priority": ["engine.scheduling_policy=priority"],
    "priority + aging": [
        "engine.scheduling_policy=priority",
        "engine.waiting_order={kind: aged_priority, aging_s: 0.5}",
    ],
    "fair turns": ["engine.scheduling_policy=fcfs", "engine.waiting_order.kind=fair"],
}


def run(order: str, seed: int = 0, *more: str):
    changes = [*SIZE, *ORDERS[order], f"seed={seed}", *more]
    return simulate(load_scenario("client-classes", changes), keep_steps=False)


def by_class(requests: pd.DataFrame) -> pd.DataFrame:
    """What each class got, in s and tokens."""
    times = requests.assign(
        ttft=requests.first_token_s - requests.arrival_s, wait=requests.first_scheduled_s - requests.arrival_s
    )
    groups = times.groupby("class")
    return pd.DataFrame(
        {
            "p50 TTFT (s)": groups.ttft.median(),
            "p99 TTFT (s)": groups.ttft.quantile(0.99),
            "longest wait (s)": groups.wait.max(),
            "preemptions": groups.num_preemptions.sum(),
        }
    )


runs = {(order, seed): run(order, seed) for order in ORDERS for seed in SEEDS}
results = pd.concat({key: by_class(result.requests) for key, result in runs.items()}, names=["order", "seed"])
answer = results.groupby(["class", "order"], sort=False).mean()
answer.round(2)

# %% [markdown]
# Under first come, first served a chat waits behind batch work for seconds. With priorities it hardly
# waits at all, and the batch work waits longer, by about a half. Fair turns and aging lie between: chats
# wait more than with priorities, batch work hardly less. As long as the important class alone does not
# fill the engine, priorities starve nobody; they only say who pays for the queue.
#
# ## Set-up

# %%
print(scenario_text("client-classes"))
print("changed:", *SIZE)

# %% [markdown]
# All orders get the same chats at the same moments; the batch work is a closed loop, which sends its next
# request when one is done, so there its moments depend on the order.
#
# ## One run seen closely
#
# What each class waits at worst (dots: p99 TTFT with its interval, crosses: the longest wait for a first
# scheduling), and Jain's index of the classes' progress in the legend.

# %%
_, ax = plt.subplots(figsize=(8, 4), layout="constrained")
_ = figures.plot_fairness({order: runs[order, 0].requests for order in ORDERS}, ax)

# %% [markdown]
# Waiting over time, each request a dot at its arrival. The queue of the batch work is there under every
# order; what differs is whether chats stand in it.

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True, layout="constrained")
for ax, order in zip(axes, ("FCFS", "priority"), strict=True):
    for name, rows in runs[order, 0].requests.groupby("class"):
        ax.plot(rows.arrival_s, rows.first_scheduled_s - rows.arrival_s, ".", ms=4, label=name)
    ax.set_xlabel("arrival (s)")
    ax.set_title(order)
axes[0].set_ylabel("wait (s)")
_ = axes[0].legend()

# %% [markdown]
# ## Sensitivity: an important class that fills the engine
#
# Now chats come faster than the engine can serve both. This is where somebody starves: under priorities the
# batch work waits until the chats are over; with aging the price is shared.

# %%
BUSY = ["workload.workloads.chat.rate_per_s=40", "workload.workloads.chat.num_requests=900"]
busy = {order: run(order, 0, *BUSY) for order in ("FCFS", "priority", "priority + aging")}
starved = pd.concat({order: by_class(result.requests) for order, result in busy.items()}, names=["order"])
starved.round(2)

# %% [markdown]
# ## What would change the conclusion
#
# * Priorities order the queue and choose victims when memory is short. They take no running request off a
#   full batch (`max_num_seqs`), so an important request still waits for a place.
# * Where importance is worth a bounded wait, `aging_s` sets the exchange: one step of priority for so many
#   seconds of age.
#
# ## Limits
#
# One mix of two classes on one GPU; times are a model's. p99 of the batch class rests on 150 requests: "the
# worst few".
#
# ## Reproduce

# %%
print(
    "dryserve run client-classes " + " ".join(f"--set '{change}'" for change in [*SIZE, *ORDERS["priority"]])
)

# %% [markdown]
# ## The claims, checked

# %%
p99, longest = answer["p99 TTFT (s)"], answer["longest wait (s)"]
assert p99["chat", "priority"] < 0.3 * p99["chat", "FCFS"], "important requests really go first"
assert p99["batch", "priority"] > p99["batch", "FCFS"], "and the others pay"
assert longest["batch", "priority"] < 3 * longest["batch", "FCFS"], "but do not starve"
assert p99["chat", "priority"] <= p99["chat", "fair turns"] <= p99["chat", "FCFS"], "fair turns lie between"
assert p99["chat", "priority"] <= p99["chat", "priority + aging"] <= p99["chat", "FCFS"], "and so does aging"
for order in ORDERS:
    for seed in SEEDS:
        assert (runs[order, seed].requests.status == "finished").all(), "everybody is served in the end"
worst = {name: starved["longest wait (s)"].xs(name, level="class") for name in ("chat", "batch")}
assert worst["batch"]["priority"] > 1.5 * worst["batch"]["FCFS"], (
    "an important class that fills the engine starves the rest"
)
assert worst["batch"]["priority + aging"] < worst["batch"]["priority"], "aging bounds it"
assert worst["chat"]["priority"] < worst["chat"]["FCFS"]
