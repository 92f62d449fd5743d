"""Which vLLM is installed, whether a scenario can be run on it, and what a result on it depends on.

All of this is read from files: vLLM itself is imported when an engine is made, and not before.
"""

from __future__ import annotations

import hashlib
import os
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from scheduler.release import parse_version
from sim.errors import InputError
from sim.scenario import Scenario

TRIED = ("0.16.0", "0.33.0")
"""The releases on which the adapter was tried: they give the mirror's results to the last bit."""

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
"""vLLM's own switch between its model runners, which its scheduler looks at."""

_VERSION_LINE = re.compile(r"^__version__\s*=.*?['\"]([^'\"]+)['\"]", re.MULTILINE)
_DECIDES = ("v1/core", "v1/request.py", "v1/kv_cache_interface.py", "config")
"""The parts of vLLM that a decision can depend on: a patch of one is another engine."""


@cache
def vllm_folder() -> Path | None:
    """The folder of the installed package, None without one."""
    try:
        spec = find_spec("vllm")
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent


@cache
def vllm_version() -> str | None:
    """The version of the installed vLLM, None without one."""
    folder = vllm_folder()
    if folder is None:
        return None
    try:
        found = _VERSION_LINE.search((folder / "_version.py").read_text(encoding="utf-8"))
        if found is not None:
            return found.group(1)
    except OSError:
        pass
    from importlib import metadata

    try:
        return metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return "of unknown version"


def require(scenario: Scenario) -> str:
    """The version that the scenario will run on; raises `InputError` if it cannot.

    Defaults and notes of a scenario are those of `engine.version`, so this must be the release installed.
    """
    asked, found = scenario.engine.version, vllm_version()
    if found is None:
        message = (
            "vllm is not installed here: pip install 'dryserve[vllm]' (or its CPU build); tried with vLLM "
            f"{' and '.join(TRIED)}"
        )
        raise InputError([scenario.fault("engine.scheduler", message)])
    try:
        is_same = parse_version(found) == parse_version(asked)
    except ValueError:
        is_same = False
    if not is_same:
        message = (
            f"is {asked}, but the installed vLLM is {found}: settings left open would take the defaults of "
            f"another release; give engine.version: {found}"
        )
        raise InputError([scenario.fault("engine.version", message)])
    return found


def notes(scenario: Scenario) -> list[str]:
    """What a reader of the results must know about who decided."""
    found = require(scenario)
    decided = f"the installed vLLM {found} decided, not the mirror"
    told = [f"{decided}: {scenario.engine.scheduler_cls}" if scenario.engine.scheduler_cls else decided]
    if found not in TRIED:
        told.append(
            f"vLLM {found} was not tried with this adapter (tried: {', '.join(TRIED)}): where it makes or "
            "asks its scheduler otherwise, numbers can be wrong"
        )
    return told


def identity(scenario: Scenario) -> str:
    """What results depend on beside the scenario: the installed version, the text of the parts that decide,
    the model runner chosen, and the user's class. Raises as `require` does.
    """
    folder = vllm_folder()
    version = require(scenario)
    assert folder is not None
    told = [f"vllm {version} {_digest(folder)} runner {os.environ.get(RUNNER, '')}"]
    dotted = scenario.engine.scheduler_cls
    if dotted is not None:
        told.append(f"{dotted} {_class_digest(dotted)}")
    return ", ".join(told)


@cache
def _digest(folder: Path) -> str:
    told = hashlib.sha256()
    for part in _DECIDES:
        place = folder / part
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            if path.is_file():
                told.update(path.relative_to(folder).as_posix().encode() + b"\n" + path.read_bytes())
    return told.hexdigest()[:16]


def _class_digest(dotted: str) -> str:
    """The hash of the file that a class is in: in the current folder, where it is looked for first, or among
    what is installed.
    """
    module = Path(*dotted.split(".")[:-1])
    for path in (module.with_suffix(".py"), module / "__init__.py"):
        if path.is_file():
            return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    try:
        spec = find_spec(".".join(module.parts))
    except (ImportError, ValueError):
        spec = None
    origin = None if spec is None or spec.origin is None else Path(spec.origin)
    return hashlib.sha256(origin.read_bytes()).hexdigest()[:16] if origin and origin.is_file() else ""
