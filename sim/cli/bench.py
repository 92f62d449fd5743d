"""`dryserve bench`: how fast is dryserve here, and where does the time go?"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.errors import Fault, InputError

if TYPE_CHECKING:
    from sim.evidence.bench import Timing


def bench(
    requests: Annotated[int | None, typer.Option(min=1, help="How many requests; 10,000.")] = None,
    rate: Annotated[float | None, typer.Option(help="Their rate, 1/s; 8.")] = None,
    replicas: Annotated[int, typer.Option(min=1, help="Engines behind a round-robin router.")] = 1,
    trace: Annotated[Path | None, typer.Option(help="Run the requests of this trace instead.")] = None,
    asynchronous: Annotated[bool, typer.Option("--async", help="Schedule ahead of the GPU.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Walk over every request in every step.")] = False,
    growth: Annotated[bool, typer.Option("--growth", help="Then 1,000 to 1,000,000 requests.")] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Then where the time goes, by phase; in pure Python.")
    ] = False,
    write_trace: Annotated[
        Path | None, typer.Option(help="Only write the requests, as .csv (Azure) or .jsonl (Mooncake).")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="One line in place of the screen.")] = False,
) -> None:
    """Time the standard work: a chat workload on Llama-3-8B and A100s. Writes no results."""
    from sim.evidence.bench import GROWTH, Work, grown, is_compiled, time_work

    faults = []
    if trace is not None:
        given = {"--requests": requests is not None, "--rate": rate is not None, "--growth": growth}
        faults += [
            f"{name} is of the synthetic work: a trace says it"
            for name, is_given in given.items()
            if is_given
        ]
    if rate is not None and not rate > 0:
        faults.append(f"--rate must be greater than 0, not {rate:g}")
    if profile and is_compiled():
        faults.append("--profile sees no compiled functions: take an installation in pure Python")
    if faults:
        raise InputError(Fault(None, None, fault) for fault in faults)
    work = Work(requests or 10_000, rate or 8.0, replicas, asynchronous, plain, trace)
    if write_trace is not None:
        from sim.evidence.bench import write_trace as write

        typer.echo(f"{write(work.scenario(), write_trace):,} requests written to {write_trace}", err=True)
        return
    start_up_s = time.process_time()
    timing = time_work(work)
    typer.echo(_line(timing, start_up_s) if quiet else _screen(timing, start_up_s))
    if growth:
        typer.echo("\n" + _row())
        for size in GROWTH:
            typer.echo(_row(time_work(grown(work, size))))
        typer.echo("(peak: the most that this process has had so far)")
    if profile:
        typer.echo("\n" + _profile(timing))


def _line(timing: Timing, start_up_s: float) -> str:
    return (
        f"{timing.num_requests:,} requests, {timing.num_steps:,} steps, {timing.cpu_s:.2f} CPU s "
        f"({timing.cpu_s + start_up_s:.2f} with the start), "
        f"{timing.per(timing.num_requests):.1f} us per request, {timing.peak_memory_mib:.0f} MiB"
    )


def _screen(timing: Timing, start_up_s: float) -> str:
    from sim.evidence.bench import is_compiled

    work, cpu_s = timing.work, max(timing.cpu_s, 1e-9)
    origin = f"of {work.trace}" if work.trace else f"at {work.rate_per_s:g}/s"
    how = [f"{work.replicas} replica" + "s" * (work.replicas > 1)]
    how += ["asynchronous"] * work.asynchronous + ["plain"] * work.plain
    how.append("compiled" if is_compiled() else "pure Python")
    return "\n".join(
        (
            f"{timing.num_requests:,} requests {origin}, {', '.join(how)}",
            f"  simulated     {timing.simulated_s:,.0f} s, {timing.num_steps:,} steps, "
            f"{timing.num_tokens:,} tokens, {timing.num_preemptions:,} preemptions",
            f"  CPU time      {timing.cpu_s:.2f} s; with the start {timing.cpu_s + start_up_s:.2f} s",
            f"  a second      {timing.num_requests / cpu_s:,.0f} requests, "
            f"{timing.num_steps / cpu_s:,.0f} steps",
            f"  each          {timing.per(timing.num_requests):.1f} us a request, "
            f"{timing.per(timing.num_steps):.1f} us a step, {timing.per(timing.num_changes):.1f} us a change "
            "(arrival, admission, end)",
            f"  peak memory   {timing.peak_memory_mib:.0f} MiB",
        )
    )


def _row(timing: Timing | None = None) -> str:
    if timing is None:
        names = f"{'requests':>10} {'steps':>11} {'CPU s':>8} {'us/request':>11}"
        return f"{names} {'us/step':>8} {'peak MiB':>9}"
    return (
        f"{timing.num_requests:>10,} {timing.num_steps:>11,} {timing.cpu_s:>8.2f} "
        f"{timing.per(timing.num_requests):>11.1f} {timing.per(timing.num_steps):>8.1f} "
        f"{timing.peak_memory_mib:>9.0f}"
    )


def _profile(timing: Timing) -> str:
    from sim.evidence.bench import profile

    phases = profile(timing.work)
    total_s = sum(seconds for _, seconds, _ in phases)
    lines = [f"{'phase':<36} {'share':>6} {'us/request':>11} {'calls':>11}"]
    for phase, seconds, calls in phases:
        share = seconds / max(total_s, 1e-9)
        lines.append(f"{phase:<36} {share:>6.1%} {seconds / timing.num_requests * 1e6:>11.1f} {calls:>11,}")
    return "\n".join([*lines, f"(profiled: {total_s / max(timing.cpu_s, 1e-9):.1f} times as slow as above)"])
