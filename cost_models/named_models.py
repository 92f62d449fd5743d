"""Models by the names that people use: of the packaged table, aliases, and config files of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cost_models.catalog import entry, read_table, resolve
from cost_models.errors import UnknownNameError
from cost_models.hf_config import config_path, model_from_hf_config, quantization_path
from cost_models.models import Mla, Model, Moe, SlidingWindow


@dataclass(frozen=True, slots=True)
class NamedModel:
    """What a model name stands for: the model, and the weight dtype that the spelling implies (None: the
    model's own). `note` says what was read from the spelling of a name that is not in the tables.
    """

    model: Model
    weight_dtype: str | None
    note: str = ""


_QUANTISATIONS = (
    ("int8", r"(quantized\.)?w8a8(-int8)?|int8-w8a8"),
    ("w8a16", r"(quantized\.)?w8a16|int8-w8a16|gptq-(int8|8bit)"),
    ("int4", r"(quantized\.)?w4a16(-g\d+)?|(awq|gptq)(-(int4|4bit))?(-g\d+)?|int4(-(awq|gptq|w4a16))?"),
    ("int4", r"autoround(-(int4|awq|gptq))*|4bit"),
    ("fp8", r"fp8(-(dynamic|static|block|kv|w8a8))*"),
    ("nvfp4", r"nvfp4|fp4"),
)
"""How suffixes of Hugging Face names call the weights, by the weight dtype that each stands for."""
_TRAINING = re.compile(r"-(instruct|chat|it|base|thinking|pt|hf)(-hf)?(-\d{4})?$")
"""Suffixes that tell how a model was trained: the shapes are those of the others of its name."""


@cache
def _aliases() -> dict[str, str]:
    return {alias: alias for alias in read_table("model_aliases.toml")}


def model_names() -> list[str]:
    """Canonical names of all known models."""
    return list(read_table("models.toml"))


def model(name: str) -> NamedModel:
    """The model called `name`: a Hugging Face id, its tail when unambiguous, an alias, or the path of a
    Hugging Face `config.json` or of the folder that holds it.

    An alias such as `…-quantized.w4a16` brings its weight dtype along. Other names with the usual suffixes
    (`-AWQ`, `-FP8-dynamic`, `-NVFP4`, `-Instruct`, …), of whatever organisation, stand for the known model of
    that name with weights of that dtype, and have a note that says so. A known name wins over a folder of
    that name; `./name` is the folder. Raises UnknownNameError for unknown names, and SpecError with all
    faults of a config.

    >>> named = model("Qwen/Qwen3-14B-AWQ")
    >>> named.model.name, named.weight_dtype
    ('Qwen/Qwen3-14B', 'int4')
    """
    if name.endswith(".json") or name.startswith((".", "~")) or Path(name).is_absolute():
        return NamedModel(_from_file(name), None)
    table = read_table("models.toml")
    known = name
    if "/" not in name:
        # A bare name may match the model and spellings of it; the table's own entry wins.
        tails = {n.rsplit("/", 1)[-1].lower(): n for n in table}
        known = tails.get(name.lower(), name)
    try:
        key = resolve("model", known, table, _aliases())
    except UnknownNameError:
        if config_path(name).is_file():
            return NamedModel(_from_file(name), None)
        if found := _by_suffixes(name):
            return found
        raise
    if key in table:
        return NamedModel(_read(key), None)
    alias = entry("model_aliases.toml", key)
    return NamedModel(_read(alias.text("model")), alias.text("weight_dtype"))


def _by_suffixes(name: str) -> NamedModel | None:
    """The known model that a name with the usual suffixes stands for; None if there is no single one."""
    tail = name.rsplit("/", 1)[-1].lower().replace("_", "-")
    dtype, base = next(_quantisation(tail), (None, tail))
    for wanted in dict.fromkeys((base, _untrained(base))):
        found = {key for key, tail in _tails() if wanted in (tail, _untrained(tail))}
        exact = {key for key, tail in _tails() if wanted == tail}
        if len(chosen := exact or found) == 1:
            key = chosen.pop()
            weights = f", {dtype} weights" if dtype else ""
            shapes = "shapes and longest context are those of that entry"
            return NamedModel(_read(key), dtype, f"{name}: read as {key}{weights}, by its name; {shapes}")
    return None


def _quantisation(tail: str) -> Iterator[tuple[str, str]]:
    """The weight dtype that a name ends with, and the name before it."""
    for dtype, suffix in _QUANTISATIONS:
        if match := re.search(rf"-({suffix})$", tail):
            yield dtype, tail[: match.start()]


def _untrained(tail: str) -> str:
    return _TRAINING.sub("", tail)


@cache
def _tails() -> tuple[tuple[str, str], ...]:
    """Entries of the table under the last part of their names, and under those of unquantised aliases."""
    aliases = read_table("model_aliases.toml")
    plain = (
        (str(row["model"]), alias)
        for alias, row in aliases.items()
        if row["weight_dtype"] in ("bf16", "fp16")
    )
    spellings = [*((name, name) for name in read_table("models.toml")), *plain]
    return tuple((key, name.rsplit("/", 1)[-1].lower().replace("_", "-")) for key, name in spellings)


def _from_file(name: str) -> Model:
    """The model of a config file, read again when a file has changed."""
    place = config_path(name)
    times = [path.stat().st_mtime_ns if path.is_file() else 0 for path in (place, quantization_path(place))]
    return _read_file(place, tuple(times))


@cache
def _read_file(place: Path, changed_ns: tuple[int, ...]) -> Model:
    return model_from_hf_config(place)


@cache
def _read(key: str) -> Model:
    row = entry("models.toml", key)
    moe, mla, window = row.table("moe"), row.table("mla"), row.table("sliding_window")
    heads = row.whole("heads")
    spec = Model(
        name=key,
        num_layers=row.whole("layers"),
        hidden=row.whole("hidden"),
        num_heads=heads,
        num_kv_heads=row.whole("kv_heads", default=heads),
        head_dim=row.whole("head_dim", default=0),
        intermediate=row.whole("intermediate", default=0),
        vocab=row.whole("vocab"),
        tied_embeddings=row.flag("tied_embeddings"),
        gated_ffn=row.flag("gated_ffn", default=True),
        qk_norm=row.flag("qk_norm"),
        qkv_bias=row.flag("qkv_bias"),
        dtype=row.text("dtype", "bf16"),
        quantization=row.text("quantization"),
        moe=None
        if moe is None
        else Moe(
            moe.whole("layers"),
            moe.whole("experts"),
            moe.whole("top_k"),
            moe.whole("intermediate"),
            moe.whole("shared_experts", default=0),
        ),
        mla=None
        if mla is None
        else Mla(
            mla.whole("q_lora_rank", default=0),
            mla.whole("kv_lora_rank"),
            mla.whole("qk_nope_head_dim"),
            mla.whole("qk_rope_head_dim"),
            mla.whole("v_head_dim"),
        ),
        sliding_window=None
        if window is None
        else SlidingWindow(window.whole("tokens"), window.whole("layers"), window.flag("chunked")),
        max_model_len=row.whole("max_model_len", default=0) or None,
        is_pooling=row.flag("pooling"),
        vision_gib=row.number("vision_gib", 0.0),
        vision_profile_gib=row.number("vision_profile_gib", 0.0),
        params_b=row.number("params_b", 0.0),
        source=row.text("source"),
    )
    row.check()
    return spec
