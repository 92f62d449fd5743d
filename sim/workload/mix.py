"""Several workloads in one table: their requests in one order of arrival, told apart by their class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from sim.scenario.workload import class_in_mix
from sim.values import Ints
from sim.workload.prompts import MixedPrompts
from sim.workload.table import Client, RequestTable, Workload

Number = TypeVar("Number", bound=np.generic)


def mixed(parts: Mapping[str, Workload], *, ignore_eos: bool) -> Workload:
    """The workloads of a mix, by name, as one; their own classes come behind their name: `chat/short`."""
    arrival_s = np.concatenate([workload.table.arrival_s for workload in parts.values()])
    order = np.argsort(arrival_s, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    clients, begin = [], 0
    for workload in parts.values():
        for client in workload.clients:
            rows = np.sort(place[begin + client.rows])
            clients.append(Client(rows, client.max_concurrency, client.leaves))
        begin += len(workload.table)
    loops = {workload.loop for workload in parts.values()}
    loop: Literal["open", "closed", "mixed"] = loops.pop() if len(loops) == 1 else "mixed"
    caps = [client.max_concurrency for client in clients]
    return Workload(
        _Merge(parts, order, place).table(arrival_s),
        loop,
        max_concurrency=None if None in caps else sum(filter(None, caps)),
        ignore_eos=ignore_eos,
        notes=[f"{name}: {note}" for name, workload in parts.items() for note in workload.notes],
        parts=tuple(clients),
    )


class _Merge:
    """Columns of several tables, on end and then in `order`; row i of them goes to `place[i]`."""

    def __init__(self, parts: Mapping[str, Workload], order: Ints, place: Ints) -> None:
        self.names = list(parts)
        self.tables = [workload.table for workload in parts.values()]
        self.order, self.place = order, place
        self.begins = np.cumsum([0, *map(len, self.tables)])[:-1]

    def table(self, arrival_s: npt.NDArray[np.float64]) -> RequestTable:
        """The table of all."""
        tables, order = self.tables, self.order
        part = np.repeat(np.arange(len(tables)), [len(table) for table in tables])[order]
        class_names = [
            class_in_mix(name, own)
            for name, table in zip(self.names, tables, strict=True)
            for own in table.class_names
        ]
        return RequestTable(
            arrival_s=arrival_s[order],
            prompt_tokens=np.concatenate([table.prompt_tokens for table in tables])[order],
            output_tokens=np.concatenate([table.output_tokens for table in tables])[order],
            class_index=self._numbered(
                [table.class_index for table in tables], [len(table.class_names) for table in tables]
            ).astype(np.int16),
            class_names=tuple(class_names),
            session=self._numbered(
                [table.session for table in tables],
                [int(table.session.max(initial=-1)) + 1 for table in tables],
            ),
            priority=np.concatenate([table.priority for table in tables])[order],
            rejected=np.concatenate([table.rejected for table in tables])[order],
            prompts=MixedPrompts(tuple(table.prompts for table in tables), part, order - self.begins[part]),
            turn_after=self._turns(),
            think_s=self._column([table.think_s for table in tables], 0.0),
            first_token_timeout_s=self._column([table.first_token_timeout_s for table in tables], np.inf),
            timeout_s=self._column([table.timeout_s for table in tables], np.inf),
            adapter=self._adapters(),
            adapter_names=tuple(
                f"{name}/{own}"
                for name, table in zip(self.names, tables, strict=True)
                for own in table.adapter_names
            ),
            grammar=self._grammars(),
        )

    def _filled(
        self, columns: Sequence[npt.NDArray[Number] | None], missing: float
    ) -> list[npt.NDArray[Number]] | None:
        """A column of each table, made up where a table has none; None if no table has it."""
        given = [column for column in columns if column is not None]
        if not given:
            return None
        return [
            np.full(len(table), missing, given[0].dtype) if column is None else column
            for table, column in zip(self.tables, columns, strict=True)
        ]

    def _column(
        self, columns: Sequence[npt.NDArray[Number] | None], missing: float
    ) -> npt.NDArray[Number] | None:
        """One column of all tables; None if none has it."""
        filled = self._filled(columns, missing)
        return None if filled is None else np.concatenate(filled)[self.order]

    def _numbered(self, columns: Sequence[npt.NDArray[np.signedinteger]], counts: Sequence[int]) -> Ints:
        """Numbers that begin at 0 in every table, made different from table to table; -1 stays -1."""
        starts = np.cumsum([0, *counts])
        shifted = [
            np.where(column < 0, -1, column.astype(np.int64) + start)
            for column, start in zip(columns, starts, strict=False)
        ]
        return np.concatenate(shifted)[self.order]

    def _turns(self) -> Ints | None:
        """The rows before each turn are rows of the merged table now."""
        after = [
            None if table.turn_after is None else np.where(table.turn_after < 0, -1, table.turn_after + begin)
            for table, begin in zip(self.tables, self.begins, strict=True)
        ]
        rows = self._column(after, -1)
        return None if rows is None else np.where(rows < 0, -1, self.place[rows])

    def _adapters(self) -> npt.NDArray[np.int32] | None:
        columns = self._filled([table.adapter for table in self.tables], -1)
        if columns is None:
            return None
        counts = [len(table.adapter_names) for table in self.tables]
        return self._numbered(columns, counts).astype(np.int32)

    def _grammars(self) -> Ints | None:
        columns = self._filled([table.grammar for table in self.tables], -1)
        if columns is None:
            return None
        return self._numbered(columns, [int(column.max(initial=-1)) + 1 for column in columns])
