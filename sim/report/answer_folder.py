"""The folder of an answer: named by what was asked, whole or not there, equal for equal answers."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sim.errors import input_error
from sim.report.folder import check_writable
from sim.results.run_folder import put_in_place
from sim.values import Json, plain_json
from sim.version import dryserve_version

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Draw = Callable[[Axes | Figure | None], Axes]


def write_folder(
    root: Path, name: str, question: Mapping[str, Json], resolved: str, files: Mapping[str, str]
) -> Path:
    """Write texts by file name below `root`/`name`-<hash of the question>, in place of an older such answer.

    `resolved` is the scenario in full, kept as `base.resolved.yaml`. Raises `InputError` if that fails.
    """
    check_writable(root)
    asked = f"{dryserve_version()}\n{json.dumps(question, sort_keys=True)}\n{resolved}"
    folder = root / f"{name}-{hashlib.sha256(asked.encode()).hexdigest()[:8]}"
    try:
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=root))
        try:
            for file, text in {"base.resolved.yaml": resolved, **files}.items():
                (draft / file).write_text(text, encoding="utf-8")
            draft.chmod(0o755)
            put_in_place(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise input_error(f"cannot be written: {reason}", where=str(folder)) from None
    return folder


def draw_figures(figures: Mapping[str, Draw], folder: Path) -> dict[str, str]:
    """Draw into the folder, which has the tables by now; say by name which failed, and why."""
    from sim.figures.style import blank_figure, save_png

    failures = {}
    for name, plot in figures.items():
        try:
            (folder / "figures").mkdir(exist_ok=True)
            figure = blank_figure()
            plot(figure)
            save_png(figure, folder / "figures" / f"{name}.png")
        except Exception as error:  # whatever went wrong, the other figures are still wanted
            failures[name] = f"{type(error).__name__}: {error}"
    return failures


def json_text(answer: Mapping[str, Json]) -> str:
    """The answer as its file has it."""
    return json.dumps(answer, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def records(table: pd.DataFrame) -> list[Json]:
    """The rows of a table as plain data; what is not finite is null."""
    return [plain_json(row) for row in table.to_dict("records")]
