"""Losses follow docs/reference/formulas.md, as means and as exact sums with weights."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anyaccel as aa
from anyaccel.device import Device
from anyaccel.errors import ColumnError, ShapeError, SpecError
from anyaccel.segment import LossTerm
from anyaccel.specs import Loss
from anyaccel_torch.losses import BoundLoss, bind

HOST = torch.device("cpu")


def bound(loss: Any, inputs: tuple[str, ...] = ("a", "y"), **kwargs: Any) -> BoundLoss:
    term = LossTerm("l", "a", Loss(loss, loss_kwargs=kwargs or None), inputs, Device("cpu"))
    return bind(term, range(len(inputs)), HOST)


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - x.max(-1, keepdims=True) - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True))


def by_formula(name: str, x: np.ndarray, y: np.ndarray) -> tuple[float, int]:
    if name == "mse":
        return float(((x - y) ** 2).sum()), x.size
    if name == "mae":
        return float(np.abs(x - y).sum()), x.size
    if name == "binary_cross_entropy":
        return float((np.maximum(x, 0) - x * y + np.log1p(np.exp(-np.abs(x)))).sum()), x.size
    chosen = y if y.dtype.kind == "f" else np.eye(x.shape[-1])[y]
    return float(-(chosen * log_softmax(x)).sum()), int(np.prod(x.shape[:-1]))


def cases() -> list[tuple[str, np.ndarray, np.ndarray]]:
    random = np.random.default_rng(3)
    x, y = random.normal(size=(7, 4)), random.uniform(size=(7, 4))
    grid = random.normal(size=(5, 3, 4))
    return [
        *((name, x, y) for name in ("mse", "mae", "binary_cross_entropy")),
        *((name, grid, grid.round()) for name in ("mse", "mae")),
        ("mse", x, y.round().astype("int64")),
        ("binary_cross_entropy", x, y > 0.5),
        ("binary_cross_entropy", x * 100, y),
        ("cross_entropy", x, random.integers(0, 4, 7)),
        ("cross_entropy", x, random.integers(0, 4, 7).astype("int32")),
        ("cross_entropy", x, random.integers(0, 4, 7).astype("uint8")),
        ("cross_entropy", x, y / y.sum(-1, keepdims=True)),
        ("cross_entropy", grid, random.integers(0, 4, (5, 3))),
        ("cross_entropy", grid, np.abs(grid)),
    ]


@pytest.mark.parametrize(("name", "x", "y"), cases())
def test_sum_weight_and_mean_follow_the_formula(name: str, x: np.ndarray, y: np.ndarray) -> None:
    values = [torch.tensor(x, requires_grad=True), torch.tensor(y)]
    total, weight = by_formula(name, x, y)
    result = bound(name)
    exact = result.sum_and_weight(values)
    assert (exact[0].shape, exact[1].shape) == ((), ())
    assert exact[0].item() == pytest.approx(total, rel=1e-12) and exact[1].item() == weight
    mean = result.mean(values)
    assert mean.item() == pytest.approx(total / weight, rel=1e-12)
    (by_sum,) = torch.autograd.grad(exact[0] / exact[1], values[:1])
    (by_mean,) = torch.autograd.grad(mean, values[:1])
    torch.testing.assert_close(by_sum, by_mean)


def test_targets_take_the_dtype_of_the_outputs() -> None:
    values = [torch.ones(3, 1, requires_grad=True), torch.zeros(3, 1, dtype=torch.float64)]
    mean = bound("mse").mean(values)
    mean.backward()
    assert mean.dtype == torch.float32 and values[0].grad is not None


def test_sums_of_16_bit_outputs_are_float32() -> None:
    values = [torch.full((1000, 1), 100.0, dtype=torch.float16), torch.zeros(1000, 1, dtype=torch.float16)]
    total, weight = bound("mse").sum_and_weight(values)
    assert (total.item(), weight.item()) == (1e7, 1000)


@pytest.mark.parametrize(
    ("name", "outputs", "targets"),
    [
        ("mse", torch.zeros(4, 1), torch.zeros(4)),
        ("mae", torch.zeros(4, 2), torch.zeros(4, 1)),
        ("binary_cross_entropy", torch.zeros(4), torch.zeros(4, 1)),
        ("cross_entropy", torch.zeros(4, 3), torch.zeros(4, 1, dtype=torch.int64)),
        ("cross_entropy", torch.zeros(4, 3), torch.zeros(4, 2)),
        ("cross_entropy", torch.zeros(4), torch.zeros(4, dtype=torch.int64)),
        ("cross_entropy", torch.zeros(4), torch.zeros(4)),
    ],
)
def test_named_losses_do_not_broadcast(name: str, outputs: Tensor, targets: Tensor) -> None:
    for compute in (bound(name).mean, bound(name).sum_and_weight):
        with pytest.raises(
            ShapeError, match=rf"loss 'l' \({name}\): outputs \[4.*losses never broadcast\. Hint: set output_shape"
        ):
            compute([outputs, targets])


@pytest.mark.parametrize("index", [-1, -100, 3])
def test_every_class_index_counts(index: int) -> None:
    values = [torch.zeros(2, 3), torch.tensor([0, index])]
    with pytest.raises(IndexError, match="out of bounds"):
        bound("cross_entropy").mean(values)


def test_named_loss_requires_two_inputs() -> None:
    with pytest.raises(
        SpecError, match=r"mse takes outputs and targets, but got 1 inputs \(a\)\. Hint: pass two inputs"
    ):
        bound("mse", ("a",))


# -- own -------------------------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """A loss with a parameter."""

    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.factor * (x - y).square().mean()


@pytest.mark.parametrize(
    "loss",
    [
        bound(nn.HuberLoss, delta=1.0),
        bound(nn.HuberLoss(delta=1.0)),
        bound(lambda x, y: nn.functional.huber_loss(x, y)),
    ],
)
def test_custom_loss_counts_as_mean_times_batch(loss: BoundLoss) -> None:
    values = [torch.randn(6, 2), torch.randn(6, 2)]
    mean = nn.functional.huber_loss(*values)
    total, weight = loss.sum_and_weight(values)
    assert loss.mean(values) == mean and weight.item() == 6
    torch.testing.assert_close(total, mean * 6)


def test_custom_loss_takes_any_inputs() -> None:
    loss = bound(lambda x, y, w: (w * (x - y).square()).mean(), ("a", "y", "w"))
    assert loss.mean([torch.ones(2), torch.zeros(2), torch.tensor([1.0, 3.0])]).item() == 2


def test_loss_module_is_placed() -> None:
    custom_loss = Scaled()
    assert bound(custom_loss).module is custom_loss and isinstance(bound(Scaled, factor=3.0).module, Scaled)
    assert bound(lambda x, y: x.mean()).module is None


@pytest.mark.parametrize(
    ("loss", "shown"),
    [
        (lambda x, y: x - y, r"shape \[2, 1\]"),
        (lambda x, y: 1.0, "a float"),
        (nn.MSELoss(reduction="none"), r"shape \[2"),
    ],
)
def test_custom_loss_must_give_a_scalar(loss: Any, shown: str) -> None:
    with pytest.raises(SpecError, match=rf"returns {shown}.*not a scalar tensor\. Hint: return the mean"):
        bound(loss).mean([torch.zeros(2, 1), torch.zeros(2, 1)])


def test_unusable_loss_class_raises_spec_error() -> None:
    with pytest.raises(SpecError, match=r"HuberLoss cannot be created with loss_kwargs sigma: .*'sigma'.*Hint: corr"):
        bound(nn.HuberLoss, sigma=1)
    with pytest.raises(SpecError, match=r"a object is not callable\. Hint: pass a class such as torch.nn.MSELoss"):
        bound(object)


# -- targets that a loss of torch takes --------------------------------------------------------------------------------

YES = np.array([[0.0], [1.0]] * 4, "float32")
CLASSES = np.array([0, 1, 2, 1] * 2)
TARGETS: dict[str, tuple[Any, int, np.ndarray, np.ndarray, str]] = {
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss(), 1, 255 * YES, YES, r"target 255.*takes targets from 0 to 1.*write 0"),
    "its function": (F.binary_cross_entropy_with_logits, 1, 255 * YES, YES, "takes targets from 0 to 1"),
    "its class": (aa.Loss(nn.BCEWithLogitsLoss), 1, 255 * YES, YES, "takes targets from 0 to 1"),
    "CrossEntropyLoss": (nn.CrossEntropyLoss(), 3, CLASSES + 1, CLASSES, "class index 3.*0 to 2.*subtract 1"),
    "below": (F.cross_entropy, 3, CLASSES - 1, CLASSES, "class index -1"),
    "ignored": (nn.CrossEntropyLoss(), 3, CLASSES - 3, np.where(CLASSES == 0, -100, CLASSES), "class index -3"),
    "ignored by hand": (
        functools.partial(F.cross_entropy, ignore_index=-1),
        3,
        CLASSES - 2,
        np.where(CLASSES == 0, -1, CLASSES),
        "class index -2",
    ),
    "probabilities": (
        nn.CrossEntropyLoss(),
        3,
        np.full((8, 3), -2, "float32"),
        np.full((8, 3), 1 / 3, "float32"),
        r"target -2.*takes probabilities of classes from 0 to 1",
    ),
    "SoftMarginLoss": (nn.SoftMarginLoss(), 1, YES, 2 * YES - 1, r"target 0.*the targets -1 and 1.*2 \* column - 1"),
    "HingeEmbeddingLoss": (nn.HingeEmbeddingLoss(), 1, YES, 2 * YES - 1, "the targets -1 and 1"),
    "PoissonNLLLoss": (nn.PoissonNLLLoss(), 1, -3 * YES, 3 * YES, "takes targets of at least 0"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_targets_that_a_loss_of_torch_would_take_without_a_word_are_refused(name: str) -> None:
    """And those that it is made for have its own loss; issue 26."""
    loss, width, wrong, right, message = TARGETS[name]
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    model = nn.Linear(3, width)
    options: dict[str, Any] = {"target": "y", "loss": loss, "epochs": 1, "batch_size": 8, "progress": "none"}
    options |= {"accelerator": "cpu", "optimizer": aa.Optimizer("sgd", lr=1e-12)}
    with pytest.raises(ColumnError, match=message):
        aa.fit(model, {"x": x, "y": wrong}, **options)
    own = loss.own() if isinstance(loss, aa.Loss) else loss
    with torch.no_grad():
        expected = own(model(torch.tensor(x)), torch.tensor(right)).item()
    assert aa.fit(model, {"x": x, "y": right}, **options).results.loss[0] == pytest.approx(expected, rel=1e-5)


def test_a_loss_derived_from_one_of_torch_may_take_anything() -> None:
    class Weighed(nn.BCEWithLogitsLoss):
        def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return super().forward(input, target / 255)

    x = np.ones((8, 3), "float32")
    fitted = aa.fit(nn.Linear(3, 1), {"x": x, "y": 255 * YES}, target="y", loss=Weighed(), epochs=1, progress="none")
    assert np.isfinite(fitted.results.loss[0])


COMPARED = [nn.BCEWithLogitsLoss, nn.BCELoss, nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss]


@pytest.mark.parametrize("cls", COMPARED)
@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
@pytest.mark.parametrize("by_fit", [False, True])
def test_losses_of_torch_that_compare_numbers_take_integers_and_bools(cls: Any, dtype: str, by_fit: bool) -> None:
    """Several of them refuse such targets, or subtract them as bools (issue 26)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(16, 3)).astype("f4")
    yes = (x[:, :1] > 0).astype(dtype)
    model = nn.Sequential(nn.Linear(3, 1), nn.Sigmoid() if cls is nn.BCELoss else nn.Identity())
    again = copy.deepcopy(model)
    data = aa.FeatureSet.from_dict("d", {"x": x, "y": yes}, ["x"], ["y"])
    if by_fit:
        aa.fit(model, data, loss=cls(), epochs=2, batch_size=16, optimizer=aa.Optimizer("sgd", lr=0.1), progress="none")
    else:
        graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference())], aa.Optimizer("sgd", lr=0.1))
        losses = [aa.AppliedLoss(cls(), on="net")]
        phase = aa.TrainPhase("t", data=data, losses=losses, sampler=aa.SimpleSampler(16), epochs=2)
        graph.run(phase, progress="none")
    optimizer = torch.optim.SGD(again.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        cls()(again(torch.tensor(x)), torch.tensor(yes).float()).backward()
        optimizer.step()
    torch.testing.assert_close(model[0].weight, again[0].weight)


def test_a_column_that_weighs_a_loss_of_torch_may_leave_rows_out() -> None:
    """Targets of -1 in rows of weight 0, which a check of the range refused (issue 26)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(16, 3)).astype("f4")
    y = (x[:, :1] > 0).astype("f4")
    y[:4] = -1
    counts = (y >= 0).astype("f4")
    model = nn.Linear(3, 1)
    with torch.no_grad():
        expected = nn.functional.binary_cross_entropy_with_logits(
            model(torch.tensor(x)), torch.tensor(y), torch.tensor(counts)
        )
    data = aa.FeatureSet.from_dict("d", {"x": x, "y": y, "counts": counts}, ["x"], ["y"], ["counts"])
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference())], "sgd")
    function = nn.functional.binary_cross_entropy_with_logits
    loss = aa.AppliedLoss(function, on="net", inputs=("outputs", "targets", "d.counts"))
    results = graph.run(aa.TrainPhase("t", data=data, losses=[loss], batch_size=16), progress="none")
    assert results.loss[0] == pytest.approx(expected.item(), rel=1e-5)


def test_losses_of_another_framework_are_refused() -> None:
    own = pytest.importorskip("optax").l2_loss
    data = np.ones((8, 3), "float32"), np.ones(8, "float32")
    for loss in (own, functools.partial(own)):
        with pytest.raises(SpecError, match=r"torch does not support the loss '\w+': \w+ comes from optax\."):
            aa.fit(nn.Linear(3, 1), data, loss=loss, accelerator="cpu", progress="none")
