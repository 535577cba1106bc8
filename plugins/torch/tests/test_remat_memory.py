"""What plans say that `remat` saves, beside what torch's allocator does with `torch.utils.checkpoint` by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import anyaccel as aa

ROWS, LENGTH, WIDTH = 16, 12, 32
RANDOM_STATE = torch.get_rng_state().nbytes
"""Of a block: the state of the generator, with which it is computed again, is no activation and is not counted."""


class Encoder(nn.Module):
    """Torch's own transformer, blocks of which are computed again by hand if wanted."""

    def __init__(self, by_hand: bool = False, **layer: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        settings = {"dim_feedforward": 48, "dropout": 0.1, "batch_first": True, **layer}
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 2, **settings) for _ in range(2))
        self.head = nn.Linear(WIDTH, 1)
        self.by_hand = by_hand

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.by_hand else layer(x)
        return self.head(x[:, 0])


class Residual(nn.Module):
    """Convolutions with running statistics, and activations in place."""

    def __init__(self, by_hand: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv1d(LENGTH, 8, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU(inplace=True)) for _ in range(4)
        )
        self.head = nn.Linear(8 * WIDTH, 1)
        self.by_hand = by_hand

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + (checkpoint(layer, x, use_reentrant=False) if self.by_hand else layer(x))
        return self.head(x.flatten(1))


def rows_of_random_numbers() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(3 * ROWS, LENGTH, WIDTH)).astype("float32")


def planned(model: nn.Module, remat: str | None = "blocks", **settings: Any) -> aa.Plan:
    x = rows_of_random_numbers()
    data = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, 0, :1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference(), remat=remat)], "adam")
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("t", data="all", losses=losses, **{"batch_size": ROWS, **settings})
    return aa.Experiment("e", graph, progress="none").plan(phase)


def allocated(work: Callable[[], Any]) -> tuple[int, int]:
    """Bytes of torch's allocator that some work leaves while its result is alive, and the most of them meanwhile."""
    with torch.profiler.profile(profile_memory=True) as profile:
        result = work()
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    sizes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    used = np.cumsum([nbytes for _, nbytes in sorted(sizes, key=lambda each: each[0])])
    del result
    return int(used[-1]), int(used.max())


def kept_by_hand(model: nn.Module) -> int:
    x = torch.tensor(rows_of_random_numbers()[:ROWS])
    model.train()
    model(x)  # what libraries make in a first call
    return allocated(lambda: model(x))[0]


@pytest.mark.parametrize("make", [Encoder, Residual])
def test_what_is_saved_is_what_the_allocator_says_by_hand(make: Callable[..., nn.Module]) -> None:
    (activations,) = planned(make()).activations
    assert activations.rows == ROWS and activations.gap == ""
    assert activations.without_remat == kept_by_hand(make())
    states = len(make().layers) * RANDOM_STATE  # type: ignore[arg-type]
    written = len(make().layers) * 8 if make is Residual else 0  # type: ignore[arg-type]
    kept = kept_by_hand(make(by_hand=True)) - states
    # of the running statistics that a block writes to, a copy is kept, of which checkpoint by hand keeps none
    assert 0 <= activations.kept - kept <= written * 9  # type: ignore[operator]
    assert activations.saved == activations.without_remat - activations.kept > 0  # type: ignore[operator]


def test_the_peak_of_a_plan_is_that_of_blocks_computed_again() -> None:
    plain, again = planned(Encoder(), None), planned(Encoder())
    saved = plain.memory[0].activations - again.memory[0].activations  # type: ignore[operator]
    peaks = []
    for by_hand in (False, True):
        model, x = Encoder(by_hand), torch.tensor(rows_of_random_numbers()[:ROWS])
        model(x).sum().backward()

        def step(model: nn.Module = model, x: torch.Tensor = x) -> None:
            nn.functional.mse_loss(model(x), torch.zeros(ROWS, 1)).backward()

        peaks.append(allocated(step)[1])
    assert plain.activations == () and saved > 0
    assert saved == pytest.approx(peaks[0] - peaks[1], rel=0.1)  # without the optimizer, which comes after the peak


def test_fewer_rows_are_computed_together_where_gradients_are_accumulated() -> None:
    (activations,) = planned(Residual(), batch_size=ROWS // 4, accumulate=4).activations
    (alone,) = planned(Residual(), batch_size=ROWS // 4).activations
    assert activations == alone and activations.rows == ROWS // 4


def test_a_node_that_is_cast_as_a_whole_keeps_its_output() -> None:
    (mixed,), (whole,) = (
        planned(Encoder(), precision=precision).activations for precision in ("bf16-mixed", "float64")
    )
    assert whole.kept == ROWS * 1 * 4  # in float32, as the loss takes it
    assert 0 < whole.kept < mixed.kept < mixed.without_remat < whole.without_remat  # type: ignore[operator]


def test_a_plan_shows_what_is_saved_and_keeps_it_in_files() -> None:
    plan = planned(Residual())
    (activations,) = plan.activations
    last = str(plan).splitlines()[-1]
    assert last.startswith("remat net: activations of 16 rows until the backward pass ") and " saved (" in last
    read = aa.Plan.from_json(plan.to_json())
    assert read == plan and read.activations == plan.activations and plan.not_covered == ()
    assert f'data-bytes="{activations.without_remat}"' in plan.to_html()
    difference = next(
        each for each in plan.diff(planned(Residual(), batch_size=8)) if each.what == "remat of net, kept"
    )
    assert difference.before == activations.kept > difference.after


def test_what_cannot_be_known_says_why() -> None:
    class OnValues(Encoder):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x if float(x.sum()) < 1e9 else -x)

    plan = planned(OnValues())
    (activations,) = plan.activations
    assert activations.kept is None is activations.saved and "measuring a step failed: DataDependent" in activations.gap
    assert f"memory saved by remat of net: {activations.gap}" in plan.not_covered
    assert "activations of 16 rows until the backward pass not covered: measuring" in str(plan)


def test_nothing_is_recomputed_in_an_evaluation_or_a_frozen_node() -> None:
    x = rows_of_random_numbers()
    data = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, 0, :1]}, ["x"], ["y"])
    net = aa.ModelNode("net", Encoder(), data.reference(), remat="blocks")
    graph = aa.ModelGraph([net, aa.ModelNode("end", nn.Linear(1, 1), "net")], "sgd")
    losses = [aa.AppliedLoss("mse", on="end")]
    assert aa.Experiment("e", graph).plan(aa.EvalPhase("v", data="all", losses=losses)).activations == ()
    graph.freeze("net")
    phase = aa.TrainPhase("t", data="all", losses=losses)
    assert aa.Experiment("e", graph).plan(phase).activations == ()
