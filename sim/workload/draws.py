"""Draws from the distributions of a scenario: lengths, times, and which of several things is asked for.

Prompt and output lengths may have any two marginal distributions, tied together by a Gaussian copula. A pair
of correlated normals is drawn for each request and sent through the two quantile functions. For a rank
correlation S the normals must correlate by 2 sin(pi S / 6), which is exact for continuous marginals. The
first n values of a longer draw are always those of a draw of n.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from sim.random_streams import Streams
from sim.scenario.distributions import (
    ExponentialTime,
    Fixed,
    FixedLengths,
    FixedTime,
    Lengths,
    Lognormal,
    LognormalLengths,
    LognormalTime,
    MarginalLengths,
    MixtureLengths,
    QuantileLengths,
    Quantiles,
    RandomTime,
    Uniform,
    UniformLengths,
    UniformTime,
)
from sim.scenario.quantile_grids import grid
from sim.scenario.requests import PopularitySection, PrefixesSection
from sim.scenario.section import MAX_REQUEST_TOKENS
from sim.values import Floats, Ints

AnyMarginal = Fixed | Uniform | Lognormal | Quantiles


def draw_lengths(
    section: Lengths, count: int, streams: Streams, *, session: Ints | None = None
) -> tuple[Ints, Ints, npt.NDArray[np.int16]]:
    """Prompt tokens, output tokens (each at least 1) and the component of a mixture, for `count` requests.

    Requests of one `session` (numbers from 0, rising) are of one component.
    """
    normals = streams("lengths").standard_normal((count, 2))
    if not isinstance(section, MixtureLengths):
        return (*_draw(section, normals), np.zeros(count, np.int16))
    weights = np.array([component.weight for component in section.components])
    draws = streams("lengths.components").random(count if session is None else int(session[-1]) + 1)
    chosen = np.searchsorted(np.cumsum(weights) / weights.sum(), draws, side="right")
    chosen = np.minimum(chosen, len(weights) - 1)
    if session is not None:
        chosen = chosen[session]
    prompt, output = np.empty(count, np.int64), np.empty(count, np.int64)
    for index, component in enumerate(section.components):
        rows = chosen == index
        prompt[rows], output[rows] = _draw(component.lengths, normals[rows])
    return prompt, output, chosen.astype(np.int16)


def _draw(section: Lengths, normals: Floats) -> tuple[Ints, Ints]:
    pair = _as_marginals(section)
    rho = 2 * np.sin(np.pi * pair.spearman / 6)
    first = normals[:, 0]
    second = rho * first + np.sqrt(1 - rho * rho) * normals[:, 1]
    return quantile(pair.prompt, first, "prompt"), quantile(pair.output, second, "output")


def _as_marginals(section: Lengths) -> MarginalLengths:
    """Every kind of lengths but a mixture is a short way to write two marginals."""
    prompt: AnyMarginal
    output: AnyMarginal
    spearman = 0.0
    match section:
        case FixedLengths():
            prompt, output = Fixed(tokens=section.prompt_tokens), Fixed(tokens=section.output_tokens)
        case UniformLengths():
            prompt, output = Uniform(tokens=section.prompt_tokens), Uniform(tokens=section.output_tokens)
        case LognormalLengths():
            prompt, output, spearman = section.prompt, section.output, section.spearman
        case QuantileLengths():
            prompt = output = Quantiles(grid=section.grid)
            spearman = grid(section.grid).spearman if section.spearman is None else section.spearman
        case MarginalLengths():
            return section
        case _:
            raise TypeError(f"{type(section).__name__} is no pair of marginals")
    # Without validation: the parts have been validated, and a validator takes longer to build than to draw.
    return MarginalLengths.model_construct(kind="marginals", prompt=prompt, output=output, spearman=spearman)


def quantile(marginal: AnyMarginal, normal: Floats, side: str) -> Ints:
    """The marginal's value at the same probability as each standard normal value."""
    if not isinstance(marginal, Fixed | Lognormal):
        from scipy.special import ndtr  # late: it takes longer to import than most runs to simulate

    tokens: Floats
    low, high = 1, MAX_REQUEST_TOKENS
    match marginal:
        case Fixed():
            tokens = np.full(len(normal), float(marginal.tokens))
        case Uniform():
            low, high = marginal.tokens
            tokens = low + np.floor(ndtr(normal) * (high - low + 1))
        case Lognormal():
            low, high = marginal.min, marginal.max or high
            mu = marginal.mu
            if mu is None:
                assert marginal.mean is not None
                mu = math.log(marginal.mean) - marginal.sigma**2 / 2
            tokens = np.exp(np.minimum(mu + marginal.sigma * normal, 50.0))
        case Quantiles():
            measured = grid(marginal.grid)
            curve = measured.prompt if side == "prompt" else measured.output
            tokens = np.interp(ndtr(normal), measured.probabilities, curve)
    whole: Ints = np.clip(np.rint(tokens), low, high).astype(np.int64)
    return whole


def draw_times_s(section: RandomTime, count: int, rng: np.random.Generator) -> Floats:
    """`count` times in seconds."""
    match section:
        case FixedTime():
            return np.full(count, float(section.value_s))
        case UniformTime():
            low, high = section.range_s
            return low + (high - low) * rng.random(count)
        case ExponentialTime():
            return section.mean_s * rng.standard_exponential(count)
        case LognormalTime():
            if section.median_s is not None:
                mu = math.log(section.median_s)
            else:
                assert section.mean_s is not None
                mu = math.log(section.mean_s) - section.sigma**2 / 2
            drawn: Floats = np.exp(mu + section.sigma * rng.standard_normal(count))
            return drawn
    raise TypeError(f"{type(section).__name__} is no distribution of times")


def draw_choices(
    section: PopularitySection | PrefixesSection, num_things: int, count: int, rng: np.random.Generator
) -> Ints:
    """A number from 0, most popular first, for each of `count` askers; -1 for those who ask for nothing."""
    draws = rng.random((count, 2))
    if section.popularity == "cycle":
        chosen = np.arange(count) % num_things
    else:
        exponent = section.zipf_exponent if section.popularity == "zipf" else 0.0
        weight = np.cumsum(np.arange(1, num_things + 1, dtype=float) ** -exponent)
        found = np.searchsorted(weight / weight[-1], draws[:, 0], side="right")
        chosen = np.minimum(found, num_things - 1)
    return np.where(draws[:, 1] < section.share, chosen, -1)
