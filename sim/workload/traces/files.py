"""Opens a trace, plain or gzipped, and says clearly why when it cannot be read."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sim.errors import Fault, did_you_mean, input_error

_GZIP_MAGIC = b"\x1f\x8b"


@contextmanager
def open_trace(path: Path, named: Fault) -> Iterator[IO[str]]:
    """The lines of the file as text; `named` has the place and the field of the scenario that name it.

    `InputError` for a file that is missing, not readable, not UTF-8 or a broken archive, whenever that shows.
    """
    if "\0" in str(path):
        raise input_error("no file name has a null character in it", where=named.where, path=named.path)
    try:
        with path.open("rb") as probe:
            packed = probe.read(2) == _GZIP_MAGIC
        with path.open("rb") as raw:
            plain = gzip.GzipFile(fileobj=raw) if packed else raw
            yield io.TextIOWrapper(plain, encoding="utf-8-sig", newline="")
    except FileNotFoundError:
        folder = path.parent
        near = did_you_mean(path.name, [file.name for file in folder.iterdir()]) if folder.is_dir() else ""
        raise input_error(f"no such file: {path}{near}", where=named.where, path=named.path) from None
    except IsADirectoryError:
        raise input_error(f"is a folder: {path}", where=named.where, path=named.path) from None
    except UnicodeDecodeError as error:
        raise input_error(f"not UTF-8 text ({error.reason})", where=str(path)) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise input_error(f"broken gzip file: {error}", where=str(path)) from None
    except OSError as error:
        raise input_error(f"cannot be read: {error.strerror or error}", where=str(path)) from None
