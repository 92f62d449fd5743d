"""What can go wrong when a cost model is asked for: every error a user can cause, under one base class."""

from __future__ import annotations

from collections.abc import Sequence

GIB = float(1 << 30)


class CostModelError(ValueError):
    """Base of all errors that this package raises for input it cannot work with."""


class UnknownNameError(CostModelError):
    """A GPU, model, dtype or version that the catalogue does not have; names the nearest ones it has."""

    def __init__(self, kind: str, name: str, suggestions: Sequence[str]) -> None:
        self.kind = kind
        self.name = name
        self.suggestions = tuple(suggestions)
        near = f"; nearest known: {', '.join(self.suggestions)}" if self.suggestions else ""
        super().__init__(f"unknown {kind} {name!r}{near}")


class SpecError(CostModelError):
    """A specification with faults; all of them are listed, one a line."""

    def __init__(self, subject: str, faults: Sequence[str]) -> None:
        self.subject = subject
        self.faults = tuple(faults)
        super().__init__(f"{subject}: " + "; ".join(self.faults))


class DoesNotFitError(CostModelError):
    """The model leaves no room for a KV cache; carries the arithmetic and the smallest TP that fits."""

    def __init__(self, arithmetic: str, smallest_tensor_parallel: int | None) -> None:
        self.arithmetic = arithmetic
        self.smallest_tensor_parallel = smallest_tensor_parallel
        advice = (
            f"the smallest tensor_parallel_size that fits is {smallest_tensor_parallel}"
            if smallest_tensor_parallel is not None
            else "no tensor_parallel_size that divides the model fits"
        )
        super().__init__(f"{arithmetic}; {advice}")


class CalibrationError(CostModelError):
    """A calibration file or measurement table that cannot be read or fitted."""
