"""The one exception of this package: a law of the engine does not hold."""

from __future__ import annotations


class InvariantError(RuntimeError):
    """A law of the engine is broken; the message carries the numbers that disagree. Never a user's
    mistake.
    """
