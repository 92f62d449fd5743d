"""A KV connector of vLLM's kind that asks ours. vLLM imports this module by its name."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata


class TimedKVConnector(KVConnectorBase_V1):  # type: ignore[misc]  # vLLM is not always there
    """The scheduler's side of a connector; nothing is ever copied."""

    engine: Any = None
    """Who answers: the `InstalledEngine` that drives the scheduler."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens beyond the local hits, and whether they are loaded in the background."""
        found: tuple[int | None, bool] = self.engine.match(request, num_computed_tokens)
        return found

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Blocks are allocated, the load may start."""
        self.engine.note_allocated(request, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Workers are told nothing."""
        return KVConnectorMetadata()

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """The request has ended: whether its blocks must stay."""
        return self.engine.delays_free(request), None

    def start_load_kv(self, *args: Any, **kwargs: Any) -> None:
        """A worker's affair."""
        raise NotImplementedError

    def wait_for_layer_load(self, *args: Any, **kwargs: Any) -> None:
        """A worker's affair."""
        raise NotImplementedError

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None:
        """A worker's affair."""
        raise NotImplementedError

    def wait_for_save(self) -> None:
        """A worker's affair."""
        raise NotImplementedError
