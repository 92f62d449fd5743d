"""Measured operators as they come: CSV files, recognised by their columns, one table per GPU and operator.

The columns are those of the project's calibration reference: `m,n,k,us` for products,
`b,q,kv,h,kvh,d,kvb,us` for attention, and so on (`KINDS`). GPU and dtype are columns `gpu` and `dtype`, or
part of the file name, as in `gemm_h100_fp8.csv`.
"""

from __future__ import annotations

import csv
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TextIO

import numpy as np

from cost_models.errors import CalibrationError, UnknownNameError
from cost_models.gpus import gpu
from cost_models.operators.roofline import Floats
from cost_models.weights import weight_dtype

HELD_OUT_EVERY = 5


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of table: the columns that mark it, and those that make up a shape (rows of one are held out
    together).
    """

    name: str
    columns: tuple[str, ...]
    shape: tuple[str, ...]


KINDS = (
    Kind("gemm", ("m", "n", "k"), ("n", "k")),
    Kind("attention", ("b", "q", "kv", "h", "kvh", "d", "kvb"), ("h", "kvh", "d", "kvb")),
    Kind("moe", ("tok", "hid", "inter", "topk", "E", "tp", "ep", "dist"), ("hid", "inter", "topk", "E")),
    Kind("collective", ("gpu", "op", "impl", "gpus", "bytes"), ("op", "impl", "bytes")),
    Kind("small_op", ("gpu", "op", "m", "width"), ("op", "m")),
    Kind("send_recv", ("source", "system", "nodes", "bytes"), ("bytes",)),
)


@dataclass(frozen=True, slots=True)
class OperatorTable:
    """Measurements of one operator on one GPU.

    operator: gemm.<dtype>, attn_prefill, attn_decode, moe, all_reduce, nccl.<op>, small_op.<op> or send_recv.
    columns: shape (rows,) each, numbers; `labels` holds columns that are words. seconds: shape (rows,).
    held_out: rows that calibrations of this project never fit: every fifth shape, by CRC-32 of its columns.
    """

    operator: str
    gpu: str
    columns: dict[str, Floats]
    labels: dict[str, tuple[str, ...]]
    seconds: Floats
    held_out: np.ndarray[tuple[int], np.dtype[np.bool_]]
    source: str

    def __len__(self) -> int:
        return len(self.seconds)

    def rows(self, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> OperatorTable:
        """The table cut down to the rows of `mask`."""
        keep = np.flatnonzero(mask)
        return OperatorTable(
            self.operator,
            self.gpu,
            {name: column[keep] for name, column in self.columns.items()},
            {name: tuple(column[i] for i in keep) for name, column in self.labels.items()},
            self.seconds[keep],
            self.held_out[keep],
            self.source,
        )


def is_held_out(shape: Iterable[str]) -> bool:
    """Whether rows of this shape are kept away from every fit: CRC-32 of its columns divides by five."""
    return zlib.crc32(",".join(shape).encode()) % HELD_OUT_EVERY == 0


def read_tables(directory: Path, gpu_name: str | None = None) -> list[OperatorTable]:
    """All tables in the CSV files of `directory`, or of the one file given; other files are passed over.

    Only those of one GPU where `gpu_name` is given. Raises CalibrationError where there is none at all.
    """
    wanted = gpu(gpu_name).name if gpu_name else None
    files = [directory] if directory.is_file() else sorted(directory.glob("*.csv"))
    tables = [table for path in files for table in _read_file(path)]
    tables = [table for table in tables if wanted in (None, table.gpu)]
    if not tables:
        raise CalibrationError(
            f"{directory}: no table of operator times" + (f" for {wanted}" if wanted else "")
        )
    return tables


def holds_table(path: Path) -> bool:
    """Whether a CSV file has the columns of one of the kinds of table."""
    with _open_table(path) as stream:
        return _kind(csv.DictReader(stream).fieldnames or ()) is not None


@contextmanager
def _open_table(path: Path) -> Iterator[TextIO]:
    """The text of a CSV file; CalibrationError where it is none, whenever that shows."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            yield stream
    except (OSError, UnicodeDecodeError, csv.Error) as fault:
        raise CalibrationError(f"{path}: not a CSV file: {fault}") from fault


def _read_file(path: Path) -> list[OperatorTable]:
    with _open_table(path) as stream:
        reader = csv.DictReader(stream)
        kind = _kind(reader.fieldnames or ())
        return _group(kind, list(reader), path.name, first_line=2) if kind else []


def tables_from_rows(rows: Iterable[dict[str, str]], source: str) -> list[OperatorTable]:
    """Tables from rows that each have the columns of one kind, `us` and `gpu`; `source` names them in
    errors.
    """
    by_kind: dict[str, tuple[Kind, list[dict[str, str]]]] = {}
    for row in rows:
        kind = _kind(row)
        if kind is None:
            raise CalibrationError(f"{source}: a row with columns {', '.join(row)} is no operator")
        by_kind.setdefault(kind.name, (kind, []))[1].append(row)
    return [table for kind, members in by_kind.values() for table in _group(kind, members, source)]


def _kind(columns: Iterable[str]) -> Kind | None:
    names = set(columns)
    return next((kind for kind in KINDS if "us" in names and set(kind.columns) <= names), None)


def _group(
    kind: Kind, rows: Iterable[dict[str, str]], source: str, first_line: int = 1
) -> list[OperatorTable]:
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for line, row in enumerate(rows, start=first_line):
        try:
            key = _operator(kind, row, source), _gpu(row, source)
        except (UnknownNameError, KeyError) as fault:
            raise CalibrationError(f"{source}:{line}: {fault}") from fault
        if key[0]:
            groups.setdefault(key, []).append(row)
    return [_table(kind, operator, part, members, source) for (operator, part), members in groups.items()]


def _operator(kind: Kind, row: dict[str, str], source: str) -> str:
    """Operator that a row measures; "" for rows that no formula here covers."""
    stem = source.removesuffix(".csv")
    if kind.name == "gemm":
        return _product_of(row.get("dtype") or stem.rsplit("_", 1)[-1])
    if kind.name == "attention":
        named = re.search("decode|prefill", row.get("phase") or stem)
        phase = named.group() if named else "decode" if row["q"] == "1" else "prefill"
        return f"attn_{phase}"
    if kind.name == "collective":
        if row["impl"] == "nccl":
            return f"nccl.{row['op']}"
        return "all_reduce" if row["impl"] == "vllm_graph" and row["op"] == "all_reduce" else ""
    if kind.name == "small_op":
        return f"small_op.{row['op']}"
    return kind.name


@cache
def _product_of(dtype: str) -> str:
    try:
        compute = weight_dtype(dtype).compute
    except UnknownNameError:
        compute = "bf16"
    return f"gemm.{'bf16' if compute == 'fp16' else compute}"


def _gpu(row: dict[str, str], source: str) -> str:
    named = row.get("gpu") or row.get("system")
    return _named_gpu(named) if named else _gpu_in_file_name(source.removesuffix(".csv"))


@cache
def _named_gpu(name: str) -> str:
    return gpu(re.sub(r"_(dgx|pairwise_nvlink)$", "", name)).name


@cache
def _gpu_in_file_name(stem: str) -> str:
    for word in stem.split("_"):
        try:
            return gpu(word).name
        except UnknownNameError:
            continue
    raise UnknownNameError("gpu", stem, [])


def _table(
    kind: Kind, operator: str, part: str, rows: Sequence[dict[str, str]], source: str
) -> OperatorTable:
    columns: dict[str, Floats] = {}
    labels: dict[str, tuple[str, ...]] = {}
    for name in dict.fromkeys((*kind.columns, *kind.shape, "us")):
        texts = [row[name] for row in rows]
        try:
            columns[name] = np.array([float(text) for text in texts])
        except ValueError:
            labels[name] = tuple(texts)
    if kind.name == "send_recv":
        labels["topology"] = tuple(row["system"] for row in rows)
    seconds = columns.pop("us", np.zeros(0)) * 1e-6
    if len(seconds) != len(rows) or np.any(~np.isfinite(seconds)) or np.any(seconds <= 0.0):
        raise CalibrationError(f"{source}: column `us` must hold positive times in microseconds")
    held_out = np.array([is_held_out(row[name] for name in kind.shape) for row in rows], dtype=np.bool_)
    return OperatorTable(operator, part, columns, labels, seconds, held_out, source)
