"""Policies from a scenario file to the end of a run: names, refusals, plugins, guesses, verdicts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scheduler.policies import VICTIM_POLICIES, WAITING_ORDERS
from sim.errors import InputError
from sim.scenario import json_schema, load_scenario, scenario_from_data
from sim.scenario.resolve import filled_policies
from sim.simulation import RunResult, simulate
from tests.cli.helpers import dryserve

TIGHT = """\
name: tight
model: meta-llama/Llama-3.1-8B
gpu: h100-sxm
engine:
  max_model_len: 2048
  num_gpu_blocks_override: 220
workload:
  kind: poisson
  rate_per_s: 40
  num_requests: 120
  length_estimate: {sigma: 0.5}
  lengths:
    kind: mixture
    components:
      - name: short
        weight: 3
        lengths: {kind: uniform, prompt_tokens: [10, 300], output_tokens: [5, 100]}
      - name: long
        weight: 1
        lengths: {kind: uniform, prompt_tokens: [300, 900], output_tokens: [50, 300]}
"""

POLICIES = [
    *(f"engine.victim_policy={{kind: {kind}}}" for kind in VICTIM_POLICIES if kind != "priority"),
    *(f"engine.waiting_order={{kind: {kind}}}" for kind in WAITING_ORDERS if kind != "aged_priority"),
    "engine.waiting_order={kind: aged_priority, aging_s: 2.5}",
    "engine.scheduling_policy=priority",
    "engine.preemption_mode={kind: offload}",
    "engine.preemption_mode={kind: offload, bandwidth_gb_per_s: 1, host_memory_gb: 0.5}",
]


def write(folder: Path, text: str = TIGHT) -> Path:
    path = folder / "tight.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def run(folder: Path, *overrides: str, **options: bool) -> RunResult:
    return simulate(load_scenario(write(folder), overrides), **options)


def faults(folder: Path, *overrides: str, text: str = TIGHT) -> list[str]:
    with pytest.raises(InputError) as caught:
        load_scenario(write(folder, text), overrides)
    return [str(fault).replace(f"{folder}/", "") for fault in caught.value.faults]


# --- by name ------------------------------------------------------------------------------------------------


def test_every_policy_of_the_scheduler_has_a_kind_in_scenarios() -> None:
    defs = json_schema()["$defs"]

    def kinds(field: str) -> set[str]:
        (union,) = (each for each in defs["EngineSection"]["properties"][field]["anyOf"] if "oneOf" in each)
        names = [each["$ref"].rsplit("/", 1)[1] for each in union["oneOf"]]
        return {defs[name]["properties"]["kind"]["const"] for name in names}

    assert kinds("victim_policy") == {*VICTIM_POLICIES, "plugin"}
    assert kinds("waiting_order") == {*WAITING_ORDERS, "plugin"}


@pytest.mark.parametrize("policy", POLICIES)
def test_under_every_policy_the_laws_hold_and_all_requests_end(policy: str, tmp_path: Path) -> None:
    result = run(tmp_path, policy, check=True)
    assert result.summary["num_finished"] == 120
    assert result.summary["num_preemptions"] > 0, "the cache is small enough to make the policy speak"


@pytest.mark.parametrize("policy", POLICIES)
def test_many_steps_at_once_are_the_steps_one_by_one(policy: str, tmp_path: Path) -> None:
    fast, plain = run(tmp_path, policy), run(tmp_path, policy, plain=True)
    assert fast.summary == plain.summary
    assert fast.requests.equals(plain.requests)
    assert fast.steps.equals(plain.steps)
    assert fast.preemptions.equals(plain.preemptions)


def test_policies_meet_the_same_arrivals_and_lengths(tmp_path: Path) -> None:
    one, other = run(tmp_path, POLICIES[1]), run(tmp_path, POLICIES[-1])
    for column in ("arrival_s", "prompt_tokens", "class"):
        assert one.requests[column].equals(other.requests[column])
    assert one.requests.output_tokens.tolist() == other.requests.output_tokens.tolist()


def test_null_is_what_scheduling_policy_implies(tmp_path: Path) -> None:
    for kind, victim in (("fcfs", "fcfs_tail"), ("priority", "priority")):
        engine = load_scenario(write(tmp_path), [f"engine.scheduling_policy={kind}"]).engine
        implied = filled_policies(engine, "h100-sxm")
        assert (implied["victim_policy"].kind, implied["waiting_order"].kind) == (victim, kind)


# --- refused ------------------------------------------------------------------------------------------------


def test_an_unknown_kind_is_told_the_known_ones(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, "engine.victim_policy={kind: least_compute}")
    assert fault == (
        "--set engine.victim_policy={kind: least_compute}: engine.victim_policy: 'least_compute' is not one "
        "of fcfs_tail, priority, least_computed, most_blocks_freed, fewest_generated, shortest_remaining, "
        "plugin; did you mean 'least_computed'?"
    )


def test_victims_by_priority_need_an_order_by_priority(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, "engine.victim_policy.kind=priority")
    assert "engine.victim_policy: victims by priority under a waiting order of kind fcfs" in fault
    (fault,) = faults(tmp_path, "engine.scheduling_policy=priority", "engine.waiting_order.kind=fair")
    assert "engine.waiting_order: victims by priority under a waiting order of kind fair" in fault


@pytest.mark.parametrize(
    ("override", "kind"),
    [
        ("engine.victim_policy.kind=shortest_remaining", "shortest_remaining"),
        ("engine.waiting_order.kind=shortest_job_first", "shortest_job_first"),
    ],
)
def test_who_goes_by_guesses_needs_guesses(override: str, kind: str, tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, override, "workload.length_estimate=null")
    assert f"{kind} goes by length estimates; give workload.length_estimate" in fault


def test_offload_needs_full_attention(tmp_path: Path) -> None:
    overrides = ["engine.preemption_mode.kind=offload", "model=google/gemma-3-27b-it"]
    (fault,) = faults(tmp_path, *overrides)
    assert "engine.preemption_mode: offload needs a model with full attention in all layers" in fault


@pytest.mark.parametrize(
    ("override", "where", "message"),
    [
        ("engine.waiting_order={kind: aged_priority, aging_s: 0}", "waiting_order.aging_s", "greater than 0"),
        ("engine.waiting_order={kind: aged_priority}", "waiting_order.aging_s", "is missing"),
        (
            "engine.waiting_order={kind: fair, output_weight: 0}",
            "waiting_order.output_weight",
            "greater than",
        ),
        ("engine.waiting_order={kind: fcfs, aging_s: 3}", "waiting_order.aging_s", "no field of kind fcfs"),
        (
            "engine.preemption_mode={kind: offload, host_memory_gb: -1}",
            "preemption_mode.host_memory_gb",
            "at least 0",
        ),
        ("engine.victim_policy={kind: fcfs_tail.}", "victim_policy", "is no dotted path of a class"),
        ("workload.length_estimate.sigma=-1", "length_estimate.sigma", "at least 0"),
    ],
)
def test_a_wrong_option_is_told_its_place(override: str, where: str, message: str, tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, override)
    assert f".{where}: " in fault
    assert message in fault


def test_without_chunked_prefill_a_small_budget_is_refused(tmp_path: Path) -> None:
    overrides = ["engine.enable_chunked_prefill=false", "engine.max_num_batched_tokens=1024"]
    (fault,) = faults(tmp_path, *overrides)
    assert "without chunked prefill the budget 1024 must reach max_model_len 2048" in fault


# --- plugins ------------------------------------------------------------------------------------------------

OLDEST = '''\
"""A victim policy of the user's own."""


class Oldest:
    """Whoever arrived first has to go, but never one of the first `spared` in the list."""

    def __init__(self, spared=0):
        self.spared = spared

    def choose(self, running, needy):
        candidates = range(min(self.spared, len(running) - 1), len(running))
        return min(candidates, key=lambda i: running[i].arrival_time)


class Mute:
    pass


oldest = Oldest()
'''


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_victims.py").write_text(OLDEST, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_class_of_the_users_own_works_by_dotted_path_with_its_options(plugins: Path) -> None:
    override = "engine.victim_policy={kind: my_victims.Oldest, spared: 2}"
    result = run(plugins, override, check=True, allow_plugins=True)
    assert result.summary["num_finished"] == 120
    spelt_out = "engine.victim_policy={kind: plugin, path: my_victims.Oldest, options: {spared: 2}}"
    assert run(plugins, spelt_out, allow_plugins=True).requests.equals(result.requests)
    assert not run(plugins).requests.equals(result.requests)


def test_it_is_refused_unless_the_caller_allows_it_and_not_even_imported(plugins: Path) -> None:
    (plugins / "my_victims.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    with pytest.raises(
        InputError, match=r"my_victims\.Oldest is code of your own; allow it with --allow-plugins"
    ):
        run(plugins, "engine.victim_policy.kind=my_victims.Oldest")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("no_such_module.X", "no_such_module.X cannot be imported: No module named 'no_such_module'"),
        ("my_victims.Nobody", "my_victims.Nobody is no class: module my_victims has no class Nobody"),
        ("my_victims.oldest", "my_victims.oldest is no class"),
        ("my_victims.Mute", "my_victims.Mute has no method choose"),
    ],
)
def test_a_plugin_that_is_none_is_told_why(kind: str, message: str, plugins: Path) -> None:
    with pytest.raises(InputError, match=r"engine\.victim_policy: ") as caught:
        run(plugins, f"engine.victim_policy.kind={kind}", allow_plugins=True)
    assert message in str(caught.value)


def test_options_that_the_class_does_not_take_are_the_users_mistake(plugins: Path) -> None:
    with pytest.raises(
        InputError, match=r"my_victims\.Oldest cannot be made: .*unexpected keyword argument 'x'"
    ):
        run(plugins, "engine.victim_policy={kind: my_victims.Oldest, x: 1}", allow_plugins=True)


def test_the_command_takes_plugins_from_the_current_folder_when_told_so(tmp_path: Path) -> None:
    (tmp_path / "my_victims.py").write_text(OLDEST, encoding="utf-8")
    write(tmp_path)
    asked = ("run", "tight.yaml", "--set", "engine.victim_policy.kind=my_victims.Oldest", "--no-report")
    refused = dryserve(*asked, cwd=tmp_path)
    assert refused.returncode == 2
    assert "allow it with --allow-plugins" in refused.stderr
    allowed = dryserve(*asked, "--allow-plugins", cwd=tmp_path)
    assert allowed.returncode == 0, allowed.stderr


# --- guesses ------------------------------------------------------------------------------------------------


def test_guesses_are_right_in_the_median_and_wrong_by_the_given_noise(tmp_path: Path) -> None:
    result = run(tmp_path, "workload.num_requests=4000", "workload.rate_per_s=10000", "horizon_s=0.001")
    table = result.workload.table
    error = np.log(table.expected_output_tokens / table.output_tokens)
    assert abs(np.median(error)) < 3 * 1.2533 * 0.5 / np.sqrt(4000), "three standard errors of a median"
    assert abs(np.std(error) - 0.5) < 3 * 0.5 / np.sqrt(2 * 4000)


def test_guesses_draw_on_a_stream_of_their_own(tmp_path: Path) -> None:
    with_guesses, without = run(tmp_path), run(tmp_path, "workload.length_estimate=null")
    assert with_guesses.requests.equals(without.requests)
    assert without.workload.table.expected_output_tokens is None


def test_an_exact_guess_makes_shortest_job_first_what_it_is_called(tmp_path: Path) -> None:
    """All arrive at once and run one by one: they end in the order of their lengths."""
    data = {
        "model": "meta-llama/Llama-3.1-8B",
        "gpu": "h100-sxm",
        "engine": {"max_num_seqs": 1, "max_model_len": 2048, "waiting_order": {"kind": "shortest_job_first"}},
        "workload": {
            "kind": "burst",
            "num_requests": 30,
            "length_estimate": {"sigma": 0.0},
            "lengths": {"kind": "uniform", "prompt_tokens": (10, 50), "output_tokens": (2, 60)},
        },
    }
    requests = simulate(scenario_from_data(data)).requests
    lengths = requests.sort_values("last_token_s").output_tokens.tolist()
    assert lengths[1:] == sorted(lengths[1:]), "all but the first, which found the engine idle"


# --- priorities ---------------------------------------------------------------------------------------------


def test_under_priority_the_important_class_waits_less_and_the_other_pays_for_it(tmp_path: Path) -> None:
    text = TIGHT.replace("      - name: short\n", "      - name: short\n        priority: -1\n")

    def waits_s(policy: str) -> dict[str, float]:
        path = write(tmp_path, text)
        requests = simulate(load_scenario(path, [f"engine.scheduling_policy={policy}"])).requests
        waited_s = requests.first_scheduled_s - requests.arrival_s
        return {name: float(waited_s[requests["class"] == name].mean()) for name in ("short", "long")}

    fcfs, priority = waits_s("fcfs"), waits_s("priority")
    assert priority["short"] < fcfs["short"] / 2
    assert priority["long"] > fcfs["long"]


def test_priorities_that_nobody_looks_at_are_noted(tmp_path: Path) -> None:
    text = TIGHT.replace("      - name: long\n", "      - name: long\n        priority: 1\n")
    path = write(tmp_path, text)
    note = "requests have priorities, but the waiting order fcfs does not look at them"
    assert note in simulate(load_scenario(path)).notes
    assert note not in simulate(load_scenario(path, ["engine.scheduling_policy=priority"])).notes


# --- accounts and verdicts ----------------------------------------------------------------------------------


def test_the_accounts_of_a_run_add_up(tmp_path: Path) -> None:
    result = run(tmp_path)
    table, summary = result.preemptions, result.summary
    histogram = {int(count): number for count, number in summary["preemption_histogram"].items()}
    assert sum(histogram.values()) == 120
    assert sum(count * number for count, number in histogram.items()) == summary["num_preemptions"]
    assert len(table) == 120 - histogram[0]
    assert table.num_preemptions.sum() == summary["num_preemptions"]
    assert table.recomputed_tokens.sum() == summary["recomputed_tokens"]
    assert table.freed_blocks.sum() == summary["preemption_freed_blocks"]
    assert (
        table.rehit_blocks.sum() == summary["preemption_rehit_blocks"] <= summary["preemption_freed_blocks"]
    )
    assert summary["preemption_stalled_s"] == pytest.approx(result.requests.stalled_s.sum(), abs=1e-6)
    rehit_tokens = 16 * summary["preemption_rehit_blocks"]
    assert summary["prefix_cache_saved_tokens"] <= summary["prefix_cache_hits"] + rehit_tokens
    by_id = result.requests.set_index("request_id")
    assert (by_id.loc[table.request_id, "num_preemptions"].to_numpy() == table.num_preemptions).all()


def test_a_roomy_run_has_no_preemption_and_nothing_to_warn_of(tmp_path: Path) -> None:
    result = run(tmp_path, "engine.num_gpu_blocks_override=5000")
    assert result.summary["progress"] == "no preemption"
    assert result.summary["preemption_histogram"] == {"0": 120}
    assert result.preemptions.empty
    assert not result.notes


def test_a_request_preempted_five_times_makes_the_run_a_thrashing_one(tmp_path: Path) -> None:
    result = run(tmp_path, "engine.victim_policy.kind=most_blocks_freed")
    worst = int(result.preemptions.num_preemptions.max())
    assert worst > 4
    assert result.summary["progress"] == "thrashing"
    (note,) = (note for note in result.notes if note.startswith("thrashing: "))
    assert note.endswith(f"{worst} times")
