"""TabularSpec: shapes, names and initial values that every framework takes from it, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest

from anyaccel.adapter.model_specs import TabularSpec, embedding_width
from anyaccel.adapter.precision_casts import codes_reason
from anyaccel.errors import ShapeError, SpecError


def test_a_spec_is_read_back_from_its_configuration():
    spec = TabularSpec(3, [4, 200], 2, [16], 0.2, 0.1, "float64")
    assert TabularSpec.from_config(json.loads(json.dumps(spec.get_config()))) == spec


def test_embeddings_are_as_wide_as_the_rule_says():
    assert [embedding_width(n) for n in (1, 2, 10, 98, 5000, 10**6)] == [2, 2, 4, 6, 17, 50]


def test_names_and_shapes_of_the_parameters():
    weights = TabularSpec(3, (4, 200), 2, (16, 8)).weights([(5,)], 0)
    assert {name: value.shape for name, value in weights.items()} == {
        "embeddings.0.weight": (4, 3), "embeddings.1.weight": (200, 8),
        "layers.0.weight": (16, 14), "layers.0.bias": (16,), "layers.1.weight": (8, 16), "layers.1.bias": (8,),
        "layers.2.weight": (2, 8), "layers.2.bias": (2,),
    }  # fmt: skip


def test_the_embedding_of_the_unknown_category_starts_at_zero():
    table = TabularSpec(0, (100,)).weights([(1,)], 3)["embeddings.0.weight"]
    assert not table[0].any() and table[1:].all()
    assert np.abs(table).max() <= 0.05


@pytest.mark.parametrize("inputs", [[(4,)], [(6,)], [(5,), (1,)], [], [()]])
def test_another_width_is_refused_with_the_right_one(inputs):
    with pytest.raises(ShapeError, match=r"\[5\] per sample, 3 numbers and 2 codes"):
        TabularSpec(3, (4, 4)).weight_shapes(inputs)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_numbers": 0}, "n_numbers=0 is not a positive int"),
        ({"n_numbers": -1, "cardinalities": (3,)}, "n_numbers=-1"),
        ({"n_numbers": True}, "n_numbers=True"),
        ({"cardinalities": (3, 0)}, r"cardinalities\[1\]=0"),
        ({"cardinalities": (3, 2.5)}, r"cardinalities\[1\]=2.5"),
        ({"hidden": (8, 0)}, r"hidden\[1\]=0"),
        ({"n_outputs": 0}, "n_outputs=0"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"category_dropout": -0.1}, "category_dropout=-0.1"),
        ({"dtype": "int8"}, "int8"),
        ({"cardinalities": (2**30,)}, "too large"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(SpecError, match=message):
        TabularSpec(**settings)


def test_codes_that_sixteen_bits_do_not_hold_are_a_reason():
    assert codes_reason(TabularSpec(1, (257,)), "bf16-mixed") == (
        "its codes of up to 256 are not exact in bfloat16, which is exact up to 256"
    )
    assert not codes_reason(TabularSpec(1, (256,)), "bf16-mixed")
    assert not codes_reason(TabularSpec(1, (2048,)), "fp16-mixed")
    assert codes_reason(TabularSpec(1, (2049,)), "fp16-mixed")
    assert not codes_reason(TabularSpec(1, (100_000,)), "float32")
    assert not codes_reason(TabularSpec(5), "bf16-mixed")
