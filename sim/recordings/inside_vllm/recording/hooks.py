"""Stands in front of a scheduler class and notes every call, in order, with its time and outcome.

The calls themselves go through unchanged. Notes are made after the call and may fail: then recording is over.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from .notes import Notes
from .settings import describe, vllm_version
from .writer import Writer, any_release, limits_of_environment

TRIED_WITH = ("0.16.0", "0.33.0")
"""The releases of vLLM with whose own schedulers this was tried."""

logger = logging.getLogger("vllm.dryserve.recording")


class Recorded:
    """Put before a scheduler class of vLLM's v1 engine: `class Mine(Recorded, Scheduler)`."""

    _notes: Notes | None = None
    _inside = False
    """Whether a call is under way: what the scheduler calls of itself then is no event from outside."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        try:
            version = vllm_version()
            if version not in TRIED_WITH and not any_release():
                logger.warning(
                    "dryserve: NOT recording. This is vLLM %s; the recorder was tried with %s. "
                    "DRYSERVE_RECORDING_ANY_RELEASE=1 records it all the same.",
                    version,
                    " and ".join(TRIED_WITH),
                )
                return
            header = describe(self, self._arguments(args, kwargs), version)
            writer = Writer(header, limits_of_environment(), self._recording_ended)
            self._notes = Notes(self, writer)
            logger.warning("dryserve: recording to %s (lengths, counts and times; no texts)", writer.path)
        except Exception as error:
            self._recording_failed(error)

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        """The arguments of the scheduler by name; a class between may pass them on without naming them."""
        for kind in type(self).__mro__:
            signature = inspect.signature(vars(kind).get("__init__", object.__init__))
            if "vllm_config" in signature.parameters:
                return signature.bind(self, *args, **kwargs).arguments
        raise TypeError("no scheduler of vLLM's v1 engine")

    # --- calls that are noted ---------------------------------------------------------------------------

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Plan a step."""
        call = super().schedule  # type: ignore[misc]  # of the class behind
        return self._noted(
            "scheduled", call, args, kwargs, throttled=bool((args and args[0]) or any(kwargs.values()))
        )

    def update_from_output(
        self, scheduler_output: Any, model_runner_output: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Apply a step's output."""
        call = super().update_from_output  # type: ignore[misc]
        return self._noted("updated", call, (scheduler_output, model_runner_output, *args), kwargs)

    def update_draft_token_ids(self, draft_token_ids: Any, *args: Any, **kwargs: Any) -> Any:
        """Attach drafts."""
        call = super().update_draft_token_ids  # type: ignore[misc]
        return self._noted("drafted", call, (draft_token_ids, *args), kwargs)

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """A request comes, or a session's next input."""
        known = False
        if self._notes is not None and not self._inside:
            try:
                known = self._notes.knows(request)
            except Exception as error:
                self._recording_failed(error)
        call = super().add_request  # type: ignore[misc]
        return self._noted("added", call, (request, *args), kwargs, known=known)

    def finish_requests(self, request_ids: Any, *args: Any, **kwargs: Any) -> Any:
        """Requests are ended from outside."""
        if request_ids is not None and not isinstance(request_ids, str):
            request_ids = list(request_ids)
        ended: list[str] = []
        if self._notes is not None and not self._inside:
            try:
                ended = self._notes.about_to_end(request_ids)
            except Exception as error:
                self._recording_failed(error)
        call = super().finish_requests  # type: ignore[misc]
        return self._noted("ended", call, (request_ids, *args), kwargs, ended=ended)

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
        """Empty the prefix cache."""
        call = super().reset_prefix_cache  # type: ignore[misc]
        return self._noted("reset", call, args, kwargs)

    def set_pause_state(self, pause_state: Any, *args: Any, **kwargs: Any) -> Any:
        """Pause scheduling, or go on."""
        call = super().set_pause_state  # type: ignore[misc]
        return self._noted("paused", call, (pause_state, *args), kwargs)

    def shutdown(self, *args: Any, **kwargs: Any) -> Any:
        """The engine ends, and the recording with it."""
        notes, self._notes = self._notes, None
        if notes is not None:
            try:
                notes.close("the engine was shut down")
            except Exception as error:
                self._recording_failed(error)
        return super().shutdown(*args, **kwargs)  # type: ignore[misc]

    # --- how --------------------------------------------------------------------------------------------

    def _noted(
        self, what: str, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], **known: Any
    ) -> Any:
        """Make the call, then the note; a call from within another makes none."""
        if self._notes is None or self._inside:
            return call(*args, **kwargs)
        self._inside = True
        start = perf_counter()
        failure: BaseException | None = None
        result = None
        try:
            result = call(*args, **kwargs)
        except BaseException as error:
            failure = error
            raise
        finally:
            end = perf_counter()
            self._inside = False
            notes = self._notes
            if notes is not None:
                try:
                    if failure is None or what == "reset":
                        note = getattr(notes, what)
                        note(start, end, args, kwargs, result if failure is None else "error", **known)
                    else:
                        notes.close(f"{what}: the scheduler raised {type(failure).__name__}")
                        self._notes = None
                except Exception as error:
                    self._recording_failed(error)
        return result

    def _recording_ended(self, why: str) -> None:
        """The writer has ended: no more notes."""
        self._notes = None
        logger.warning("dryserve: recording ended: %s", why)

    def _recording_failed(self, error: Exception) -> None:
        notes, self._notes = self._notes, None
        logger.warning("dryserve: recording ended, serving goes on: %s: %s", type(error).__name__, error)
        if notes is not None:
            notes.abandon(f"{type(error).__name__} in the recorder")
