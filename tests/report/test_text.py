"""A document as text for a terminal: what is in it, aligned, no wider than the page where it can be."""

from __future__ import annotations

from sim.report import html, markdown, text
from sim.report.document import (
    Bullets,
    Document,
    Heading,
    Paragraph,
    Picture,
    Preformatted,
    Table,
    table_of_columns,
)

WORDS = "Rates are requests a second, and every one of them is sent though nobody has answered the last. "


def shown(*blocks) -> list[str]:
    """The lines below the title."""
    return text.render(Document("a title", blocks)).splitlines()[2:]


def test_numbers_of_a_table_are_set_right_and_names_left():
    table = Table(("policy", "p99 (s)"), (("fcfs", "1.25"), ("least_computed", "10")), (False, True))
    assert shown(table) == [
        "policy          p99 (s)",
        "fcfs               1.25",
        "least_computed       10",
    ]


def test_a_table_without_names_of_columns_has_no_line_for_them():
    assert shown(Table(("", ""), (("steps", "12"), ("GPUs", "2")), (False, False))) == [
        "steps  12",
        "GPUs   2",
    ]


def test_columns_are_set_right_but_for_those_that_are_named():
    table = table_of_columns([("GPU", ["h100", "a100-sxm"]), ("req/s", ["5", "12.5"])], left=("GPU",))
    assert shown(table) == ["GPU       req/s", "h100          5", "a100-sxm   12.5"]


def test_paragraphs_and_bullets_are_wrapped_and_commands_are_not():
    command = "vllm serve " + "--flag " * 30
    lines = shown(Paragraph(WORDS * 3), Bullets((WORDS * 2, "short")), Preformatted(command))
    assert all(len(line) <= text.WIDTH for line in lines if line != command)
    assert " ".join(" ".join(lines).split()).count(WORDS.strip()) == 5
    assert command in lines


def test_marks_for_strong_and_code_are_left_out():
    assert shown(Paragraph("the **best** is `max_num_seqs`")) == ["the best is max_num_seqs"]


def test_a_picture_is_the_name_of_its_file_or_why_there_is_none():
    drawn, failed = Picture("pareto", 5.0, "", b"png"), Picture("cdf", 5.0, "", failure="no ink")
    assert shown(drawn, failed) == ["figure: figures/pareto.png", "", "cdf could not be drawn: no ink"]


def test_a_command_stands_as_it_is_in_every_form():
    document = Document("a title", (Heading(2, "Now"), Preformatted("a  <b>\n  c")))
    assert "```\na  <b>\n  c\n```" in markdown.render(document)
    assert "<pre>a  &lt;b&gt;\n  c</pre>" in html.render(document)
    assert text.render(document) == "a title\n\nNow\n---\n\na  <b>\n  c"
