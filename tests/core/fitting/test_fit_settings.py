"""Every setting of a TrainPhase reaches `fit` by the same name, with the same default, and does there what it does."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import PhaseError, ResultError

rng = np.random.default_rng(0)
TABLE = {"a": rng.normal(size=48), "b": rng.normal(size=48)}
TABLE["value"] = TABLE["a"] - TABLE["b"]

ELSEWHERE = {
    "label": "a fit has one phase, which is called 'train'",
    "losses": "it is loss=, which makes them",
    "schedule": "it combines the samplers of several feature sets, and a fit has one feature set",
}
"""Settings of a TrainPhase that `fit` does not take, and why."""
OTHER_DEFAULTS = {
    "accelerator": "a fit takes the best device by itself, a phase the CPU",
    "epochs": "a fit trains a model to be used, a phase may be one of several",
}


def parameters(function):
    return {name: it for name, it in inspect.signature(function).parameters.items() if name != "self"}


def fit(**settings):
    return aa.fit(aa.SequentialMLP(1), TABLE, **{"target": "value", "loss": "mse", "progress": "none", **settings})


def test_every_setting_of_a_phase_reaches_fit():
    phase, given = parameters(aa.TrainPhase.__init__), parameters(aa.fit)
    assert {name for name in phase if name not in given} == set(ELSEWHERE)
    shared = [name for name in phase if name in given and name not in ("data", *OTHER_DEFAULTS)]
    assert {name: given[name].default for name in shared} == {name: phase[name].default for name in shared}
    assert all(given[name].kind is inspect.Parameter.KEYWORD_ONLY for name in shared)


# A value of each that is not the default; what a phase keeps is compared with that of a phase by hand.
VALUES = {
    "validate_every": 2,
    "accumulate": 2,
    "microbatching": "approximate",
    "on_nan": "stop",
    "loss_scale": 128.0,
    "strict": True,
    "final_device": "cpu",
    "compile": "off",
    "residency": "streamed",
    "precision": "float64",
    "sampler": aa.SimpleSampler(12),
    "replicas": 1,
    "accelerator": "cpu",
}


NEEDS = {"validate_every": {"validation": {**TABLE}}, "loss_scale": {"precision": "fp16-mixed"}}
"""Without which a fit refuses a setting, as it would change nothing."""


@pytest.mark.parametrize("name", VALUES)
def test_a_setting_does_what_it_does_in_a_phase(name):
    fitted = fit(epochs=2, **{name: VALUES[name]}, **NEEDS.get(name, {}))
    data = aa.FeatureSet.from_dict("data", TABLE, ["a", "b"], ["value"])
    graph = aa.ModelGraph([aa.ModelNode(aa.SequentialMLP(1), data)], "adam", seed=0)
    settings = {"epochs": 2, "accelerator": "auto", name: VALUES[name], **NEEDS.get(name, {})}
    if "validation" in settings:
        settings["validation"] = "all"  # it changes no loss of the training
    phase = aa.TrainPhase(data="all", losses=aa.AppliedLoss("mse"), **settings)
    kept = getattr(fitted.phase, name)
    assert repr(kept) == repr(getattr(phase, name))
    np.testing.assert_array_equal(fitted.results.loss, graph.run(phase, progress="none").loss)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"accumulate": 0}, r"accumulate=0 is not an int of at least 1"),
        ({"compile": False}, r"unknown compile=False.*write compile='off'"),
        ({"on_nan": "explode"}, r"unknown on_nan='explode'"),
        ({"precision": "half"}, "half"),
        ({"step": 3, "loss": None}, r"step must be a function of \(models, batch, optimizers\)"),
        ({"step": print, "accumulate": 2}, r"accumulate=2 and a custom step"),
        ({"loss": {}}, r"must have columns of targets as its keys"),
        ({"loss": {3: "mse"}}, r"must have columns of targets as its keys"),
        ({"loss": ["mse"]}, r"is not a list of AppliedLoss objects"),
        ({"loss": []}, r"is not a list of AppliedLoss objects"),
        (
            {"loss": {"value": "mse", "a": "mse"}},
            r"the model has no output 'value'\. Available: outputs: one\. Hint: return",
        ),
        ({"validation": aa.EvalPhase("v", data={"data": "x"})}, r"the validation 'v' has other data"),
        ({"validation": aa.EvalPhase("v", data="x"), "metrics": "mse"}, r"a validation 'v' with its own metrics"),
    ],
)
def test_values_are_checked_by_the_phase(settings, message):
    settings = {"target": None if isinstance(settings.get("loss"), dict) else "value", **settings}
    if isinstance(settings.get("validation"), aa.EvalPhase) and settings["validation"].data == "x":
        data = aa.FeatureSet.from_dict("data", TABLE, ["a", "b"], ["value"])
        data.add_splits({"train": range(32), "x": range(32, 48)})
        with pytest.raises(PhaseError, match=message):
            aa.fit(
                aa.SequentialMLP(1), data, loss="mse", progress="none", validation=settings["validation"], metrics="mse"
            )
        return
    with pytest.raises(PhaseError, match=message):
        fit(**settings)


def test_a_validation_may_be_a_phase():
    data = aa.FeatureSet.from_dict("data", TABLE, ["a", "b"], ["value"])
    data.add_splits({"train": range(32), "val": range(32, 48)})
    validation = aa.EvalPhase("check", data="val", metrics=[aa.Metric("mae", label="error")], batch_size=4)
    common = {"loss": "mse", "epochs": 2, "progress": "none"}
    fitted = aa.fit(aa.SequentialMLP(1), data, validation=validation, **common)
    plain = aa.fit(aa.SequentialMLP(1), data, validation="val", metrics="mae", **common)
    assert fitted.phase.validation is validation
    np.testing.assert_allclose(fitted.results.figure("val_error"), plain.results.figure("val_mae"), rtol=1e-6)


def test_one_loss_by_its_target_and_one_that_is_applied():
    expected = fit(epochs=2).results.loss
    for loss in ({"value": "mse"}, aa.AppliedLoss("mse"), [aa.AppliedLoss("mse", on="model")]):
        settings = {"target": None} if isinstance(loss, dict) else {}
        fitted = fit(loss=loss, epochs=2, **settings)
        np.testing.assert_array_equal(fitted.results.loss, expected)
        assert fitted.loss == aa.Loss("mse") and fitted.predict(TABLE).shape == (48,)


def test_the_phase_trains_on(tmp_path):
    fitted = fit(epochs=2)
    fitted.experiment.run_phase(fitted.phase)
    assert [epoch.number for epoch in fitted.results.epochs] == [2, 3]
    np.testing.assert_array_equal(fitted.results.loss, fit(epochs=4).results.loss[2:])
    fitted.save(tmp_path)
    with pytest.raises(ResultError, match=r"this model was loaded without its phase\. Hint: run a phase: model\.graph"):
        _ = aa.load(tmp_path).phase


def test_the_loss_of_a_source_must_be_named():
    with pytest.raises(PhaseError, match=r"fit needs a loss.*Hint: write loss='cross_entropy' for classes"):
        aa.fit(aa.SequentialMLP(1), lambda: iter([]), progress="none")
