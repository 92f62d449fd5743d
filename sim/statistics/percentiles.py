"""Whether a sample is large enough for a percentile: shown, shown with a mark, or not shown at all."""

from __future__ import annotations

from enum import Enum

from sim.results.metrics import is_thin


class Trust(Enum):
    """What a percentile of a sample is worth."""

    SOUND = "sound"
    THIN = "thin"
    """Fewer than `metrics.FEW_ABOVE` values above it: drawn hollow, printed with a mark."""
    NONE = "none"
    """Less than one value above it: it would be the largest value seen, whatever the percentile."""


def trust_in_percentile(size: int, percent: float) -> Trust:
    """The worth of the `percent` percentile (0 < percent < 100) of `size` values."""
    if not 0.0 < percent < 100.0:
        raise ValueError(f"{percent} is no percentile between 0 and 100")
    if round(size * (1.0 - percent / 100.0), 6) < 1.0:
        return Trust.NONE
    return Trust.THIN if is_thin(size, percent) else Trust.SOUND
