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
# # What happens in a step?
#
# An engine works in steps. Each step, the scheduler hands out a budget of tokens; the GPU computes
# exactly those tokens; every request that has caught up with its prompt gets one more. There is no
# prefill phase and no decode phase, only requests that lack many tokens and requests that lack one. This
# notebook looks at one small run through that window: six requests, one GPU, and a KV cache in which only
# five of them fit.

# %%
import matplotlib.pyplot as plt
import pandas as pd

from dryserve import figures, load_scenario, simulate

# %% [markdown]
# ## Answer

# %%
BUDGET = 256
OVERRIDES = [
    "name=step-by-step",
    f"engine.max_num_batched_tokens={BUDGET}",  # small, so that a prompt takes several steps
    "engine.num_gpu_blocks_override=121",  # 120 blocks of 16 tokens and the null block: five requests fit
    "engine.max_model_len=1900",
    "engine.max_num_seqs=8",
    "engine.async_scheduling=false",  # one batch in flight: a step ends before the next is scheduled
    "workload.num_requests=6",
    "workload.rate_per_s=20",
    "workload.lengths={kind: fixed, prompt_tokens: 400, output_tokens: 120}",
    "workload.prefixes={prefix_tokens: 160, groups: 1, within_prompt: true}",  # as if a system prompt
    "slo=null",
]
run = simulate(load_scenario("kv-starved", OVERRIDES), check=True)
requests, steps = run.requests, run.steps

tokens = steps[["decode_tokens", "prefill_tokens", "recompute_tokens"]]
kinds = {
    "first chunk of the first prompt": steps.index[0],
    "a prompt, riding with decodes": steps.index[(steps.prefill_tokens > 1) & (steps.decode_tokens > 2)][0],
    "decodes alone": steps.index[tokens.prefill_tokens.eq(0) & steps.num_preemptions.eq(0)][-1],
    "a preemption": steps.index[steps.num_preemptions > 0][0],
    "recomputing what was lost": steps.recompute_tokens.idxmax(),
}
answer = steps.loc[list(kinds.values())].set_axis(pd.Index(list(kinds), name="a step that is …"))
answer["step_time_ms"] = (answer["step_time_s"] * 1000).round(2)
answer[[*tokens.columns, "num_preemptions", "num_running", "num_waiting", "step_time_ms", "bound"]]

# %% [markdown]
# A step is a list of (request, number of tokens), and its kind is only what happens to be in that list:
# chunks of prompts, single tokens of requests that decode, and, after a preemption, tokens computed for
# the second time. The budget bounds the whole list, so a prompt slows everyone's next token a little, and
# a step costs the GPU hardly less with one token in it than with a hundred, because it reads all the
# weights once either way.

# %% [markdown]
# ## Set-up
#
# The scenario is `kv-starved` with the changes listed above. All six prompts begin with the same 160
# tokens. `check=True` verifies, after every step, that no budget was exceeded and that every KV block is
# either free or held, and by whom.

# %%
pd.Series(
    {
        "model": run.summary["model_id"],
        "GPU": run.summary["gpu"],
        "mirrors": run.summary["mirrors"],
        "KV blocks": run.setup.num_gpu_blocks,
        "blocks of a finished request": -(-(400 + 120 - 1) // 16),
        "token budget": BUDGET,
    },
    name="value",
).to_frame()

# %% [markdown]
# ## One run seen closely
#
# **The tokens.** Each bar is a step, as wide as it took. The first prompt does not fit the budget and
# takes two steps. The others bring their first 160 tokens from the cache, and what is left fits into one
# step beside the decodes of those already running. Then everybody decodes, one token each: the flat blue
# strip. The hatched bars near the end are work done twice.

# %%
_, ax = plt.subplots(figsize=(8, 3), layout="constrained")
_ = figures.plot_step_composition(steps, ax, token_budget=BUDGET)

# %% [markdown]
# The first seven hundredths of a second in more detail, with the time of each step. Decoding takes nearly
# as long as a full budget of prefill: here the GPU waits for the weights, not for arithmetic.

# %%
_, ax = plt.subplots(figsize=(8, 3), layout="constrained")
_ = figures.plot_step_composition(steps, ax, t0=0.03, t1=0.12, token_budget=BUDGET, step_time=True)

# %% [markdown]
# **The requests.** Who got the tokens. A request is queued until its first chunk, then catches up with
# its prompt (orange), then decodes.

# %%
_, ax = plt.subplots(figsize=(8, 2.4), layout="constrained")
_ = figures.plot_request_waterfall(requests, ax)

# %% [markdown]
# **The KV cache.** Every sixteenth token a request needs a new block. When the last block is gone, the
# request that came last loses its place: its blocks are free at once, but, pale above the line, they stay
# *cached* until someone else needs them.

# %%
_, ax = plt.subplots(figsize=(8, 2.6), layout="constrained")
_ = figures.plot_kv_timeline(steps, ax, num_blocks=run.setup.num_gpu_blocks)

# %%
_, ax = plt.subplots(figsize=(8, 2.2), layout="constrained")
_ = figures.plot_load_timeline(steps, ax)

# %% [markdown]
# So a preemption does not cost what it took away, but what is gone when the request comes back. The two
# victims tell the difference: one waited shortly and found nearly all of its blocks still cached; the
# other waited until the running requests had taken most of them.

# %%
shown = ["request_id", "cached_tokens", "num_preemptions", "stalled_s", "recomputed_tokens"]
victims = requests[requests.num_preemptions > 0]
requests[shown].assign(
    ttft_ms=((requests.first_token_s - requests.arrival_s) * 1000).round(1),
    tpot_ms=((requests.last_token_s - requests.first_token_s) / (requests.output_tokens - 1) * 1000).round(2),
).set_index("request_id")

# %% [markdown]
# ## Sensitivity: the budget
#
# The same arrivals, the same prompts, other budgets. A large budget takes each prompt in one step; a
# small one cuts it into chunks, so that no step is long, and the prompt takes more of them.

# %%
rows = []
for budget in (64, 128, 256, 512, 1024):
    overrides = [*OVERRIDES, f"engine.max_num_batched_tokens={budget}", "engine.num_gpu_blocks_override=400"]
    other = simulate(load_scenario("kv-starved", overrides))
    rows.append(
        {
            "token budget": budget,
            "steps with prefill": int((other.steps.prefill_tokens > 0).sum()),
            "longest step (ms)": other.steps.step_time_s.max() * 1000,
            "mean TTFT (ms)": other.summary["mean_ttft_ms"],
            "mean TPOT (ms)": other.summary["mean_tpot_ms"],
        }
    )
budgets = pd.DataFrame(rows).set_index("token budget")
budgets.round(2)

# %% [markdown]
# ## What would change the conclusion
#
# * Longer prompts or a larger model make chunks bound by arithmetic: then a full budget costs far more
#   than a decode step, and the choice of budget is a trade between TTFT and the time between tokens.
# * With asynchronous scheduling, the default of recent releases, the next step is scheduled while this
#   one runs. The lists are the same, their timing overlaps.
# * Without prefix caching (`engine.enable_prefix_caching=false`) every victim recomputes everything.
#
# ## Limits
#
# The decisions are those of the release named above, step by step; the times are a model's, with the
# error that validation gives for it. Nothing here is measured.
#
# ## Reproduce

# %%
print("dryserve run kv-starved --check " + " ".join(f"--set '{change}'" for change in OVERRIDES))

# %% [markdown]
# ## The claims, checked

# %%
total = tokens.sum(axis=1)
prompts = requests.set_index("request_id")
assert (total <= BUDGET).all(), "no step exceeds the token budget"
assert steps.prefill_tokens.iloc[:2].tolist() == [BUDGET, 400 - BUDGET], "the first prompt takes two steps"
assert prompts.cached_tokens.tolist() == [0] + [160] * 5, "the others find the shared prefix cached"
assert (steps.decode_tokens <= steps.num_running).all(), "a request decodes one token a step"
assert (steps.kv_used_blocks <= run.setup.num_gpu_blocks).all(), "no more blocks than there are"
assert len(victims) == 2, "two requests lose their place"
assert victims.request_id.tolist() == [4, 5], "they are those that came last"
assert victims.recomputed_tokens.min() < 400 / 4, "blocks that are still cached are found again"
assert victims.sort_values("stalled_s").recomputed_tokens.is_monotonic_increasing, "waiting longer loses more"
once = (requests.prompt_tokens + requests.output_tokens - 1 - requests.cached_tokens).sum()
assert total.sum() == once + steps.recompute_tokens.sum(), "all else is computed once"
assert budgets["steps with prefill"].is_monotonic_decreasing, "a larger budget takes fewer steps"
assert budgets["longest step (ms)"].is_monotonic_increasing, "and makes them longer"
