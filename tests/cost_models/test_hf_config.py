"""A model read from a Hugging Face config.json, and what is said about one that cannot be."""

import dataclasses
import json

import pytest

from cost_models import SpecError, model, model_from_hf_config

QWEN3_14B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 40,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 40960,
    "sliding_window": None,
    "use_sliding_window": False,
}


@pytest.fixture
def read(tmp_path):
    """Write a config and read it as a model."""

    def write_and_read(config, **changes):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config | changes), encoding="utf-8")
        return model_from_hf_config(path)

    return write_and_read


def same_shapes(one, other):
    ignored = {"name", "source", "params_b"}
    names = [f.name for f in dataclasses.fields(one) if f.name not in ignored]
    return {n: getattr(one, n) for n in names} == {n: getattr(other, n) for n in names}


def test_a_dense_model_reads_like_the_known_one(read):
    assert same_shapes(read(QWEN3_14B), model("Qwen/Qwen3-14B").model)


def test_the_folder_of_a_config_is_enough(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN3_14B), encoding="utf-8")
    assert model_from_hf_config(folder).name == "my-model"


def test_without_kv_heads_every_head_has_its_own(read):
    config = {k: v for k, v in QWEN3_14B.items() if k not in ("num_key_value_heads", "head_dim")}
    spec = read(config)
    assert spec.num_kv_heads == 40
    assert spec.head_dim == 128


def test_experts_of_mixtral(read):
    spec = read(QWEN3_14B, model_type="mixtral", num_local_experts=8, num_experts_per_tok=2)
    assert spec.moe is not None
    assert dataclasses.astuple(spec.moe) == (40, 8, 2, 17408, 0)


def test_latent_attention_and_experts_of_deepseek_v3(read):
    spec = read(
        {
            "model_type": "deepseek_v3",
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 61,
            "first_k_dense_replace": 3,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "vocab_size": 129280,
            "torch_dtype": "bfloat16",
            "max_position_embeddings": 163840,
            "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
        }
    )
    known = model("deepseek-ai/DeepSeek-V3").model
    assert (spec.moe, spec.mla) == (known.moe, known.mla)
    assert spec.quantization == "fp8"


def test_windows_by_layer_types_by_pattern_and_on_every_layer(read):
    types = ["sliding_attention", "full_attention"] * 20
    spec = read(QWEN3_14B, sliding_window=128, use_sliding_window=True, layer_types=types)
    assert dataclasses.astuple(spec.sliding_window) == (128, 20, False)
    spec = read(
        QWEN3_14B,
        model_type="gemma3_text",
        sliding_window=1024,
        use_sliding_window=True,
        sliding_window_pattern=5,
    )
    assert dataclasses.astuple(spec.sliding_window) == (1024, 32, False)
    spec = read(QWEN3_14B, model_type="mistral", sliding_window=4096, use_sliding_window=True)
    assert dataclasses.astuple(spec.sliding_window) == (4096, 40, False)


def test_the_language_part_of_a_vision_model(read):
    spec = read({"model_type": "qwen3_vl", "text_config": QWEN3_14B, "vision_config": {"hidden_size": 1152}})
    assert spec.hidden == 5120


@pytest.mark.parametrize(
    ("quantization", "name"),
    [
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "w8a16"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "weights": {"num_bits": 8, "type": "int"},
                        "input_activations": {"num_bits": 8},
                    }
                },
            },
            "int8",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 4, "type": "int"}, "input_activations": None}
                },
            },
            "int4",
        ),
    ],
)
def test_quantised_checkpoints(read, quantization, name):
    assert read(QWEN3_14B, quantization_config=quantization).quantization == name


def test_every_fault_is_listed_at_once(read):
    with pytest.raises(SpecError) as error:
        read(
            {
                "hidden_size": -1,
                "num_attention_heads": 40,
                "num_key_value_heads": 7,
                "num_hidden_layers": "many",
                "torch_dtype": "int3",
                "quantization_config": {"quant_method": "magic"},
            }
        )
    text = str(error.value)
    for fault in (
        "hidden_size",
        "num_hidden_layers",
        "vocab_size is missing",
        "does not divide",
        "int3",
        "magic",
    ):
        assert fault in text
    assert len(error.value.faults) >= 6


def test_a_file_that_is_no_config(tmp_path):
    with pytest.raises(SpecError, match="cannot be read"):
        model_from_hf_config(tmp_path / "nothing.json")
    broken = tmp_path / "config.json"
    broken.write_text("{", encoding="utf-8")
    with pytest.raises(SpecError, match="line 1: not JSON"):
        model_from_hf_config(broken)
    broken.write_text("[1]", encoding="utf-8")
    with pytest.raises(SpecError, match="expected a JSON object"):
        model_from_hf_config(broken)
