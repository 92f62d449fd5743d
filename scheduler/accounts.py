"""What preemptions cost: who lost how many blocks, and how much was found again.

Recomputed tokens are counted where tokens are scheduled (`Request.num_recomputed_tokens`); here is the block
side of the same story, for the requests that were ever preempted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.request import Request


@dataclass(slots=True)
class PreemptionAccount:
    """The preemptions of one request."""

    num_preemptions: int = 0
    num_lost_tokens: int = 0
    """Computed tokens that were given up; some of them were found again."""
    num_freed_blocks: int = 0
    """KV blocks that became free because of it: those it shared with nobody."""
    num_rehit_blocks: int = 0
    """Of these, found in the prefix cache when it came back."""
    num_reloaded_tokens: int = 0
    """Tokens that came back through the KV connector instead of being computed again."""
    longest_chain: int = 0
    """Most preemptions in a row without a single new output token in between."""
    chain: int = 0
    output_tokens_then: int = -1
    """Output tokens at its latest preemption."""
    freed_then: frozenset[int] = frozenset()
    """The blocks of its latest preemption, until it comes back."""


@dataclass(slots=True)
class PreemptionAccounts:
    """The accounts of one engine, by request id."""

    by_request: dict[int, PreemptionAccount] = field(default_factory=dict)

    def preempted(self, request: Request, freed_blocks: Sequence[int]) -> None:
        """A request is losing its blocks, of which `freed_blocks` become free."""
        account = self.by_request.setdefault(request.request_id, PreemptionAccount())
        account.num_preemptions += 1
        account.num_lost_tokens += request.num_computed_tokens
        account.num_freed_blocks += len(freed_blocks)
        account.freed_then = frozenset(freed_blocks)
        fruitless = request.num_output_tokens == account.output_tokens_then
        account.chain = account.chain + 1 if fruitless else 1
        account.longest_chain = max(account.longest_chain, account.chain)
        account.output_tokens_then = request.num_output_tokens

    def found_again(self, request: Request, hits: Sequence[Sequence[int]]) -> int:
        """How many of `hits`, by KV group, are blocks that the request lost at its latest preemption."""
        account = self.by_request.get(request.request_id)
        if account is None:
            return 0
        return sum(len(account.freed_then.intersection(group)) for group in hits)

    def came_back(self, request: Request, num_rehit_blocks: int, num_external_tokens: int) -> None:
        """A preempted request holds blocks again, some of its own and loaded ones among them."""
        account = self.by_request[request.request_id]
        account.num_rehit_blocks += num_rehit_blocks
        account.num_reloaded_tokens += num_external_tokens
        account.freed_then = frozenset()
