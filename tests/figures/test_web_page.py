"""The HTML report is one strict, self-contained page, and a real browser shows it without a complaint."""

from __future__ import annotations

import re
import shutil
import subprocess
from base64 import b64decode
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from sim.report.run_report import write_report
from tests.figures.test_report import SUMMARY, make_run, make_scenario

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
VOID = {"meta", "link", "img", "br"}
HOSTILE = 'a "name" <script>alert(1)</script> & | pipe \x07'


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    summary = SUMMARY | {"notes": [HOSTILE, "100 % & more"]}
    run = make_run(folder, summary=summary, scenario=make_scenario(description=HOSTILE.replace("\x07", "")))
    return write_report(run).html


def elements(page: Path) -> ElementTree.Element:
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>\n")
    return ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))


def test_it_is_well_formed_to_the_letter(page):
    root = elements(page)
    assert root.tag == "html"
    assert root.findtext("head/title") == "chat"
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    links = [link.get("href") for link in root.iter("a")]
    assert {f"#{name}" for name in ids} >= set(links)


def test_an_html_parser_sees_the_same_tree(page):
    """No element that HTML would close, open or move otherwise than XML does."""

    class Tags(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []
            self.seen: list[str] = []

        def handle_starttag(self, tag, attrs):
            assert tag not in VOID, "written as XML would have it, closed"
            self.seen.append(tag)
            self.open.append(tag)

        def handle_startendtag(self, tag, attrs):
            assert tag in VOID, "HTML does not know that it is closed"
            self.seen.append(tag)

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    tags = Tags()
    tags.feed(page.read_text(encoding="utf-8"))
    assert tags.open == []
    assert tags.seen == [element.tag for element in elements(page).iter()]


def test_it_fetches_nothing(page):
    root = elements(page)
    for element in root.iter():
        for name in ("src", "href", "action", "data"):
            at = element.get(name)
            assert at is None or at.startswith(("#", "data:"))
    text = re.sub(r"base64,[A-Za-z0-9+/=]+", "", page.read_text(encoding="utf-8"))
    assert not re.search(r"https?:|//[a-z]|url\(|@import|<script", text)


def test_every_image_decodes_and_is_the_figure_beside_the_page(page):
    images = list(elements(page).iter("img"))
    assert len(images) == len(list((page.parent / "figures").glob("*.png")))
    for image in images:
        kind, _, data = image.get("src").partition(",")
        assert kind == "data:image/png;base64"
        png = b64decode(data, validate=True)
        assert png == (page.parent / "figures" / f"{image.get('alt')}.png").read_bytes()
        with Image.open(BytesIO(png)) as picture:
            picture.load()
            assert picture.width >= 500


def test_what_a_user_wrote_is_text_and_no_markup(page):
    said = " ".join("".join(element.itertext()) for element in elements(page).iter("li"))
    assert 'a "name" <script>alert(1)</script> & | pipe' in said


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
def test_a_browser_shows_it_without_a_complaint(page, tmp_path):
    shot = tmp_path / "page.png"
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync"
    flags += " --disable-background-networking --disable-component-update --enable-logging=stderr"
    done = subprocess.run(
        [CHROMIUM, *flags.split(), f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1000,3000",
         f"--screenshot={shot}", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr
    with Image.open(shot) as picture:
        colours = len(picture.convert("RGB").resize((100, 300)).getcolors(30_000))
    assert colours > 100, "a blank page has few colours"
