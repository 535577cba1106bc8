"""fit with models of several inputs and outputs, and with steps of one's own, against loops by hand in torch."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import anyaccel as aa
from anyaccel.errors import DataError, PhaseError

rng = np.random.default_rng(0)
A, B = (rng.normal(size=60).astype("float32") for _ in range(2))
KINDS = np.array(list("xyz" * 20))
TABLE = {"b": B, "a": A, "price": A - B, "kind": KINDS}
LOSSES = {"price": "mse", "kind": "cross_entropy"}
EPOCHS, BATCH, RATE = 3, 20, 0.05


class Named(nn.Module):
    """Two inputs that must not be exchanged, two outputs by name."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(1, 4), nn.Linear(1, 5)
        self.price, self.kind = nn.Linear(9, 1), nn.Linear(9, 3)

    def forward(self, a, b):
        hidden = torch.cat([self.first(a.reshape(-1, 1)), self.second(b.reshape(-1, 1))], 1).tanh()
        return {"price": self.price(hidden), "kind": self.kind(hidden)}


class InOrder(Named):
    """Inputs of other names than the columns, outputs in an order."""

    def forward(self, left, right):
        return tuple(super().forward(left, right).values())


def made(cls=Named):
    torch.manual_seed(0)
    return cls()


def fit(model, data=TABLE, **settings):
    given = {"loss": LOSSES, "epochs": EPOCHS, "sampler": aa.SimpleSampler(BATCH), "progress": "none"}
    given |= {"optimizer": aa.Optimizer("sgd", lr=RATE), "accelerator": "cpu"}
    return aa.fit(model, data, **{**given, **settings})


def check_code(fitted, model, **given):
    """The code of a fit, run by itself, gives its losses to the last bit."""
    names = {"model": model, "data": TABLE, "fitted": fitted, **given}
    exec(compile(fitted.code(), "code of a fit", "exec"), names)  # noqa: S102
    figures = [epoch.figures for epoch in fitted.results.epochs]
    assert [epoch.figures for epoch in names["results"].epochs] == figures, fitted.code()


def by_hand(weight=1.0):
    net = made()
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    a, b = torch.tensor(A), torch.tensor(B)
    kinds = torch.tensor(np.unique(KINDS, return_inverse=True)[1])
    losses = []
    for _ in range(EPOCHS):
        total = 0.0
        for i in range(0, 60, BATCH):
            rows = slice(i, i + BATCH)
            out = net(a[rows], b[rows])
            price = F.mse_loss(out["price"][:, 0], (a - b)[rows])
            loss = price + weight * F.cross_entropy(out["kind"], kinds[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() / 3
        losses.append(total)
    return net, losses


def test_several_inputs_and_targets_are_a_loop_by_hand():
    net, losses = by_hand()
    fitted = fit(made())
    np.testing.assert_allclose(fitted.results.loss, losses, rtol=1e-5)
    for name, value in net.state_dict().items():
        np.testing.assert_allclose(fitted.graph["model"].model.state_dict()[name].numpy(), value.numpy(), rtol=1e-4)
    parts = fitted.results.epochs[-1].losses
    assert set(parts) == {"price", "kind"} and sum(parts.values()) == pytest.approx(losses[-1], rel=1e-5)
    rows = {"a": A[:7], "b": B[:7]}
    predicted = fitted.predict(rows)
    out = {name: value.detach().numpy() for name, value in net(torch.tensor(A[:7]), torch.tensor(B[:7])).items()}
    np.testing.assert_allclose(predicted["price"], out["price"][:, 0], rtol=1e-4)
    np.testing.assert_array_equal(predicted["kind"], np.array(["x", "y", "z"])[out["kind"].argmax(1)])
    assert fitted.predict(rows, outputs=True)["kind"].shape == (7, 3)
    check_code(fitted, made())


def test_inputs_and_outputs_are_named_where_the_model_names_none():
    _, losses = by_hand()
    fitted = fit(made(InOrder), features={"left": "a", "right": ["b"]}, outputs=["price", "kind"])
    np.testing.assert_allclose(fitted.results.loss, losses, rtol=1e-5)
    check_code(fitted, made(InOrder))
    with pytest.raises(
        PhaseError, match=r"needs the inputs left, right, but no feature is called 'left'.*features: b, a"
    ):
        fit(made(InOrder), outputs=["price", "kind"])
    with pytest.raises(
        PhaseError, match=r"the model has no output 'price'\. Available: outputs: 0, 1\. Hint: return a d"
    ):
        fit(made(InOrder), features={"left": "a", "right": "b"})


def test_batches_give_several_inputs_by_name_or_in_order():
    _, losses = by_hand()
    kinds = np.unique(KINDS, return_inverse=True)[1]
    targets = [(A - B)[:, None], kinds]
    by_name = [({"b": B, "a": A}, {"kind": kinds, "price": targets[0]}), {**TABLE, "kind": kinds}]
    for parts in (*by_name, ((A, B), tuple(targets)), (A, B, *targets)):
        batches = [cut(parts, slice(i, i + BATCH)) for i in range(0, 60, BATCH)]
        fitted = fit(made(), batches, sampler=None)
        np.testing.assert_allclose(fitted.results.loss, losses, rtol=1e-5)


def cut(parts, rows):
    if isinstance(parts, dict):
        return {name: part[rows] for name, part in parts.items()}
    return tuple(cut(part, rows) for part in parts) if isinstance(parts, tuple) else torch.tensor(parts[rows])


def test_a_table_with_text_is_one_input():
    pytest.importorskip("anyaccel_sklearn")
    with pytest.raises(
        PhaseError, match=r"needs the inputs a, b, but a table with text, dates or gaps becomes one inp"
    ):
        fit(made(), {**TABLE, "b": KINDS})


def test_losses_have_weights_and_predict_what_they_compare(tmp_path):
    _, losses = by_hand(weight=0.5)
    applied = [
        aa.AppliedLoss("mse", on="model", inputs=["outputs.price", "data.price"], label="price"),
        aa.AppliedLoss("cross_entropy", on="model", inputs=["outputs.kind", "data.kind"], weight=0.5, label="kind"),
    ]
    fitted = fit(made(), loss=applied, target=["price", "kind"])
    np.testing.assert_allclose(fitted.results.loss, losses, rtol=1e-5)
    check_code(fitted, made())
    fitted.save(tmp_path)
    loaded = aa.load(tmp_path, models={"model": made()})
    for name, values in fitted.predict(TABLE).items():
        np.testing.assert_array_equal(loaded.predict(TABLE)[name], values)
    assert loaded.evaluate(TABLE).loss == fitted.evaluate(TABLE).loss


def test_a_loss_of_ones_own_among_several_is_not_decoded_after_loading(tmp_path):
    def smooth(outputs, targets):
        return F.smooth_l1_loss(outputs.reshape(-1), targets.reshape(-1))

    given = {"price": smooth, "kind": "cross_entropy"}
    fitted = fit(made(), loss=given)
    check_code(fitted, made(), loss=given)
    fitted.save(tmp_path)
    loaded = aa.load(tmp_path, models={"model": made()})
    for name, values in fitted.predict(TABLE).items():
        np.testing.assert_array_equal(loaded.predict(TABLE)[name], values)
    with pytest.raises(DataError, match="the target 'kind' was text, but the meaning"):
        fit(made(), loss={"price": "mse", "kind": smooth_classes}).predict(TABLE)


def smooth_classes(outputs, targets):
    return F.cross_entropy(outputs, targets.reshape(-1).long())


def step(models, batch, optimizers):
    out = models["model"](batch["a"], batch["b"])
    price = F.mse_loss(out["price"][:, 0], batch["price"].reshape(-1))
    loss = price + F.cross_entropy(out["kind"], batch["kind"].reshape(-1))
    optimizers["model"].zero_grad()
    loss.backward()
    optimizers["model"].step()
    return loss


@pytest.mark.parametrize("loss", [None, LOSSES], ids=["without losses", "with losses"])
def test_a_step_of_ones_own_is_the_loop(loss):
    _, losses = by_hand()
    fitted = fit(made(), step=step, loss=loss, target=["price", "kind"])
    np.testing.assert_allclose(fitted.results.loss, losses, rtol=1e-5)
    assert fitted.phase.losses == () and fitted.phase.step is step
    if loss is None:
        with pytest.raises(DataError, match="the target 'kind' was text"):
            fitted.predict(TABLE)
    else:
        assert set(fitted.predict(TABLE)["kind"]) <= set("xyz")


def test_what_is_given_beside_a_step_is_measured():
    fitted = fit(made(), step=step, loss=LOSSES, target=["price", "kind"], validation=0.25)
    last = fitted.results.epochs[-1].validation
    assert set(last) == {"loss", "loss.price", "loss.kind"}
    assert last["loss"] == pytest.approx(last["loss.price"] + last["loss.kind"])
    check_code(fitted, made(), step=step)


def test_a_table_that_is_treated_is_taken_from_the_fitted_model():
    pytest.importorskip("anyaccel_sklearn")
    table = {"a": A, "colour": np.array(["red", "green", None] * 20, dtype=object), "kind": KINDS}
    torch.manual_seed(0)
    made_for = []

    def build(n_features, n_outputs):
        made_for.append(nn.Linear(n_features, n_outputs))
        return copy.deepcopy(made_for[0])

    fitted = aa.fit(build, table, target="kind", epochs=EPOCHS, progress="none", accelerator="cpu", validation=0.25)
    assert "fitted.graph.feature_sets['data']" in fitted.code()
    check_code(fitted, made_for[0])


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, aa.Optimizer(torch.optim.Adam, opt_kwargs={"lr": 0.01})])
def test_optimizers_of_torch_appear_by_name_in_code(optimizer):
    fitted = fit(made(), optimizer=optimizer)
    assert "aa.ModelGraph([node], optimizer, seed=0)" in fitted.code()
    check_code(fitted, made(), optimizer=optimizer)
