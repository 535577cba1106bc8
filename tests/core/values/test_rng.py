"""Random numbers: golden values, and the published algorithm in plain Python integers."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyaccel import rng
from anyaccel.adapter.model_specs import MLPSpec

MASK = 2**64 - 1
PERMUTATION = [7, 9, 5, 1, 4, 2, 8, 0, 6, 3]


def splitmix64(state: int, n: int) -> list[int]:
    """The generator as it is published: a state that grows by the golden gamma, and two multiply-xorshift rounds."""
    words = []
    for _ in range(n):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        words.append(z ^ (z >> 31))
    return words


def test_bits_are_the_published_test_vector():
    """The first words for seed 1234567 that the authors' own C program prints."""
    assert rng.bits(1234567, 5).tolist() == [
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
    ]  # fmt: skip


@given(st.integers(0, MASK), st.integers(0, 40))
def test_bits_are_the_published_algorithm(stream, n):
    assert rng.bits(stream, n).tolist() == splitmix64(stream, n)


@given(st.integers(0, MASK), st.integers(0, 60), st.integers(0, 60))
def test_the_beginning_of_a_stream_does_not_depend_on_its_length(stream, n, more):
    assert np.array_equal(rng.bits(stream, n + more)[:n], rng.bits(stream, n))


def test_key_is_eight_bytes_of_blake2b_over_typed_parts():
    text = "int:7\x1fstr:order\x1fint:3"
    expected = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    assert rng.key(7, "order", 3) == expected == 14058645621100452460


@pytest.mark.parametrize("other", [("7", "order", 3), (7, "order"), (7, "order", 4), (7, 3, "order")])
def test_keys_of_different_parts_differ(other):
    assert rng.key(*other) != rng.key(7, "order", 3)


@given(st.integers(0, MASK), st.integers(0, 200))
def test_a_permutation_has_every_number_once(stream, n):
    order = rng.permutation(stream, n)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(n))


@pytest.mark.parametrize("n", [1, 17, 4096, 100_000])
def test_the_words_of_a_stream_are_distinct_so_that_no_sort_matters(n):
    words = rng.bits(rng.key(3, "order", n), n)
    assert len(np.unique(words)) == n
    assert np.array_equal(rng.permutation(rng.key(3, "order", n), n), np.argsort(words, kind="stable"))


def test_permutation_golden():
    assert rng.permutation(rng.key(0, "order", 0), 10).tolist() == PERMUTATION
    words = splitmix64(rng.key(0, "order", 0), 10)
    assert sorted(range(10), key=words.__getitem__) == PERMUTATION


@given(st.integers(0, MASK), st.floats(-1e3, 1e3), st.floats(1e-3, 1e3))
def test_uniform_numbers_are_in_the_interval_and_of_the_shape(stream, low, width):
    drawn = rng.uniform(stream, (3, 2), low, low + width)
    assert (drawn.shape, drawn.dtype) == ((3, 2), np.float64)
    assert ((drawn >= low) & (drawn < low + width)).all()


def test_uniform_golden():
    words = splitmix64(5, 4)
    expected = [-1.0 + 2.0 * ((word >> 11) * 2.0**-53) for word in words]
    assert rng.uniform(5, (2, 2), -1.0, 1.0).ravel().tolist() == expected


def test_scalars_and_empty_shapes_work():
    assert rng.uniform(1, (), 0, 1).shape == ()
    assert rng.uniform(1, (0, 3), 0, 1).shape == (0, 3)


def test_uniform_numbers_look_uniform():
    drawn = rng.uniform(rng.key(1, "many"), (20_000,), 0.0, 1.0)
    counts, _ = np.histogram(drawn, bins=10, range=(0, 1))
    assert abs(drawn.mean() - 0.5) < 0.01
    assert ((counts > 1800) & (counts < 2200)).all()


def test_initial_weights_golden():
    """The same in every framework and for ever: a saved result can be made again."""
    drawn = MLPSpec(output_shape=(2,), n_layers=2, hidden_dim=3).weights([(2,), (1, 2)], seed=11)
    assert {name: value.shape for name, value in drawn.items()} == {
        "layers.0.weight": (3, 4), "layers.0.bias": (3,), "layers.1.weight": (2, 3), "layers.1.bias": (2,),
    }  # fmt: skip
    for name, value in drawn.items():
        bound = (4 if "layers.0" in name else 3) ** -0.5
        words = splitmix64(rng.key(11, name), value.size)
        expected = [np.float32(-bound + 2 * bound * ((word >> 11) * 2.0**-53)) for word in words]
        assert value.dtype == np.float32
        assert value.ravel().tolist() == expected
