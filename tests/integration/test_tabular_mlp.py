"""TabularMLP in every framework: the same weights and losses, as modules of torch by hand, and no code misread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import AnyaccelError
from anyaccel.registry import registry

torch = pytest.importorskip("torch")
nn = torch.nn

OTHERS = [
    pytest.param(name, marks=() if name == "numpy" else pytest.mark.across)
    for name in ("numpy", "jax", "tensorflow")
    if name in registry().frameworks
]
FRAMEWORKS = ["torch", *OTHERS]
CARDINALITIES = (4, 300)
draw = np.random.default_rng(0)
CODES = draw.integers(0, CARDINALITIES, (96, 2))
X = np.concatenate([draw.standard_normal((96, 3)), CODES], axis=1).astype("float32")
Y = (X[:, :1] + 0.5 * (CODES[:, :1] > 1)).astype("float32")
DATA = aa.FeatureSet.from_dict("data", {"x": X, "y": Y}, ["x"], ["y"])


def model(framework: str, **settings: Any) -> Any:
    make: Any = registry().computing(framework).models()["TabularMLP"]
    return make(3, CARDINALITIES, 1, **{"hidden": (16, 8), "dropout": 0.0, **settings})


def train(net: Any, **settings: Any) -> tuple[np.ndarray, aa.ModelGraph]:
    graph = aa.ModelGraph([aa.ModelNode("net", net, DATA.reference())], aa.Optimizer("adam", lr=0.01), seed=7)
    sampler = aa.SimpleSampler(16, shuffle=False)
    phase = aa.TrainPhase(data=DATA, losses=aa.AppliedLoss("mse", on="net"), sampler=sampler, epochs=5, **settings)
    return np.array(graph.run(phase, progress="none").loss), graph


class ByHand(nn.Module):
    """What a user of torch writes for two categories and three numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(4, 3), nn.Embedding(300, 8)])
        self.layers = nn.ModuleList([nn.Linear(14, 16), nn.Linear(16, 8), nn.Linear(8, 1)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        embedded = [table(x[:, 3 + i].long()) for i, table in enumerate(self.embeddings)]
        x = torch.cat([x[:, :3], *embedded], 1)
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)


def losses_by_hand() -> np.ndarray:
    unbuilt = model("torch")
    graph = aa.ModelGraph([aa.ModelNode("net", unbuilt, DATA.reference())], seed=7)
    graph.run(aa.EvalPhase("eval", data=DATA, outputs="net"), progress="none")
    net = ByHand()
    net.load_state_dict(unbuilt.state_dict())
    optimizer, losses = torch.optim.Adam(net.parameters(), lr=0.01), []
    for _ in range(5):
        of_epoch = []
        for start in range(0, 96, 16):
            x, y = (torch.from_numpy(array[start : start + 16]) for array in (X, Y))
            loss = nn.functional.mse_loss(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            of_epoch.append(loss.item())
        losses.append(np.mean(of_epoch))
    return np.array(losses)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_losses_are_those_of_a_loop_by_hand(name: str) -> None:
    losses, _ = train(model(name), accelerator="cpu")
    np.testing.assert_allclose(losses, losses_by_hand(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_codes_that_are_none_give_nan_in_every_framework(name: str) -> None:
    _, graph = train(model(name), accelerator="cpu")
    rows = X.copy()
    rows[0, 3], rows[1, 4], rows[2, 3] = 4, -1, 0.5
    predicted = aa.FeatureSet.from_dict("data", {"x": rows, "y": Y}, ["x"], ["y"])
    outputs = graph.run(aa.EvalPhase("eval", data=predicted, outputs="net"), progress="none").prediction("net")
    assert np.isnan(outputs[:3]).all() and np.isfinite(outputs[3:]).all()


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_dropout_of_categories_is_drawn_again_in_each_step_and_never_in_evaluation(name: str) -> None:
    plain, _ = train(model(name), accelerator="cpu")
    dropped, graph = train(model(name, category_dropout=0.5), accelerator="cpu")
    assert np.abs(dropped - plain).max() > 1e-4
    phase = aa.EvalPhase("eval", data=DATA, outputs="net")
    first, second = (graph.run(phase, progress="none").prediction("net") for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", OTHERS)
def test_sixteen_bits_are_refused_where_codes_would_be_rounded(name: str) -> None:
    with pytest.raises(AnyaccelError, match="codes of up to 299 are not exact in bfloat16"):
        train(model(name), accelerator="cpu", precision="bf16-mixed")


def test_autocast_leaves_the_codes_alone() -> None:
    mixed, _ = train(model("torch"), accelerator="cpu", precision="bf16-mixed")
    np.testing.assert_allclose(mixed, losses_by_hand(), rtol=0.02)
    with pytest.raises(AnyaccelError, match="codes of up to 299 are not exact in bfloat16"):
        train(model("torch"), accelerator="cpu", precision="bf16")
