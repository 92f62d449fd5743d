"""The KV connector: prefixes whose KV lies outside this engine are loaded instead of computed.

A synchronous load happens within the step that admits the request. An asynchronous one holds blocks
while the request waits, and takes neither budget nor a place in the running list. When a request ends, the
connector may keep its blocks until it has sent them elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from scheduler.request import Request


class ExternalMatch(NamedTuple):
    """Tokens beyond the local hits that the connector can provide, and whether it loads them in the
    background.
    """

    num_tokens: int
    asynchronous: bool


class KVConnector(Protocol):
    """What an engine asks of a connector."""

    def match(self, request: Request, num_local_tokens: int) -> ExternalMatch | None:
        """What it has beyond the local hits; None: not known yet, ask again in a later step."""
        ...

    def note_allocated(self, request: Request, num_external_tokens: int) -> None:
        """Blocks for a match are allocated, the load may start."""
        ...

    def delays_free(self, request: Request) -> bool:
        """A request has ended: True if its blocks must stay until they are reported sent."""
        ...


@dataclass(frozen=True, slots=True)
class KVReport:
    """What the connector reports with a step's output: ids whose loads or sends are done, blocks that
    failed.
    """

    received: Sequence[int] = ()
    sent: Sequence[int] = ()
    invalid_blocks: Collection[int] = ()
