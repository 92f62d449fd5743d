"""A report as one HTML page that opens offline: styles inline, pictures as data URIs, nothing fetched.

The page is also well-formed XML, so that any strict parser can check it.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable
from html import escape

from sim.report.document import Block, Bullets, Document, Heading, Paragraph, Picture, Preformatted, Table

STYLE = """
:root { color-scheme: light; }
body { margin: 0; background: #fff; color: #1a1a1a;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .75rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; padding-bottom: .2rem; border-bottom: 1px solid #ddd; }
nav { font-size: .9rem; margin: 0 0 1.2rem; }
nav a { margin-right: 1.1em; white-space: nowrap; }
a { color: #0072b2; text-decoration: none; }
a:hover { text-decoration: underline; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .4rem 0 1rem; font-size: .93rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .22rem .9rem .22rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid #eee; }
td:first-child { white-space: nowrap; }
th { font-weight: 600; border-bottom: 1px solid #999; }
.right { text-align: right; padding: .22rem .45rem; }
figure { margin: 1.2rem 0 1.8rem; }
figure img { max-width: 100%; height: auto; display: block; }
figcaption { font-size: .85rem; color: #555; max-width: 46rem; margin-top: .35rem; }
pre { font: .85rem/1.4 ui-monospace, "DejaVu Sans Mono", monospace; overflow-x: auto; }
code { font: .9em ui-monospace, "DejaVu Sans Mono", monospace; background: #f3f3f3; padding: 0 .25em; }
.failed { color: #a33; }
@media print { main { max-width: none; } figure, table { break-inside: avoid; } nav { display: none; } }
""".strip()

PIXELS_AN_INCH = 96


def render(document: Document) -> str:
    """The whole page."""
    body, links = [], []
    for number, block in enumerate(document.blocks):
        if isinstance(block, Heading) and block.level == 2:
            links.append(f'<a href="#s{number}">{escape(block.text)}</a>')
        body.append(_block(block, number))
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            f'<head><meta charset="utf-8"/><title>{escape(document.title)}</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
            '<link rel="icon" href="data:,"/>',
            f"<style>\n{STYLE}\n</style></head>",
            "<body><main>",
            f"<h1>{escape(document.title)}</h1>",
            f"<nav>{' '.join(links)}</nav>",
            *body,
            "</main></body></html>",
            "",
        ]
    )


def fragment(blocks: Iterable[Block], title: str = "") -> str:
    """The blocks alone, without a page around them, as a notebook shows them."""
    head = [f"<p><strong>{escape(title)}</strong></p>"] if title else []
    return "\n".join([*head, *(_block(block, number) for number, block in enumerate(blocks))])


def _block(block: Block, number: int) -> str:
    match block:
        case Heading(level, text):
            return f'<h{level} id="s{number}">{escape(text)}</h{level}>'
        case Paragraph(text):
            return f"<p>{_inline(text)}</p>"
        case Bullets(items):
            return "<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in items) + "</ul>"
        case Preformatted(text):
            return f"<pre>{escape(_printable(text))}</pre>"
        case Table():
            return _table(block)
        case Picture(name, width_in, caption, png, failure):
            if failure:
                return (
                    f'<p class="failed">{escape(name)} could not be drawn: <code>{escape(failure)}</code></p>'
                )
            data = b64encode(png).decode()
            width = round(width_in * PIXELS_AN_INCH)
            image = f'<img alt="{escape(name)}" width="{width}" src="data:image/png;base64,{data}"/>'
            return f"<figure>{image}<figcaption>{_inline(caption)}</figcaption></figure>"


def _table(table: Table) -> str:
    def row(cells: tuple[str, ...], tag: str) -> str:
        marked = (' class="right"' if right else "" for right in table.right)
        inner = "".join(
            f"<{tag}{mark}>{_inline(cell)}</{tag}>" for cell, mark in zip(cells, marked, strict=True)
        )
        return f"<tr>{inner}</tr>"

    head = f"<thead>{row(table.header, 'th')}</thead>" if any(table.header) else ""
    body = "".join(row(cells, "td") for cells in table.rows)
    return f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>'


def _inline(text: str) -> str:
    """Escape, then strong and code."""
    text = escape(_printable(text))
    text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text)
    return re.sub(r"`(.+?)`", r"<code>\1</code>", text)


def _printable(text: str) -> str:
    """The text without control characters, which no XML may hold."""
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", "", text)
