"""Draw every figure of the project from short runs, at the width of a column in print: `make gallery`.

Each picture is 85 mm wide (170 mm for several panels) with its type at full size, so that it can stand in a
paper as it is. Runs are the shipped scenarios, cut short, with three seeds where a figure has uncertainty to
show; the same version draws the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from sim import RunResult, load_scenario, simulate
from sim import figures as f
from sim.figures.style import COLUMN_IN, blank_figure, save_png
from sim.statistics import replication_interval

HERE = Path(__file__).resolve().parent / "figures" / "gallery"
SEEDS = (0, 1, 2)
DPI = 220

Numbers = dict[str, object]
PLATES: list[tuple[str, str, tuple[float, float], Callable[[Figure], None]]] = []
"""Name, caption, size in inches, and what draws it."""


def plate(
    name: str, caption: str, height_in: float = 2.3, columns: int = 1
) -> Callable[..., Callable[[Figure], None]]:
    """Enter a figure into the gallery, in the order of this file; `columns` of the page wide."""

    def enter(draw: Callable[[Figure], None]) -> Callable[[Figure], None]:
        PLATES.append((name, caption, (COLUMN_IN * columns, height_in), draw))
        return draw

    return enter


@cache
def run(scenario: str, *changes: str) -> RunResult:
    """One run, made once however many figures show it."""
    return simulate(load_scenario(scenario, changes))


def starved() -> RunResult:
    """The run that most close-ups show: a KV cache that is too small for what runs."""
    return run("kv-starved", "workload.num_requests=600", "warmup_s=5")


def seeds_of(rows: pd.DataFrame, by: list[str], columns: list[str]) -> pd.DataFrame:
    """Means over seeds, with the ends of a 95 % interval of each in `<column>_low` and `<column>_high`."""
    found = []
    for key, group in rows.groupby(by, sort=False):
        row = dict(zip(by, key, strict=True)) | {"completed": group["completed"].min()}
        for column in columns:
            interval = replication_interval(group[column].astype(float).tolist())
            row |= {column: interval.estimate, f"{column}_low": interval.low, f"{column}_high": interval.high}
        found.append(row)
    return pd.DataFrame(found)


RATES = (8, 12, 16, 18, 20, 22, 24, 28, 32)
COLUMNS = [
    "attainment",
    "ttft_attainment",
    "tpot_attainment",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "median_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
]


@cache
def rates() -> pd.DataFrame:
    """Two token budgets over the offered rate, on one H100."""
    rows = []
    for budget in (512, 8192):
        for rate in RATES:
            for seed in SEEDS:
                changes = [f"engine.max_num_batched_tokens={budget}", f"workload.rate_per_s={rate}"]
                changes += [f"seed={seed}", "cluster.replicas=1", "workload.duration_s=60", "warmup_s=5"]
                summary = run("quickstart", *changes).summary
                targets = summary["slo"]
                rows.append(
                    {column: summary[column] for column in COLUMNS[3:]}
                    | {
                        "label": f"budget {budget}",
                        "rate_per_s": float(rate),
                        "completed": summary["completed"],
                        "attainment": summary["slo_attainment"],
                        "ttft_attainment": targets["ttft_p99"]["attainment"],
                        "tpot_attainment": targets["tpot_p99"]["attainment"],
                    }
                )
    table = seeds_of(pd.DataFrame(rows), ["label", "rate_per_s"], COLUMNS)
    ends = [column for column in table if column.endswith(("_low", "_high"))]
    table[ends] = table[ends].clip(lower=0.0)
    shares = [column for column in ends if "attainment" in column]
    table[shares] = table[shares].clip(upper=1.0)
    latencies = [column for column in ends if column.endswith("_ms_low")]
    table[latencies] = table[latencies].clip(lower=10.0)  # a log axis has no zero
    return table


@plate("f01_latency_cdf", "F1. Time to first token, two rates of chat traffic on one H100, with the SLO.")
def _cdf(figure: Figure) -> None:
    one = "cluster.replicas=1"
    tables = {
        f"{rate} req/s": run(
            "quickstart", one, f"workload.rate_per_s={rate}", "workload.duration_s=120"
        ).requests
        for rate in (12, 20)
    }
    f.plot_latency_cdf(tables, figure, slo={"ttft_p99": 1.0})


@plate("f01_latency_tail", "F1. The tail of the same: the share of requests at least so slow.")
def _tail(figure: Figure) -> None:
    f.plot_latency_cdf({"kv-starved": starved().requests}, figure, metric="tpot", tail=True)


@plate(
    "f02_attainment",
    "F2. SLO attainment over the rate for two token budgets; bars: 95 % over three seeds.",
    2.6,
)
def _attainment(figure: Figure) -> None:
    f.plot_attainment(rates(), figure, target=0.99)


@plate("f03_saturation", "F3. Achieved over offered rate, with goodput; bars: 95 % over three seeds.")
def _saturation(figure: Figure) -> None:
    f.plot_saturation(rates(), figure)


@plate("f04_latency_throughput", "F4. Latency over throughput, joined in order of the rate.", 2.6)
def _latency_throughput(figure: Figure) -> None:
    f.plot_latency_throughput(rates(), figure, slo_s=1.0)


@plate("f05_pareto", "F5. Speed for one user against output of the GPU; points are rates.", 2.5)
def _pareto(figure: Figure) -> None:
    table = rates().assign(
        tokens_per_s_per_user=lambda t: 1000.0 / t["mean_tpot_ms"],
        tokens_per_s_per_gpu=lambda t: t["output_throughput"],
        tokens_per_s_per_gpu_low=lambda t: t["output_throughput_low"],
        tokens_per_s_per_gpu_high=lambda t: t["output_throughput_high"],
    )
    f.plot_pareto(table, figure, tpot_slo_s=0.040)


PRICES = {"h100-sxm": 3.0, "a100-sxm-80gb": 1.5}
"""Dollars an hour, made up for the picture: bring your own."""


@cache
def capacities() -> pd.DataFrame:
    """The highest of a row of rates at which 99 % of requests keep the SLO, seed by seed, one GPU each."""
    rows = []
    for gpu, price in PRICES.items():
        found = []
        for seed in SEEDS:
            kept = 0.0
            for rate in range(2, 22, 2):
                changes = [f"workload.rate_per_s={rate}", f"seed={seed}", f"gpu={gpu}", "cluster.replicas=1"]
                summary = run("quickstart", *changes, "workload.duration_s=120").summary
                if not float(summary["slo_attainment"]) >= 0.99:
                    break
                kept = float(rate)
            found.append(kept)
        interval = replication_interval(found)
        rows.append(
            {
                "label": gpu,
                "cost_per_h": price,
                "capacity_per_s": interval.estimate,
                "capacity_low": max(0.0, interval.low),
                "capacity_high": interval.high,
            }
        )
    return pd.DataFrame(rows)


@plate("f06_capacity_cost", "F6. Requests within the SLO for the money (prices made up); lines: 95 %.", 1.5)
def _capacity(figure: Figure) -> None:
    f.plot_capacity_cost(capacities(), figure)


@plate("f07_load", "F7. Running and waiting requests; the warm-up shaded.")
def _load(figure: Figure) -> None:
    starved().plot.load_timeline(figure)


@plate("f07_load_fleet", "F7. The same of a fleet: means with bands from lowest to highest.", 2.8)
def _load_fleet(figure: Figure) -> None:
    run("quickstart", "workload.duration_s=300", "workload.rate_per_s=40").plot.load_timeline(figure)


@plate("f08_kv", "F8. KV blocks in use and cached; a tick for each step that preempted.")
def _kv(figure: Figure) -> None:
    starved().plot.kv_timeline(figure)


@plate("f09_steps", "F9. Sixty steps around the busiest recomputation; a bar is as wide as its step.")
def _steps(figure: Figure) -> None:
    starved().plot.step_composition(figure)


@plate("f10_waterfall", "F10. What each request did in a part of the worst minute.", 2.9)
def _waterfall(figure: Figure) -> None:
    starved().plot.request_waterfall(figure)


@plate("f11_heatmap", "F11. SLO attainment over two knobs; the best cell boxed.", 2.4)
def _heatmap(figure: Figure) -> None:
    rows: list[Numbers] = []
    for seqs in (16, 32, 64, 128):
        for budget in (512, 1024, 2048, 8192):
            changes = [f"engine.max_num_seqs={seqs}", f"engine.max_num_batched_tokens={budget}"]
            changes += ["cluster.replicas=1", "workload.rate_per_s=16", "workload.duration_s=60"]
            share = run("quickstart", *changes, "slo.tpot_p99=25ms").summary["slo_attainment"]
            rows.append({"max_num_seqs": seqs, "max_num_batched_tokens": budget, "attainment": share})
    f.plot_slo_heatmap(pd.DataFrame(rows), "max_num_batched_tokens", "max_num_seqs", figure)


POLICIES = {"last admitted": "fcfs_tail", "least computed": "least_computed"}


@cache
def taxes() -> pd.DataFrame:
    """Recomputed tokens by KV capacity, victim policy and seed."""
    rows: list[Numbers] = []
    for label, kind in POLICIES.items():
        for blocks in (700, 850, 1000, 1200, 1400, 1700):
            for seed in range(8):
                changes = [f"engine.num_gpu_blocks_override={blocks}", f"seed={seed}"]
                changes += ["workload.num_requests=300", f"engine.victim_policy.kind={kind}"]
                result = run("kv-starved", *changes)
                rows.append(
                    {
                        "label": label,
                        "kv_tokens": 16 * blocks,
                        "completed": result.summary["completed"],
                        "recomputed_token_share": result.summary["recomputed_token_share"],
                    }
                )
    table = seeds_of(pd.DataFrame(rows), ["label", "kv_tokens"], ["recomputed_token_share"])
    low, high = table["recomputed_token_share_low"].clip(lower=0.0), table["recomputed_token_share_high"]
    return table.assign(share_low=low, share_high=high)


@plate(
    "f12_preemption_tax",
    "F12. Recomputed tokens over KV capacity, two victim policies; bands: 95 % over eight seeds.",
)
def _tax(figure: Figure) -> None:
    f.plot_preemption_tax(taxes(), figure)


@plate("f12_preemptions", "F12. How often requests were preempted.")
def _preemptions(figure: Figure) -> None:
    starved().plot.preemptions_per_request(figure)


@plate("f13_decomposition", "F13. What the latency of slow and of quick requests is made of.")
def _decomposition(figure: Figure) -> None:
    starved().plot.decomposition(figure)


@plate("f16_fairness", "F16. Two classes under two orders; line: 95 % interval of the percentile.", 2.6)
def _fairness(figure: Figure) -> None:
    f.plot_fairness(
        {
            policy: run("client-classes", f"engine.scheduling_policy={policy}").requests
            for policy in ("fcfs", "priority")
        },
        figure,
    )


@plate("kv_cliff", "The KV cliff. p99 and median TTFT over KV blocks; bands: range of three seeds.", 2.6)
def _cliff(figure: Figure) -> None:
    rows: list[Numbers] = []
    for blocks in range(800, 1700, 50):
        for seed in SEEDS:
            changes = [f"engine.num_gpu_blocks_override={blocks}", f"seed={seed}", "workload.rate_per_s=6"]
            summary = run("kv-starved", *changes, "workload.num_requests=1000").summary
            names = ("p99_ttft_ms", "median_ttft_ms", "completed")
            rows.append({"kv_blocks": blocks, **{name: summary[name] for name in names}})
    f.plot_kv_cliff(pd.DataFrame(rows), figure, slo_s=1.0)


@plate("budget_strips", "Two token budgets seen closely, and how long tokens wait under each.", 3.4, 2)
def _strips(figure: Figure) -> None:
    steps = {}
    for budget in (512, 8192):
        changes = [f"engine.max_num_batched_tokens={budget}", "cluster.replicas=1", "workload.rate_per_s=16"]
        steps[budget] = run("quickstart", *changes, "workload.duration_s=60", "warmup_s=5").steps
    f.plot_budget_strips(steps, figure)


@plate("knob_curves", "One knob, the share of the pool kept free, and what it moves; one seed.", 3.6, 2)
def _knob(figure: Figure) -> None:
    rows: list[Numbers] = []
    for share in (0.0, 0.02, 0.05, 0.1, 0.15):
        summary = run("kv-starved", "workload.num_requests=600", f"engine.watermark={share}").summary
        preemptions = summary["num_preemptions"] / summary["num_requests"]
        rows.append({"engine.watermark": share, "preemptions_per_request": preemptions, **summary})
    f.plot_knob_curves(pd.DataFrame(rows), "engine.watermark", figure)


def index() -> Iterator[str]:
    """The page that shows them all."""
    yield "# Gallery"
    yield (
        "Every figure of the project, drawn by `make gallery` from shipped scenarios cut short, 85 mm wide "
        "or, with several panels, 170 mm. "
        "Each is one function of `sim.figures`: a table in, Axes out. F14 and F15 belong to clusters with "
        "prefix-aware routing and disaggregation, which are not there yet."
    )
    for name, caption, (width_in, _), _ in PLATES:
        width = round(420 * width_in / COLUMN_IN)
        yield f'<img src="{name}.png" width="{width}" alt="{name}">\n\n*{caption}*'


def main() -> None:
    """Draw what is named on the command line, or everything and the page."""
    mpl.use("agg")
    HERE.mkdir(parents=True, exist_ok=True)
    wanted = sys.argv[1:]
    for name, _, size_in, draw in PLATES:
        if wanted and not any(part in name for part in wanted):
            continue
        print(name, file=sys.stderr)
        figure = blank_figure(*size_in)
        draw(figure)
        save_png(figure, HERE / f"{name}.png", dpi=DPI)
    if not wanted:
        (HERE / "README.md").write_text("\n\n".join(index()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
