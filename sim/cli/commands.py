"""The commands: their names, their order in the help, and what becomes of an error."""

from __future__ import annotations

import errno
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from sim.cli.bench import bench
from sim.cli.calibrate import calibrate
from sim.cli.compare import compare
from sim.cli.compare_releases import compare_releases
from sim.cli.conform import conform
from sim.cli.explain import explain
from sim.cli.fit import fit
from sim.cli.regress import regress
from sim.cli.report import report
from sim.cli.rules import rules
from sim.cli.run import run
from sim.cli.scenarios import scenarios
from sim.cli.size import size
from sim.cli.sweep import sweep
from sim.cli.trace import trace
from sim.cli.validate import validate

FUNCTIONS: Mapping[str, Callable[..., None]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        run,
        size,
        sweep,
        compare,
        explain,
        report,
        regress,
        trace,
        fit,
        scenarios,
        validate,
        conform,
        rules,
        calibrate,
        compare_releases,
        bench,
    )
}


class _OnDemand(Mapping[str, TyperCommand]):
    """The commands by name. A command's options are read from its function when somebody asks for it."""

    def __getitem__(self, name: str) -> TyperCommand:
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        alone.command(name)(FUNCTIONS[name])
        command = typer.main.get_command(alone)
        assert isinstance(command, TyperCommand)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(FUNCTIONS)

    def __len__(self) -> int:
        return len(FUNCTIONS)


class Commands(TyperGroup):
    """Turns what a user can cause into a line on stderr and an exit code; all else is a traceback."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": _OnDemand()})

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]  # as in `invoke`
        """Their names, in the order of the help."""
        return list(FUNCTIONS)

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write the help's list of commands: it has their names and first sentences, and needs no options."""
        limit = formatter.width - 6 - max(map(len, FUNCTIONS))
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, TyperCommand(name, help=inspect.getdoc(function)).get_short_help_str(limit))
                    for name, function in FUNCTIONS.items()
                ]
            )

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]  # typer's own base is private
        """Run the chosen command."""
        from sim.errors import InputError

        try:
            result: object = super().invoke(ctx)
            sys.stdout.flush()
        except InputError as error:
            typer.echo("\n".join(f"error: {fault}" for fault in error.faults), err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            typer.echo("interrupted: nothing was written", err=True)
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # The reader has gone. Point stdout at nothing, so that flushing it at exit does not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            typer.echo(f"error: {error.filename}: file name too long", err=True)
            raise typer.Exit(2) from None
        return result


app = typer.Typer(
    cls=Commands,
    name="dryserve",
    help="Dry-run an LLM serving cluster: real vLLM scheduling decisions, calibrated GPU times, no GPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich takes longer to import than the rest of --help together
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from sim.version import dryserve_version

        typer.echo(f"dryserve {dryserve_version()}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
    ),
) -> None:
    pass
