"""`dryserve scenarios`: what comes with the package, one question each."""

from __future__ import annotations

import typer


def scenarios() -> None:
    """List the scenarios that come with dryserve, each with its question."""
    from importlib.resources import files

    import scenarios as shipped
    from sim.scenario import scenario_names

    names = scenario_names()
    width = max(map(len, names), default=0)
    for name in names:
        text = (files(shipped) / f"{name}.yaml").read_text(encoding="utf-8")
        question = text.splitlines()[0].removeprefix("#").strip()
        typer.echo(f"{name:<{width}}  {question}")
