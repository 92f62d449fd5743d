"""Fair turns: the next request comes from the client that has been served the least, in tokens.

This is the idea of the virtual token counter (Sheng et al., Fairness in Serving Large Language Models, OSDI
2024) with preemption added: a preempted request goes to the front of its client's line and is not charged
twice.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from scheduler.request import Request


@dataclass(slots=True)
class FairOrder:
    """The bill of every client: weighted tokens served.

    A prompt is charged at `prompt_weight` a token when its request is first admitted, output at
    `output_weight` as it comes (the paper proposes 1 and 2). A client that had nothing to wait for and comes
    back does not start below the others: idle time is no credit.
    """

    prompt_weight: float = 1.0
    output_weight: float = 2.0
    served: dict[int, float] = field(default_factory=dict)
    """Weighted tokens by client index."""
    _in_service: dict[int, Request] = field(default_factory=dict, repr=False)
    _charged: dict[int, int] = field(default_factory=dict, repr=False)
    """By request id: output tokens already on the bill; requests whose prompt is on it."""

    def __post_init__(self) -> None:
        if self.prompt_weight < 0 or self.output_weight < 0 or self.prompt_weight + self.output_weight <= 0:
            raise ValueError(
                "prompt_weight and output_weight must not be negative nor both 0, "
                f"not {self.prompt_weight} and {self.output_weight}"
            )

    def settle(self) -> None:
        """Bring the bills up to date: charge the output of everybody in service."""
        ended = []
        for request in self._in_service.values():
            self._charge_output(request)
            if request.is_finished:
                ended.append(request.request_id)
        for request_id in ended:
            del self._in_service[request_id]
            del self._charged[request_id]

    def admit(self, request: Request) -> None:
        """The request goes into service; its prompt is charged the first time."""
        if request.request_id not in self._charged:
            self._charged[request.request_id] = request.num_output_tokens
            self._charge(request, self.prompt_weight * request.num_prompt_tokens)
        self._in_service[request.request_id] = request

    def take_back(self, request: Request) -> None:
        """It was not admitted after all."""
        self._in_service.pop(request.request_id, None)
        if request.num_cached_tokens == -1 and self._charged.pop(request.request_id, None) is not None:
            self._charge(request, -self.prompt_weight * request.num_prompt_tokens)

    def interrupt(self, request: Request) -> None:
        """It was preempted: nothing to charge until it comes back."""
        self._charge_output(request)
        self._in_service.pop(request.request_id, None)

    def forget(self, request: Request) -> None:
        """Close its bill: it has ended, or a session begins its next turn."""
        self._in_service.pop(request.request_id, None)
        self._charged.pop(request.request_id, None)

    def welcome(self, client: int, waiting_clients: Collection[int], last_to_leave: int | None) -> None:
        """A client without waiting requests gets one: lift it to the least served of its competitors."""
        served = self.served
        floor = min((served[other] for other in waiting_clients), default=None)
        if floor is None:
            floor = 0.0 if last_to_leave is None else served[last_to_leave]
        served[client] = max(served.get(client, 0.0), floor)

    def _charge_output(self, request: Request) -> None:
        charged = self._charged.get(request.request_id)
        if charged is not None and request.num_output_tokens > charged:
            self._charged[request.request_id] = request.num_output_tokens
            self._charge(request, self.output_weight * (request.num_output_tokens - charged))

    def _charge(self, request: Request, weighted_tokens: float) -> None:
        client = request.client_index
        self.served[client] = self.served.get(client, 0.0) + weighted_tokens
