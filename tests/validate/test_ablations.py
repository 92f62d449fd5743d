"""Terms of the cost model turned off one at a time, and constants fitted by simulating again and again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cost_models import ServingFacts, engine_profile
from sim.cli.commands import app
from sim.errors import InputError
from sim.evidence.validate import MeasuredRun, read_measured_runs, replay_all
from sim.evidence.validate.ablations import VARIANTS, Ablation, Ablations, ablate
from sim.evidence.validate.replay import CostVariant
from sim.evidence.validate.scoring import held_out
from sim.evidence.validate.serving_fit import _changed, fit_serving
from sim.report import text
from sim.report.document import Table
from tests.validate.helpers import PLAIN, write_runs

RUNS = [
    {"num_requests": "1", "prompt": "fixed:64", "output": "fixed:24"},
    {"num_requests": "11", "prompt": "fixed:700", "output": "fixed:24", "max_num_batched_tokens": "2048"},
    {"num_requests": "3", "prompt": "fixed:300", "output": "fixed:16", "model": "Qwen/Qwen3-14B", "tp": "2"},
]
MEASURES = ("ttft_mean_ms", "tpot_mean_ms", "e2e_mean_ms")


def as_measured(
    folder: Path, facts: Callable[[ServingFacts], ServingFacts] | None = None
) -> list[MeasuredRun]:
    """Runs whose measurements are what a simulation with these facts says: whatever is off then, we know."""
    names = [name for name in (f"run{i}" for i in range(99)) if not held_out(name)]
    rows = [PLAIN | run | {"run_id": name} for run, name in zip(RUNS, names, strict=False)]
    blank = [row | dict.fromkeys(MEASURES, "1") for row in rows]
    runs, _ = read_measured_runs(write_runs(folder, *blank))
    outcomes = replay_all(runs, variant=CostVariant("truth", facts=facts))
    told = [
        row | {name: str(outcome.simulated[name]) for name in MEASURES}
        for row, outcome in zip(rows, outcomes, strict=True)
    ]
    return read_measured_runs(write_runs(folder, *told))[0]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ablation]:
    runs = as_measured(tmp_path_factory.mktemp("runs"))
    return {each.name: each for each in ablate(runs).variants}


def test_the_full_model_explains_its_own_runs_and_the_bare_roofline_does_not(
    table: dict[str, Ablation],
) -> None:
    assert max(e.median for e in table["full model"].errors.values()) < 1e-3
    bare = table["datasheet roofline"].errors
    assert bare["tpot_mean"].bias < -20
    assert bare["ttft_mean"].bias < -30


@pytest.mark.parametrize(
    ("term", "metric"),
    [
        ("no host time", "tpot_mean"),
        ("no front-end time", "ttft_mean"),
        ("no slowdown of decodes beside a prefill", "e2e_mean"),
        ("operators as on the bench", "tpot_mean"),
        ("no wave quantization", "ttft_mean"),
        ("no fixed time of kernels", "tpot_mean"),
        ("no CUDA-graph padding", "tpot_mean"),
        ("greedy sampling", "tpot_mean"),
        ("no communication", "tpot_mean"),
    ],
)
def test_every_term_off_moves_what_it_is_for(term: str, metric: str, table: dict[str, Ablation]) -> None:
    worst = max(abs(c.error_percent) for c in table[term].errors[metric].worst)
    assert worst > 0.01


def test_the_front_end_is_all_of_the_time_that_it_is_said_to_be(tmp_path: Path) -> None:
    runs = as_measured(tmp_path)[:1]
    _, without = ablate(runs, variants=VARIANTS[:3:2]).variants
    (one,) = without.errors["ttft_mean"].worst
    assert one.measured - one.simulated == pytest.approx(1e3 * engine_profile("0.16.0").frontend_s)


def test_the_table_has_a_line_for_every_variant(table: dict[str, Ablation]) -> None:
    (shown,) = Ablations(tuple(table.values())).blocks()
    assert isinstance(shown, Table)
    assert [row[0] for row in shown.rows] == ["rows", *(variant.name for variant in VARIANTS)]


def test_validate_prints_the_table_and_leaves_it_as_markdown(tmp_path: Path) -> None:
    runs = as_measured(tmp_path)
    out = tmp_path / "out"
    arguments = ["validate", str(tmp_path / "runs.csv"), "--ablate", "--run-id", runs[0].run_id]
    result = CliRunner().invoke(app, [*arguments, "--out", str(out)])
    assert result.exit_code == 0
    assert "datasheet roofline" in result.stdout
    assert "|  | tpot_mean | e2e_mean | ttft_mean |" in (out / "ablations" / "report.md").read_text()


def test_a_fit_finds_the_constant_that_the_runs_were_made_with(tmp_path: Path) -> None:
    runs = as_measured(tmp_path, partial(_changed, {"weight_stream_gain": 1.2}))
    found = fit_serving(runs, "h100-sxm", ["weight_stream_gain"])
    assert found.constants["weight_stream_gain"] == pytest.approx(1.2, abs=0.01)
    assert not found.warnings
    assert found.after[("fitted", "tpot_mean")].median < 0.2 < found.before[("fitted", "tpot_mean")].median
    shown = text.render(found.document())
    assert shown.splitlines()[-1] == found.toml()[-1]
    assert "weight_stream_gain" in shown.split("shipped")[1].split("part")[0]
    assert found.toml() == ['["h100-sxm"]', f"weight_stream_gain = {found.constants['weight_stream_gain']}"]


def test_a_fit_that_runs_into_a_bound_says_so(tmp_path: Path) -> None:
    runs = as_measured(tmp_path, partial(_changed, {"weight_stream_gain": 2.5}))
    assert (
        "weight_stream_gain at its upper bound 1.4"
        in fit_serving(runs, "h100-sxm", ["weight_stream_gain"]).warnings
    )


def test_a_fit_names_constants_that_nobody_knows_and_asks_for_enough_runs(tmp_path: Path) -> None:
    runs = as_measured(tmp_path)
    with pytest.raises(InputError, match="no such constant: magic"):
        fit_serving(runs, "h100-sxm", ["magic"])
    with pytest.raises(InputError, match="2 measurements on h100-sxm are too few for 2 constants"):
        fit_serving(runs[:1], "h100-sxm", ["weight_stream_gain", "layer_gap_s"])
