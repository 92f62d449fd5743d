"""The model catalogue: every entry has its published size, a dated source and names of its own."""

import re

import pytest

from cost_models import Parallelism, model, model_names, weight_dtype
from cost_models.catalog import read_table
from cost_models.errors import GIB
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
