"""Pydantic's errors in our own words: the place, the path one would `--set`, what would have been right."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal, get_args, get_origin

from pydantic import BaseModel, RootModel, ValidationError
from pydantic.fields import FieldInfo

from sim.errors import Fault, did_you_mean
from sim.scenario.yaml_text import Data, Path, Places

_WANTED = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "tuple_type": "must be a list",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "finite_number": "must be a finite number",
}
_BOUNDS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}


def validation_faults(
    error: ValidationError, root: type[BaseModel], data: Data, places: Places
) -> list[Fault]:
    """One fault for each error of validating `data` as `root`."""
    faults = []
    for detail in error.errors(include_url=False):
        path = _plain_path(detail["loc"], data)
        message = _message(detail, _sections_at(root, detail["loc"]))
        faults.append(Fault(places.where(path), ".".join(map(str, path)) or None, message))
    return faults


def unknown_null_faults(data: Data, root: type[BaseModel], places: Places) -> Iterator[Fault]:
    """Fields that no section knows and that are null: validation does not see them, as null is left out."""
    pending: list[tuple[Path, Data, list[type[BaseModel]]]] = [((), data, [root])]
    while pending:
        path, here, sections = pending.pop()
        if isinstance(here, tuple):
            pending += [((*path, index), item, sections) for index, item in enumerate(here)]
        if not isinstance(here, dict) or any(issubclass(section, RootModel) for section in sections):
            continue
        if not sections or "." in str(here.get("kind")):  # names of any kind
            continue
        own = [section for section in sections if _kind(section) == here.get("kind")]
        chosen = own + [section for section in sections if section not in own]
        for name, value in here.items():
            fields = [section.model_fields[name] for section in chosen if name in section.model_fields]
            if value is None and not fields:  # null lets go of a field that another kind has
                where = (*path, name)
                message = _unknown_field(name, chosen)
                yield Fault(places.where(where), ".".join(map(str, where)), message)
            for field in fields[:1]:
                inner = [model for each in fields for model in _models_in(each)]
                if _is_mapping(field) and isinstance(value, dict):
                    pending += [((*path, name, key), part, inner) for key, part in value.items()]
                else:
                    pending.append(((*path, name), value, inner))


def _plain_path(loc: Path, data: Data) -> Path:
    """Pydantic's location without the union tags and markers that it adds to the path of the data."""
    path: list[str | int] = []
    here = data
    for step in loc:
        kind = str(here.get("kind")) if isinstance(here, dict) and step not in here else ""
        is_tag = kind == step or "." in kind  # a dotted path stands for the kind "plugin"
        if is_tag or step == "[key]":
            continue
        path.append(step)
        if isinstance(here, dict):
            here = here.get(str(step))
        elif isinstance(here, tuple) and isinstance(step, int) and step < len(here):
            here = here[step]
        else:
            here = None
    return tuple(path)


def _message(detail: Mapping[str, object], sections: list[type[BaseModel]]) -> str:
    kind, context, value = str(detail["type"]), detail.get("ctx") or {}, detail["input"]
    assert isinstance(context, Mapping)
    if kind in ("value_error", "alternatives"):
        return str(context.get("error", context.get("message")))
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return _unknown_field(str(detail["loc"][-1]), sections)  # type: ignore[index]
    if kind in ("literal_error", "union_tag_invalid"):
        known = re.findall(r"'([^']*)'", str(context.get("expected", context.get("expected_tags"))))
        chosen = str(context.get("tag", value))
        return f"'{chosen}' is not one of {', '.join(known)}{did_you_mean(chosen, known)}"
    if kind == "union_tag_not_found":
        return f"'kind' is missing; one of {', '.join(_kinds(sections))}"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"must be {words} {context[name]} (got {value})"
    if kind in _WANTED:
        hint = "; write it in quotes" if kind == "string_type" and isinstance(value, (int, float)) else ""
        return f"{_WANTED[kind]} (got {_shown(value)}){hint}"
    message = str(detail["msg"])
    return f"{message[0].lower()}{message[1:]} (got {_shown(value)})"


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, tuple):
        return "a list"
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 60 else f"{text[:57]}..."


def _unknown_field(name: str, sections: list[type[BaseModel]]) -> str:
    """What to say of a field that the first of `sections` lacks; the others are siblings of other kinds."""
    own = list(sections[0].model_fields)
    elsewhere = [_kind(section) for section in sections[1:] if name in section.model_fields]
    if elsewhere and _kind(sections[0]):
        return f"is no field of kind {_kind(sections[0])}; it belongs to {', '.join(filter(None, elsewhere))}"
    suggestion = did_you_mean(name, own)
    return f"unknown field{suggestion}" if suggestion else f"unknown field; known: {', '.join(own)}"


def _sections_at(root: type[BaseModel], loc: Path) -> list[type[BaseModel]]:
    """The model that holds the last step of `loc`, then its siblings in the same union of kinds."""
    here: list[type[BaseModel]] = [root]
    is_name = False
    for step in loc:
        if is_name:  # of an item in a mapping of sections
            is_name = False
            continue
        tagged = [section for section in here if _kind(section) == step]
        if tagged:
            here = tagged + [section for section in here if section is not tagged[0]]
            continue
        field = here[0].model_fields.get(str(step)) if not isinstance(step, int) else None
        if isinstance(step, int):
            continue
        inner = _models_in(field) if field else []
        if not field or not inner:
            return here
        here, is_name = inner, _is_mapping(field)
    return here


def _models_in(field: FieldInfo) -> list[type[BaseModel]]:
    """The models that may stand in a field, through unions, annotations and lists."""
    found: list[type[BaseModel]] = []
    pending: list[object] = [field.annotation]
    while pending:
        annotation = pending.pop(0)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            found.append(annotation)
        elif get_origin(annotation) is not Literal:
            pending += get_args(annotation)
    return found


def _is_mapping(field: FieldInfo) -> bool:
    """Whether the models in a field stand in a mapping by name."""
    pending: list[object] = [field.annotation]
    while pending:
        annotation = pending.pop(0)
        if get_origin(annotation) is dict:
            return True
        pending += get_args(annotation) if get_origin(annotation) is not Literal else ()
    return False


def _kind(section: type[BaseModel]) -> str | None:
    field = section.model_fields.get("kind")
    return get_args(field.annotation)[0] if field and get_origin(field.annotation) is Literal else None


def _kinds(sections: list[type[BaseModel]]) -> list[str]:
    return [kind for kind in map(_kind, sections) if kind]
