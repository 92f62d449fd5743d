"""The `dryserve` command: the only place that prints and exits. One module for each command.

Results go to stdout and depend on the input alone; everything else goes to stderr. Modules import what is
heavy when a command runs, so that `dryserve --help` is quick. Exit codes: 0 done; 1 the command found a
failure; 2 the input is wrong; 130 interrupted; 141 nobody read the output.
"""

from __future__ import annotations

from sim.cli.start import start_lightly


def main() -> None:
    """Entry point of the `dryserve` command."""
    start_lightly()
    from sim.cli.commands import app

    app()
