"""ExampleSpec: a spec with samples, equal to one without, and batches of these."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel.adapter.example_spec import ExampleSpec, example_batch
from anyaccel.segment import TensorSpec

SAMPLES = np.arange(6).reshape(3, 2)


def test_it_is_equal_to_a_spec_without_samples_and_to_no_other():
    spec = ExampleSpec((2,), "int64", SAMPLES)
    assert spec == TensorSpec((2,), "int64") == spec
    assert hash(spec) == hash(TensorSpec((2,), "int64"))
    assert spec == ExampleSpec((2,), "int64", SAMPLES + 1)
    assert spec != TensorSpec((3,), "int64")
    assert spec != TensorSpec((2,), "int32")
    assert str(spec) == "int64[2]"


@pytest.mark.parametrize(("batch", "rows"), [(1, [0]), (3, [0, 1, 2]), (5, [0, 1, 2, 0, 1])])
def test_a_batch_repeats_samples_where_there_are_fewer(batch: int, rows: list[int]):
    found = example_batch(ExampleSpec((2,), "int64", SAMPLES), batch)
    np.testing.assert_array_equal(found, SAMPLES[rows])


def test_a_spec_without_samples_has_no_batch():
    assert example_batch(TensorSpec((2,), "int64"), 2) is None
