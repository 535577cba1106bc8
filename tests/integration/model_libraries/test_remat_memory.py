"""What a plan says that `remat` saves of models of transformers, beside torch's allocator and checkpointing by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from .conftest import chosen, library

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

import anyaccel as aa  # noqa: E402

transformers = library("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own: deprecations, hints on kernels

ROWS = 8
TEXT = np.random.default_rng(0).integers(0, 60, (2 * ROWS, 16))
IMAGES = np.random.default_rng(0).normal(size=(2 * ROWS, 3, 16, 16)).astype("float32")
GPT2 = {"vocab_size": 60, "n_embd": 32, "n_layer": 3, "n_head": 2, "n_positions": 16, "use_cache": False}
VIT = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64, "image_size": 16}
MODELS: dict[str, tuple[str, dict[str, Any], str, np.ndarray]] = {
    "GPT2Model": ("GPT2Config", GPT2, "input_ids", TEXT),
    "ViTModel": ("ViTConfig", {**VIT, "patch_size": 4}, "pixel_values", IMAGES),
}


class Net(torch.nn.Module):  # type: ignore[misc]
    """A model of transformers with a head."""

    def __init__(self, name: str) -> None:
        super().__init__()
        config, settings, self.keyword, _ = MODELS[name]
        torch.manual_seed(0)
        self.body = getattr(transformers, name)(getattr(transformers, config)(**settings))
        self.head = torch.nn.Linear(32, 1)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(**{self.keyword: x}).last_hidden_state[:, -1])


def kept(net: Any, x: Any) -> int:
    """Bytes that torch's allocator has given out for a forward pass when it is over."""
    net.train()
    net(x)  # what it makes in its first call
    with torch.profiler.profile(profile_memory=True) as profile:
        outputs = net(x)
    events = profile.profiler.kineto_results.events()
    del outputs
    return sum(event.nbytes() for event in events if event.name() == "[memory]")


@pytest.mark.parametrize("name", chosen(MODELS, ()))
def test_what_remat_saves_is_what_the_allocator_says(name: str) -> None:
    rows = MODELS[name][3]
    data = aa.FeatureSet.from_dict("d", {"x": rows, "y": np.ones((len(rows), 1), "float32")}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", Net(name), data.reference(), remat="blocks")], "adam")
    phase = aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss("mse", on="net")], batch_size=ROWS)
    plan = aa.Experiment("e", graph, progress="none").plan(phase)
    (activations,) = plan.activations
    net, x = Net(name), torch.tensor(rows[:ROWS])
    numbers = 128  # of Python, which are tensors of 8 bytes in a real pass only
    assert 0 <= kept(net, x) - activations.without_remat <= numbers
    blocks = [net.get_submodule(block) for block in plan["net"].recomputed]
    assert len(blocks) == 3
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    states = len(blocks) * torch.get_rng_state().nbytes  # of generators, which are no activations
    assert 0 <= kept(net, x) - states - activations.kept <= numbers
