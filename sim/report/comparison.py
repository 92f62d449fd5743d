"""Several runs on one page: what they differ in, their numbers side by side, figures that hold them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sim.report.document import Block, Bullets, Heading, Paragraph, Plate, Table
from sim.report.run_report import WIDE_IN, Report, caption, describe_system, write_page
from sim.report.tables import differences
from sim.results.run_tables import last_moment, request_ends

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sim.results.run_folder import SavedRun
    from sim.scenario import Scenario

LONGEST_LABEL = 32
MOST_IN_LABEL = 2
ROWS_A_RUN = 20
ABREAST = 2
SAME = ("arrival_s", "prompt_tokens")


def write_comparison(runs: Sequence[SavedRun], folder: Path) -> Report:
    """Write one page on several runs into `folder`, which is made: what they differ in, a table of their
    numbers and differences, and each figure with all of them. Raises `InputError` if that fails.
    """
    labels = labels_of(runs)
    title = " vs ".join(labels) if len(labels) <= 3 else f"{len(labels)} runs side by side"
    return write_page(folder, title, comparison_blocks(labels, runs), comparison_plates(labels, runs), "")


def labels_of(runs: Sequence[SavedRun]) -> list[str]:
    """A short name for each run, all distinct: that of its scenario; else what it was run with otherwise than
    the rest; else its folder.
    """
    names = [run.scenario.name for run in runs]
    if len(set(names)) == len(names):
        return names
    fields = scenario_differences(runs)
    if 0 < len(fields) <= MOST_IN_LABEL:
        told = [
            ", ".join(f"{path.rsplit('.', 1)[-1]}={values[i]}" for path, values in fields.items())
            for i in range(len(runs))
        ]
        if len(set(told)) == len(told) and max(map(len, told)) <= LONGEST_LABEL:
            return told
    folders = [run.folder.resolve().name for run in runs]
    if len(set(folders)) == len(folders):
        return folders
    seen: Counter[str] = Counter()
    labels = []
    for name in folders:
        seen[name] += 1
        labels.append(f"{name} ({seen[name]})")
    return labels


def scenario_differences(runs: Sequence[SavedRun]) -> dict[str, list[str]]:
    """The fields in which the scenarios differ, by dotted path, with the value in each run."""
    flat = [dict(_leaves(run.scenario)) for run in runs]
    paths = dict.fromkeys(path for fields in flat for path in fields)
    values = {path: [fields.get(path, "–") for fields in flat] for path in paths}
    return {path: told for path, told in values.items() if len(set(told)) > 1 and path != "description"}


def _leaves(scenario: Scenario) -> Iterator[tuple[str, str]]:
    def walk(value: object, path: str) -> Iterator[tuple[str, str]]:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                yield from walk(inner, f"{path}.{key}" if path else str(key))
        else:
            yield path, str(value)

    yield from walk(scenario.model_dump(mode="json"), "")


def comparison_blocks(labels: Sequence[str], runs: Sequence[SavedRun]) -> list[Block]:
    """The page down to its figures."""
    blocks: list[Block] = [
        Bullets(
            tuple(
                f"**{label}**: {describe_system(run.scenario)} {caption(run.summary, run.scenario)}"
                for label, run in zip(labels, runs, strict=True)
            )
        )
    ]
    fields = scenario_differences(runs)
    blocks.append(Heading(2, "What they differ in"))
    if fields:
        rows = tuple((f"`{path}`", *values) for path, values in fields.items())
        blocks.append(Table(("field", *labels), rows, (False,) * (len(labels) + 1)))
    else:
        blocks.append(Paragraph("Nothing: the scenarios are the same."))
    blocks.append(Heading(2, "Numbers"))
    blocks.append(differences(labels, [run.summary for run in runs]))
    same = same_requests(runs)
    said = "the same requests at the same moments" if same else "different requests"
    blocks.append(
        Paragraph(
            f"° fewer than 10 samples above it. pt: percentage points. The runs got {said}. Each is one run: "
            "how much of a difference is chance, only several seeds can tell."
        )
    )
    if same:
        blocks += [Heading(2, "Request by request"), paired(labels, runs)]
        blocks.append(
            Paragraph(
                f"Mean difference from {labels[0]} over requests that finished in both, arrived after the "
                "warm-up, with the 95 % interval of batch means; without one the run is too short to tell "
                "its own error."
            )
        )
    return blocks


def paired(labels: Sequence[str], runs: Sequence[SavedRun]) -> Table:
    """How much slower each request was than in the first run, on average, with an interval."""
    from sim.statistics import batch_means

    first, rows = runs[0], []
    for label, run in zip(labels[1:], runs[1:], strict=True):
        measured = first.requests["arrival_s"].ge(max(first.scenario.warmup_s, run.scenario.warmup_s))
        both = measured & first.requests["status"].eq("finished") & run.requests["status"].eq("finished")
        for name, moment in (("TTFT", "first_token_s"), ("E2E", "last_token_s")):
            slower_s = (run.requests[moment] - first.requests[moment])[both]
            interval = batch_means(slower_s.to_numpy())
            ends = f"{interval.low:+.3g} to {interval.high:+.3g}" if interval.low == interval.low else "–"
            mean = f"{interval.estimate:+.3g}" if len(slower_s) else "–"
            rows.append((label, name, mean, ends, f"{len(slower_s):,}"))
    header = ("run", "metric", "difference (s)", "95 % interval (s)", "requests")
    return Table(header, tuple(rows), (False, False, True, True, True))


def same_requests(runs: Sequence[SavedRun]) -> bool:
    """Whether all runs were sent the same requests at the same moments (common random numbers)."""
    first = runs[0].requests
    return all(
        len(run.requests) == len(first)
        and all(run.requests[name].equals(first[name]) for name in ("request_id", *SAME))
        for run in runs[1:]
    )


def comparison_plates(labels: Sequence[str], runs: Sequence[SavedRun]) -> list[Plate]:
    """Every figure with all runs in it: overlaid where one axis serves, else a panel for each."""
    from sim import figures

    named = dict(zip(labels, runs, strict=True))
    measured = {
        label: run.requests[run.requests["arrival_s"] >= run.scenario.warmup_s]
        for label, run in named.items()
    }
    stepped = {label: run.steps for label, run in named.items() if len(run.steps)}
    rows = -(-len(labels) // ABREAST)

    def latency(figure: Figure) -> None:
        slos = [dict(run.scenario.slo.root) if run.scenario.slo else None for run in runs]
        figures.plot_latency_panels(
            measured, figure, slo=slos[0] if all(s == slos[0] for s in slos) else None
        )

    def load(figure: Figure) -> None:
        figures.plot_load_timeline(stepped, figure)

    def kv(figure: Figure) -> None:
        pools = {
            label: blocks
            for label in stepped
            if isinstance(blocks := named[label].summary.get("num_gpu_blocks"), int)
        }
        figures.plot_kv_timeline(stepped, figure, num_blocks=pools if len(pools) == len(stepped) else None)

    def parts(figure: Figure) -> None:
        axes = list(figure.subplots(rows, ABREAST, squeeze=False, sharey=True).flat)
        for ax, (label, table) in zip(axes, measured.items(), strict=False):
            figures.plot_decomposition(figures.latency_parts(table, "e2e"), ax, unit="s")
            ax.set_xlabel(label)
        for ax in axes[len(labels) :]:
            ax.set_visible(False)

    def preemptions(figure: Figure) -> None:
        figures.plot_preemptions_per_request({label: run.requests for label, run in named.items()}, figure)

    def fairness(figure: Figure) -> None:
        figures.plot_fairness(measured, figure)

    plates = [
        Plate(
            "latency",
            "Latency and its tail; dots are p50, p90 and p99, hollow with fewer than 10 samples above.",
            latency,
            (9.3, 5.0),
        ),
        Plate(
            "parts",
            "What E2E is made of, by band of percentiles, run by run.",
            parts,
            (9.3, 0.4 + 2.8 * rows),
        ),
    ]
    classes = {name for table in measured.values() for name in table["class"].unique()}
    if len(classes) > 1:
        tall_in = 1.8 + 0.35 * len(classes) * len(labels)
        plates.append(
            Plate("classes", "What each client class waits at worst.", fairness, (WIDE_IN, tall_in))
        )
    if stepped:
        plates += [
            Plate(
                "load",
                "Running (solid) and waiting (dashed) requests of the whole fleet; of many steps the mean.",
                load,
                (WIDE_IN, 3.3),
            ),
            Plate(
                "kv",
                "KV blocks in use over the whole fleet; a row of ticks for the preemptions of each run.",
                kv,
                (WIDE_IN, 3.3),
            ),
        ]
    if len(stepped) == len(labels):
        plates.append(_waterfalls(named))
    if any(run.requests["num_preemptions"].any() for run in runs):
        plates.append(Plate("preemptions", "How often requests were preempted.", preemptions, (WIDE_IN, 3.0)))
    return plates


def _waterfalls(named: Mapping[str, SavedRun]) -> Plate:
    """A waterfall of each run: of the same requests where all runs were sent the same."""
    from sim import figures

    windows = {
        label: figures.close_window(run.requests, run.steps, run.scenario.warmup_s, ROWS_A_RUN)
        for label, run in named.items()
    }
    label, first = next(iter(named.items()))
    late = first.requests["arrival_s"] >= windows[label][0]
    chosen = first.requests[late].head(ROWS_A_RUN)["request_id"]
    same = same_requests(list(named.values())) and len(chosen) > 0
    tables = {label: run.requests for label, run in named.items()}
    shows = "Requests in flight in a part of the worst minute of each run."
    if same:
        shows = f"The same {len(chosen)} requests, from the worst minute of {label}, in each run."
        tables = {label: table[table["request_id"].isin(chosen)] for label, table in tables.items()}
        t0 = float(first.requests.loc[chosen.index, "arrival_s"].min())
        ends = [request_ends(table, last_moment(table)) for table in tables.values()]
        windows = dict.fromkeys(named, (t0, max(float(end_s.quantile(0.95)) for end_s in ends)))

    def draw(figure: Figure) -> None:
        axes = figure.subplots(len(named), 1, squeeze=False, sharex=same)[:, 0]
        for ax, (label, run) in zip(axes, named.items(), strict=True):
            t0, t1 = windows[label]
            figures.plot_request_waterfall(
                tables[label], ax, stalls=run.preemption_times, t0=t0, t1=t1, max_rows=ROWS_A_RUN
            )
            ax.set_ylabel(label)
            if ax is not axes[-1]:
                ax.set_xlabel("")
            if ax is not axes[0] and ax.get_legend():
                ax.get_legend().remove()

    return Plate("waterfall", shows, draw, (WIDE_IN, 0.7 + 2.4 * len(named)))


def folder_for(runs: Sequence[SavedRun]) -> Path:
    """Where a comparison goes if nobody says: beside the first run, named by all."""
    import hashlib

    told = "\n".join(run.folder.resolve().name for run in runs)
    return runs[0].folder.resolve().parent / f"comparison-{hashlib.sha256(told.encode()).hexdigest()[:8]}"
