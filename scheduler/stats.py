"""What an engine counts: prefix lookups, verified drafts, and what preemptions cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.request import Request


@dataclass(slots=True)
class PrefixCacheStats:
    """Prefix lookups as vLLM counts them: tokens asked for and found, requests once preempted kept apart.

    Lookups are counted at every attempt, so `hits` can exceed the tokens really saved; those are in
    `saved_tokens` (hit tokens of admitted requests).
    """

    requests: int = 0
    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
    saved_tokens: int = 0

    def count(self, request: Request, num_tokens: int, num_hits: int) -> None:
        """Count one lookup of `num_tokens` tokens that found `num_hits`."""
        if request.num_preemptions:
            self.preempted_requests += 1
            self.preempted_queries += num_tokens
            self.preempted_hits += num_hits
        else:
            self.requests += 1
            self.queries += num_tokens
            self.hits += num_hits


@dataclass(slots=True)
class SpecDecodeStats:
    """Drafts verified so far: how many times, how many tokens, how many accepted."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


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
    """The block side of preemptions: who lost how many blocks, and how much was found again.

    Recomputed tokens are counted where tokens are scheduled (`Request.num_recomputed_tokens`).
    """

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
