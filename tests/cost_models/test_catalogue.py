"""The model catalogue: every entry has its published size, a dated source and names of its own."""

import json
import re

import pytest

from cost_models import Parallelism, model, model_names, weight_dtype
from cost_models.catalog import read_table
from cost_models.errors import GIB, SpecError
from cost_models.weights import weights_bytes

ENTRIES = read_table("models.toml")
ALIASES = read_table("model_aliases.toml")
DATE = re.compile(r"20\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")


@pytest.mark.parametrize("name", model_names())
def test_the_shapes_of_a_model_give_its_published_size(name):
    """Counted from the shapes, the language model comes within 1 % of the published number of parameters."""
    spec = model(name).model
    counted = weights_bytes(spec, Parallelism(), weight_dtype("bf16")) - spec.vision_gib * GIB
    assert spec.params_b > 0
    assert counted / 2e9 == pytest.approx(spec.params_b, rel=0.01)


@pytest.mark.parametrize("name", model_names())
def test_an_entry_names_a_dated_source_and_its_longest_context(name):
    row = ENTRIES[name]
    assert DATE.search(row["source"])
    assert row["max_model_len"] > 0


@pytest.mark.parametrize("name", [name for name, row in ENTRIES.items() if "sliding_window" in row])
def test_a_window_is_shorter_than_the_context_and_on_some_layers(name):
    row = ENTRIES[name]
    window = row["sliding_window"]
    assert 0 < window["tokens"] < row["max_model_len"]
    assert 0 < window["layers"] <= row["layers"]


def test_every_name_stands_for_one_model():
    """No two entries share the last part of their names, and an alias is no entry under other letters."""
    tails = [name.rsplit("/", 1)[-1].lower() for name in ENTRIES]
    assert len(set(tails)) == len(tails)
    whole = [name.lower() for name in (*ENTRIES, *ALIASES)]
    assert len(set(whole)) == len(whole)
    for alias, row in ALIASES.items():
        assert row["model"] in ENTRIES, alias


@pytest.mark.parametrize("name", [*ENTRIES, *ALIASES])
def test_a_name_is_found_whole_and_by_its_last_part(name):
    expected = ALIASES[name]["model"] if name in ALIASES else name
    assert model(name).model.name == expected
    assert model(name.rsplit("/", 1)[-1]).model.name == expected
    assert not model(name).note


def test_the_catalogue_holds_what_people_serve():
    """A hundred and twenty models at least, of every kind whose layers are modelled."""
    kinds = [model(name).model.kind for name in model_names()]
    assert len(kinds) >= 120
    assert min(kinds.count(kind) for kind in ("dense", "moe", "mla")) >= 10


SPELLINGS = {
    "RedHatAI/phi-4-quantized.w4a16": ("microsoft/phi-4", "int4"),
    "RedHatAI/gemma-2-9b-it-FP8": ("google/gemma-2-9b-it", "fp8"),
    "meta-llama/Llama-3.2-3B": ("meta-llama/Llama-3.2-3B-Instruct", None),
    "Qwen/Qwen2.5-Coder-32B-Instruct-AWQ": ("Qwen/Qwen2.5-Coder-32B-Instruct", "int4"),
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": ("Qwen/Qwen3-235B-A22B-Instruct-2507", "fp8"),
    "Qwen/Qwen3-VL-8B-Thinking": ("Qwen/Qwen3-VL-8B-Instruct", None),
    "RedHatAI/DeepSeek-R1-Distill-Llama-70B-FP8-dynamic": (
        "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
        "fp8",
    ),
    "nvidia/DeepSeek-R1-0528-NVFP4": ("deepseek-ai/DeepSeek-R1-0528", "nvfp4"),
    "zai-org/GLM-4.5-Air-FP8": ("zai-org/GLM-4.5-Air", "fp8"),
    "THUDM/glm-4-9b-chat": ("zai-org/glm-4-9b-chat-hf", None),
    "nvidia/MiniMax-M2.7-NVFP4": ("MiniMaxAI/MiniMax-M2.7", "nvfp4"),
    "baidu/ERNIE-4.5-21B-A3B-PT": ("baidu/ERNIE-4.5-21B-A3B-Thinking", None),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_usual_spellings_of_the_catalogue_are_found(name):
    named = model(name)
    assert (named.model.name, named.weight_dtype) == SPELLINGS[name]


def test_a_longer_context_of_the_same_shapes_is_an_entry_of_its_own():
    assert model("Qwen/Qwen3-4B-Instruct-2507").model.max_model_len == 262144
    assert model("Qwen/Qwen3-4B").model.max_model_len == 40960


_ATTENTION = {"num_attention_heads": 32, "num_key_value_heads": 8}
CONFIGS = {
    "CohereLabs/c4ai-command-r7b-12-2024": {
        "model_type": "cohere2",
        **_ATTENTION,
        "head_dim": 128,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "sliding_window": 4096,
        "vocab_size": 256000,
    },
    "LGAI-EXAONE/EXAONE-4.0-32B": {
        "model_type": "exaone4",
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "hidden_size": 5120,
        "intermediate_size": 27392,
        "num_hidden_layers": 64,
        "sliding_window": 4096,
        "sliding_window_pattern": "LLLG",
        "vocab_size": 102400,
    },
    "baidu/ERNIE-4.5-21B-A3B-Thinking": {
        "model_type": "ernie4_5_moe",
        "num_attention_heads": 20,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "hidden_size": 2560,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "moe_k": 6,
        "moe_layer_interval": 1,
        "moe_layer_start_index": 1,
        "moe_num_experts": 64,
        "moe_num_shared_experts": 2,
        "num_hidden_layers": 28,
        "vocab_size": 103424,
    },
    "tencent/Hunyuan-A13B-Instruct": {
        "model_type": "hunyuan_v1_moe",
        **_ATTENTION,
        "hidden_size": 4096,
        "intermediate_size": 3072,
        "moe_intermediate_size": [3072] * 32,
        "moe_topk": [8] * 32,
        "num_experts": 64,
        "num_hidden_layers": 32,
        "num_shared_expert": [1] * 32,
        "tie_word_embeddings": True,
        "vocab_size": 128167,
    },
    "MiniMaxAI/MiniMax-M2": {
        "model_type": "minimax_m2",
        "attn_type_list": [1] * 62,
        "head_dim": 128,
        "hidden_size": 3072,
        "intermediate_size": 1536,
        "num_attention_heads": 48,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 62,
        "num_key_value_heads": 8,
        "num_local_experts": 256,
        "vocab_size": 200064,
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_of_a_known_model_gives_the_shapes_of_its_entry(name, tmp_path):
    """Fields that only some families have, and what a config leaves to the default of its kind."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS[name]), encoding="utf-8")
    read, known = model(str(path)).model, model(name).model
    for field in ("num_layers", "num_heads", "num_kv_heads", "head_dim", "vocab", "tied_embeddings"):
        assert getattr(read, field) == getattr(known, field), field
    assert (read.moe, read.mla, read.sliding_window) == (known.moe, known.mla, known.sliding_window)
    counted = weights_bytes(read, Parallelism(), weight_dtype("bf16"))
    assert counted / 2e9 == pytest.approx(known.params_b, rel=0.01)


def test_linear_attention_among_the_kinds_of_minimax_is_refused(tmp_path):
    path = tmp_path / "config.json"
    mixed = {**CONFIGS["MiniMaxAI/MiniMax-M2"], "attn_type_list": [0] * 7 + [1] * 55}
    path.write_text(json.dumps(mixed), encoding="utf-8")
    with pytest.raises(SpecError, match="attn_type_list"):
        model(str(path))


def test_a_dense_model_may_count_itself_as_one_expert(tmp_path):
    path = tmp_path / "config.json"
    dense = {**CONFIGS["tencent/Hunyuan-A13B-Instruct"], "num_experts": 1, "moe_topk": [1] * 32}
    path.write_text(json.dumps({**dense, "model_type": "hunyuan_v1_dense"}), encoding="utf-8")
    assert model(str(path)).model.kind == "dense"
