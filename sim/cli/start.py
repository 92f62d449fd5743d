"""What the command settles about its process before anything is loaded: a short run is mostly its start.

None of it changes a result, and a user's own setting in the environment is left alone.
"""

from __future__ import annotations

import atexit
import gc
import os

_OBJECTS_BETWEEN_COLLECTIONS = 100_000
_THREADS_OF_BLAS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")


def start_lightly() -> None:
    """Set this process, and those that it starts, up for a quick start. Call it before numpy is imported."""
    if not any(os.environ.get(name) for name in _THREADS_OF_BLAS):
        # There is no linear algebra here, and BLAS threads burn CPU time even while they wait for some.
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
    # Plugins of pydantic are for programs that want their models watched; looking for some takes reading
    # the metadata of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Nearly everything made while modules load stays, so cycles are looked for less often than after every
    # 700 objects; and at the end, when the system takes all memory back, not at all.
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    atexit.register(gc.freeze)
