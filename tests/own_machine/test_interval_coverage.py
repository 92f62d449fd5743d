"""How often 95 % intervals hold the constants of a machine whose steps are noisy in bursts.

`make nightly` asks it of 60 recordings; that intervals hold at all is asked by the tests of every day.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.own_machine.machines import Noise, engine_on, fitted_to, record

MACHINE = {"step_host_s": 2.5e-3, "request_host_s": 2e-5, "memory_gain": 0.9, "compute_gain": 0.85}
RECORDINGS = 60


@pytest.mark.nightly
def test_intervals_hold_the_constants_about_as_often_as_they_say(tmp_path: Path) -> None:
    offs: dict[str, list[float]] = {name: [] for name in MACHINE}
    for seed in range(RECORDINGS):
        scenario = engine_on(tmp_path, MACHINE, seed=100 + seed, async_scheduling=False)
        found = fitted_to(record(scenario, tmp_path / "run.jsonl.gz", Noise(seed=seed)))
        for constant in found.fitted:
            assert constant.estimate is not None
            off = constant.estimate.value - MACHINE[constant.name]
            offs[constant.name].append(off / constant.estimate.half_width)
    for name, of_constant in offs.items():
        off = np.array(of_constant)
        assert len(off) == RECORDINGS, name
        # 57 of 60 at the nominal rate; fewer than 51 come of it once in a hundred times
        assert (np.abs(off) <= 1.0).sum() >= 51, name
        # intervals that are too wide would hold always: the deviation should be about half of their reach
        assert 0.35 < off.std() < 0.75, name
        assert abs(off.mean()) < 0.25, name
