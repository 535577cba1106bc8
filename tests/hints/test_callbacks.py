"""Hints of callbacks and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import (
    Checkpoint,
    EarlyStopping,
    ModelGraph,
    ModelNode,
    Profile,
    ReduceLROnPlateau,
    TrainPhase,
    WeightAveraging,
)

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
MSE = aa.AppliedLoss("mse", on="net")


def features() -> aa.FeatureSet:
    made = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    made.add_splits({"train": range(16), "val": range(16, 24)})
    return made


def graph() -> ModelGraph:
    return ModelGraph([ModelNode("net", aa.SequentialMLP(1), features().reference())], "sgd")


def train(**settings: Any) -> TrainPhase:
    return TrainPhase("train", data="train", losses=[MSE], **settings)


def experiment(**settings: Any) -> aa.Experiment:
    return aa.Experiment("test", graph(), progress="none", **settings)


def test_monitors(hint: Any) -> None:
    with hint("write mode='min'"):
        EarlyStopping("loss", mode="least")
    assert experiment().run_phase(train(callbacks=[EarlyStopping("loss", mode="min")])).loss.size
    own = aa.EvalPhase("val", data="val", metrics=[aa.Metric(lambda outputs, targets: 1.0, label="own")])
    with hint("write mode='max', or mode='min'"):
        experiment().run_phase(train(validation=own, callbacks=[EarlyStopping("val_own")]))
    for mode in ("max", "min"):
        stopping = EarlyStopping("val_own", mode=mode)
        assert experiment().run_phase(train(validation=own, callbacks=[stopping])).loss.size
    assert EarlyStopping("val_own", mode="max") and EarlyStopping("val_own", mode="min")
    with hint("write threshold_mode='rel'"):
        ReduceLROnPlateau("loss", threshold_mode="relative")
    scheduled = graph()
    scheduled.optimizer = aa.Optimizer("adam", schedule=ReduceLROnPlateau("loss", threshold_mode="rel"))
    assert aa.Experiment("test", scheduled, progress="none").run_phase(train()).loss.size
    for phase_callbacks in (True, False):
        with hint("pass it to the optimizer: Optimizer('adam', schedule=ReduceLROnPlateau({}))"):
            callbacks = {"callbacks": [ReduceLROnPlateau("loss")]}
            if phase_callbacks:
                experiment().run_phase(train(**callbacks))
            else:
                experiment(**callbacks).run_phase(train())
    scheduled.optimizer = aa.Optimizer("adam", schedule=ReduceLROnPlateau("loss"))
    assert aa.Experiment("test", scheduled, progress="none").run_phase(train()).loss.size
    plateau = ReduceLROnPlateau("loss", patience=0, threshold=1.0)  # another schedule reads it
    scheduled.optimizer = aa.Optimizer("adam", schedule=lambda step: plateau(step) / (1 + step))
    experiment_of_both = aa.Experiment("test", scheduled, progress="none")
    assert experiment_of_both.run_phase(train(epochs=3, callbacks=[plateau])).loss.size and plateau.current < 1


def test_states_of_callbacks(hint: Any) -> None:
    stopping, averaging = EarlyStopping("loss"), WeightAveraging()
    for callback in (stopping, averaging):
        with hint("pass the result of state_dict() of the same kind of callback"):
            callback.load_state_dict({"other": 1})
        experiment().run_phase(train(callbacks=[callback]))
        type(callback)().load_state_dict(callback.state_dict())
    assert averaging.state_dict()
    given = experiment()
    with hint("give experiment.graph"):
        averaging.apply(given)  # type: ignore[arg-type]
    averaging.apply(given.graph)


class Counting(aa.Callback):
    """Keeps a count, which a version of it has under another name."""

    name = "count"

    def __init__(self) -> None:
        self.count = 0

    def epoch_end(self, run: Any) -> None:
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Any) -> None:
        self.count = state[self.name]


def test_callbacks_of_a_checkpoint(hint: Any, tmp_path: Path) -> None:
    def resumed(name: str) -> Counting:
        counting = Counting()
        counting.name = name
        phase = train(epochs=2, checkpoint=Checkpoint(tmp_path), callbacks=[counting])
        experiment().run_phase(phase, resume="auto")
        return counting

    experiment().run_phase(train(checkpoint=Checkpoint(tmp_path), callbacks=[Counting()]))
    with hint("make load_state_dict accept the result of state_dict()"):
        resumed("n")
    assert resumed("count").count == 2 and Counting().state_dict()
    Counting().load_state_dict(Counting().state_dict())


def test_checkpoints(hint: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with hint("write every='10min'"):
        Checkpoint("runs/a", every="often")
    with hint("write keep_best='val_accuracy', mode={}"):
        Checkpoint("runs/a", mode="max")
    with hint("write checkpoint=Checkpoint('runs/a')"):
        train(checkpoint=3)
    assert experiment().run_phase(train(checkpoint=Checkpoint("runs/a", every="10min"))).loss.size
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": np.arange(24) % 3}, ["x"], ["y"])
    data.add_splits({"train": range(16), "val": range(16, 24)})
    net = ModelGraph([ModelNode("net", aa.SequentialMLP(3), data.reference())], "sgd")
    phase = TrainPhase(
        "train",
        data="train",
        losses=[aa.AppliedLoss("cross_entropy", on="net")],
        validation=aa.EvalPhase("val", data="val", metrics=["accuracy"]),
        checkpoint=Checkpoint("runs/best", keep_best="val_accuracy", mode="max"),
    )
    assert net.run(phase, progress="none").figure("val_accuracy").size
    with hint("write resume='auto'"):
        experiment().run_phase(train(checkpoint=Checkpoint("runs/a")), resume=True)  # type: ignore[arg-type]
    phase = train(checkpoint=Checkpoint("runs/a"), epochs=2)
    with hint("resume from them: run_phase(phase, resume='auto'); or use another folder for this run"):
        experiment().run_phase(phase)
    assert experiment().run_phase(phase, resume="auto").loss.size
    assert experiment().run_phase(train(checkpoint=Checkpoint("runs/b"))).loss.size
    with hint("leave resume out, which starts the phase anew"):
        experiment().run_phase(train(checkpoint=Checkpoint("runs/c")), resume=None)  # type: ignore[arg-type]
    assert experiment().run_phase(train(checkpoint=Checkpoint("runs/c"))).loss.size

    class InSecondEpoch(aa.Callback):
        def step_end(self, run: Any) -> None:
            if run.epoch == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped = train(checkpoint=Checkpoint("runs/d"), epochs=3, callbacks=[InSecondEpoch()], batch_size=8)
        experiment().run_phase(stopped)
    short = train(checkpoint=Checkpoint("runs/d"), epochs=1, batch_size=8)
    with hint("write epochs={}, which ends this epoch, or more; or start again in another folder"):
        experiment().run_phase(short, resume="auto")
    longer = train(checkpoint=Checkpoint("runs/d"), epochs=2, batch_size=8)
    assert experiment().run_phase(longer, resume="auto").loss.size == 2
    with hint("write checkpoint='runs/a' in fit or TrainPhase"):
        experiment().run_phase(train(), resume="auto")
    phase = TrainPhase("train", data="train", losses=[MSE], epochs=3, checkpoint=Checkpoint("runs/a"))
    assert experiment().run_phase(phase, resume="auto").loss.size


class Mean:
    """Learns the mean of its targets, batch by batch."""

    total, n = 0.0, 0

    def partial_fit(self, x: Any, y: Any) -> Mean:
        self.total, self.n = self.total + y.sum(), self.n + len(y)
        return self

    def predict(self, x: Any) -> Any:
        return np.full(len(x), self.total / max(self.n, 1))


def test_checkpoints_of_estimators(hint: Any, tmp_path: Path) -> None:
    data = features()
    net = ModelNode("net", aa.SequentialMLP(1), data.reference())
    learning = ModelGraph([net, ModelNode("mean", Mean(), data.reference())], "sgd")
    with hint("leave checkpoint out, or freeze the node"):
        learning.run(train(checkpoint=Checkpoint(tmp_path)), progress="none")
    assert learning.run(train(), progress="none").loss.size
    learning.freeze("mean")
    assert learning.run(train(checkpoint=Checkpoint(tmp_path)), progress="none").loss.size


def test_profiles(hint: Any, tmp_path: Path) -> None:
    for wrong in (3, "10-20"):
        with hint("write callbacks=[Profile(steps=(10, 20))]"):
            Profile(steps=wrong)  # type: ignore[arg-type]
    assert train(callbacks=[Profile(steps=(10, 20))]).callbacks
    (tmp_path / "file").write_text("")
    with hint("name another: Profile(folder=...)"):
        experiment().run_phase(train(callbacks=[Profile(folder=str(tmp_path / "file"))]))
    profile = Profile(steps=(0, 1), folder=str(tmp_path / "other"))
    experiment().run_phase(train(callbacks=[profile]))
    assert profile.files and all(path.parent == tmp_path / "other" for path in profile.files)


def test_settings_of_frameworks(hint: Any) -> None:
    with hint("leave it out, or set it yourself"):
        experiment().run_phase(train(callbacks=[aa.FrameworkSettings({"numpy.errors": True})]))
    with np.errstate(all="raise"):
        assert experiment().run_phase(train()).loss.size


def test_saved_callbacks_and_phases(hint: Any, tmp_path: Path) -> None:
    given = experiment(callbacks=[Keeping(2)])
    given.run_phase(train())
    given.save(tmp_path / "saved")
    with hint("if you trust it, import it and pass allow=[{}]"):
        aa.Experiment.load(tmp_path / "saved")
    assert aa.Experiment.load(tmp_path / "saved", allow=[Keeping]).callbacks[0].n == 2
    broken = Keeping(2)
    broken.entry = "other"
    experiment(callbacks=[broken]).save(tmp_path / "broken")
    with hint("return the arguments of the class from get_config()"):
        aa.Experiment.load(tmp_path / "broken", allow=[Keeping])
    assert Keeping(**Keeping(3).get_config()).n == 3
    phase = train(validation=aa.EvalPhase("val", data="val", metrics=[lambda outputs, targets: 1.0]))
    experiment(phases=[phase]).save(tmp_path / "phases")
    with hint("pass the phases: load(folder, phases=[{}]), or phases=[] for none"):
        aa.Experiment.load(tmp_path / "phases")
    loaded = aa.Experiment.load(tmp_path / "phases", phases=[TrainPhase("train", data="train", losses=[MSE])])
    assert [one.label for one in loaded.phases] == ["train"]
    assert not aa.Experiment.load(tmp_path / "phases", phases=[]).phases


class Keeping(aa.Callback):
    """A callback with a configuration."""

    entry = "n"

    def __init__(self, n: int) -> None:
        self.n = n

    def get_config(self) -> dict[str, Any]:
        return {self.entry: self.n}
