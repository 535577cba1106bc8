"""What people who meet anyaccel for the first time get wrong, and what they are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import AnyaccelError, DataError, FrameworkError, PhaseError, RecipeError, StateError

X = np.random.default_rng(0).standard_normal((20, 3)).astype("float32")
LOSS = aa.AppliedLoss("mse", on="net")


def source(**more: np.ndarray) -> aa.FeatureSet:
    columns = {"x": X, "y": X[:, 0], **more}
    found = aa.FeatureSet.from_dict("data", columns, ["x"], ["y", *more])
    found.split_random({"train": 0.8, "val": 0.2})
    return found


def graph(data: aa.FeatureSet, width: int = 1) -> aa.ModelGraph:
    return aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(width), data.reference(targets=["y"]))], "adam")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 3}, r"TrainPhase has no setting 'epochs'. There is: .*n_epochs.* did you mean 'n_epochs'\?$"),
        ({"losses": LOSS}, r"losses=.* is one thing, not several. To do: write losses=\[...\] with brackets"),
        ({"callbacks": aa.EarlyStopping()}, r"callbacks=.* is one thing, not several. To do: write callbacks=\[...\]"),
        ({"callbacks": [aa.EarlyStopping]}, r"is no Callback. To do: make one: EarlyStopping\(\)"),
    ],
)
def test_settings_of_a_phase(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PhaseError, match=message):
        aa.TrainPhase("t", **{"data": "train", "losses": [LOSS], **settings})


def test_a_misspelt_split_is_told_by_the_plan_already_and_never_answered_with_all_rows() -> None:
    experiment = aa.Experiment("e", graph(source()))
    with pytest.raises(
        DataError, match=r"has no split 'vale'. There is: train, val, all. To do: did you mean 'val'\?$"
    ):
        experiment.plan(aa.EvalPhase("v", data="vale"))
    with pytest.raises(DataError) as caught:
        source()["alla"]
    assert "did you mean 'all'" not in str(caught.value)


def test_a_schedule_by_name_is_made_or_told() -> None:
    assert aa.Optimizer("adam", schedule="constant").schedule == aa.Schedule()
    with pytest.raises(RecipeError, match=r"schedule .cosine. lacks steps\."):
        aa.Optimizer("adam", schedule="cosine")
    with pytest.raises(RecipeError, match=r"0\.5 is no Schedule\. There is: constant"):
        aa.Optimizer("adam", schedule=0.5)  # type: ignore[arg-type]


def test_the_learning_rate_by_another_name_is_told_with_its_name_here() -> None:
    with pytest.raises(RecipeError, match=r"no setting learning_rate\. There is: lr, schedule, clip_norm, betas"):
        aa.Optimizer("adam", learning_rate=0.1)


def test_one_size_may_be_written_as_a_number() -> None:
    assert aa.SequentialMLP(3).get_config()["output_shape"] == [3]


def test_accuracy_of_one_output_wants_two_classes() -> None:
    with pytest.raises(RecipeError, match=r"there are 3 of them\. To do: give the model one output for each class"):
        aa.Metric("accuracy").measure(np.zeros((4, 1), "float32"), np.array([0, 1, 2, 1]))


def test_an_own_loss_does_not_broadcast_a_column_of_numbers_against_one_output() -> None:
    shapes = []

    def own(outputs: np.ndarray, targets: np.ndarray) -> tuple[float, float, list[Any]]:
        shapes.append((outputs.shape, targets.shape))
        return float(np.sum((outputs - targets) ** 2)), outputs.size, [2 * (outputs - targets), None]

    data = source(count=np.arange(20))
    for column in ("y", "count"):
        loss = aa.AppliedLoss(own, on="net", inputs=["outputs", f"data.{column}"])
        phase = aa.TrainPhase("t", data="train", losses=[loss], sampler=4)
        aa.Experiment("e", graph(data), progress="none").run_phase(phase)
    assert shapes and all(one == other for one, other in shapes)


def test_results_are_shown_in_a_line() -> None:
    experiment = aa.Experiment("e", graph(source()), progress="none")
    experiment.run(
        aa.TrainPhase("t", data="train", losses=[LOSS]), aa.EvalPhase("v", data="val", losses=[LOSS], metrics=["mae"])
    )
    trained, tested = map(repr, experiment.history)
    assert trained.startswith("TrainResults('t', 1 epochs, loss ") and "\n" not in trained
    assert tested.startswith("EvalResults('v', loss ") and tested.endswith("predictions of net)")


def test_arrays_to_a_device_of_another_framework_need_its_name() -> None:
    with pytest.raises(FrameworkError, match=r"NumPy array cannot be on 'xpu'.*whose tensor it shall become"):
        aa.move({"x": X}, "xpu")


def test_devices_by_framework() -> None:
    assert aa.best(framework="numpy") == aa.Device("cpu")
    assert aa.devices("cpu", "numpy") == [aa.Device("cpu")]
    with pytest.raises(AnyaccelError, match="no plugin for the framework 'nimpy' is installed"):
        aa.best(framework="nimpy")


def test_a_silent_move_to_the_cpu_stands_in_the_plan() -> None:
    with aa.simulate(1):
        made = graph(source())
        experiment = aa.Experiment("e", made, progress="none")
        experiment.run_phase(aa.TrainPhase("t", data="train", losses=[LOSS], accelerator="sim:0"))
        plan = experiment.plan(aa.EvalPhase("v", data="val"))
    assert "net moves from sim:0 to cpu:0: neither it nor the phase asks for a device" in str(plan)


def test_a_configuration_cannot_ask_for_a_model_without_end() -> None:
    with pytest.raises(RecipeError, match=r"layers of 16\. There is: at most"):
        aa.SequentialMLP(1, n_layers=10**30)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("net/optimizer_step", np.array(-5), "optimizer_step is -5 in the state. There is: it is a count"),
        ("progress/t", np.array(-3), "progress/t is -3 in the state"),
        ("net/optimizer/m/layers.0.bias", np.array(["a"] * 16), "is of <U1 in the state. There is: optimizers keep"),
    ],
)
def test_a_state_with_odd_values_changes_nothing(name: str, value: np.ndarray, message: str) -> None:
    made = graph(source())
    aa.Experiment("e", made, progress="none").run_phase(aa.TrainPhase("t", data="train", losses=[LOSS]))
    before = made.state()
    odd = {key: np.zeros_like(array) for key, array in before.items()} | {name: value}
    with pytest.raises(StateError) as caught:
        made.load_state(odd)
    assert message in str(caught.value)
    after = made.state()
    assert all(np.array_equal(after[key], array) for key, array in before.items())


def test_a_seed_may_be_negative_and_comes_back() -> None:
    data = source()
    made = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(), data.reference(targets=["y"]))], seed=-5)
    assert made.load_state(made.state()).seed == -5
