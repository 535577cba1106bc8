"""Precision of phases and nodes, on NumPy, whose rounding can be told exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.adapter import VjpResult
from anyaccel.errors import (
    AnyaccelError,
    CapabilityError,
    ConfigError,
    GraphError,
    NaNWarning,
    PhaseError,
    SpecError,
)
from anyaccel.numpy_backend.ops import NumpyPrecision, rounded_vjp
from anyaccel.phases import Phase
from anyaccel.precision import LossScaleState, NodePrecision

N, BATCH = 48, 8
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(N, 4)).astype("float32")
Y = X[:, :1] * 2
LOSSES = [aa.AppliedLoss("mse", on="net")]
LOUD = aa.AppliedLoss("mse", on="net", weight=1e3)


def data(x: np.ndarray = X) -> aa.FeatureSet:
    return aa.FeatureSet.from_dict("data", {"x": x, "y": Y}, ["x"], ["y"])


def graph(rows: aa.FeatureSet | None = None, optimizer: Any = "adam", **node: Any) -> aa.ModelGraph:
    model = node.pop("model", None) or aa.SequentialMLP(1, n_layers=2, hidden_dim=8)
    return aa.ModelGraph([aa.ModelNode("net", model, (rows or data()).reference(), **node)], optimizer)


def phase(rows: aa.FeatureSet | None = None, **settings: Any) -> aa.TrainPhase:
    sampler = aa.SimpleSampler(BATCH)
    return aa.TrainPhase("train", **{"data": rows or data(), "losses": LOSSES, "sampler": sampler, **settings})


def spoiled() -> aa.FeatureSet:
    """A value in the second batch that float16 does not hold."""
    x = X.copy()
    x[10] = 1e6
    return data(x)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
def test_a_run_of_which_all_steps_were_skipped_is_told() -> None:
    settings: dict[str, Any] = {"precision": "fp16-mixed", "loss_scale": 2.0**24, "losses": [LOUD]}
    with pytest.warns(NaNWarning, match=r"phase 'train': all of its 6 steps were skipped.*nothing was learned. Hint: "):
        graph().run(phase(**settings))
    graph().run(phase(**settings, on_nan="ignore"))
    graph().run(phase(**{**settings, "epochs": 8}))  # the scale has come down


def bfloat16(array: Any) -> Any:
    """By ml_dtypes, which nobody here wrote."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return np.asarray(array).astype(ml_dtypes.bfloat16).astype("float32")


def float16(array: Any) -> Any:
    with np.errstate(over="ignore"):
        return np.asarray(array).astype("float16").astype("float32")


@pytest.mark.parametrize(("name", "rounded"), [("bf16-mixed", bfloat16), ("fp16-mixed", float16)])
def test_what_enters_and_leaves_a_node_is_rounded(name: str, rounded: Any) -> None:
    values = np.concatenate([RANDOM.normal(size=200) * 10.0**k for k in range(-8, 8)]).astype("float32")
    values = np.concatenate([values, np.array([0.0, -0.0, np.inf, -np.inf, 3.3e38, 1.00390625, 1.01171875], "float32")])
    seen: list[Any] = []

    def vjp(parameters: Any, inputs: Any) -> Any:
        seen.append(inputs[0])
        return VjpResult((inputs[0] * 3,), lambda cotangents: ({}, [cotangents[0] * 3]))

    applied = rounded_vjp(NodePrecision(name), vjp, {}, (values,))
    np.testing.assert_array_equal(seen[0], rounded(values))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(applied.outputs[0], rounded(rounded(values) * np.float32(3)))
        np.testing.assert_array_equal(applied.pullback((values,))[1][0], rounded(rounded(values) * np.float32(3)))
    nan = rounded_vjp(NodePrecision(name), vjp, {}, (np.array([np.nan], "float32"),))
    assert np.isnan(nan.outputs[0]).all()


def test_no_precision_changes_nothing() -> None:
    plain, same = graph(), graph()
    plain.run(phase(epochs=3))
    same.run(phase(epochs=3, precision="float32"))
    for a, b in zip(plain.state().values(), same.state().values(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_steps_with_infinite_gradients_are_skipped_and_told() -> None:
    network, scale = graph(spoiled()), aa.LossScale(initial=256.0, growth_interval=4)
    scales: list[float] = []

    class Listens(aa.Callback):
        def step_end(self, run: Any) -> None:
            scales.append(run.loss_scale.scale)

    settings: dict[str, Any] = {"precision": "fp16-mixed", "loss_scale": scale, "on_nan": "ignore"}
    results = network.run(phase(spoiled(), epochs=2, callbacks=[Listens()], **settings))
    assert network.optimizer_states["net"].step == 10
    assert scales == [256.0, *[128.0] * 4, *[256.0] * 2, *[128.0] * 4, 256.0]
    told = [str(event) for event in results.events if event.kind == "precision"]
    assert len(told) == 2 and told[0].startswith(
        "precision: 1 of 6 steps were skipped because gradients were not finite; losses are now scaled by 256"
    )
    assert all(np.isfinite(value).all() for value in network.state().values())


def test_skipped_steps_are_as_if_they_were_not_there() -> None:
    """Parameters are those of a run without the spoiled batch: neither moments nor schedules count it."""
    optimizer = aa.Optimizer("adam", lr=0.05, schedule=aa.Schedule("linear", steps=10), clip_norm=0.5)
    network, rest = graph(spoiled(), optimizer), np.r_[0:8, 16:48]
    network.run(phase(spoiled(), precision="fp16-mixed", loss_scale=1024.0, on_nan="ignore"))
    rows = aa.FeatureSet.from_dict("data", {"x": X[rest], "y": Y[rest]}, ["x"], ["y"])
    other = graph(rows, optimizer)
    other.run(phase(rows, precision="fp16-mixed", loss_scale=512.0))
    for name, value in other.state().items():
        np.testing.assert_allclose(network.state()[name], value, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("step", [3, 6, 9])
def test_a_run_goes_on_with_its_loss_scale(step: int, tmp_path: Any) -> None:
    settings: dict[str, Any] = {"precision": "fp16-mixed", "loss_scale": aa.LossScale(initial=256.0, growth_interval=4)}
    settings |= {"on_nan": "ignore", "epochs": 2, "losses": LOSSES}

    class Breaks(aa.Callback):
        def __init__(self, at: int | None) -> None:
            self.at, self.done, self.scales = at, 0, []

        def step_end(self, run: Any) -> None:
            self.done += 1
            self.scales.append(run.loss_scale)
            if self.done == self.at:
                raise RuntimeError("broken off")

    def run(folder: str, at: int | None, resume: str = "never") -> tuple[aa.ModelGraph, Breaks]:
        network, breaks = graph(spoiled()), Breaks(at)
        experiment = aa.Experiment("e", network, progress="none")
        checkpoint = aa.Checkpoint(tmp_path / folder, every=1, wait=True)
        training = phase(spoiled(), callbacks=[breaks], checkpoint=checkpoint, **settings)
        experiment.run_phase(training, resume=resume)
        return network, breaks

    whole, heard = run("whole", None)
    with pytest.raises(RuntimeError, match="broken off"):
        run("broken", step)
    resumed, later = run("broken", None, "auto")
    assert later.scales[-1] == heard.scales[-1]
    for name, value in whole.state().items():
        np.testing.assert_array_equal(resumed.state()[name], value)


def test_a_node_decides_before_its_phase() -> None:
    rows = data()
    nodes = [
        aa.ModelNode("encoder", aa.SequentialMLP(4), rows.reference()),
        aa.ModelNode("net", aa.SequentialMLP(1), "encoder", precision="float32"),
    ]
    plan = aa.Experiment("e", aa.ModelGraph(nodes, "adam")).plan(phase(rows, precision="bf16-mixed"))
    assert [(a.precision, a.precision_reason) for a in plan.assignments] == [
        ("bf16-mixed", "phase"),
        ("float32", "node"),
    ]
    assert aa.Plan.from_dict(plan.to_dict()) == plan
    assert "computed in float32, because the node requests it" in plan.explain("net")
    assert "bf16-mixed, because the phase requests it" in plan.explain(plan.assignments[0].node)


def test_a_precision_is_part_of_the_configuration() -> None:
    scale = aa.LossScale(initial=8.0)
    given = phase(data="all", precision="fp16-mixed", loss_scale=scale, matmul_precision={"numpy": "x"})
    again = Phase.from_config(given.get_config())
    assert (again.precision, again.loss_scale, again.matmul_precision) == ("fp16-mixed", scale, {"numpy": "x"})
    rows = data()
    network = graph(rows, precision="bf16", remat="blocks")
    copied = aa.ModelGraph.from_config(network.get_config(), feature_sets=[rows])
    assert (copied["net"].precision, copied["net"].remat) == ("bf16", "blocks")
    with pytest.raises(ConfigError, match="is not the configuration of a LossScale"):
        aa.LossScale.from_config({"start": 1.0})


def refused(make: Any) -> AnyaccelError:
    with pytest.raises(AnyaccelError) as caught:
        make()
    return caught.value


def planned(network: aa.ModelGraph, training: aa.TrainPhase) -> Any:
    return aa.Experiment("e", network).plan(training)


def test_what_is_not_possible_is_refused_before_anything_moves() -> None:
    error = refused(lambda: phase(precision="half"))
    assert isinstance(error, PhaseError) and "'bf16-mixed'" in error.available
    error = refused(lambda: graph(precision="fp16"))
    assert isinstance(error, GraphError) and "'fp16-mixed'" in error.hint
    error = refused(lambda: phase(losses=[], step=lambda *_: None, precision="bf16-mixed"))
    assert "has precision='bf16-mixed' and a custom step" in error.problem and "leave precision out" in error.hint
    error = refused(lambda: phase(precision="bf16-mixed", validation=aa.EvalPhase("v", data="val", precision="bf16")))
    assert "trains with precision='bf16-mixed' but validates with 'bf16'" in error.problem
    error = refused(lambda: planned(graph(remat="blocks"), phase()))
    assert isinstance(error, CapabilityError) and "numpy finds no such parts in a SequentialMLP" in error.problem
    error = refused(lambda: planned(graph(), phase(matmul_precision="high")))
    assert isinstance(error, PhaseError) and not error.available
    error = refused(lambda: phase(matmul_precision={}))
    assert "is not a setting, or a dict of settings" in error.problem
    error = refused(lambda: phase(loss_scale=-1.0))
    assert "loss_scale must be a LossScale or a positive number, got -1.0" in error.problem
    error = refused(lambda: aa.LossScale(backoff=2))
    assert isinstance(error, SpecError) and "backoff=2 is not a number in (0, 1]" in error.problem


def test_a_device_that_lacks_a_dtype_is_refused() -> None:
    with aa.simulate(1, float64=False):
        training = phase(accelerator="sim:0", precision="float64")
        error = refused(lambda: planned(graph(), training))
        assert "precision='float64' on sim:0: sim:0 has no float64" in error.problem
        assert "'bf16-mixed'" in error.available and "precision='float32'" in error.hint
        graph().run(phase(accelerator="sim:0", precision="bf16-mixed"))


def test_an_older_plugin_is_refused_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    from anyaccel.graph import device_assignment as precision_assignment

    class Older:
        """No backend has this capability."""

    monkeypatch.setattr(precision_assignment, "ComputesPrecision", Older)
    error = refused(lambda: planned(graph(), phase(precision="bf16-mixed")))
    assert "the plugin of numpy does not support it" in error.problem and error.hint == "leave precision out"


def test_the_state_of_a_loss_scale_is_checked() -> None:
    state = LossScaleState(8.0, 3, 1)
    assert LossScaleState.from_dict(state.to_dict()) == state
    for wrong in ({**state.to_dict(), "scale": -1.0}, {**state.to_dict(), "skipped": 0.5}):
        with pytest.raises(ValueError, match="is not the state of a loss scale"):
            LossScaleState.from_dict(wrong)
    assert LossScaleState(2.0**127).after_step(aa.LossScale(growth_interval=1), finite=True).scale == 2.0**127


def test_what_a_framework_makes_of_float32_by_default_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        NumpyPrecision, "float32_note", lambda self, model, device: f"halves on {device}", raising=False
    )
    rows = data()

    def notes(own: aa.ModelGraph, **settings: Any) -> tuple[str, ...]:
        return aa.Experiment(own).plan(phase(rows, **settings)).notes

    assert "halves on cpu:0" in notes(graph(rows))
    assert "halves on cpu:0" in notes(graph(rows), precision="float32")
    assert "halves on cpu:0" not in notes(graph(rows, precision="bf16-mixed"))
