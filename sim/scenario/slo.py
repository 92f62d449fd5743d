"""The `slo` section: latency targets, in any of the spellings people use.

`ttft_p99=1s,tpot_p99=40ms` (one string), `{ttft_p99: 1s, tpot_p99: 40ms}` (YAML), and the form of
`vllm bench serve --goodput`, `ttft:500 tpot:50` (ms, no percentile: it judges each request, with no target).
"""

import re
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    GetJsonSchemaHandler,
    PlainSerializer,
    RootModel,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from sim.errors import Fault, InputError, did_you_mean

METRICS = ("ttft", "tpot", "e2e")
_UNITS_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000}
_DURATION = re.compile(r"^\s*(\d+(?:\.\d*)?|\.\d+)\s*(s|ms|us)\s*$")
_KEY = re.compile(r"^(?P<metric>[a-z0-9]+)(?:_p(?P<percentile>\d{1,2}(?:\.\d+)?))?$")
_MILLISECONDS = re.compile(r"^\s*\d+(\.\d*)?\s*$")


@dataclass(frozen=True, slots=True)
class SloTarget:
    """`percentile` % of requests must have `metric` ≤ `limit_s`; None: each one is judged, without target."""

    metric: str
    limit_s: float
    percentile: float | None


def _check_key(key: str) -> str:
    match = _KEY.match(key)
    if match is None or (match["percentile"] is not None and float(match["percentile"]) <= 0):
        raise ValueError(f"'{key}' is no SLO; write METRIC_pPERCENTILE such as ttft_p99, or METRIC alone")
    metric = "e2e" if match["metric"] == "e2el" else match["metric"]
    if metric not in METRICS:
        raise ValueError(
            f"unknown metric '{metric}'; one of {', '.join(METRICS)}{did_you_mean(metric, METRICS)}"
        )
    return key.replace("e2el", "e2e", 1)


def _duration_s(value: object) -> object:
    if isinstance(value, str):
        match = _DURATION.match(value)
        if match is None:
            raise ValueError(f"'{value}' is no duration; write a number and a unit, such as 1s or 40ms")
        value = float(match[1]) / _UNITS_PER_S[match[2]]
    elif isinstance(value, (int, float)):
        raise ValueError(f"{value} has no unit; write {value}s or {value}ms")
    if value == 0:
        raise ValueError("must be greater than 0")
    return value


class Slo(
    RootModel[
        dict[
            Annotated[str, AfterValidator(_check_key)],
            Annotated[
                float,
                BeforeValidator(_duration_s),
                PlainSerializer(lambda limit_s: f"{limit_s!r}s", return_type=str),
            ],
        ]
    ]
):
    """Latency targets that all must hold; `root` maps each key as written to its limit in seconds."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False, defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """What a file may say: one string, or a mapping of targets to durations."""
        duration = {"type": "string", "pattern": _DURATION.pattern}
        return {
            "title": "Slo",
            "description": (cls.__doc__ or "").partition(";")[0],
            "anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": duration}],
        }

    @model_validator(mode="before")
    @classmethod
    def _split_string(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        targets: dict[str, str] = {}
        for part in value.replace(",", " ").split():
            key, sign, limit = re.match(r"([^=:]*)([=:]?)(.*)", part).groups()  # type: ignore[union-attr]
            if not sign or not limit:
                raise ValueError(f"'{part}' is no SLO; write ttft_p99=1s, or ttft:500 in milliseconds")
            if key in targets:
                raise ValueError(f"'{key}' is given twice")
            targets[key] = f"{limit}ms" if sign == ":" and _MILLISECONDS.match(limit) else limit
        return targets

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if not self.root:
            raise ValueError("names no target; write null for no SLO")
        return self

    @property
    def targets(self) -> tuple[SloTarget, ...]:
        """The targets in the order written."""
        matches = ((_KEY.match(key), limit_s) for key, limit_s in self.root.items())
        return tuple(
            SloTarget(match["metric"], limit_s, float(match["percentile"]) if match["percentile"] else None)
            for match, limit_s in matches
            if match is not None
        )


def parse_slo(text: str) -> Slo:
    """An SLO from one string, as `--slo` takes it; `InputError` with all that is wrong in it."""
    try:
        return Slo.model_validate(text)
    except ValidationError as error:
        messages = [detail.get("ctx", {}).get("error", detail["msg"]) for detail in error.errors()]
        raise InputError([Fault(f"--slo {text}", None, str(message)) for message in messages]) from None
