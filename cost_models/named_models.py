"""Models by the names that people use: of the packaged table, aliases, and config files of their own."""

from __future__ import annotations

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
    model's own).
    """

    model: Model
    weight_dtype: str | None


@cache
def _aliases() -> dict[str, str]:
    return {alias: alias for alias in read_table("model_aliases.toml")}


def model_names() -> list[str]:
    """Canonical names of all known models."""
    return list(read_table("models.toml"))


def model(name: str) -> NamedModel:
    """The model called `name`: a Hugging Face id, its tail when unambiguous, an alias, or the path of a
    Hugging Face `config.json` or of the folder that holds it.

    An alias such as `…-quantized.w4a16` brings its weight dtype along. A known name wins over a folder of
    that name; `./name` is the folder. Raises UnknownNameError for unknown names, and SpecError with all
    faults of a config.
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
        raise
    if key in table:
        return NamedModel(_read(key), None)
    alias = entry("model_aliases.toml", key)
    return NamedModel(_read(alias.text("model")), alias.text("weight_dtype"))


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
