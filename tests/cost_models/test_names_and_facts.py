"""GPUs and models are found under the names people use, and their facts add up."""

import tomllib
from importlib.resources import files

import pytest

from cost_models import UnknownNameError, gpu, gpu_names, model, weight_dtype
from cost_models.catalog import read_table
from cost_models.errors import GIB
from sim import simulate


@pytest.mark.parametrize(
    "spelling", ["h100-sxm", "H100", "H100-SXM-80GB", "h100_sxm", "NVIDIA H100 80GB HBM3", "H100 80GB hbm3"]
)
def test_a_gpu_has_many_spellings(spelling):
    assert gpu(spelling).name == "h100-sxm"


def test_an_unknown_gpu_gets_the_nearest_known_ones():
    with pytest.raises(UnknownNameError) as error:
        gpu("h100-sxn")
    assert error.value.kind == "gpu"
    assert "h100-sxm" in error.value.suggestions
    assert "h100-sxm" in str(error.value)


def test_an_unknown_model_gets_the_nearest_known_ones():
    with pytest.raises(UnknownNameError) as error:
        model("Qwen/Qwen3-15B")
    assert "Qwen/Qwen3-14B" in error.value.suggestions


def test_a_model_is_known_by_its_tail_and_by_its_variants():
    assert model("Qwen3-14B").model.name == "Qwen/Qwen3-14B"
    assert model("meta-llama/Llama-3.1-8B-Instruct").model.name == "meta-llama/Meta-Llama-3.1-8B"


def test_a_quantised_variant_brings_its_weight_dtype():
    named = model("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16")
    assert named.model.name == "meta-llama/Meta-Llama-3.1-8B"
    assert named.weight_dtype is not None
    assert weight_dtype(named.weight_dtype).compute == "bf16"
    assert weight_dtype(named.weight_dtype).bytes_per_weight == pytest.approx(0.52)


SUFFIXED = {
    "Qwen/Qwen3-14B-AWQ": ("Qwen/Qwen3-14B", "int4"),
    "Qwen3-32B-FP8": ("Qwen/Qwen3-32B", "fp8"),
    "Qwen/Qwen3-4B-Instruct-2507-FP8": ("Qwen/Qwen3-4B-Instruct-2507", "fp8"),
    "RedHatAI/Qwen2.5-7B-Instruct-quantized.w8a8": ("Qwen/Qwen2.5-7B-Instruct", "int8"),
    "nvidia/Llama-3.3-70B-Instruct-NVFP4": ("meta-llama/Meta-Llama-3.1-70B", "nvfp4"),
    "hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4": ("meta-llama/Meta-Llama-3.1-70B", "int4"),
    "Qwen/Qwen2.5-14B-Instruct-GPTQ-Int4": ("Qwen/Qwen2.5-14B-Instruct", "int4"),
    "Qwen/Qwen2.5-14B-Instruct-GPTQ-Int8": ("Qwen/Qwen2.5-14B-Instruct", "w8a16"),
    "RedHatAI/gemma-3-27b-it-FP8-dynamic": ("google/gemma-3-27b-it", "fp8"),
    "amd/Llama-3.1-8B-Instruct-FP8-KV": ("meta-llama/Meta-Llama-3.1-8B", "fp8"),
    "unsloth/Qwen3-8B-Base": ("Qwen/Qwen3-8B", None),
    "Qwen/Qwen2.5-7B": ("Qwen/Qwen2.5-7B-Instruct", None),
}


@pytest.mark.parametrize("name", SUFFIXED)
def test_the_usual_suffixes_of_a_name_tell_the_shapes_and_the_dtype_of_the_weights(name):
    known, dtype = SUFFIXED[name]
    named = model(name)
    assert (named.model.name, named.weight_dtype) == (known, dtype)
    assert named.note.startswith(f"{name}: read as {known}")


@pytest.mark.parametrize(
    "name",
    ["Qwen/Qwen3-15B-AWQ", "deepseek-ai/DeepSeek-R1-Distill-Llama-7B", "Qwen/Qwen3-14B-GGUF", "-AWQ", ""],
)
def test_other_names_are_not_guessed(name):
    with pytest.raises(UnknownNameError):
        model(name)


def test_a_run_says_how_it_read_the_name_of_its_model():
    small = ["workload.duration_s=null", "workload.num_requests=3"]
    result = simulate("quickstart", ["model=RedHatAI/Qwen3-14B-FP8-dynamic", *small])
    assert any("read as Qwen/Qwen3-14B, fp8 weights" in note for note in result.notes)
    assert result.setup.deployment.weight_dtype.name == "fp8"


def test_every_gpu_names_its_source():
    for name in gpu_names():
        part = gpu(name)
        assert part.source, name
        assert part.bf16_flop_per_s > 0, name
        assert part.memory_bytes_per_s > 0, name


def test_cuda_reports_less_memory_than_the_label_promises():
    """Start-up logs: 79.18 GiB on an H100 of 80 GB, 44.4 GiB on an L40S of 48 GB."""
    assert gpu("h100-sxm").memory_bytes / GIB == pytest.approx(79.18)
    assert gpu("l40s").memory_bytes / GIB == pytest.approx(44.4)
    for name in gpu_names():
        assert gpu(name).memory_bytes < 300 * GIB


def test_a_part_without_a_unit_computes_in_bf16():
    """An A100 has no fp8 unit: fp8 weights are expanded and multiplied in bf16. An H100 has one."""
    assert gpu("a100-sxm-80gb").compute_dtype("fp8") == "bf16"
    assert gpu("h100-sxm").compute_dtype("fp8") == "fp8"
    assert gpu("h100-sxm").peak_flop_per_s("fp8") == pytest.approx(1978.9e12)


DATA = files("cost_models") / "data"
TABLES = sorted(file.name for file in DATA.iterdir() if file.name.endswith(".toml"))


@pytest.mark.parametrize("name", TABLES)
def test_entries_parsed_one_by_one_are_those_of_the_whole_file(name):
    whole = tomllib.loads((DATA / name).read_text(encoding="utf-8"))
    entries = read_table(name)

    assert list(entries) == list(whole)
    assert dict(entries) == whole


def test_an_entry_that_a_file_does_not_have_is_not_there():
    entries = read_table("gpus.toml")

    assert "h100-sxm" in entries
    assert "abacus" not in entries
    assert entries.get("abacus") is None
