"""The line that goes into CHANGELOG.md with a new baseline: what moved, by how much, why."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sim.errors import InputError, input_error, os_reason
from sim.evidence.regress.compare import ScenarioDifference

_UNRELEASED = re.compile(r"^## \[?unreleased\]?.*$", re.IGNORECASE | re.MULTILINE)
_SECTION = re.compile(r"^## ", re.MULTILINE)
_CHANGED = re.compile(r"^### Changed[ \t]*$", re.MULTILINE)


def first_line(names: Sequence[str], folder: Path, why: str) -> str:
    """One list item for a first baseline, which moves nothing."""
    return f"- First baseline of {folder}: {', '.join(names)}. Why: {why.strip().rstrip('.')}."


def changelog_line(failed: Sequence[ScenarioDifference], why: str) -> str:
    """One list item. Of each scenario that differs, the number that moved most against its validation error,
    the size and the layer.
    """
    parts = []
    for scenario in failed:
        if scenario.fault:
            parts.append(f"{scenario.name} {scenario.fault}")
            continue
        layers = ", ".join(scenario.layer_names)
        if not scenario.beyond:
            parts.append(f"{scenario.name} no number ({layers})")
            continue
        first = scenario.headline
        more = f" and {len(scenario.beyond) - 1} more" if len(scenario.beyond) > 1 else ""
        parts.append(f"{scenario.name} {first.short_name} {first.size}{more} ({layers})")
    return f"- Simulated numbers moved: {'; '.join(parts)}. Why: {why.strip().rstrip('.')}."


def check_changelog(path: Path) -> None:
    """Raise `InputError` if a line could not be entered: better before the runs than after."""
    try:
        if path.exists():
            with path.open("r+", encoding="utf-8") as file:
                file.read()
        elif not path.parent.is_dir():
            raise input_error(f"cannot be written: no folder {path.parent}", where=str(path))
        elif not os.access(path.parent, os.W_OK):
            raise input_error(f"cannot be written: folder {path.parent} is read-only", where=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(path, error) from None


@contextmanager
def enter(path: Path, line: str) -> Iterator[None]:
    """Put the line under `### Changed` of the unreleased part of a changelog in Keep a Changelog's form; the
    headings are made where they are missing. If what is done within fails, the file is as it was. Raises
    `InputError` for a file that cannot be read or written, before anything else is done.
    """
    try:
        before = path.read_bytes() if path.exists() else None
        text = "# Changelog\n" if before is None else path.read_text(encoding="utf-8")
        path.write_text(entered(text, line), encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(path, error) from None
    try:
        yield
    except BaseException:
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)
        raise


def _unusable(path: Path, error: OSError | UnicodeDecodeError) -> InputError:
    if isinstance(error, UnicodeDecodeError):
        return input_error(f"cannot be changed: not UTF-8 text: byte {error.start}", where=str(path))
    return input_error(f"cannot be changed: {os_reason(error)}", where=str(path))


def entered(text: str, line: str) -> str:
    """The text of the changelog with the line in it."""
    text = text if text.endswith("\n") else f"{text}\n"
    unreleased = _UNRELEASED.search(text)
    if unreleased is None:
        first = _SECTION.search(text)
        at = first.start() if first else len(text)
        gap = "" if text[:at].endswith("\n\n") else "\n"
        return f"{text[:at]}{gap}## [Unreleased]\n\n### Changed\n{line}\n" + (
            f"\n{text[at:]}" if text[at:] else ""
        )
    following = _SECTION.search(text, unreleased.end())
    end = following.start() if following else len(text)
    changed = _CHANGED.search(text, unreleased.end(), end)
    if changed is None:
        body = text[:end].rstrip("\n")
        return f"{body}\n\n### Changed\n{line}\n" + (f"\n{text[end:]}" if text[end:] else "")
    return f"{text[: changed.end()]}\n{line}{text[changed.end() :]}"
