"""Run notebooks from top to bottom and keep their outputs: `python notebooks/execute.py [01 02 …]`.

The `.py` files are the sources that people review; the `.ipynb` files beside them are the same cells with
outputs, for people who read. Cell ids and metadata are fixed and no times are recorded, so that a copy
changes only where its cells or their outputs do.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jupytext
import nbclient
import nbformat

HERE = Path(__file__).resolve().parent
KERNEL = "python3"


def sources() -> list[Path]:
    """The notebooks, in order of their numbers."""
    return sorted(HERE.glob("[0-9][0-9]_*.py"))


def read(source: Path) -> nbformat.NotebookNode:
    """The cells of a notebook's source, without outputs."""
    notebook = jupytext.read(source)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02d}"
    return notebook


def execute(source: Path, timeout_s: int = 300) -> nbformat.NotebookNode:
    """Run a notebook in a fresh kernel; raises nbclient's `CellExecutionError` where a cell fails."""
    notebook = read(source)
    client = nbclient.NotebookClient(
        notebook,
        timeout=timeout_s,
        kernel_name=KERNEL,
        record_timing=False,
        resources={"metadata": {"path": str(HERE)}},
    )
    client.execute()
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": KERNEL}
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return notebook


if __name__ == "__main__":
    wanted = tuple(sys.argv[1:])
    for source in sources():
        if not wanted or source.name.startswith(wanted):
            nbformat.write(execute(source), source.with_suffix(".ipynb"))
            print(source.with_suffix(".ipynb").name)
