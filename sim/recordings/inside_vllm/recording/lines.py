"""Makes lines of notes, in the writing thread: numbers for request ids, classes for hashes, and differences
from step to step. What the lines mean stands with the format's reader.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

from .steps import New, StepLines, Tables

_CLASSES_REMEMBERED = 200_000
_ENDED_REMEMBERED = 20_000

_Line = dict[str, Any]


class Lines:
    """Makes lines; `begin` is the time that times are counted from."""

    def __init__(self, begin: float) -> None:
        self._begin = begin
        self._numbers: dict[str, int] = {}
        self._num_requests = 0
        self._live: dict[str, _Live] = {}
        self._classes: dict[object, int] = {}
        self._num_classes = 0
        self._steps = StepLines(self._numbers)
        self._same_time: dict[float, dict[str, None]] = {}
        """Names by arrival time."""
        self._sorted_names: list[tuple[str, float]] = []
        """Names of which it has been told where they sort, in order, each with its number."""
        self._first_arrival: float | None = None

    def _us(self, time: float) -> int:
        return round((time - self._begin) * 1e6)

    def _number(self, name: str) -> int:
        return self._numbers[name]

    def _numbers_of(self, names: Iterable[str]) -> list[int]:
        """Numbers; requests that came before the recording have none."""
        return [self._numbers[name] for name in names if name in self._numbers]

    # --- classes ----------------------------------------------------------------------------------------

    def _runs(self, hashes: list[object]) -> list[list[int]]:
        """The classes of blocks, as runs."""
        classes, last = self._classes, -2
        runs: list[list[int]] = []
        for i, key in enumerate(hashes):
            number = classes.pop(key, None)
            if number is None:
                if classes.keys().isdisjoint(hashes[i:]):  # as a hash covers all before it, none follows
                    first, count = self._new_numbers(hashes[i:])
                    if first != last + 1:
                        return [*runs, [first, count]]
                    runs[-1][1] += count
                    return runs
                number = self._num_classes
                self._num_classes += 1
            classes[key] = number  # the most recently used one is last
            if number == last + 1:
                runs[-1][1] += 1
            else:
                runs.append([number, 1])
            last = number
        return runs

    def _new_numbers(self, hashes: list[object]) -> list[int]:
        """Classes for hashes that have none, as a run."""
        classes, first = self._classes, self._num_classes
        self._num_classes += len(hashes)
        classes.update(zip(hashes, range(first, self._num_classes), strict=True))
        if len(classes) > 2 * _CLASSES_REMEMBERED:
            for key in list(classes)[:_CLASSES_REMEMBERED]:
                del classes[key]
        return [first, len(hashes)]

    def _new_classes(self, live: _Live) -> list[_Line]:
        """What has been hashed of a request since it was looked at last."""
        hashes = live.request.block_hashes[live.num_hashes :]
        if not hashes:
            return []
        line = {"k": "h", "r": live.number, "from": live.num_hashes, "h": self._runs(hashes)}
        live.num_hashes += len(hashes)
        return [line]

    def checkpoint(self) -> list[_Line]:
        """The classes of running requests, so that they are known if the recording is cut off."""
        return [
            line for live in self._live.values() if live.known is None for line in self._new_classes(live)
        ]

    def session_classes(self, name: str, hashes: list[object]) -> list[_Line]:
        """What a session has now: its text may have been cut."""
        live = self._live.get(name)
        if live is None or live.known is None:
            return []
        same = 0
        for old, new in zip(live.known, hashes, strict=False):
            if old != new:
                break
            same += 1
        live.known = hashes
        return [{"k": "h", "r": live.number, "from": same, "h": self._runs(hashes[same:])}]

    def session_over(self, name: str) -> list[_Line]:
        """A session has ended."""
        self._live.pop(name, None)
        return []

    # --- requests ---------------------------------------------------------------------------------------

    def add(
        self,
        time: float,
        name: str,
        arrival: float,
        num_prompt_tokens: int,
        max_tokens: int,
        hashes: list[object],
        request: Any,
        facts: tuple[int, int, int, int, bool, bool, bool],
        why_not: str | None,
    ) -> list[_Line]:
        """A request comes."""
        number = self._numbers[name] = self._num_requests
        self._num_requests += 1
        min_tokens, priority, client, lora, skips, grammar, session = facts
        line = {
            "k": "add",
            "r": number,
            "t": self._us(time),
            "at": self._arrival(arrival),
            "n": num_prompt_tokens,
            "max": max_tokens,
        }
        facts_told = {
            "h": self._runs(hashes),
            "min": min_tokens,
            "prio": priority,
            "client": client,
            "lora": lora,
            "skip": skips,
            "grammar": grammar,
            "session": session,
            "not": why_not,
        }
        self._live[name] = _Live(number, request, len(hashes), hashes if session else None)
        told = line | {key: value for key, value in facts_told.items() if value}
        return [told, *self._ties_of(name, arrival)]

    def _arrival(self, arrival: float) -> float:
        """Arrival times count from the first one."""
        if self._first_arrival is None:
            self._first_arrival = arrival
        return round(arrival - self._first_arrival, 7)

    def _ties_of(self, name: str, arrival: float) -> list[_Line]:
        """Of requests that came at the same time the name decides: then tell where names sort."""
        if len(self._same_time) > _ENDED_REMEMBERED:
            self._same_time.clear()
            self._sorted_names.clear()
        names = self._same_time.setdefault(arrival, {name: None})
        names[name] = None
        return self._label(names) if len(names) > 1 else []

    def _label(self, names: Iterable[str]) -> list[_Line]:
        """Numbers that sort as the names do, for those that have none yet."""
        lines = []
        for name in names:
            place = bisect_left(self._sorted_names, (name, float("-inf")))
            if place < len(self._sorted_names) and self._sorted_names[place][0] == name:
                continue
            below = self._sorted_names[place - 1][1] if place else None
            above = self._sorted_names[place][1] if place < len(self._sorted_names) else None
            if below is None or above is None:
                label = above - 1 if above is not None else below + 1 if below is not None else 0.0
            else:
                label = (below + above) / 2
            self._sorted_names.insert(place, (name, label))
            lines.append({"k": "tie", "r": self._number(name), "tie": label})
        return lines

    def input(
        self, time: float, name: str, arrival: float, num_tokens: int, max_tokens: int, min_tokens: int
    ) -> list[_Line]:
        """A session's next input comes."""
        line = {"k": "input", "r": self._number(name), "t": self._us(time), "at": self._arrival(arrival)}
        line |= {"n": num_tokens, "max": max_tokens}
        return [line | ({"min": min_tokens} if min_tokens else {}), *self._ties_of(name, arrival)]

    def end(self, time: float, name: str) -> list[_Line]:
        """A session's end comes."""
        return [{"k": "end", "r": self._number(name), "t": self._us(time)}]

    def finish(self, time: float, names: list[str], status: str, held: list[str]) -> list[_Line]:
        """Requests are ended from outside."""
        line = {"k": "finish", "r": self._numbers_of(names), "t": self._us(time), "as": status}
        if held:
            line["held"] = self._numbers_of(held)
        return [*self._gone(names), line]

    def _gone(self, names: Iterable[str]) -> list[_Line]:
        """The last classes of requests that have ended. Their numbers are still needed for a while."""
        lines: list[_Line] = []
        for name in names:
            live = self._live.get(name)
            if live is not None and live.known is None:
                lines += self._new_classes(self._live.pop(name))
        if len(self._numbers) > len(self._live) + 2 * _ENDED_REMEMBERED:
            ended = [name for name in self._numbers if name not in self._live]
            for name in ended[:_ENDED_REMEMBERED]:
                del self._numbers[name]
        return lines

    def reset(self, time: float, running: bool, ok: bool | str) -> list[_Line]:
        """The prefix cache is reset."""
        return [{"k": "reset", "t": self._us(time), "running": running, "ok": ok}]

    def pause(self, time: float, level: int) -> list[_Line]:
        """Scheduling is paused."""
        return [{"k": "pause", "t": self._us(time), "level": level}]

    # --- steps ------------------------------------------------------------------------------------------

    def step(
        self,
        index: int,
        start: float,
        end: float,
        scheduled: Mapping[str, int],
        new: list[New],
        cached: list[str],
        cached_computed: list[int],
        blocks: list[tuple[str, Tables]],
        drafts: Mapping[str, int],
        preempted: list[str],
        finished: list[str],
        ready: list[str] | None,
        answers: list[tuple[str, int | None, bool]],
        queues: tuple[int, int, int],
        throttled: bool,
    ) -> list[_Line]:
        """A step is scheduled."""
        line: _Line = {"k": "s", "i": index, "t": [self._us(start), self._us(end)]}
        line |= self._steps.scheduled(index, scheduled, new, cached, cached_computed, blocks, drafts)
        line["run"], line["wait"], line["free"] = queues
        if preempted:
            line["pre"] = sorted(self._numbers_of(preempted))
        if finished:
            line["fin"] = sorted(self._numbers_of(finished))
        if ready:
            line["ready"] = self._numbers_of(ready)
        if answers:
            line["ext"] = [[self._number(name), tokens, background] for name, tokens, background in answers]
        if throttled:
            line["not"] = "prefills held back for data parallelism"
        return [line]

    def update(
        self,
        index: int,
        start: float,
        end: float,
        names: list[str],
        sampled: list[int],
        odd_outputs: list[tuple[str, int, str | None]],
        outputs: list[list[Any]],
        report: tuple[list[str], list[str], list[int]] | None,
        held: list[str],
        queues: tuple[int, int, int],
    ) -> list[_Line]:
        """A step's output is applied."""
        line: _Line = {"k": "u", "i": index, "t": [self._us(start), self._us(end)]}
        line |= self._steps.updated(index, names, sampled, odd_outputs, outputs)
        if report is not None and any(report):
            line["kv"] = [self._numbers_of(report[0]), self._numbers_of(report[1]), report[2]]
        if held:
            line["held"] = self._numbers_of(held)
        line["run"], line["wait"], line["free"] = queues
        ended = [name for name, _, reason in odd_outputs if reason is not None]
        return [*self._gone(ended), line] if ended else [line]

    def drafts(self, counts: list[tuple[str, int]]) -> list[_Line]:
        """Drafts wait for the next step."""
        most = max(count for _, count in counts)
        if not self._steps.latest_is([name for name, _ in counts]):
            most = 0
        odd = [[self._number(name), count] for name, count in counts if count != most]
        line = {"k": "drafts", "most": most}
        return [line | {"n": odd} if odd else line]


class _Live:
    """A request that has not ended, and how many of its hashes have been written."""

    __slots__ = ("known", "num_hashes", "number", "request")

    def __init__(self, number: int, request: Any, num_hashes: int, known: list[object] | None) -> None:
        self.number = number
        self.request = request
        self.num_hashes = num_hashes
        self.known = known
        """Of a session: its hashes as written last."""
