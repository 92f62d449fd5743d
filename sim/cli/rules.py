"""`dryserve rules`: which release and which rules explain recordings of an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def rules(
    recordings: Annotated[
        list[Path], typer.Argument(help="Recordings of engines (*.jsonl.gz), or folders of them.")
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for rules.json, the table and the report.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find the set of rules that explains most steps of recordings of one engine, ready to paste.

    Tries the rules of each release, then single rules set otherwise as long as that explains more. Exits 1
    if steps are left that no known set explains.
    """
    from sim.cli.progress import spinner
    from sim.cli.tail import print_answer
    from sim.errors import Fault, InputError
    from sim.evidence.recorded import find_recordings, find_rules

    files, others = find_recordings(recordings)
    if others:
        raise InputError(
            [Fault(str(path), None, "no recording of an engine (*.jsonl.gz)") for path in others]
        )
    with spinner("trying rules"):
        found = find_rules(files)
    print_answer(found, as_json=as_json)
    if out is not None:
        typer.echo(f"results in {found.write(out, draw=False)}", err=True)
    if found.has_failed:
        raise typer.Exit(1)
