"""An answer is written whole, the same every time, with pages for people, JSON and tables for programs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pytest

from sim import InputError
from sim.evidence.regress.regress import Regression
from sim.evidence.releases.answer import ReleaseComparison
from sim.evidence.validate.ablations import Ablations
from sim.evidence.validate.answer import Validation
from sim.questions.compare.answer import Comparison
from sim.questions.explain.explain import Explanation
from sim.questions.size.answer import Sizing
from sim.questions.sweep.answer import Sweep
from sim.report.answer import Answer
from sim.report.document import Paragraph, Plate
from sim.report.folder import replace_folder


@dataclass(repr=False)
class Guess(Answer):
    """How many there are."""

    number: float = 3.5
    drawn: list[Plate] = field(default_factory=list)

    kind = "guess"

    @property
    def question(self) -> str:
        return "How many are there?"

    def blocks(self):
        return [Paragraph(f"There are **{self.number:g}**.")]

    def as_json(self):
        return {"number": self.number}

    def tables(self):
        return {"guesses.csv": pd.DataFrame({"number": [self.number]})}

    def folder_in(self, root: Path) -> Path:
        return root / "how-many"

    def plates(self):
        return self.drawn


class GuessAmongOthers(Guess):
    """One that is written into the folder it is given."""

    owns_folder = False

    def folder_in(self, root: Path) -> Path:
        return root


def curve(where=None):
    from sim.figures.style import axes_for

    ax = axes_for(where)
    ax.plot([1, 2], [3, 4])
    return ax


def broken(where=None):
    raise RuntimeError("no ink")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_has_json_tables_and_the_same_pages_twice(tmp_path):
    first = files(Guess().write(tmp_path / "a"))
    assert set(first) == {"guess.json", "guesses.csv", "report.md", "report.html"}
    assert json.loads(first["guess.json"]) == {"number": 3.5}
    assert first["guesses.csv"] == b"number\n3.5\n"
    assert first["report.md"].decode() == "# How many are there?\n\nThere are **3.5**.\n"
    assert files(Guess().write(tmp_path / "b")) == first


def test_an_older_answer_is_replaced_whole(tmp_path):
    folder = Guess().write(tmp_path)
    (folder / "left.txt").write_text("over", encoding="utf-8")
    assert Guess(4.0).write(tmp_path) == folder
    assert b"4" in files(folder)["guess.json"]
    assert "left.txt" not in files(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["how-many"]


def test_one_among_others_leaves_them(tmp_path):
    (tmp_path / "mine.txt").write_text("keep", encoding="utf-8")
    assert GuessAmongOthers().write(tmp_path) == tmp_path
    assert {"mine.txt", "guess.json"} <= set(files(tmp_path))


def test_figures_are_drawn_beside_pages_that_show_them_and_a_failure_is_told(tmp_path):
    answer = Guess(drawn=[Plate("curve", "It rises.", curve), Plate("gone", "It fails.", broken)])
    folder = answer.write(tmp_path, draw=False)
    assert "curve" not in (folder / "report.md").read_text(encoding="utf-8")
    assert answer.draw(folder) == {"gone": "RuntimeError: no ink"}
    page = (folder / "report.md").read_text(encoding="utf-8")
    assert "![curve](figures/curve.png)\n\n*It rises.*" in page
    assert "**gone.png could not be drawn:** `RuntimeError: no ink`" in page
    assert [path.name for path in (folder / "figures").iterdir()] == ["curve.png"]
    assert (folder / "report.html").read_text(encoding="utf-8").count("data:image/png") == 1


def test_a_figure_is_plotted_by_its_name_and_the_first_without(tmp_path):
    answer = Guess(drawn=[Plate("curve", "", curve), Plate("gone", "", broken)])
    assert answer.figures == ["curve", "gone"]
    assert len(answer.plot().lines) == 1
    with pytest.raises(ValueError, match="no figure 'line' here; there are curve, gone"):
        answer.plot("line")
    with pytest.raises(ValueError, match="nothing to draw"):
        Guess().plot()


def test_a_folder_that_cannot_be_written_is_the_users_mistake(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match=r"file/how-many: cannot be written: (not a directory|file exists)"):
        Guess().write(tmp_path / "file")


def test_what_was_there_stays_when_the_new_one_cannot_be_written(tmp_path):
    folder = Guess().write(tmp_path)
    before = files(folder)
    with pytest.raises(InputError, match="cannot be written"):
        replace_folder(folder, {"fine.txt": "a", "no/such/place.txt": "b"})
    assert files(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["how-many"]


def test_a_notebook_shows_question_and_answer():
    shown = Guess()._repr_html_()
    assert "How many are there?" in shown
    assert "<strong>3.5</strong>" in shown


def test_every_answer_shows_itself_in_one_line() -> None:
    """A terminal is not flooded by the tables that an answer holds."""
    answers = [ReleaseComparison, Validation, Ablations, Regression, Explanation, Sweep, Sizing, Comparison]
    assert {each.__repr__ for each in answers} == {Answer.__repr__}
    assert repr(Guess()) == "<Guess: How many are there?>"
