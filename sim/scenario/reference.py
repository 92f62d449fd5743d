"""The scenario format as its models have it: a JSON schema for editors, and a reference page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sim.scenario.rules import rules_markdown
from sim.scenario.scenario import Scenario

_BOUNDS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
_HEAD = """# Scenario reference

Made from the models that check every scenario: what stands here is what is enforced. Null always means the
default. Times are seconds, lengths tokens; only SLOs carry their unit in the value (`1s`, `40ms`).
"""
_UNITS = {
    "_gb_per_s": "GB/s",
    "_per_s": "1/s",
    "_s": "s",
    "_gb": "GB",
    "_tokens": "tokens",
    "max_model_len": "tokens",
    "block_size": "tokens",
}
"""The unit of a field by the end of its name; the first that fits."""
_RULES = """
## Rules of `engine.rules`

Each is on from the release of its date on and off before; setting it here goes against the release.

"""


def json_schema() -> dict[str, object]:
    """A JSON schema (draft 2020-12) of scenario files."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Scenario.model_json_schema()}


def reference_markdown() -> str:
    """The reference page: a table for each section with the facts of every field."""
    schema: dict[str, Any] = Scenario.model_json_schema()
    tables = "".join(_tables(schema, "", schema["$defs"], set())).rstrip("\n")
    return f"{_HEAD}{tables}\n{_RULES}{rules_markdown()}"


def _tables(section: dict[str, Any], path: str, defs: dict[str, Any], done: set[str]) -> Iterator[str]:
    """The table of a section, then those of the sections in it."""
    kind = section["properties"].get("kind", {})
    title = f"`{path}`" if path else "Top level"
    title += f", kind `{kind['const']}`" if "const" in kind else ""
    yield f"\n## {title}\n\n{section.get('description', '')}\n"
    if any("const" not in field for field in section["properties"].values()):
        yield "\n| field | type | unit | default | bounds | meaning |\n|---|---|---|---|---|---|\n"
    required = section.get("required", [])
    for name, field in section["properties"].items():
        if "const" not in field:
            default = "required" if name in required else f"`{_yaml(field.get('default'))}`"
            cells = (
                f"`{name}`",
                _type(field, defs),
                _unit(name, field, defs),
                default,
                _bounds(field, defs),
                field.get("description", ""),
            )
            yield f"| {' | '.join(cells)} |\n"
    for name, field in section["properties"].items():
        for reference in _references(field):
            inner = defs[reference]
            if "properties" in inner and reference not in done:
                done.add(reference)
                yield from _tables(inner, f"{path}.{name}" if path else name, defs, done)


def _references(field: dict[str, Any]) -> list[str]:
    """The names of the sections that may stand in a field."""
    here = [field["$ref"].rsplit("/", 1)[1]] if "$ref" in field else []
    inner = [
        *field.get("anyOf", []),
        *field.get("oneOf", []),
        *(field[name] for name in ("items", "additionalProperties") if isinstance(field.get(name), dict)),
        *field.get("patternProperties", {}).values(),
    ]
    return here + [reference for each in inner for reference in _references(each)]


def _type(field: dict[str, Any], defs: dict[str, Any]) -> str:
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if "oneOf" in field:
        kinds = [defs[reference]["properties"]["kind"]["const"] for reference in _references(field)]
        return f"mapping with kind {', '.join(f'`{kind}`' for kind in kinds)}"
    if "anyOf" in field:
        return " or ".join(_type(each, defs) for each in field["anyOf"])
    if "$ref" in field:
        inner = defs[field["$ref"].rsplit("/", 1)[1]]
        return "mapping" if "properties" in inner else _type(inner, defs)
    if "prefixItems" in field:
        return f"[{', '.join(_type(each, defs) for each in field['prefixItems'])}]"
    if field.get("type") == "array":
        return f"list of {_type(field['items'], defs)}"
    names = {"integer": "whole number", "string": "text", "boolean": "true or false", "object": "mapping"}
    return names.get(field.get("type", ""), str(field.get("type")))


def _unit(name: str, field: dict[str, Any], defs: dict[str, Any]) -> str:
    """The unit of a number, or of the numbers in a list; empty for anything else and for plain counts."""
    if "number" not in _type(field, defs):
        return ""
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")


def _bounds(field: dict[str, Any], defs: dict[str, Any]) -> str:
    here = [f"{sign} {field[name]:,}" for name, sign in _BOUNDS.items() if name in field]
    if "pattern" in field:
        here.append(f"`{field['pattern'].replace('|', chr(92) + '|')}`")
    inner = [*field.get("anyOf", []), *field.get("prefixItems", [])]
    found = here + [bounds for each in inner if (bounds := _bounds(each, defs))]
    return ", ".join(dict.fromkeys(found))


def _yaml(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {None: "null", True: "true", False: "false"}[value]
    return "{}" if isinstance(value, dict) else str(value)
