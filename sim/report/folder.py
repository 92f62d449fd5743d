"""Folders of answers: written whole, and equal byte for byte for equal answers."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from sim.errors import writing
from sim.report import html, markdown
from sim.report.document import Document, Picture, Plate, draw_plate
from sim.results.run_folder import put_in_place

FIGURES = "figures"


def check_writable(root: Path) -> None:
    """Raise `InputError` if no folder can be made below `root`: better before the runs than after."""
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
        Path(tempfile.mkdtemp(prefix=".try.", dir=root)).rmdir()


def replace_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Write texts by file name into a draft, and rename it to `folder`, in place of what is there.

    Raises `InputError` if that fails; then what was there is as it was.
    """
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            for name, text in files.items():
                (draft / name).write_text(text, encoding="utf-8")
            draft.chmod(0o755)
            put_in_place(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write texts by file name into a folder, which is made if need be and keeps its other files.

    Raises `InputError` if that fails.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")


def pages(document: Document) -> dict[str, str]:
    """The document as `report.md` and `report.html`; the pictures of the first are files beside it."""
    return {"report.md": markdown.render(document), "report.html": html.render(document)}


def draw_pictures(plates: Sequence[Plate], folder: Path, about: str = "") -> list[Picture]:
    """Draw figures into `figures/` below the folder; one that cannot be drawn has its `failure`.

    `about` ends every caption. Raises `InputError` if a file cannot be written.
    """
    pictures = [draw_plate(plate, about) for plate in plates]
    with writing(folder / FIGURES):
        for picture in pictures:
            if not picture.failure:
                (folder / FIGURES).mkdir(parents=True, exist_ok=True)
                (folder / FIGURES / f"{picture.name}.png").write_bytes(picture.png)
    return pictures
