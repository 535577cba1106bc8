"""The training loop and its features: it names none, each can be left out, and each moment comes in its order."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.phases import loop_factory, train_loop
from anyaccel.phases.loop_extension import Call, LoopExtension
from anyaccel.phases.train_loop import TrainLoop

SOURCE = inspect.getsource(train_loop)
FEATURES = (
    *("checkpoint", "resum", "memory", "snapshot", "recover", "compil", "profil", "nan", "finite", "listen", "notif"),
    *("hook", "callback", "loss_scal", "replica", "rank", "shard", "estimator", "learner", "validat", "warn", "event"),
)
MODULES = {
    *("executor.cross_segment", "executor.pipeline", "loading.loader", "loop_extension"),
    *("loss_accumulator", "process_group", "run", "settings"),
}
"""What the loop imports of phases."""

X = np.random.default_rng(0).normal(size=(23, 3)).astype("float32")


def test_the_loop_names_no_feature() -> None:
    words = re.findall(r"[A-Za-z_]+", SOURCE)
    named = {word for word in words for feature in FEATURES if feature in word.lower()} - {"nan"}  # `math.nan`
    assert not named
    imported = set(re.findall(r"^from anyaccel\.phases\.(\S+) import", SOURCE, flags=re.MULTILINE))
    assert imported == MODULES


def test_the_loop_asks_nowhere_whether_a_feature_is_there() -> None:
    assert re.findall(r"if .*\bis (?:not )?None", SOURCE) == ["if self._phase.step is None"]
    classes = {node.name: node for node in ast.walk(ast.parse(SOURCE)) if isinstance(node, ast.ClassDef)}
    attributes = {
        node.attr
        for node in ast.walk(classes["TrainLoop"])
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }
    assert 0 < len(attributes) <= 10


# -- moments -----------------------------------------------------------------------------------------------------------


class Toy(LoopExtension):
    """Writes down each moment."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def most_steps(self, call: Call) -> int:
        self.seen.append("most_steps")
        return 3

    @contextmanager
    def around_call(self, call: Call) -> Iterator[None]:
        self.seen.append(f"around {call.n_steps}")
        yield
        self.seen.append("around ends")

    def call_done(self, call: Call, first: int, step_losses: Any) -> None:
        self.seen.append(f"call_done {first}+{call.n_steps}")


def _noted(moment: str) -> Any:
    def note(self: Toy, *_: Any) -> bool:
        self.seen.append(moment)
        return False

    return note


MOMENTS = [name for name, value in vars(LoopExtension).items() if inspect.isfunction(value)]
for _moment in set(MOMENTS) - set(vars(Toy)):
    setattr(Toy, _moment, _noted(_moment))


@pytest.fixture
def extensions(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Changes the extensions of all loops."""

    def change(changed: Callable[[list[LoopExtension]], list[LoopExtension]]) -> None:
        class Changed(TrainLoop):
            def __init__(self, *, extensions: list[LoopExtension], **parts: Any) -> None:
                super().__init__(extensions=changed(extensions), **parts)

        monkeypatch.setattr(loop_factory, "TrainLoop", Changed)

    return change


class Mine(aa.SequentialMLP):
    """Not one of those of which it is known that they compute each row by itself."""


def train(*callbacks: aa.Callback, folder: Path | None = None, **settings: Any) -> tuple[aa.ModelGraph, Any]:
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", Mine((1,), dropout=0.2), data.reference())], "adam", seed=1)
    losses = [aa.AppliedLoss("mse", on="net")]
    settings = {"epochs": 2, "sampler": aa.SimpleSampler(4, shuffle=True), "losses": losses, **settings}
    if folder is not None:
        settings["checkpoint"] = aa.Checkpoint(folder, every=2, wait=True)
    return graph, graph.run(aa.TrainPhase("t", data="all", callbacks=callbacks, **settings), progress="none")


def test_moments_come_in_order(extensions: Callable[..., None]) -> None:
    """Five steps of four rows and one of three: the last is a range of its own."""
    toy = Toy()
    extensions(lambda plain: [*plain, toy])
    train(epochs=1)
    assert toy.seen[:3] == ["run_begins", "epoch_begins", "steps_begin"]
    assert toy.seen[-5:] == ["rows_end", "steps_end", "epoch_ends", "run_ends", "ended"]
    assert toy.seen[3] == "before_steps" and toy.seen.count("before_steps") == 2
    done = [re.fullmatch(r"call_done (\d+)\+(\d+)", moment) for moment in toy.seen]
    calls = [(int(call[1]), int(call[2])) for call in done if call]
    assert sum(n_steps for _, n_steps in calls) == 6 and max(n_steps for _, n_steps in calls) <= 3
    assert [first for first, _ in calls] == [sum(n for _, n in calls[:i]) for i in range(len(calls))]
    for at in (i for i, moment in enumerate(toy.seen) if moment.startswith("call_done")):
        assert toy.seen[at - 1] == "around ends" and toy.seen[at - 2].startswith("around ")
        assert toy.seen[at + 1] == "after_call" and toy.seen[at - 3] == "most_steps"
    assert {"failed", "went_back", "run_fails"}.isdisjoint(toy.seen)
    assert set(MOMENTS) - {"around_call", "call_done", "failed", "went_back", "run_fails"} <= set(toy.seen)


def test_an_error_in_a_step_is_seen_before_it_ends_the_run(extensions: Callable[..., None]) -> None:
    class Fails(aa.Callback):
        def steps_done(self, run: aa.Run, steps: Any) -> None:
            raise ValueError("mine")

    toy = Toy()
    extensions(lambda plain: [*plain, toy])
    with pytest.raises(ValueError, match="mine"):
        train(Fails())
    assert toy.seen[-3:] == ["failed", "run_fails", "ended"] and "run_ends" not in toy.seen


def test_an_extension_may_let_the_run_go_on_after_an_error(extensions: Callable[..., None]) -> None:
    class Repeats(Toy):
        def failed(self, failure: BaseException, losses: Any) -> bool:
            self.seen.append("failed")
            return isinstance(failure, ValueError)

    class Once(aa.Callback):
        heard = 0

        def steps_done(self, run: aa.Run, steps: Any) -> None:
            self.heard += 1
            if self.heard == 2:
                raise ValueError("mine")

    toy = Repeats()
    extensions(lambda plain: [toy, *plain])
    results = train(Once())[1]
    assert [epoch.steps for epoch in results.epochs] == [6, 6], "the step counts, whatever a callback raises"
    at = toy.seen.index("failed")
    assert toy.seen[at + 1 : at + 3] == ["went_back", "before_steps"] and toy.seen.count("failed") == 1


# -- features ----------------------------------------------------------------------------------------------------------


class Listens(aa.Callback):
    """Hears of epochs and of every second step."""

    every_n_steps = 2

    def epoch_end(self, run: aa.Run) -> None:
        pass

    def step_end(self, run: aa.Run) -> None:
        pass


LEFT_OUT = (
    *("Validation", "EpochHooks", "StepListeners", "CompilePolicy", "EpochRecovery", "NonFiniteLosses"),
    *("MeanCheck", "CheckpointWrites"),
)


@pytest.mark.parametrize("left_out", LEFT_OUT)
def test_each_feature_can_be_left_out(extensions: Callable[..., None], left_out: str, tmp_path: Path) -> None:
    settings = {"validation": "all", "accumulate": 2}
    names: list[str] = []

    def without(plain: list[LoopExtension]) -> list[LoopExtension]:
        names.extend(type(extension).__name__ for extension in plain)
        return [extension for extension in plain if type(extension).__name__ != left_out]

    whole, results = train(Listens(), folder=tmp_path / "whole", **settings)
    extensions(without)
    less, fewer = train(Listens(), folder=tmp_path / "less", **settings)
    assert left_out in names
    np.testing.assert_array_equal(results.loss, fewer.loss)
    for name, value in whole.state().items():
        np.testing.assert_array_equal(less.state()[name], value, err_msg=name)


def test_a_loop_without_features_trains(extensions: Callable[..., None]) -> None:
    whole, results = train()
    extensions(lambda plain: [])
    less, fewer = train()
    np.testing.assert_array_equal(results.loss, fewer.loss)
    for name, value in whole.state().items():
        np.testing.assert_array_equal(less.state()[name], value, err_msg=name)


def test_what_is_not_asked_for_is_not_there(extensions: Callable[..., None]) -> None:
    names: list[str] = []
    extensions(lambda plain: names.extend(type(extension).__name__ for extension in plain) or plain)
    train()
    assert names == ["EpochHooks", "CompilePolicy", "EpochRecovery", "NonFiniteLosses"]
