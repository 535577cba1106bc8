"""Training data of a fit: pairs, targets, and which rows train and validate."""

from __future__ import annotations

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import ColumnError, PhaseError

rng = np.random.default_rng(0)
A, B = rng.normal(2.0, 3.0, 60), rng.normal(-1.0, 0.5, 60)
SOME = np.arange(0, 60, 3)


def fit(data, model=None, **settings):
    given = {"loss": "mse", "target": "value", "epochs": 2, "progress": "none", **settings}
    return aa.fit(model or aa.SequentialMLP(1), data, **given)


def numbers():
    return aa.FeatureSet.from_dict("numbers", {"a": A, "b": B, "value": A - B}, ["a", "b"], ["value"])


@pytest.mark.parametrize("loss", ["mse", "mae"])
def test_text_is_no_target_of_a_loss_of_numbers(loss):
    prices = [*map(str, A[:59]), "n/a"]
    with pytest.raises(PhaseError, match=rf"'value' is .*, but the loss '{loss}' .*row 59 has 'n/a'.*'cross_entropy'"):
        fit({"a": A, "b": B, "value": prices}, loss=loss)
    assert np.isfinite(fit({"a": A, "b": B, "value": np.array([*prices[:58], "1", "2"], dtype=float)}).results.loss[-1])


def test_all_rows_of_data_with_splits_are_trained_on_only_if_one_says_so():
    data = numbers()
    data.split_random({"train": 0.75, "test": 0.25}, seed=0)
    with pytest.raises(PhaseError, match=r"train on all its rows\. Available: train, test\. Hint:.*data\['train'\]"):
        fit(data, target=None)
    plain = fit(numbers(), target=None).results.loss
    np.testing.assert_array_equal(fit(data.view(), target=None).results.loss, plain)
    assert not np.array_equal(fit(data["train"], target=None).results.loss, plain)


def test_a_view_is_a_validation():
    data = numbers()
    rest = data.take(np.setdiff1d(np.arange(60), SOME))
    expected = fit(rest, target=None, validation={"a": A[SOME], "b": B[SOME], "value": (A - B)[SOME]})
    for view in (data.take(SOME), numbers().take(SOME)):
        fitted = fit(rest, target=None, validation=view)
        np.testing.assert_array_equal(fitted.results.figure("val_loss"), expected.results.figure("val_loss"))


def test_a_pair_of_mappings_has_their_names():
    expected = fit({"a": A, "b": B, "value": A - B})
    for pair in (({"a": A, "b": B}, {"value": A - B}), ({"a": A, "b": B}, A - B)):
        fitted = fit(pair, target=None, validation=({"b": B, "a": A}, pair[1]))
        np.testing.assert_array_equal(fitted.results.loss, expected.results.loss)
        np.testing.assert_array_equal(fitted.predict({"b": B, "a": A}), expected.predict({"a": A, "b": B}))
        assert fitted.results.figure("val_loss")[-1] == expected.evaluate({"a": A, "b": B, "value": A - B}).loss
    for inputs in ([A, B], (A, B), (A,)):
        with pytest.raises(ColumnError, match=rf"the x of the pair \(x, y\) has {len(inputs)} arrays without names"):
            fit((inputs, A - B), target=None)
    rows = [A[:1], B[:1]]  # two rows, which are lists of one number
    assert np.isfinite(fit((rows, A[:2]), target=None).results.loss[-1])


def test_two_mappings_of_the_same_names_are_batches():
    halves = tuple({"x": A[rows].reshape(-1, 1), "y": B[rows]} for rows in (slice(30), slice(30, 60)))
    assert fit(halves, target=None).results.epochs[0].steps == 2


def test_a_pair_of_a_frame_and_a_series_has_their_names():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": A, "b": B, "value": A - B})
    fitted = fit((frame[["a", "b"]], frame["value"]), target=None)
    np.testing.assert_array_equal(fitted.results.loss, fit(frame).results.loss)
    np.testing.assert_array_equal(fitted.predict(frame[["b", "a"]]), fit(frame).predict(frame))
    assert fitted.evaluate((frame[["b", "a"]], frame["value"])).loss == fitted.evaluate(frame).loss
    with pytest.raises(
        ColumnError, match=r"'value' is in both parts of the pair \(x, y\).*Hint: rename one, or pass one"
    ):
        fit((frame, frame["value"]), target=None)
