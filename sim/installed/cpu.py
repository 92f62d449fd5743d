"""Gets vLLM ready to be imported where there is no GPU, and where nothing would run on one."""

from __future__ import annotations

import logging
import os


def prepare() -> None:
    """Import vLLM for the CPU, whatever it was built for, and quietly unless the user wants to hear it."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if "VLLM_LOGGING_LEVEL" not in os.environ:
        os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
        logging.getLogger("vllm").setLevel(logging.ERROR)
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()  # noqa: SLF001
