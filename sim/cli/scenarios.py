"""`dryserve scenarios`: what comes with the package, one question each, and what a scenario may say."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def scenarios(
    *,
    reference: Annotated[
        bool, typer.Option("--reference", help="print every field: type, unit, default, bounds, meaning")
    ] = False,
    schema: Annotated[
        bool, typer.Option("--json-schema", help="print the JSON schema of scenario files, for editors")
    ] = False,
) -> None:
    """List the scenarios that come with dryserve, each with its question, or print their format."""
    from importlib.resources import files

    import scenarios as shipped
    from sim.scenario import json_schema, reference_markdown, scenario_names

    if schema:
        typer.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
        return
    if reference:
        typer.echo(reference_markdown(), nl=False)
        return

    names = scenario_names()
    width = max(map(len, names), default=0)
    for name in names:
        text = (files(shipped) / f"{name}.yaml").read_text(encoding="utf-8")
        question = text.splitlines()[0].removeprefix("#").strip()
        typer.echo(f"{name:<{width}}  {question}")
