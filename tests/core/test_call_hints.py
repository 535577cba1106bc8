"""Calls with arguments that there are not: everything public says which there are, and which was meant."""

from __future__ import annotations

import inspect
import sys
import traceback

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.call_hints import call_hints, class_hints
from anyaccel.errors import AnyaccelError, ArgumentError

CONTRACTS = {
    *("Backend", "Compute", "Exchange", "Memory", "MultiStepProgram", "Program"),  # core calls them, not users
    *("AsyncCopy", "CompileEstimate"),  # plugins give them to core
}
NO_ARGUMENTS = {"errors", "hookimpl", "Callback", "Progress", "Sampler"}  # pluggy's; and bases without a constructor
CLASSES_OF_USERS = [aa.FeatureSet, aa.FeatureSetView, aa.ModelGraph, aa.Experiment, aa.FittedModel, aa.Plan]
CLASSES_OF_USERS += [aa.TrainResults, aa.EvalResults, aa.Comparison]


def callables():
    for name in aa.__all__:
        if name not in CONTRACTS | NO_ARGUMENTS and not inspect.isabstract(getattr(aa, name)):
            yield name, getattr(aa, name)
    for cls in {cls for cls in vars(aa).values() if isinstance(cls, type)} | set(CLASSES_OF_USERS):
        for name, value in inspect.getmembers_static(cls):
            if name[0] == "_" or cls.__name__ in CONTRACTS or name == "from_active_context":  # it takes everything
                continue
            if isinstance(value, (classmethod, staticmethod)):
                yield f"{cls.__name__}.{name}", getattr(cls, name)
            elif inspect.isfunction(value) and cls in CLASSES_OF_USERS:
                yield f"{cls.__name__}.{name}", value.__get__(object.__new__(cls))


CALLS = dict(callables())


@pytest.mark.parametrize("name", sorted(CALLS))
def test_an_argument_that_there_is_not_is_named_everywhere(name):
    with pytest.raises(AnyaccelError) as caught:
        CALLS[name](colour_of_the_bars="red")
    assert "colour_of_the_bars" in str(caught.value)
    if isinstance(caught.value, ArgumentError):
        assert f"{name.rpartition('.')[2]} has no argument 'colour_of_the_bars'. " in str(caught.value)
        taken = list(inspect.signature(CALLS[name]).parameters)
        assert caught.value.available == ", ".join(taken)


X = np.zeros((8, 3), "float32")
TABLE = {"x": X, "y": X[:, 0]}
BATCHES = [(X, X[:, :1])] * 2


def data():
    return aa.FeatureSet.from_dict("d", TABLE, ["x"], ["y"])


def fitted(optimizer):
    model = aa.fit(aa.SequentialMLP(1), TABLE, loss="mse", target="y", optimizer=optimizer, epochs=1, progress="none")
    return model.graph.optimizer


@pytest.mark.parametrize(
    ("wrong", "message", "right"),
    [
        (
            lambda: aa.fit(aa.SequentialMLP(1), TABLE, loss="mse", target="y", n_epochs=1),
            r"fit has no argument 'n_epochs'\. Hint: it is called 'epochs'\.",
            lambda: aa.fit(aa.SequentialMLP(1), TABLE, loss="mse", target="y", epochs=1, progress="none"),
        ),
        (
            lambda: aa.fit(aa.SequentialMLP(1), TABLE, loss="mse", target="y", num_epochs=1),
            r"Hint: (it is called|did you mean) 'epochs'",
            lambda: aa.fit(aa.SequentialMLP(1), TABLE, loss="mse", target="y", epochs=1, progress="none"),
        ),
        (
            lambda: aa.fit(aa.SequentialMLP(1), TABLE, loss="mse", target="y", lr=0.1),
            r"fit has no argument 'lr'\. Hint: pass it to the optimizer: optimizer=Optimizer\('adam', lr=1e-3\)\.",
            lambda: fitted(aa.Optimizer("adam", lr=1e-3)),
        ),
        (
            lambda: aa.fit(aa.SequentialMLP(1), TABLE, loss="mse", target="y", scheduler="cosine"),
            r"fit has no argument 'scheduler'\. Hint: pass it to the optimizer: optimizer=Optimizer\('adam', "
            r"schedule=Schedule\('cosine', steps=1000\)\)\.",
            lambda: fitted(aa.Optimizer("adam", schedule=aa.Schedule("cosine", steps=1000))),
        ),
        (
            lambda: aa.fit(aa.SequentialMLP(1), TABLE, loss="mse", target="y", weight_decay=0.01),
            r"Hint: pass it to the optimizer: optimizer=Optimizer\('adamw', weight_decay=0\.01\)\.",
            lambda: fitted(aa.Optimizer("adamw", weight_decay=0.01)),
        ),
        (
            lambda: aa.fit(aa.SequentialMLP(1), TABLE, loss="mse", target="y", momentum=0.9),
            r"Hint: pass it to the optimizer: optimizer=Optimizer\('momentum', momentum=0\.9\)\.",
            lambda: fitted(aa.Optimizer("momentum", momentum=0.9)),
        ),
        (
            lambda: aa.fit(aa.SequentialMLP(1), TABLE, loss="mse", target="y", test_size=0.2),
            r"Hint: it is called 'validation'\.",
            lambda: aa.fit(aa.SequentialMLP(1), TABLE, loss="mse", target="y", validation=0.2, progress="none"),
        ),
        (
            lambda: aa.fit(aa.SequentialMLP(1), X, X[:, 0], loss="mse"),
            r"^fit: too many positional arguments\. Hint: pass x and y as a pair: \(x, y\)\.",
            lambda: aa.fit(aa.SequentialMLP(1), (X, X[:, 0]), loss="mse", progress="none"),
        ),
        (
            lambda: aa.fit(aa.SequentialMLP(1), x=X, y=X[:, 0], loss="mse"),
            r"^fit has no argument 'x'\. Hint: pass x and y as a pair: \(x, y\)\.",
            lambda: aa.fit(aa.SequentialMLP(1), (X, X[:, 0]), loss="mse", progress="none"),
        ),
        (
            lambda: aa.fit(aa.SequentialMLP(1), TABLE, loss="mse", target="y", verbose=0),
            r"^fit has no argument 'verbose'\. Hint: write progress='none', or 'auto'\.",
            lambda: aa.fit(aa.SequentialMLP(1), TABLE, loss="mse", target="y", progress="none"),
        ),
        (
            lambda: aa.fit(aa.SequentialMLP(1), TABLE, loss="mse", target="y", run_eagerly=True),
            r"^fit has no argument 'run_eagerly'\. Hint: write compile='off'\.",
            lambda: aa.fit(aa.SequentialMLP(1), TABLE, loss="mse", target="y", compile="off", progress="none"),
        ),
        (
            lambda: aa.ReduceLROnPlateau("val_loss", min_lr=1e-4),
            r"no argument 'min_lr'.*Hint: it is called 'min_factor', and is a share of the rate\.",
            lambda: aa.ReduceLROnPlateau("val_loss", min_factor=0.1),
        ),
        (
            lambda: aa.ReduceLROnPlateau("val_loss", min_delta=1e-4),
            r"Hint: it is called 'threshold', with threshold_mode='abs' for a difference\.",
            lambda: aa.ReduceLROnPlateau("val_loss", threshold=1e-4, threshold_mode="abs"),
        ),
        (
            lambda: aa.fit(aa.SequentialMLP(1), BATCHES, loss="mse", pad={"x": 0}),
            r"^fit has no argument 'pad'\. Hint: pass data that are padded: IterableSource\('data', source, ",
            lambda: aa.IterableSource("data", BATCHES, features="x", target="y", pad={"x": 0}),
        ),
        (
            lambda: aa.fit(aa.SequentialMLP(1), BATCHES, loss="mse", steps_per_epoch=1),
            r"to limit them, pass IterableSource\('data', source, features='x', target='y', steps=1000\)",
            lambda: aa.fit(
                aa.SequentialMLP(1),
                aa.IterableSource("data", BATCHES, features="x", target="y", steps=1),
                loss="mse",
                progress="none",
            ),
        ),
        (
            lambda: aa.fit(aa.SequentialMLP(1), TABLE, loss="mse", target="y", shuffle=False),
            r"Hint: rows are shuffled; sampler=SimpleSampler\(32\) keeps their order\.",
            lambda: aa.fit(
                aa.SequentialMLP(1), TABLE, loss="mse", target="y", sampler=aa.SimpleSampler(32), progress="none"
            ),
        ),
        (
            lambda: aa.fit(aa.SequentialMLP(1), TABLE, loss="mse", target="y", loss_weights=[0.5]),
            r"Hint: each loss has its weight: AppliedLoss\('mse', weight=0\.5\)\.",
            lambda: aa.fit(
                aa.SequentialMLP(1), TABLE, loss=aa.AppliedLoss("mse", weight=0.5), target="y", progress="none"
            ),
        ),
        (
            lambda: aa.fit(aa.SequentialMLP(1), TABLE, loss="mse", label="y"),
            r"^fit has no argument 'label'\. Hint: it is called 'target'\.",
            lambda: aa.fit(aa.SequentialMLP(1), TABLE, loss="mse", target="y", progress="none"),
        ),
        (
            lambda: aa.fit(aa.SequentialMLP(1), TABLE, loss="mse", target="y", num_train_epochs=1),
            r"^fit has no argument 'num_train_epochs'\. Hint: it is called 'epochs'\.",
            lambda: aa.fit(aa.SequentialMLP(1), TABLE, loss="mse", target="y", epochs=1, progress="none"),
        ),
        (
            lambda: aa.fit(aa.SequentialMLP(1), TABLE, loss="mse", target="y", max_grad_norm=1.0),
            r"fit has no argument 'max_grad_norm'\. Hint: pass it to the optimizer: optimizer=Optimizer\('adam', "
            r"clip_norm=1\.0\)\.",
            lambda: fitted(aa.Optimizer("adam", clip_norm=1.0)),
        ),
        (
            lambda: aa.ModelNode("net", aa.SequentialMLP(1), data().reference(), device="cpu"),
            r"ModelNode has no argument 'device'\. .* Hint: it is called 'accelerator'\.",
            lambda: aa.ModelNode("net", aa.SequentialMLP(1), data().reference(), accelerator="cpu"),
        ),
        (
            lambda: aa.FeatureSet.from_dict("d", TABLE, feature_keys=["x"]),
            r"FeatureSet\.from_dict has no argument 'feature_keys'\. .* Hint: it is called 'features'\.",
            lambda: aa.FeatureSet.from_dict("d", TABLE, features=["x"]),
        ),
        (
            lambda: aa.SequentialMLP(1, hidden_size=8),
            r"SequentialMLP has no argument 'hidden_size'\. .* Hint: it is called 'hidden_dim'\.",
            lambda: aa.SequentialMLP(1, hidden_dim=8),
        ),
        (
            lambda: aa.EarlyStopping(restore_best_weights=True),
            r"EarlyStopping has no argument 'restore_best_weights'\. .* Hint: it is called 'restore_best'\.",
            lambda: aa.EarlyStopping(restore_best=True),
        ),
        (
            lambda: aa.Checkpoint("runs", save_best_only="val_loss"),
            r"Checkpoint has no argument 'save_best_only'\. .* Hint: it is called 'keep_best'\.",
            lambda: aa.Checkpoint("runs", keep_best="val_loss"),
        ),
        (
            lambda: data().split_random({"train": 0.5, "val": 0.5}, random_state=0),
            r"FeatureSet\.split_random has no argument 'random_state'\. .* Hint: it is called 'seed'\.",
            lambda: data().split_random({"train": 0.5, "val": 0.5}, seed=0),
        ),
        (
            lambda: aa.IterableSource("batches", list, inputs="x"),
            r"IterableSource has no argument 'inputs'\. .* Hint: it is called 'features'\.",
            lambda: aa.IterableSource("batches", list, features="x"),
        ),
        (
            lambda: aa.ModelNode("net"),
            r"ModelNode: missing a required argument: 'model'\. Hint: write ModelNode\(label, model, \.\.\.\)\.",
            lambda: aa.ModelNode("net", aa.SequentialMLP(1), data().reference()),
        ),
        (
            lambda: aa.TrainPhase("t"),
            r"TrainPhase: missing a required (keyword-only )?argument: .data.\. Hint: write TrainPhase\(data=.*\)\.$",
            lambda: aa.TrainPhase(data="train"),
        ),
        (
            lambda: aa.place(X, "cpu", "float32"),
            r"place: too many positional arguments\. Available: obj, where\. Hint: write place\(obj, where\)\.",
            lambda: aa.place(X, "cpu"),
        ),
        (
            lambda: aa.EarlyStopping("val_loss", 3),
            r"EarlyStopping: too many positional .* Hint: write EarlyStopping\(monitor, patience=\.\.\., \.\.\.\)\.",
            lambda: aa.EarlyStopping("val_loss", patience=3),
        ),
    ],
)
def test_the_hint_works(wrong, message, right):
    with pytest.raises(ArgumentError, match=message) as caught:
        wrong()
    assert isinstance(caught.value, TypeError)  # as Python's own error
    assert caught.value.__context__ is None
    assert len(traceback.extract_tb(caught.value.__traceback__)) == 3  # this test, the call, and the check
    right()


def test_an_error_within_a_call_is_left_alone():
    @call_hints
    def outer(count):
        return inner(cuont=count)

    def inner(count):
        return count

    with pytest.raises(TypeError, match=r"inner\(\) got an unexpected keyword argument 'cuont'") as caught:
        outer(1)
    assert not isinstance(caught.value, AnyaccelError)


def test_signatures_and_docstrings_stay():
    @class_hints
    class Model:
        """A model."""

        def __init__(self, width: int = 1) -> None:
            """Make it."""

        def wide(self, by: int, *, often: bool = False) -> int:
            """Widen it."""
            return by

        @classmethod
        def narrow(cls, width: int):
            """Make a narrow one."""
            return cls(width)

    assert str(inspect.signature(Model.wide)) == "(self, by: 'int', *, often: 'bool' = False) -> 'int'"
    assert (Model.wide.__doc__, Model.__init__.__doc__) == ("Widen it.", "Make it.")
    assert Model().wide(2) == 2 and isinstance(Model.narrow(1), Model)

    class Other(Model):
        """One of a user's."""

    with pytest.raises(ArgumentError, match=r"^Other\.narrow has no argument 'with'\. Available: width\. Hint: "):
        Other.narrow(**{"with": 1})
    with pytest.raises(ArgumentError, match=r"^Other has no argument 'widht'\. Available: width\. Hint: did you mean"):
        Other(widht=1)


def test_a_call_that_fits_is_not_looked_at(monkeypatch):
    def never(*_):
        raise AssertionError

    monkeypatch.setattr(inspect, "signature", never)
    assert aa.place(X, "cpu") is X
    assert "anyaccel.call_hints" in sys.modules
