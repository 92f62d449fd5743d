"""A report as Markdown, its pictures in files beside it."""

from __future__ import annotations

from sim.report.document import Block, Bullets, Document, Heading, Paragraph, Picture, Preformatted, Table


def render(document: Document) -> str:
    """The page; pictures are `figures/<name>.png`."""
    return "\n\n".join([f"# {document.title}", *map(_block, document.blocks)]) + "\n"


def _block(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {text}"
        case Paragraph(text):
            return text
        case Bullets(items):
            return "\n".join(f"* {item}" for item in items)
        case Preformatted(text):
            return f"```\n{text}\n```"
        case Table():
            return _table(block)
        case Picture(name, _, caption, _, failure):
            if failure:
                return f"**{name}.png could not be drawn:** `{failure}`"
            return f"![{name}](figures/{name}.png)\n\n*{caption}*"


def _table(table: Table) -> str:
    rule = "|" + "".join("--:|" if right else "---|" for right in table.right)
    return "\n".join([_row(table.header), rule, *map(_row, table.rows)])


def _row(cells: tuple[str, ...]) -> str:
    inner = " | ".join(cell.replace("|", "\\|") for cell in cells)
    return f"| {inner} |" if any(cells) else "|" + " |" * len(cells)
