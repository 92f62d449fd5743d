"""An answer: what a question about many runs comes to, as tables, figures, a document and plain data.

`sweep`, `size`, `compare` and the others each have a subclass that says what it found; how that is shown,
drawn and written is the same for all, and stands here.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from sim.report import html, text
from sim.report.document import Block, Document, Plate
from sim.report.folder import draw_pictures, pages, replace_folder, write_files
from sim.values import Json, plain_json
from sim.version import dryserve_version

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from sim.scenario import Scenario


class Answer(ABC):
    """The answer to one question."""

    __slots__ = ()

    kind: ClassVar[str]
    """Names `<kind>.json`."""

    root: ClassVar[str] = ""
    """The folder that answers go below by default; if empty, `<kind>s`."""

    owns_folder: ClassVar[bool] = True
    """Whether its folder is its own and is replaced whole. If not, it is written among other files."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.question}>"

    @property
    @abstractmethod
    def question(self) -> str:
        """What was asked, in one line: the title of the document."""

    @abstractmethod
    def blocks(self) -> Iterable[Block]:
        """What was found, as the blocks of a document, without the figures."""

    @abstractmethod
    def as_json(self) -> dict[str, Json]:
        """The answer as plain data; numbers that are not finite are None."""

    @abstractmethod
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """The tables by file name; the first is what `--csv` prints."""

    @abstractmethod
    def folder_in(self, root: Path) -> Path:
        """Where the answer is written: a folder below `root`, or `root` itself."""

    def plates(self) -> Iterable[Plate]:
        """The figures that can be drawn; a figure that does not fit the answer is left out."""
        return ()

    def texts(self) -> Mapping[str, str]:
        """Further files of its folder, by name."""
        return {}

    @property
    def has_failed(self) -> bool:
        """Whether runs failed, or nothing was found: the command exits 1."""
        return False

    @property
    def warnings(self) -> Sequence[str]:
        """What the document says and nobody must miss who asks for JSON or CSV alone."""
        return ()

    def document(self) -> Document:
        """The whole answer, without its figures."""
        return Document(self.question, tuple(self.blocks()))

    def as_text(self) -> str:
        """The document as the command prints it, without a final newline."""
        return text.render(self.document())

    def json_text(self) -> str:
        """What `<kind>.json` says."""
        return json.dumps(self.as_json(), indent=2, allow_nan=False, ensure_ascii=False) + "\n"

    def write(self, root: Path | str | None = None, *, draw: bool = True) -> Path:
        """Write tables, JSON and pages into the answer's folder below `root` (see the class), and the
        figures unless `draw` is false; return the folder.

        Raises `InputError` if that fails.
        """
        folder = self.folder_in(Path((self.root or f"{self.kind}s") if root is None else root))
        tables = {name: csv_text(table) for name, table in self.tables().items()}
        files = {f"{self.kind}.json": self.json_text(), **tables, **self.texts(), **pages(self.document())}
        if self.owns_folder:
            replace_folder(folder, files)
        else:
            write_files(folder, files)
        if draw:
            self.draw(folder)
        return folder

    def draw(self, folder: Path) -> dict[str, str]:
        """Draw the figures into the folder, and write the pages anew with them; say by name which figure
        failed, and why.
        """
        pictures = draw_pictures(tuple(self.plates()), folder)
        if pictures:
            document = self.document()
            write_files(folder, pages(Document(document.title, (*document.blocks, *pictures))))
        return {picture.name: picture.failure for picture in pictures if picture.failure}

    @property
    def figures(self) -> list[str]:
        """The names of the figures that can be drawn."""
        return [plate.name for plate in self.plates()]

    def plot(self, name: str | None = None, ax: Axes | None = None) -> Axes:
        """Draw a figure by its name (see `figures`), by default the first; ValueError if there is none."""
        plates = {plate.name: plate for plate in self.plates()}
        if not plates:
            raise ValueError("there is nothing to draw here; use the tables")
        if name not in (None, *plates):
            raise ValueError(f"no figure {name!r} here; there are {', '.join(plates)}")
        return cast("Axes", plates[name or next(iter(plates))].draw(ax))

    def _repr_html_(self) -> str:
        return html.fragment(tuple(self.blocks()), self.question)


class ScenarioAnswer(Answer):
    """An answer about variants of one scenario. Its folder is named by what was asked, so that the same
    question has the same folder, and another question another.
    """

    __slots__ = ()

    base: Scenario

    @abstractmethod
    def asked(self) -> dict[str, Json]:
        """Everything that was asked beside the scenario, as plain data."""

    def folder_in(self, root: Path) -> Path:
        """`root`/<scenario>-<hash of the question>."""
        asked = json.dumps(self.asked(), sort_keys=True)
        told = f"{dryserve_version()}\n{asked}\n{self.base.dump_resolved()}"
        return root / f"{self.base.name}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"

    def texts(self) -> Mapping[str, str]:
        """The scenario in full."""
        return {"base.resolved.yaml": self.base.dump_resolved()}


def csv_text(table: pd.DataFrame) -> str:
    """A table as its file has it."""
    return table.to_csv(index=False, lineterminator="\n")


def records(table: pd.DataFrame) -> list[Json]:
    """The rows of a table as plain data; what is not finite is None."""
    return [plain_json({str(key): value for key, value in row.items()}) for row in table.to_dict("records")]
