"""From a name or a path to a valid `Scenario`, or to every fault in it at once."""

from __future__ import annotations

import math
import os
import re
import textwrap
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import scenarios
from sim.errors import Fault, InputError, did_you_mean, input_error, os_reason
from sim.scenario.checks import scenario_faults
from sim.scenario.faults import unknown_null_faults, validation_faults
from sim.scenario.scenario import MOST_NAME_LETTERS, NAME_PATTERN, Scenario
from sim.scenario.yaml_text import Data, Places, apply_overrides, read_yaml

_SUFFIXES = (".yaml", ".yml")


def load_scenario(name_or_path: str | Path | Scenario, overrides: str | Sequence[str] = ()) -> Scenario:
    """The scenario of that name among those shipped, or at that path, with `path=value` overrides applied.

    >>> scenario = load_scenario("quickstart", ["workload.rate_per_s=12", "cluster.replicas=2"])
    >>> scenario.gpu, scenario.cluster.replicas, scenario.workload.rate_per_s
    ('h100-sxm', 2, 12.0)

    A scenario that is loaded already can be given too, for the sake of the overrides.

    >>> load_scenario(scenario, "cluster.replicas=3").cluster.replicas
    3

    Raises `InputError` with all faults: of form, of fields, of overrides, and of names of models and GPUs.
    """
    overrides = [overrides] if isinstance(overrides, str) else overrides
    if isinstance(name_or_path, Scenario):
        return _changed(name_or_path, overrides) if overrides else name_or_path
    text, file, folder = _read(str(name_or_path))
    data, places, faults = read_yaml(text, file)
    if data is None and not faults:
        faults = [Fault(file, None, "is empty; a scenario needs at least model, gpu and workload")]
    if data is None:
        raise InputError(faults)
    if not isinstance(data, dict):
        raise InputError(
            [*faults, Fault(places.where(()), None, "must be a mapping of fields, such as model: ...")]
        )
    data = _rebase_paths(data, folder)
    data, override_faults = apply_overrides(data, places, overrides)
    if isinstance(data, dict) and "name" not in data:
        data, name_faults = _named_by_file(data, file)
        faults = [*faults, *name_faults]
    return _validate(data, places, [*faults, *override_faults])


def _changed(scenario: Scenario, overrides: Sequence[str]) -> Scenario:
    places = Places()
    data, faults = apply_overrides(scenario.as_data(), places, overrides)
    return _validate(data, places, faults)


def scenario_from_data(data: Any) -> Scenario:
    """A scenario from plain data made in code, lists or tuples; raises `InputError` like `load_scenario`."""
    return _validate(_with_tuples(data), Places(), [])


def scenario_names() -> list[str]:
    """The names of the scenarios that come with the package."""
    files = resources.files(scenarios).iterdir()
    return sorted(Path(file.name).stem for file in files if file.name.endswith(_SUFFIXES))


def scenario_text(name_or_path: str | Path) -> str:
    """The YAML of the scenario of that name among those shipped, or at that path."""
    return _read(str(name_or_path))[0]


def _validate(data: Data, places: Places, faults: list[Fault]) -> Scenario:
    faults = [*faults, *unknown_null_faults(data, Scenario, places)]
    data = _without_nulls(data)
    try:
        scenario = Scenario.model_validate(data, context=places)
    except ValidationError as error:
        faults = [*faults, *validation_faults(error, Scenario, data, places)]
        raise InputError(sorted(faults, key=_reading_order)) from None
    if faults := [*faults, *scenario_faults(scenario)]:
        raise InputError(sorted(faults, key=_reading_order))
    return scenario


def _named_by_file(data: dict[str, Data], file: str) -> tuple[dict[str, Data], list[Fault]]:
    """The data with a name, which comes from the file; a fault if that cannot name results."""
    name = Path(file).stem
    if re.fullmatch(NAME_PATTERN, name) and len(name) <= MOST_NAME_LETTERS:
        return {"name": name, **data}, []
    wanted = f"up to {MOST_NAME_LETTERS} letters a-z, digits, '.', '_' and '-', a letter or digit first"
    taken = f"is taken from the file's name, but {name!r} cannot name results"
    return data, [Fault(file, "name", f"{taken}; give the field name ({wanted})")]


def _reading_order(fault: Fault) -> tuple[float, float]:
    """Faults from top to bottom of the file, then those of overrides."""
    position = re.search(r":(\d+):(\d+)$", fault.where or "")
    return (int(position[1]), int(position[2])) if position else (math.inf, math.inf)


def _read(name_or_path: str) -> tuple[str, str, Path | None]:
    """Text, name to show, and folder (None for a shipped scenario)."""
    path = Path(name_or_path)
    if path.suffix in _SUFFIXES or os.sep in name_or_path or _is_file(path):
        return _read_file(path), name_or_path, path.parent
    for suffix in _SUFFIXES:
        shipped = resources.files(scenarios) / f"{name_or_path}{suffix}"
        if shipped.is_file():
            return shipped.read_text(encoding="utf-8"), f"scenarios/{name_or_path}{suffix}", None
    names = scenario_names()
    near = did_you_mean(name_or_path, names)
    listed = textwrap.fill(
        ", ".join(names), 100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
    raise input_error(
        f"no scenario '{name_or_path}'{near}\n"
        f"Give the path of a .yaml file, or one of those shipped (see dryserve scenarios):\n{listed}"
    )


def _is_file(path: Path) -> bool:
    """Whether there is such a file; a text too long or too odd for a name names none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise input_error(f"not UTF-8 text: byte {error.start}", where=str(path)) from None
    except ValueError as error:  # no name of a file
        raise input_error(f"cannot be read: {error}", where=repr(str(path))) from None
    except OSError as error:
        near = [file.name for file in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        message = f"cannot be read: {os_reason(error)}{did_you_mean(path.name, near)}"
        raise input_error(message, where=str(path)) from None


def _rebase_paths(data: dict[str, Data], folder: Path | None) -> dict[str, Data]:
    """File names written in a scenario file are relative to that file, or else to the current folder."""

    def rebase(section: Data, key: str) -> Data:
        if folder is None or not isinstance(section, dict) or not isinstance(name := section.get(key), str):
            return section
        place = folder / name
        is_there = _is_file(place) or (key == "model" and _is_file(place / "config.json"))
        return {**section, key: str(place)} if is_there else section

    def within(section: Data, key: str, inner: str) -> Data:
        if not isinstance(section, dict) or key not in section:
            return section
        return {**section, key: rebase(section[key], inner)}

    rebased = rebase(rebase(data, "model"), "calibration")
    assert isinstance(rebased, dict)
    if "engine" in rebased:
        rebased = {**rebased, "engine": within(rebased["engine"], "speculative_config", "model")}
    workload = rebase(data.get("workload"), "path")
    if isinstance(workload, dict) and isinstance(parts := workload.get("workloads"), dict):
        workload = {**workload, "workloads": {name: rebase(part, "path") for name, part in parts.items()}}
    return {**rebased, "workload": workload}


def _with_tuples(data: Any) -> Data:
    """Sequences as a file's data has them."""
    if isinstance(data, dict):
        return {key: _with_tuples(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return tuple(_with_tuples(item) for item in data)
    plain: Data = data
    return plain


def _without_nulls(data: Data) -> Data:
    """Null means "the default" everywhere, so fields that are null are left out."""
    if isinstance(data, dict):
        return {key: _without_nulls(value) for key, value in data.items() if value is not None}
    if isinstance(data, tuple):
        return tuple(_without_nulls(item) for item in data)
    return data
