"""Files of weights that torch and other tools read, and those that they write."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors import safe_open
from safetensors.torch import load_file, save_file, save_model
from torch import nn

import anyaccel as aa
from anyaccel import saved_folder
from anyaccel.cli.main import group
from anyaccel.errors import StateError


class Net(nn.Module):
    """Tied weights, buffers that are saved and one that is not, and a layer of each usual kind."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
        self.twin = nn.Linear(6, 6, bias=False)
        self.twin.weight = self.body[0].weight
        self.register_buffer("passing", torch.ones(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self.twin(x))


def graph_of(model: nn.Module, size: int = 6) -> aa.ModelGraph:
    x = np.zeros((8, size), "float32")
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :3]}, ["x"], ["y"])
    return aa.ModelGraph([aa.ModelNode("net", model, data.reference())], "adam")


def made(seed: int) -> Net:
    torch.manual_seed(seed)
    return Net()


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    given = other.state_dict()
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, given[name]), name


# -- what torch reads --------------------------------------------------------------------------------------------------


def test_torch_loads_a_saved_file_by_load_state_dict(tmp_path):
    one, other = made(1), made(2)
    names = graph_of(one).save_weights(tmp_path / "net.safetensors")
    assert set(names) == one.state_dict().keys()
    other.load_state_dict(load_file(tmp_path / "net.safetensors"))
    assert_equal(one, other)
    with safe_open(tmp_path / "net.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin"])
def test_torch_loads_a_file_in_its_own_format(suffix, tmp_path):
    one, other = made(1), made(2)
    graph_of(one).save_weights(tmp_path / f"net{suffix}")
    other.load_state_dict(torch.load(tmp_path / f"net{suffix}", weights_only=True))
    assert_equal(one, other)


def test_a_checkpoint_is_converted_to_a_file_of_torch(tmp_path):
    one, other = made(1), made(2)
    phase = aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss("mse")], checkpoint=tmp_path / "run")
    graph_of(one).run(phase, progress="none")
    done = CliRunner().invoke(group, ["checkpoint", "convert", str(tmp_path / "run"), str(tmp_path / "net.pt")])
    assert done.exit_code == 0, done.output
    given = torch.load(tmp_path / "net.pt", weights_only=True)
    assert given.keys() == one.state_dict().keys() - {"twin.weight"}  # tied: written under its first name
    other.load_state_dict(given, strict=False)
    assert_equal(one, other)


def test_files_of_torch_go_to_a_store_and_come_back(tmp_path):
    pytest.importorskip("fsspec")
    one, other, url = made(1), made(2), f"memory://{tmp_path}/net.pt"
    graph_of(one).save_weights(url)
    graph_of(other).load_weights(url)
    assert_equal(one, other)
    with pytest.raises(StateError, match=r"^'memory://.*/evil.pt' holds more than tensors"):
        torch.save({"x": Evil()}, tmp_path / "evil.pt")
        saved_folder.storage_of(url.removesuffix("/net.pt")).publish("evil.pt", (tmp_path / "evil.pt").read_bytes())
        graph_of(other).load_weights(url.replace("net.pt", "evil.pt"))


@pytest.mark.parametrize("largest", [5 * 10**9, 200])
def test_a_saved_graph_is_read_by_the_hub_of_huggingface(largest, tmp_path):
    """By the index of its shards; `/` in names is the state's own, and `.` that of torch."""
    hub = pytest.importorskip("huggingface_hub", minversion="0.26")
    one, other = (
        nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)),
        nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3)),
    )
    saved_folder.write(tmp_path, {"graph": {}}, graph_of(one).build().state(), largest_shard=largest)
    assert len(list(tmp_path.glob("state-*.safetensors"))) == (1 if largest > 1000 else 2)
    reader = nn.ModuleDict({"net/parameters/0": other[0], "net/parameters/2": other[1]})
    told = hub.load_torch_model(reader, tmp_path, strict=False)
    assert not told.missing_keys and set(told.unexpected_keys) <= {"seed"}
    assert torch.equal(other[0].weight, one[0].weight) and torch.equal(other[1].bias, one[2].bias)


def test_nodes_together_are_a_module_dict(tmp_path):
    x = np.zeros((8, 6), "float32")
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :3]}, ["x"], ["y"])
    one, head = made(1), nn.Linear(3, 3)
    nodes = [aa.ModelNode("net", one, data.reference()), aa.ModelNode("head", head, "net")]
    aa.ModelGraph(nodes).save_weights(tmp_path / "all.safetensors")
    both = nn.ModuleDict({"net": made(2), "head": nn.Linear(3, 3)})
    both.load_state_dict(load_file(tmp_path / "all.safetensors"))
    assert_equal(nn.ModuleDict({"net": one, "head": head}), both)


# -- what torch wrote --------------------------------------------------------------------------------------------------


def test_files_of_torch_are_loaded(tmp_path):
    one = made(1)
    torch.save(one.state_dict(), tmp_path / "net.pt")
    save_model(one, str(tmp_path / "net.safetensors"))  # leaves the second name of tied weights out
    for file in ("net.pt", "net.safetensors"):
        other = made(2)
        done = graph_of(other).load_weights(tmp_path / file)
        assert (done.missing_keys, done.unexpected_keys) == ((), ())
        assert_equal(one, other)
        assert other.twin.weight is other.body[0].weight


def test_tensors_of_a_dict_are_loaded(tmp_path):
    one, other = made(1), made(2)
    torch.save({"model": one.state_dict(), "epoch": 3}, tmp_path / "run.pt")
    graph = graph_of(other)
    with pytest.raises(StateError) as caught:
        graph.load_weights(tmp_path / "run.pt")
    hint = f"load_weights(torch.load('{tmp_path / 'run.pt'}', weights_only=True)['model'])"
    assert str(caught.value) == (
        f"'{tmp_path / 'run.pt'}' holds more than names and tensors: model, epoch. "
        f"Hint: pass its part with the weights: {hint}."
    )
    eval(f"graph.{hint}")  # noqa: S307 - what the message says
    assert_equal(one, other)


def test_shards_of_torch_are_loaded(tmp_path):
    one, other = made(1), made(2)
    names = list(one.state_dict())
    weight_map = {name: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, name in enumerate(names)}
    for file in set(weight_map.values()):
        part = {name: one.state_dict()[name] for name in names if weight_map[name] == file}
        torch.save(part, tmp_path / file)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    graph_of(other).load_weights(tmp_path)
    assert_equal(one, other)


def test_tied_weights_that_differ_in_a_file_are_refused(tmp_path):
    given = {name: tensor.clone() for name, tensor in made(1).state_dict().items()}
    given["twin.weight"] += 1
    save_file(given, tmp_path / "net.safetensors")
    with pytest.raises(
        StateError, match=r"body\.0\.weight and twin\.weight are one value in the model, but differ in the"
    ):
        graph_of(made(2)).load_weights(tmp_path / "net.safetensors")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened_and_told(dtype, tmp_path):
    one, other = made(1), made(2)
    save_file(
        {name: tensor.clone() for name, tensor in one.to(dtype).state_dict().items()}, tmp_path / "net.safetensors"
    )
    torch.save(one.state_dict(), tmp_path / "net.pt")
    for file in ("net.safetensors", "net.pt"):
        done = graph_of(other).load_weights(tmp_path / file)
        assert done.cast["body.2.bias"] == f"{str(dtype).removeprefix('torch.')} to float32"
        assert torch.equal(other.body[2].weight, one.body[2].weight.float())


def test_a_model_in_bfloat16_goes_through_a_file(tmp_path):
    one, other = nn.Linear(6, 3).bfloat16(), nn.Linear(6, 3).bfloat16()
    graph_of(one).save_weights(tmp_path / "net.safetensors")
    assert load_file(tmp_path / "net.safetensors")["weight"].dtype is torch.bfloat16
    assert graph_of(other).load_weights(tmp_path / "net.safetensors").cast == {}
    assert_equal(one, other)


def test_conv_kernels_of_another_layout_are_refused_and_the_hint_works(tmp_path):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    x = np.zeros((8, 1, 4, 4), "float32")
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": np.zeros((8, 3), "float32")}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference())])
    kernel = np.arange(36, dtype="float32").reshape(3, 3, 1, 4)  # as Keras and Flax have it
    given = {**{name: np.asarray(tensor) for name, tensor in model.state_dict().items()}, "0.weight": kernel}
    with pytest.raises(StateError) as caught:
        graph.load_weights(given)
    moved = "array.transpose(3, 2, 0, 1) if name.endswith('weight') and array.ndim == 4"
    hint = f"change=lambda name, array: {moved} else array"
    assert caught.value.hint.endswith(hint)
    graph.load_weights(given, change=eval(hint.removeprefix("change=")))  # noqa: S307
    np.testing.assert_array_equal(model[0].weight.detach().numpy(), kernel.transpose(3, 2, 0, 1))


# -- what is refused ---------------------------------------------------------------------------------------------------


class Evil:
    """What a pickle runs."""

    ran = False

    def __reduce__(self):
        return (setattr, (Evil, "ran", True))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (made(1), "holds more than tensors: a .*test_weight_files.Net, which would need code to be run"),
        ({"w": Evil()}, "holds more than tensors: a .*setattr, which would need code to be run"),
        (
            [torch.ones(2)],
            "holds a list, not names and tensors. Hint: save it again with torch.save",
        ),
        ({"w": torch.ones(2).to_sparse()}, "w in .* is torch.float32 .torch.sparse_coo., which NumPy does not support"),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_files_with_anything_else_are_refused_and_run_nothing(given, message, tmp_path):
    torch.save(given, tmp_path / "net.pt")
    model = made(2)
    before = copy.deepcopy(model)
    with pytest.raises(StateError, match=message):
        graph_of(model).load_weights(tmp_path / "net.pt")
    assert not Evil.ran
    assert_equal(model, before)


@pytest.mark.parametrize("damage", [lambda raw: b"", lambda raw: b"text", lambda raw: raw[:-100], lambda raw: raw[50:]])
def test_damaged_files_are_refused(damage, tmp_path):
    torch.save(made(1).state_dict(), tmp_path / "net.pt")
    (tmp_path / "net.pt").write_bytes(damage((tmp_path / "net.pt").read_bytes()))
    with pytest.raises(StateError, match=r"cannot be read as a torch file: .* Hint: copy or download it again"):
        graph_of(made(2)).load_weights(tmp_path / "net.pt")


def test_the_version_of_torch_is_in_a_saved_folder(tmp_path):
    x = np.zeros((8, 6), "float32")
    data = aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :3]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", nn.Linear(6, 3), data.reference())], "adam")
    graph.save(tmp_path / "graph")
    losses = [aa.AppliedLoss("mse")]
    graph.run(aa.TrainPhase("t", data="all", losses=losses, epochs=1, checkpoint=tmp_path / "run"), progress="none")
    for manifest in (tmp_path / "graph/manifest.json", *tmp_path.glob("run/epoch-*/manifest.json")):
        written_by = json.loads(manifest.read_text())["written_by"]
        assert written_by["torch"] == torch.__version__
        assert {"anyaccel", "numpy"} <= written_by.keys()
