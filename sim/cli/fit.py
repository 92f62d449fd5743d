"""`dryserve fit`: how many requests fit at once, and where the memory went."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sim.scenario import Scenario
    from sim.scenario.yaml_text import Data


def fit(
    scenario: Annotated[
        str | None, typer.Argument(help="Take everything that is not given here from this scenario.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model, such as llama-3.1-8b, or the path of its config.json.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU, such as h100-sxm.")] = None,
    tp: Annotated[int | None, typer.Option(help="Tensor-parallel GPUs of a replica.")] = None,
    pp: Annotated[int | None, typer.Option(help="Pipeline stages of a replica.")] = None,
    weight_dtype: Annotated[str | None, typer.Option(help="Type of the weights, such as fp8.")] = None,
    kv_cache_dtype: Annotated[str | None, typer.Option(help="Type of KV entries, such as fp8.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Longest prompt + output.")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Most requests running at once.")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(help="Token budget of a step.")] = None,
    gpu_memory_utilization: Annotated[float | None, typer.Option(help="Share of memory to fill.")] = None,
    engine_version: Annotated[str | None, typer.Option(help="vLLM release, such as 0.16.0.")] = None,
    prompt_tokens: Annotated[int, typer.Option(help="Prompt of each request, without a scenario.")] = 1024,
    output_tokens: Annotated[int, typer.Option(help="Answer to each request, without a scenario.")] = 256,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a field of the scenario.")
    ] = None,
    names: Annotated[
        bool, typer.Option("--names", help="Plan nothing: list the models and GPUs that are known by name.")
    ] = False,
    check: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Plan nothing: compare plans with logged start-ups instead."),
    ] = None,
) -> None:
    """Show where a replica's memory goes, and how many requests fit at once.

    `--check FILE.csv` judges the memory plan by start-up logs: one row an engine, with the columns
    vllm_version, gpu, tp, model and kv_tokens or num_gpu_blocks; others may follow or be missing.
    """
    if names:
        _list_names()
        return
    if check is not None:
        _check(check)
        return
    from sim.errors import Fault, InputError
    from sim.questions.fit import fit as plan
    from sim.questions.fit import render
    from sim.scenario import load_scenario

    given: dict[str, str | int | float | None] = {
        "model": model,
        "gpu": gpu,
        "weight_dtype": weight_dtype,
        "engine.tensor_parallel_size": tp,
        "engine.pipeline_parallel_size": pp,
        "engine.kv_cache_dtype": kv_cache_dtype,
        "engine.max_model_len": max_model_len,
        "engine.max_num_seqs": max_num_seqs,
        "engine.max_num_batched_tokens": max_num_batched_tokens,
        "engine.gpu_memory_utilization": gpu_memory_utilization,
        "engine.version": engine_version,
    }
    options = {path: value for path, value in given.items() if value is not None}
    if scenario is not None:
        chosen = load_scenario(
            scenario, [f"{path}={value}" for path, value in options.items()] + (overrides or [])
        )
    elif overrides:
        message = "there is no scenario to override; name one, or use the options"
        raise InputError([Fault(f"--set {text}", None, message) for text in overrides])
    else:
        chosen = _from_options(options, prompt_tokens, output_tokens)
    typer.echo(render(plan(chosen)))


def _list_names() -> None:
    from cost_models import gpu_names, model_names

    for kind, known in (("models", model_names()), ("GPUs", gpu_names())):
        typer.echo(f"{kind}:")
        for name in sorted(known, key=str.lower):
            typer.echo(f"  {name}")


def _check(path: Path) -> None:
    import csv

    from cost_models.memory_check import check_rows
    from sim.errors import did_you_mean, input_error

    needed = ("vllm_version", "gpu", "tp", "model")
    try:
        with path.open(newline="", encoding="utf-8-sig") as handle:
            reader = csv.DictReader(handle)
            header = reader.fieldnames or []
            rows = list(reader)
    except OSError as error:
        raise input_error(error.strerror or str(error), where=str(path)) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise input_error(f"not a CSV file: {error}", where=str(path)) from None
    missing = [name for name in needed if name not in header]
    if missing:
        faults = [f"no column {name}{did_you_mean(name, header)}" for name in missing]
        raise input_error("; ".join(faults), where=f"{path}:1")
    typer.echo(check_rows(rows).render())


def _from_options(options: dict[str, str | int | float], prompt_tokens: int, output_tokens: int) -> Scenario:
    """A closed loop of equal requests on the engine that the options describe."""
    from sim.scenario import scenario_from_data

    engine: dict[str, Data] = {}
    data: dict[str, Data] = {
        "name": "fit",
        "engine": engine,
        "workload": {
            "kind": "closed_loop",
            "num_requests": 100_000,
            "max_concurrency": 1,
            "ignore_eos": True,
            "lengths": {"kind": "fixed", "prompt_tokens": prompt_tokens, "output_tokens": output_tokens},
        },
    }
    for path, value in options.items():
        section, _, field = path.rpartition(".")
        (engine if section else data)[field] = value
    return scenario_from_data(data)
