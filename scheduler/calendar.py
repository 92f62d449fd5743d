"""The calendar of a cohort: which member needs a block in which step, and when each will leave."""

from __future__ import annotations

from scheduler.request import Member, Request, place_of


class Calendar:
    """Members by the steps in which something is to be done for them. `block_size` in tokens."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._due: list[list[Request]] = [[] for _ in range(block_size)]
        """By the clock, modulo the block size, at which they need a block; in running order."""
        self._leaving: list[Member] = []
        """By the step in which they leave, the next one last; and some that have left before."""

    def due(self, clock: int) -> list[Request]:
        """Who needs a block in a step, in running order. Not to be changed."""
        return self._due[clock % self._block_size]

    def add(self, member: Member) -> None:
        """A member joins."""
        insert(self._due[-member.base % self._block_size], member.request)
        leaving, leaves_at = self._leaving, member.leaves_at
        low, high = 0, len(leaving)
        while low < high:
            middle = (low + high) >> 1
            if leaving[middle].leaves_at > leaves_at:
                low = middle + 1
            else:
                high = middle
        leaving.insert(low, member)

    def remove(self, member: Member) -> None:
        """A member leaves; its request must no longer name it when the next one to leave is asked for."""
        due = self._due[-member.base % self._block_size]
        due.pop(place_of(member.request, due))

    def next_leave(self) -> int:
        """The step in which the next member leaves. There must be one."""
        leaving = self._leaving
        while leaving[-1].request.member is not leaving[-1]:
            leaving.pop()
        return leaving[-1].leaves_at

    def pop_leaving(self, step: int) -> Member | None:
        """The next member whose stay ends by that step, out of the list of those who leave; None if none."""
        leaving = self._leaving
        while leaving and leaving[-1].leaves_at <= step:
            member = leaving.pop()
            if member.request.member is member:
                return member
        return None


def insert(requests: list[Request], request: Request) -> None:
    """Into a list in running order; the newest come last, and they are the usual case."""
    place = len(requests)
    while place and requests[place - 1].running_order > request.running_order:
        place -= 1
    requests.insert(place, request)


def merged(one: list[Request], two: list[Request]) -> list[Request]:
    """Two lists in running order as one; whoever is in both is named once."""
    both: list[Request] = []
    i = 0
    for request in two:
        order = request.running_order
        while i < len(one) and one[i].running_order < order:
            both.append(one[i])
            i += 1
        if i < len(one) and one[i] is request:
            i += 1
        both.append(request)
    both.extend(one[i:])
    return both
