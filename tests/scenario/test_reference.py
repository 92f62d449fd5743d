"""The schema and the reference page are made from the models, and every bound in them is enforced."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from sim.errors import InputError
from sim.scenario import json_schema, reference_markdown, scenario_from_data
from sim.scenario.yaml_text import Data
from tests.cli.helpers import dryserve

FIXED: dict[str, Data] = {"kind": "fixed", "prompt_tokens": 10, "output_tokens": 5}
SYNTHETIC: dict[str, Data] = {"rate_per_s": 1, "num_requests": 5, "lengths": FIXED}

SECTIONS: dict[str, tuple[str, dict[str, Data]]] = {
    "Scenario": ("", {}),
    "ClusterSection": ("cluster", {}),
    "EngineSection": ("engine", {"max_model_len": 4096}),
    "SpeculativeSection": (
        "engine.speculative_config",
        {"method": "eagle", "num_speculative_tokens": 2, "acceptance": 0.5},
    ),
    "LoraSection": ("engine.lora", {"max_loras": 2}),
    "GrammarSection": ("engine.grammar", {"compile_s": 1}),
    "ExternalCacheSection": (
        "cluster.external_cache",
        {"hits": {"kind": "share"}, "bandwidth_gb_per_s": 1},
    ),
    "ShareHits": ("cluster.external_cache.hits", {"kind": "share"}),
    "LruHits": ("cluster.external_cache.hits", {"kind": "lru", "capacity_tokens": 100}),
    "ExponentialTime": ("engine.grammar.compile_s", {"kind": "exponential", "mean_s": 1}),
    "GeometricTurns": ("workload.sessions.turns", {"kind": "geometric", "mean": 2}),
    "PrefixesSection": ("workload.prefixes", {"prefix_tokens": 5}),
    "PoissonWorkload": ("workload", {"kind": "poisson", **SYNTHETIC}),
    "GammaWorkload": ("workload", {"kind": "gamma", "burstiness": 1, **SYNTHETIC}),
    "ConstantWorkload": ("workload", {"kind": "constant", **SYNTHETIC}),
    "BurstWorkload": ("workload", {"kind": "burst", "num_requests": 5, "lengths": FIXED}),
    "ClosedLoopWorkload": (
        "workload",
        {"kind": "closed_loop", "num_requests": 5, "max_concurrency": 2, "lengths": FIXED},
    ),
    "TraceWorkload": ("workload", {"kind": "trace", "path": "x.csv"}),
    "FixedLengths": ("workload.lengths", FIXED),
    "LognormalLengths": (
        "workload.lengths",
        {"kind": "lognormal", "prompt": {"mean": 5, "sigma": 1}, "output": {"mean": 5, "sigma": 1}},
    ),
    "Lognormal": (
        "workload.lengths.prompt",
        {"kind": "lognormal", "mean": 5, "sigma": 1},
    ),
    "Fixed": ("workload.lengths.prompt", {"kind": "fixed", "tokens": 5}),
    "QuantileLengths": ("workload.lengths", {"kind": "quantiles", "grid": "lmsys"}),
    "MarginalLengths": (
        "workload.lengths",
        {
            "kind": "marginals",
            "prompt": {"kind": "fixed", "tokens": 5},
            "output": {"kind": "fixed", "tokens": 5},
        },
    ),
}
MARGINALS: dict[str, Data] = {**SECTIONS["MarginalLengths"][1]}


def _scenario_with(path: str, section: dict[str, Data]) -> dict[str, Data]:
    """A valid scenario that has `section` at `path`."""
    data: dict[str, Data] = {
        "model": "meta-llama/Llama-3.1-8B",
        "gpu": "h100-sxm",
        "engine": {"max_model_len": 4096},
        "workload": {"kind": "poisson", **SYNTHETIC},
    }
    if path == "cluster.external_cache.hits":
        data["cluster"] = {"external_cache": {"bandwidth_gb_per_s": 1}}
    if path.startswith("workload.lengths."):
        data["workload"] = {"kind": "poisson", **SYNTHETIC, "lengths": dict(MARGINALS)}
    here = data
    *way, last = path.split(".") if path else [""]
    for step in way:
        inner = here.setdefault(step, {})
        assert isinstance(inner, dict)
        here[step] = here = dict(inner)
    if path:
        here[last] = section
    else:
        here.update(section)
    return data


def _bounds(field: dict[str, Any]) -> Iterator[Data]:
    """A value just beyond each bound of a field."""
    for each in (field, *field.get("anyOf", [])):
        step = 1 if each.get("type") == "integer" else 1e-3
        if "minimum" in each:
            yield each["minimum"] - step
        if "maximum" in each:
            yield each["maximum"] + step
        if "exclusiveMinimum" in each:
            yield each["exclusiveMinimum"]


def _cases() -> Iterator[Any]:
    schema: dict[str, Any] = json_schema()
    for name, (path, section) in SECTIONS.items():
        fields = (schema if name == "Scenario" else schema["$defs"][name])["properties"]
        for field, facts in fields.items():
            for value in _bounds(facts):
                yield pytest.param(path, section, field, value, id=f"{name}.{field}={value}")


@pytest.mark.parametrize(("path", "section", "field", "value"), list(_cases()))
def test_every_bound_of_the_schema_is_enforced(
    path: str, section: dict[str, Data], field: str, value: Data
) -> None:
    scenario_from_data(_scenario_with(path, section))
    spoilt = {
        key: given for key, given in section.items() if not (field == "duration_s" and key == "num_requests")
    }
    if field == "mu":
        spoilt.pop("mean")
    with pytest.raises(InputError) as caught:
        scenario_from_data(_scenario_with(path, {**spoilt, field: value}))
    assert [fault.path for fault in caught.value.faults] == [f"{path}.{field}".lstrip(".")]
    assert "must be" in caught.value.faults[0].message


def test_there_are_bounds_to_check_in_every_part() -> None:
    ids = [case.id for case in _cases()]
    assert len(ids) > 100
    assert {str(each).split(".")[0] for each in ids} == set(SECTIONS)


def test_the_reference_page_has_every_field_with_its_meaning() -> None:
    page = reference_markdown()
    schema: dict[str, Any] = json_schema()
    for section in (schema, *schema["$defs"].values()):
        for name, field in section.get("properties", {}).items():
            if "const" not in field:
                assert f"| `{name}` |" in page
                assert field.get("description"), f"{section['title']}.{name} has no description"
    meaning = "tokens of a KV block; null = as release, model and GPU have it"
    assert f"| `block_size` | whole number or null | tokens | `null` | ≥ 1, ≤ 1,024 | {meaning} |" in page


def test_the_reference_page_gives_the_unit_of_a_number() -> None:
    page = reference_markdown()
    assert "| `warmup_s` | number | s |" in page
    assert "| `bandwidth_gb_per_s` | number | GB/s |" in page
    assert "| `rate_per_s` | number | 1/s |" in page
    assert "| `capacity_tokens` | whole number | tokens |" in page
    assert "| `replicas` | whole number |  |" in page


def test_the_command_prints_the_page_and_the_schema() -> None:
    assert dryserve("scenarios", "--reference").stdout == reference_markdown()
    assert json.loads(dryserve("scenarios", "--json-schema").stdout) == json_schema()


def test_fields_that_may_be_null_are_null_by_default() -> None:
    """Null means the default everywhere; that holds only if no other default hides behind it."""
    schema: dict[str, Any] = json_schema()
    for section in (schema, *schema["$defs"].values()):
        for name, field in section.get("properties", {}).items():
            if {"type": "null"} in field.get("anyOf", []):
                assert field["default"] is None, f"{section['title']}.{name}"
