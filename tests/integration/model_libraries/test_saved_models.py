"""What anyaccel has saved, opened by the readers of transformers and safetensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from .conftest import library

torch = pytest.importorskip("torch")

import anyaccel as aa  # noqa: E402
from anyaccel import saved_folder  # noqa: E402

library("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own: deprecations


def trained() -> aa.ModelGraph:
    x = np.random.default_rng(0).standard_normal((32, 4)).astype("float32")
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": x}, ["x"], ["y"])
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    graph = aa.ModelGraph([aa.ModelNode("net", net, data.reference())], "adam")
    graph.run(aa.TrainPhase("train", data="all", losses=[aa.AppliedLoss("mse")], epochs=2), progress="none")
    return graph


def test_transformers_reads_the_shards_of_a_saved_graph(tmp_path: Path) -> None:
    from transformers.trainer_utils import load_sharded_checkpoint

    state = trained().state()
    saved_folder.write(tmp_path, {"graph": {}}, state, largest_shard=100)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    reader = torch.nn.Module()  # its names are those of the state
    for layer in ("net/parameters/0", "net/parameters/2"):
        reader.add_module(layer, torch.nn.Linear(4, 4))
    missing, unexpected = load_sharded_checkpoint(reader, tmp_path, strict=False)
    assert not missing
    assert set(unexpected) == state.keys() - reader.state_dict().keys()
    for name, tensor in reader.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), state[name])


def test_a_model_of_transformers_is_read_from_the_weights_of_a_graph(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=8, n_layer=2, n_head=2)
    ids = np.random.default_rng(0).integers(0, 32, (8, 6))
    data = aa.FeatureSet.from_dict("text", {"ids": ids, "labels": ids}, ["ids"], ["labels"])
    inputs = {"input_ids": data.reference("ids"), "labels": data.reference("labels")}
    graph = aa.ModelGraph([aa.ModelNode("gpt", GPT2LMHeadModel(config), inputs)], "adam")
    losses = [aa.AppliedLoss.from_output("gpt", "loss")]
    graph.run(aa.TrainPhase("train", data="all", losses=losses, epochs=2, batch_size=4), progress="none")
    config.save_pretrained(tmp_path)
    graph.save_weights(tmp_path / "model.safetensors")
    reader = GPT2LMHeadModel.from_pretrained(tmp_path)
    names = dict(reader.named_parameters())
    assert len(names) == 28
    for name, value in graph.state().items():
        if name.startswith("gpt/parameters/"):
            np.testing.assert_array_equal(names.pop(name.removeprefix("gpt/parameters/")).detach().numpy(), value)
    assert not names
