"""Makes the lines of steps: who is scheduled, and what came of it, as what differs from what is usual.

With hundreds of running requests most of a step is as the step before would have it. What is compared here is
compared as whole lists, and only what differs is looked at one by one.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Mapping
from itertools import compress, repeat
from operator import add, ne
from sys import byteorder
from typing import Any

Tables = tuple[tuple[int, ...], ...]
New = tuple[str, int, Tables]
"""A request that is not in the list of cached ones: its name, the tokens computed before, its blocks."""

_Fields = dict[str, Any]


class StepLines:
    """Remembers the latest step, and those in flight. `numbers`: the requests' numbers by name."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self._numbers = numbers
        self._names: list[str] = []
        self._tokens: list[int] = []
        self._ends: list[int] = []
        """Of the latest step: who is scheduled, for how many tokens, and how many are computed then."""
        self._in_flight: dict[int, tuple[list[str], Mapping[str, int]]] = {}
        """By step: who is scheduled, and the drafts to be verified."""

    def latest_is(self, names: list[str]) -> bool:
        """Whether just these are scheduled in the latest step."""
        return names == self._names or sorted(names) == sorted(self._names)

    # --- scheduled --------------------------------------------------------------------------------------

    def scheduled(
        self,
        index: int,
        scheduled: Mapping[str, int],
        new: list[New],
        cached: list[str],
        cached_computed: list[int],
        blocks: list[tuple[str, Tables]],
        drafts: Mapping[str, int],
    ) -> _Fields:
        """Who is scheduled in a step."""
        names, tokens = list(scheduled), list(scheduled.values())
        if names == [*cached, *(name for name, _, _ in new)]:
            computed = [*cached_computed, *(before for _, before, _ in new)]
        else:
            of_name = dict(zip(cached, cached_computed, strict=True))
            of_name.update((name, before) for name, before, _ in new)
            computed = [of_name[name] for name in names]
        fields = self._difference(names, tokens, computed)
        self._names, self._tokens, self._ends = names, tokens, list(map(add, computed, tokens))
        self._in_flight[index] = names, drafts
        if drafts:
            fields |= self._drafts(names, tokens, drafts)
        if new or blocks:
            fields["blocks"] = self._blocks(names, dict(blocks) | {name: tables for name, _, tables in new})
        return fields

    def _difference(self, names: list[str], tokens: list[int], computed: list[int]) -> _Fields:
        numbers = self._numbers
        before, usual, ends = self._names, self._tokens, self._ends
        fields: _Fields = {}
        off = set(before).difference(names)
        if off:
            places = sorted(map(before.index, off))
            fields["off"] = [numbers[before[i]] for i in places]
            before, usual, ends = before.copy(), usual.copy(), ends.copy()
            for i in reversed(places):
                del before[i], usual[i], ends[i]
        stay = len(before)
        if names[:stay] != before:
            everybody = zip(names, tokens, computed, strict=True)
            return {"all": [[numbers[name], count, start] for name, count, start in everybody]}
        if tokens[:stay] != usual or computed[:stay] != ends:
            odd = {
                *compress(range(stay), map(ne, tokens, usual)),
                *compress(range(stay), map(ne, computed, ends)),
            }
            fields["set"] = [[numbers[names[i]], tokens[i], computed[i]] for i in sorted(odd)]
        if len(names) > stay:
            rows = zip(names[stay:], tokens[stay:], computed[stay:], strict=True)
            fields["on"] = [[numbers[name], count, start] for name, count, start in rows]
        return fields

    def _drafts(self, names: list[str], tokens: list[int], drafts: Mapping[str, int]) -> _Fields:
        """Who has one token and the most drafts has them; the others are told."""
        most = max(drafts.values())
        odd = [
            [self._numbers[name], drafts.get(name, 0)]
            for name, count in zip(names, tokens, strict=True)
            if drafts.get(name, 0) != (most if count == most + 1 else 0)
        ]
        return {"drafts": most, "spec": odd} if odd else {"drafts": most}

    def _blocks(self, names: list[str], given: Mapping[str, Tables]) -> int:
        """A checksum of the blocks handed out."""
        numbers = array("i")
        for name in names if len(given) > 1 else given:
            tables = given.get(name)
            if tables is not None and any(tables):
                numbers.append(self._numbers[name])
                for table in tables:
                    numbers.append(len(table))
                    numbers.extend(table)
        if byteorder == "big":
            numbers.byteswap()
        return zlib.crc32(numbers)

    # --- updated ----------------------------------------------------------------------------------------

    def updated(
        self,
        index: int,
        names: list[str],
        sampled: list[int],
        odd_outputs: list[tuple[str, int, str | None]],
        outputs: list[list[Any]],
    ) -> _Fields:
        """What the model gave, and what came of it. `odd_outputs`: all but single tokens without an end."""
        scheduled, drafts = self._in_flight.pop(index)
        if names == scheduled and sampled:
            counts = sampled
        else:
            of_name = dict(zip(names, sampled, strict=False))
            counts = [of_name.get(name, 0) for name in scheduled]
        fields: _Fields = {}
        if counts.count(1) != len(counts):
            odd = [
                [self._numbers[name], count]
                for name, count in zip(scheduled, counts, strict=True)
                if count != 1
            ]
            fields = {"got": odd} if 3 * len(odd) < len(counts) else {"gots": counts}
        if drafts:
            self._take_back(scheduled, counts, drafts)
        told = self._outputs(scheduled, counts, odd_outputs, outputs)
        if told:
            fields["out"] = told
        return fields

    def _take_back(self, names: list[str], counts: list[int], drafts: Mapping[str, int]) -> None:
        """Drafts that were not accepted no longer count as computed."""
        if names == self._names:  # nothing was scheduled since
            places: Iterable[int] = range(len(names))
        else:
            of_name = dict(zip(self._names, range(len(self._names)), strict=True))
            places = [of_name.get(name, -1) for name in names]
        ends = self._ends
        for place, count, tried in zip(places, counts, map(drafts.get, names, repeat(0)), strict=False):
            if place >= 0 and count and count <= tried:
                ends[place] -= tried + 1 - count

    def _outputs(
        self,
        scheduled: list[str],
        counts: list[int],
        odd: list[tuple[str, int, str | None]],
        outputs: list[list[Any]],
    ) -> list[list[object]]:
        """The outputs that are not simply all of a request's tokens."""
        numbers = self._numbers
        sampled = len(counts) - counts.count(0)
        if not odd and sampled == sum(map(len, outputs)):
            return []
        of_name = dict(zip(scheduled, counts, strict=True))
        told: list[list[object]] = [
            [numbers[name], count, reason]
            for name, count, reason in odd
            if reason is not None or of_name.get(name) != count
        ]
        without_tokens = sum(1 for name, _, _ in odd if not of_name.get(name))
        if sampled + without_tokens != sum(map(len, outputs)):
            heard = {each.request_id for of_client in outputs for each in of_client}
            told += [
                [numbers[name], 0, None] for name, count in of_name.items() if count and name not in heard
            ]
        return told
