"""A run resumes from within an epoch only with the settings and the data that it had; between epochs it says so."""

from __future__ import annotations

import re

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import PhaseError
from anyaccel.numpy_backend import SequentialMLP
from anyaccel.phases.checkpointing.position import different_data

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 3)).astype("float32")


class StopAt(aa.Callback):
    """Ctrl-C after so many steps."""

    def __init__(self, at):
        self._left = at

    def step_end(self, run):
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


def run(folder, stop=0, *, x=X, seed=0, lr=0.01, epochs=2, **settings):
    data = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1], "w": np.abs(x[:, 0])}, ["x"], ["y"], ["w"])
    graph = aa.ModelGraph(
        [aa.ModelNode("net", SequentialMLP(), data.reference(target="y"))], aa.Optimizer("adam", lr), seed=seed
    )
    given = {"losses": [aa.AppliedLoss("mse")], **({} if "sampler" in settings else {"batch_size": 16}), **settings}
    checkpoint = aa.Checkpoint(folder, every=1)
    phase = aa.TrainPhase(data="all", epochs=epochs, checkpoint=checkpoint, callbacks=[StopAt(stop)], **given)
    return aa.Experiment(graph, progress="none").run_phase(phase, resume="auto")


@pytest.fixture
def within(tmp_path):
    """A folder whose newest checkpoint is after three of four steps of the first epoch."""
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 3)
    return tmp_path


OTHER_VALUES = X.copy()
OTHER_VALUES[0] += 0.1
OTHERS = {
    "batch size": ({"batch_size": 8}, "sampler.batch_size was 16 and is now 8"),
    "shuffle": (
        {"sampler": aa.SimpleSampler(16, shuffle=False)},
        "sampler.shuffle was True and is now False",
    ),
    "accumulate": ({"accumulate": 2}, "accumulate was 1 and is now 2"),
    "loss": ({"losses": [aa.AppliedLoss("mae")]}, "losses.net.loss.loss was 'mse' and is now 'mae'"),
    "weights": (
        {"losses": [aa.AppliedLoss("mse", sample_weight="w")]},
        "losses.net.sample_weight was None and is now 'w'",
    ),
    "function": ({"losses": [aa.AppliedLoss(lambda y, t: ((y - t) ** 2).mean())]}, "losses.net.loss was"),
    "rows": ({"x": np.concatenate([X, X])}, "'d' had 64 rows and now has 128"),
    "values": ({"x": OTHER_VALUES}, "the values of 'd/x' changed; the values of 'd/y' changed"),
    "order": ({"x": X[::-1].copy()}, "the values of 'd/x' changed"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_within_an_epoch_other_settings_and_data_are_refused(within, name):
    changes, said = OTHERS[name]
    with pytest.raises(PhaseError, match=re.escape(said)) as raised:
        run(within, **changes)
    assert "epoch-000000-step-000000003 is within an epoch" in raised.value.problem
    assert [epoch.steps for epoch in run(within).epochs] == [4, 4]  # as the hint says


def test_all_differences_are_in_one_message(within):
    with pytest.raises(PhaseError, match=r"batch_size was 16 and is now 4; accumulate was 1 and is now 3"):
        run(within, batch_size=4, accumulate=3)


@pytest.mark.parametrize("name", ["batch size", "shuffle", "accumulate", "loss", "rows", "values", "order"])
def test_after_an_epoch_they_are_told(tmp_path, name):
    changes, said = OTHERS[name]
    run(tmp_path, epochs=1)
    with pytest.warns(RuntimeWarning, match=re.escape(said)):
        results = run(tmp_path, **changes)
    assert len(results.epochs) == 2


def test_values_in_other_last_digits_are_the_same_data(within):
    """Another version of a library scales data to other last bits."""
    assert len(run(within, x=X * np.float32(1 + 1e-6)).epochs) == 2


def test_an_optimizer_may_change_anywhere_and_is_told(within):
    with pytest.warns(RuntimeWarning, match=r"resumes with other optimizers: optimizer.lr was 0.01 and is now 0.1"):
        run(within, lr=0.1)


def test_a_seed_that_the_checkpoint_overrides_is_told(within):
    with pytest.warns(RuntimeWarning, match="the seed of the graph comes from the checkpoint: 0, not 7"):
        run(within, seed=7)


def test_a_refused_run_leaves_the_checkpoints_as_they_are(within):
    before = sorted(path.name for path in within.iterdir())
    with pytest.raises(PhaseError):
        run(within, x=OTHER_VALUES)
    assert sorted(path.name for path in within.iterdir()) == before


def test_fewer_epochs_than_the_checkpoint_has_begun_are_refused(tmp_path):
    """Its steps would be in the values, but not in the results, nor in the checkpoint of the last of the epochs."""
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 6, epochs=3)  # two steps of the second epoch
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(PhaseError, match=r"step-000000002 is within epoch 2 of its run, but .* epochs=1") as raised:
        run(tmp_path, epochs=1)
    assert raised.value.hint.startswith("write epochs=2, ")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert [epoch.steps for epoch in run(tmp_path, epochs=2).epochs] == [4, 4]  # as the hint says


def test_what_is_no_number_is_compared_too():
    before = {"d": np.array(3), "d/x": np.array([np.nan, np.inf, 1.0])}
    assert different_data(before, {name: array.copy() for name, array in before.items()}) == []
    changed = {**before, "d/x": np.array([0.0, np.inf, 1.0])}
    assert different_data(before, changed) == ["the values of 'd/x' changed"]
    assert different_data(before, {"d": np.array(3), "d/x": np.zeros(2)}) == ["the values of 'd/x' changed"]
