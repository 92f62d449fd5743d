"""From recordings to the constants of the machine: the order of the work, and which minutes are for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from cost_models import Deployment, calibration_for, engine_profile
from cost_models.machine import GAINS, Machine
from sim.evidence.own_machine.answer import Constant, OwnMachine
from sim.evidence.own_machine.fit import Estimate, RobustFit, robust_fit
from sim.evidence.own_machine.predicted import Predictor
from sim.evidence.own_machine.shown import CONSTANTS, LEAST_OF_KIND, reasons_not_to_fit
from sim.evidence.own_machine.steps import TimedStep, seconds_of, timed_steps
from sim.recordings import Recording
from sim.scenario import Scenario
from sim.setup import deployment_of, step_timers
from sim.values import Floats

MINUTE_S: Final = 60.0
LEAST_MINUTES: Final = 6
"""A shorter recording is divided into so many equal parts in place of minutes."""
STRETCHES: Final = 20
"""Into so many stretches of time the fitted minutes are divided for the intervals."""
MOST_FITTED_STEPS: Final = 12_000
"""Of more, every second or third is fitted."""
SEARCHED_STEPS: Final = 1500
"""With about so many of them the best start is looked for."""

_SCALE: Final = {"step_host_s": 1e-3, "step_gap_s": 1e-3, "request_host_s": 1e-5}
_MOST: Final = {"step_host_s": 0.5, "step_gap_s": 0.5, "request_host_s": 5e-3}
_GAIN_BOUNDS: Final = (0.1, 10.0)
_WIDEST_GAIN: Final = 0.25
_WIDEST_SHARE: Final = 0.1
"""An interval that reaches further to both sides says nothing: by a share of the gain, or by a time that is
such a share of a step."""
_TOGETHER: Final = 0.8
"""Estimates that are correlated so much cannot be told from one another."""
_FAR: Final = 0.5
"""No error counts for more than this when fits are compared."""


def fit_machine(recordings: Sequence[Recording], scenario: Scenario, *, date: str) -> OwnMachine:
    """Fit the constants of the machine that these recordings of the scenario's engine were made on.

    Every other minute is fitted, the minutes between are held out. InputError if a recording has no times.
    """
    deployment = deployment_of(scenario)
    fitted = calibration_for(scenario.gpu, Path(scenario.calibration) if scenario.calibration else None)
    window = deployment.model.sliding_window
    windows = (window.tokens,) if window else ()
    parts = [_divide(timed_steps(recording, windows)) for recording in recordings]
    train = [step for part in parts for step in part.fitted]
    stretches = _numbered([part.stretches for part in parts])
    predictor = Predictor((), fitted, partial(step_timers, scenario))
    held_out = predictor.of([step for part in parts for step in part.held_out])
    thinned = slice(None, None, -(-len(train) // MOST_FITTED_STEPS) or 1)
    own = predictor.of(train[thinned])
    search = _Search(deployment, own, stretches[thinned], _shipped(scenario, fitted.machine))
    reasons, found = search.fit()
    machine = fitted.machine if found is None else found.machine
    return OwnMachine(
        recordings=tuple(recordings),
        scenario=scenario,
        base=fitted,
        machine=machine,
        constants=tuple(_constants(search.shipped, reasons, found)),
        before_s=held_out.seconds(fitted.machine),
        after_s=held_out.seconds(machine),
        held_out=tuple(held_out.steps),
        num_fitted=len(own.steps),
        num_outliers=found.fit.num_outliers if found else 0,
        num_stretches=found.fit.num_stretches if found else 0,
        converged=found.fit.converged if found else True,
        date=date,
    )


@dataclass(frozen=True)
class _Parts:
    fitted: list[TimedStep]
    stretches: np.ndarray
    held_out: list[TimedStep]


def _divide(steps: Sequence[TimedStep]) -> _Parts:
    """Every other minute for the fit, the others held out; and the stretches of the fitted ones."""
    at_s = np.array([step.begin_s for step in steps])
    if not len(at_s):
        return _Parts([], np.array([], dtype=np.int64), [])
    length_s = at_s.max() - at_s.min() + 1e-9
    minute_s = min(MINUTE_S, length_s / LEAST_MINUTES)
    into_s = at_s - at_s.min()
    minute = (into_s // minute_s).astype(np.int64)
    is_fitted = minute % 2 == 0
    per_minute = max(1, -(-STRETCHES // max(1, len(np.unique(minute[is_fitted])))))
    stretch = minute * per_minute + ((into_s % minute_s) * per_minute // minute_s).astype(np.int64)
    fitted = [step for step, own in zip(steps, is_fitted, strict=True) if own]
    held_out = [step for step, own in zip(steps, is_fitted, strict=True) if not own]
    return _Parts(fitted, stretch[is_fitted], held_out)


def _numbered(stretches: Sequence[np.ndarray]) -> np.ndarray:
    """The stretches of all recordings, none with the number of another's."""
    numbers, first = [], 0
    for each in stretches:
        numbers.append(each + first)
        first += int(each.max(initial=-1)) + 1
    return np.concatenate(numbers)


def _shipped(scenario: Scenario, machine: Machine) -> dict[str, float]:
    """The constants before the fit: those of the calibration's machine, else those of the release."""
    profile = engine_profile(scenario.engine.version)
    values = machine.values()
    return {
        name: float(getattr(profile, name)) if (value := values[name]) is None else value
        for name in CONSTANTS
    }


@dataclass(frozen=True)
class _Found:
    """A fit of the constants `names`; `estimates` are theirs, `machine` is what has them."""

    names: list[str]
    fit: RobustFit
    estimates: tuple[Estimate, ...]
    machine: Machine
    misfit: float

    def without(self, left: Sequence[str], machine: Machine) -> _Found:
        """The same with the other constants alone, on the machine that has them."""
        kept = [i for i, name in enumerate(self.names) if name not in left]
        names, estimates = [self.names[i] for i in kept], tuple(self.estimates[i] for i in kept)
        return replace(self, names=names, estimates=estimates, machine=machine)


@dataclass(frozen=True)
class _Search:
    """Fits constants to the steps of `predictor`, and leaves those that come out as anybody's guess."""

    deployment: Deployment
    predictor: Predictor
    stretches: np.ndarray
    shipped: dict[str, float]

    def fit(self) -> tuple[dict[str, str], _Found | None]:
        """Fit what the steps show; the reasons of all that is left as it was.

        What cannot be told apart is fitted all the same and then left: else it would be taken for something
        else that is free.
        """
        few = self.of(slice(None, None, max(1, len(self.predictor.steps) // SEARCHED_STEPS)))
        starts = [(start, self._free(self._reasons(start))) for start in self._starts()]
        tried = [few.fit_names(names, start) for start, names in starts if names]
        if not tried:
            return self._reasons(self.shipped), None
        best = min(tried, key=lambda found: found.misfit)
        start = self.shipped | {name: e.value for name, e in zip(best.names, best.estimates, strict=True)}
        reasons = self._reasons(start)
        names = self._free(reasons)
        if set(names) <= set(reasons):
            return reasons, None
        joint = self.fit_names(names, start)
        reasons |= self._vague(joint, [name for name in names if name not in reasons])
        kept = {n: e.value for n, e in zip(joint.names, joint.estimates, strict=True) if n not in reasons}
        if not kept:
            return reasons, None
        values = {name: float(f"{value:.5g}") for name, value in kept.items()}
        return reasons, joint.without(list(reasons), self._machine(self.shipped | values, list(kept)))

    def _free(self, reasons: dict[str, str]) -> list[str]:
        """The constants to fit: those that are shown, and with them those that cannot be told apart."""
        shown = [name for name in CONSTANTS if name not in reasons]
        if not shown:
            return []
        constant = "step_gap_s" if self.deployment.async_scheduling else "step_host_s"
        return [name for name in CONSTANTS if name in (*shown, constant, "memory_gain")]

    def _starts(self) -> list[dict[str, float]]:
        """Where to start: as shipped; and with a host so slow that decodes wait for it, for that is another
        valley, where nothing of the GPU shows.
        """
        starts = [self.shipped]
        decodes = [step for step in self.predictor.steps if step.is_decode_only]
        if self.deployment.async_scheduling and len(decodes) >= LEAST_OF_KIND:
            requests = np.array([step.shape.num_requests for step in decodes])
            host_s = seconds_of(decodes) - self.shipped["request_host_s"] * requests
            starts += [{**self.shipped, "step_host_s": float(np.percentile(host_s, q))} for q in (10, 50)]
        return starts

    def _reasons(self, start: dict[str, float]) -> dict[str, str]:
        return reasons_not_to_fit(self.deployment, self.predictor, self._machine(start))

    def _machine(self, values: dict[str, float], fitted: Sequence[str] = ()) -> Machine:
        """The machine of the calibration with these constants."""
        base = self.predictor.fitted.machine
        changed = {name: value for name, value in values.items() if value != self.shipped[name]}
        kept = tuple(name for name in base.fitted if name not in fitted)
        return replace(base, **changed, fitted=(*kept, *fitted))

    def fit_names(self, names: list[str], start: dict[str, float]) -> _Found:
        """Fit just these constants, from here on."""
        predictor = self.predictor

        def machine(values: Floats) -> Machine:
            return self._machine(start | dict(zip(names, map(float, values), strict=True)), names)

        low = np.array([_GAIN_BOUNDS[0] if name in GAINS else 0.0 for name in names])
        high = np.array([_GAIN_BOUNDS[1] if name in GAINS else _MOST[name] for name in names])
        measured_s = seconds_of(predictor.steps)
        found = robust_fit(
            lambda values: predictor.seconds(machine(values)),
            measured_s,
            [step.kind for step in predictor.steps],
            self.stretches,
            np.array([start[name] for name in names]),
            np.array([1.0 if name in GAINS else _SCALE[name] for name in names]),
            low,
            high,
        )
        rounded = machine(np.array([float(f"{e.value:.5g}") for e in found.estimates]))
        errors = np.abs(np.log(measured_s / predictor.seconds(rounded)))
        misfit = float(np.median(errors) + np.mean(np.minimum(errors, _FAR)))
        return _Found(names, found, found.estimates, rounded, misfit)

    def _vague(self, found: _Found, shown: Sequence[str]) -> dict[str, str]:
        """Those of the constants whose interval says nothing: it is wide, and what was before lies in it.

        One on which another hangs that does say something stays, with its wide interval.
        """
        place = {name: i for i, name in enumerate(found.names)}
        together = np.abs(found.fit.correlations)
        np.fill_diagonal(together, 0.0)
        vague = [name for name in shown if self._says_nothing(name, found.estimates[place[name]])]
        while said := [
            name
            for name in vague
            if any(together[place[name], place[other]] > _TOGETHER for other in shown if other not in vague)
        ]:
            vague = [name for name in vague if name not in said]
        reasons = {}
        for name in vague:
            estimate, row = found.estimates[place[name]], together[place[name]]
            if name in GAINS:
                reach = f"{estimate.low:.2f} to {estimate.high:.2f}"
            else:
                reach = f"{1e3 * estimate.low:.3g} to {1e3 * estimate.high:.3g} ms"
            from_ = f", for it cannot be told from {found.names[int(row.argmax())]}"
            reasons[name] = (
                f"the steps leave it anywhere from {reach}{from_ if row.max() > _TOGETHER else ''}"
            )
        return reasons

    def _says_nothing(self, name: str, estimate: Estimate) -> bool:
        if not estimate.low <= self.shipped[name] <= estimate.high:
            return False
        wide, steps = estimate.half_width, self.predictor.steps
        if name in GAINS:
            return wide > _WIDEST_GAIN * estimate.value
        requests = np.median([step.shape.num_requests for step in steps]) if name == "request_host_s" else 1.0
        is_wide = wide * requests > _WIDEST_SHARE * np.median(seconds_of(steps))
        return bool(is_wide) and wide > 0.5 * self.shipped[name]

    def of(self, chosen: slice) -> _Search:
        """The same over some of the steps."""
        some = self.predictor.of(self.predictor.steps[chosen])
        return replace(self, predictor=some, stretches=self.stretches[chosen])


def _constants(shipped: dict[str, float], reasons: dict[str, str], found: _Found | None) -> list[Constant]:
    estimates = {} if found is None else dict(zip(found.names, found.estimates, strict=True))
    return [
        Constant(name, shipped[name], estimates.get(name), "" if name in estimates else reasons[name])
        for name in CONSTANTS
    ]
