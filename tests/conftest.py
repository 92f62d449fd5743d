"""What every test may ask for: the measurements beside the checkout, and a hypothesis profile for CI."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import pytest
from hypothesis import HealthCheck, settings

mpl.use("Agg")

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

REPO = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of public measurements and traces: $DRYSERVE_SHARED, or `shared` beside the checkout.

    Its files are not part of the project. Tests that need them skip, and say so, where it is absent.
    """
    place = Path(os.environ.get("DRYSERVE_SHARED", REPO.parent / "shared"))
    if not (place / "README.md").is_file():
        pytest.skip(
            "needs the public measurements: set DRYSERVE_SHARED, or put them at shared/ beside the checkout"
        )
    return place


@pytest.fixture(scope="session", autouse=True)
def results_are_kept_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Results of points that tests leave are theirs alone: none are found that an older test run has left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRYSERVE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
