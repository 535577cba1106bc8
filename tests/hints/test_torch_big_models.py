"""Hints of models that are larger than a device."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa

torch = pytest.importorskip("torch")
pytest.importorskip("anyaccel_torch")

from safetensors.torch import load_file, save_file  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from anyaccel_offload.torch import (  # noqa: E402
    DeviceMap,
    ModelHook,
    OffloadedWeightsLoader,
    add_hook_to_module,
    align_module_device,
    attach_layerwise_casting_hooks,
    cpu_offload,
    disk_offload,
    dispatch_model,
    get_state_dict_offloaded_model,
    infer_auto_device_map,
    init_empty_weights,
    init_on_device,
    load_checkpoint_and_dispatch,
    load_checkpoint_in_model,
    offload_of,
    offload_weight,
    remove_hook_from_module,
    remove_offload,
    set_module_tensor_to_device,
)

X = torch.ones(2, 3)


def chain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3))


def empty(make: Callable[[], nn.Module] = chain) -> nn.Module:
    with init_empty_weights():
        return make()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the weights of `chain()`."""
    save_file(chain().state_dict(), tmp_path / "model.safetensors")
    return tmp_path


def from_files(folder: Path) -> nn.Module:
    model = empty()
    load_checkpoint_in_model(model, folder, {"": "disk"})
    return model


def graph_of(model: nn.Module, **settings: Any) -> aa.ModelGraph:
    rows = np.ones((8, 3), "float32")
    data = aa.FeatureSet.from_dict("data", {"x": rows, "y": rows}, ["x"], ["y"])
    return aa.ModelGraph([aa.ModelNode("net", model, data.reference(), **settings)], "sgd")


TRAIN = aa.TrainPhase("train", data="all", losses=[aa.AppliedLoss("mse", on="net")], accelerator="cpu")
EVAL = aa.EvalPhase("eval", data="all", losses=[aa.AppliedLoss("mse", on="net")], accelerator="cpu")


def test_maps_of_devices(hint: Any, folder: Path, tmp_path: Path) -> None:
    with hint("leave inputs out to use blocks in registration order"):
        infer_auto_device_map(chain(), inputs=["text"])
    assert infer_auto_device_map(chain())
    with hint("use names of model.named_modules()"):
        dispatch_model(chain(), {"": "cpu", "9": "cpu"})
    model = chain()
    names = [name for name, _ in model.named_modules() if name]
    dispatch_model(model, dict.fromkeys(names, "cpu"))
    with hint("add them or a module that contains them; '' means the whole model"):
        dispatch_model(chain(), {"0": "cpu"})
    dispatch_model(chain(), {"0": "cpu", "1": "cpu"})
    dispatch_model(chain(), {"": "cpu"})
    with hint("write {}={}"):
        dispatch_model(chain(), device_map={"": "nonsense"})
    with hint("write {}={}"):
        infer_auto_device_map(chain(), max_memory={"nonsense": 1})
    infer_auto_device_map(chain(), max_memory={"cpu": "60GiB"})
    with hint("name a device, such as 0"):
        infer_auto_device_map(chain(), max_memory={"meta": "60GiB"})
    infer_auto_device_map(chain(), max_memory={0: "60GiB"})
    with hint("allow more in max_memory"):
        infer_auto_device_map(chain(), max_memory={0: 10})
    infer_auto_device_map(chain(), max_memory={0: "1MiB"})
    with hint("write 'cpu' or 'disk'"):
        dispatch_model(chain(), device_map={"": "meta"})
    assert offload_of(dispatch_model(chain(), {"0": "cpu", "1": "disk"}, offload_dir=tmp_path / "new"))
    with hint("write offload_dir='FOLDER', or load the weights from {}"):
        dispatch_model(chain(), {"": "disk"})
    assert offload_of(dispatch_model(chain(), {"": "disk"}, offload_dir=tmp_path / "other"))
    model = load_checkpoint_and_dispatch(empty(), folder / "model.safetensors", {"": "disk"})
    assert torch.equal(model(X), chain()(X))
    with hint("write device_map='auto'"):
        load_checkpoint_and_dispatch(empty(), folder, max_memory={"cpu": "1GiB"})
    load_checkpoint_and_dispatch(empty(), folder, device_map="auto", max_memory={"cpu": "1GiB"})


def test_folders_of_checkpoints_and_of_offloaded_weights(hint: Any, folder: Path, tmp_path: Path) -> None:
    with hint("write checkpoint='FOLDER'"):
        load_checkpoint_in_model(empty(), 3)
    load_checkpoint_in_model(empty(), checkpoint=str(folder))
    with hint("write offload_dir='FOLDER'"):
        disk_offload(chain(), None)
    disk_offload(chain(), offload_dir=str(tmp_path / "weights"))
    with hint(
        "use a new folder; for weights that are already in safetensors files, use load_checkpoint_and_dispatch, which "
        "reads them without writing"
    ):
        disk_offload(chain(), tmp_path / "weights")
    disk_offload(chain(), tmp_path / "new")
    load_checkpoint_and_dispatch(empty(), folder, {"": "disk"})
    with hint("write {}='cuda:0'"):
        cpu_offload(chain(), execution_device="disk")
    with hint("write device='cuda:0', 'cpu' or 'meta'"), init_on_device("nowhere"):
        chain()
    for device in ("cpu", "meta"):
        with init_on_device(device=device):
            assert chain()[0].weight.device.type == device


class Tied(nn.Module):
    def __init__(self, tie_word_embeddings: bool = True) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        if tie_word_embeddings:
            self.head.weight = self.embed.weight


class WithState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def get_extra_state(self) -> Any:
        return {"count": 1}

    def set_extra_state(self, state: Any) -> None:
        pass


class Renamed(nn.Module):
    """A model whose files have names of an earlier version, as in transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.new_name = nn.Parameter(torch.zeros(3, 3))

    @classmethod
    def from_pretrained(cls, path: Path) -> Renamed:
        model = cls()
        model.load_state_dict({"new_name": load_file(path)["old_name"]})
        return model


def test_checkpoints_that_do_not_fit(hint: Any, folder: Path, tmp_path: Path) -> None:
    with hint("use the checkpoint of this model, or load the matching parts with strict=False"):
        load_checkpoint_in_model(nn.Sequential(nn.Linear(3, 4)), folder)
    load_checkpoint_in_model(chain(), folder)
    with pytest.warns(UserWarning, match="unexpected"):
        load_checkpoint_in_model(nn.Sequential(nn.Linear(3, 4)), folder, strict=False)
    save_file({"old_name": torch.ones(3, 3)}, tmp_path / "renamed.safetensors")
    with hint(
        "if the files are of this model, its library converts their names: load it with model = "
        "{}.from_pretrained(FOLDER), then dispatch_model(model, device_map)"
    ):
        load_checkpoint_in_model(Renamed(), tmp_path / "renamed.safetensors")
    model, device_map = Renamed.from_pretrained(tmp_path / "renamed.safetensors"), {"": "cpu"}
    dispatch_model(model, device_map)
    assert torch.equal(model.new_name, torch.ones(3, 3))
    with hint("load this model with model.load_state_dict"):
        load_checkpoint_in_model(WithState(), folder)
    model = WithState()
    model.load_state_dict(WithState().state_dict())
    path = tmp_path / "large.safetensors"
    save_file({"weight": torch.full((2, 3), 70000.0), "bias": torch.zeros(2)}, path)
    with hint("load with dtype=torch.bfloat16, or keep this part in float32: keep_in_fp32=['PART']"):
        load_checkpoint_in_model(nn.Linear(3, 2), path, dtype=torch.float16)
    load_checkpoint_in_model(nn.Linear(3, 2), path, dtype=torch.bfloat16)
    load_checkpoint_in_model(nn.Linear(3, 2), path, dtype=torch.float16, keep_in_fp32=["weight"])
    untied = Tied(tie_word_embeddings=False).state_dict()
    save_file(untied, tmp_path / "untied.safetensors")
    with hint("build the model without the tie, for example with tie_word_embeddings=False"):
        load_checkpoint_in_model(Tied(), tmp_path / "untied.safetensors")
    load_checkpoint_in_model(Tied(tie_word_embeddings=False), tmp_path / "untied.safetensors")
    torch.save(chain().state_dict(), tmp_path / "model.bin")
    with hint("convert the checkpoint to safetensors, or write 'cpu' instead of 'disk'"):
        load_checkpoint_in_model(empty(), tmp_path / "model.bin", {"": "disk"})
    load_checkpoint_in_model(empty(), tmp_path / "model.bin", {"": "cpu"})
    save_file(torch.load(tmp_path / "model.bin"), tmp_path / "converted.safetensors")
    load_checkpoint_in_model(empty(), tmp_path / "converted.safetensors", {"": "disk"})


class Rotary(nn.Module):
    def __init__(self, *, persistent: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("frequencies", torch.arange(3.0), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.frequencies)


class Drawn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.randn(400, 400).abs())


def test_models_without_values(hint: Any, folder: Path, tmp_path: Path) -> None:
    with hint("write init_empty_weights(include_buffers=True) and set the values of the buffer later"):
        empty(Drawn)
    with init_empty_weights(include_buffers=True):
        drawn = Drawn()
    drawn.matrix = torch.randn(400, 400).abs()
    with hint("load a checkpoint with them: load_checkpoint_and_dispatch"):
        dispatch_model(empty(), {"": "cpu"})
    assert torch.equal(load_checkpoint_and_dispatch(empty(), folder, {"": "cpu"})(X), chain()(X))
    path = tmp_path / "rotary.safetensors"
    save_file(Rotary().state_dict(), path)
    with init_empty_weights(include_buffers=True):
        rotary = Rotary()
    with hint(
        "create the model with init_empty_weights(), which computes buffers (include_buffers=False); or register the "
        "buffer with persistent=True before you save the checkpoint"
    ):
        load_checkpoint_and_dispatch(rotary, path, device_map="auto")
    with init_empty_weights(include_buffers=False):
        rotary = Rotary()
    load_checkpoint_and_dispatch(rotary, path, device_map="auto")
    save_file(Rotary(persistent=True).state_dict(), path)
    with init_empty_weights(include_buffers=True):
        kept = Rotary(persistent=True)
    assert load_checkpoint_and_dispatch(kept, path, device_map="auto")(X).shape == (2, 3)
    graph = graph_of(model := empty())
    with hint(
        "load the model first, with load_checkpoint_and_dispatch(model, 'model.safetensors', device_map={'': 'cpu'}) "
        "of anyaccel_torch.big_models"
    ):
        graph.state()
    load_checkpoint_and_dispatch(model, folder / "model.safetensors", device_map={"": "cpu"})
    assert graph.state()
    graph = graph_of(model := empty())
    with hint(
        "create it on a real device, without torch.device('meta'); or load it with load_checkpoint_and_dispatch(model, "
        "'model.safetensors', device_map={'': 'cpu'}) of anyaccel_torch.big_models; model.to_empty() leaves random "
        "values in buffers that are not in the file"
    ):
        graph.run(EVAL, progress="none")
    load_checkpoint_and_dispatch(model, folder / "model.safetensors", device_map={"": "cpu"})
    loaded = graph.run(EVAL, progress="none").losses["net"]
    with torch.device("cpu"):
        assert graph_of(chain()).run(EVAL, progress="none").losses["net"] == loaded
    model = empty().to_empty(device="cpu")
    assert model[0].weight.device.type == "cpu"


def test_models_that_are_offloaded(hint: Any, folder: Path, tmp_path: Path) -> None:
    model = cpu_offload(chain())
    with hint("call remove_offload(model) first"):
        cpu_offload(model)
    cpu_offload(remove_offload(model))
    outer = nn.Sequential(model)
    with hint("call remove_offload first"):
        cpu_offload(outer)
    remove_offload(model)
    cpu_offload(outer)
    model = cpu_offload(chain())
    with hint("save model.state_dict(), or call remove_offload(model) first"):
        pickle.dumps(model)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    pickle.dumps(remove_offload(model))
    model = add_hook_to_module(chain(), ModelHook())
    with hint("call remove_hook_from_module(model, recurse=True) first, and add_hook_to_module after it"):
        copy.deepcopy(model)
    remove_hook_from_module(model, recurse=True)
    add_hook_to_module(copy.deepcopy(model), ModelHook())
    model = cpu_offload(chain())
    with hint("call it without torch.compile, or compile modules inside its blocks before it is dispatched"):
        torch.compile(model, backend="eager")(X)
    model(X)
    model = chain()
    model[0] = torch.compile(model[0], backend="eager")  # type: ignore[assignment]
    cpu_offload(model)(X)


class Mine(Tensor):
    """A kind of tensor that anyaccel has not made."""


class Writing(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.copy_(self.weight / 2)
        return super().forward(x)


def test_weights_in_files(hint: Any, folder: Path, tmp_path: Path) -> None:
    model = from_files(folder)
    weight = model[0].weight
    with hint("use weight.clone(), which reads it"):
        weight.data_ptr()
    assert weight.clone().data_ptr()
    with hint("save the values: {name: value.clone() for name, value in model.state_dict().items()}"):
        torch.save(model.state_dict(), tmp_path / "values.pt")
    torch.save({name: value.clone() for name, value in model.state_dict().items()}, tmp_path / "values.pt")
    mine = torch.ones(4, 3).as_subclass(Mine)
    with hint("run under torch.no_grad(), or freeze it: weight.requires_grad_(False)"):
        weight + mine
    with torch.no_grad():
        assert torch.equal(weight + mine, chain()[0].weight + 1)
    weight.requires_grad_(False)
    assert torch.equal(weight + mine, chain()[0].weight + 1)
    with hint("load the model without 'disk' in its device_map, or change a copy: weight.clone()"):
        weight.data.add_(1)
    weight.clone().add_(1)
    model = empty()
    load_checkpoint_in_model(model, folder, device_map={"": "cpu"})
    model[0].weight.data.add_(1)
    path = tmp_path / "writing.safetensors"
    save_file(Writing(3, 3).state_dict(), path)
    model = load_checkpoint_and_dispatch(empty(lambda: Writing(3, 3)), path, {"": "disk"})
    with hint("dispatch this module to 'cpu' instead of 'disk', or to a device"), torch.no_grad():
        model(X)
    load_checkpoint_and_dispatch(empty(lambda: Writing(3, 3)), path, {"": "cpu"})(X)


def test_nodes_with_maps(hint: Any, folder: Path) -> None:
    model = cpu_offload(chain())
    with hint("leave device_map, max_memory and offload out of the node, or call remove_offload(model)"):
        graph_of(model, device_map="auto").run(EVAL, progress="none")
    graph_of(model).run(EVAL, progress="none")
    graph_of(remove_offload(model), device_map="auto").run(EVAL, progress="none")
    with hint(
        "load the model from its files, load_checkpoint_in_model(model, FOLDER, {'': 'disk'}), or write offload='cpu'"
    ):
        graph_of(chain(), device_map={"": "disk"}).run(EVAL, progress="none")
    model = empty()
    load_checkpoint_in_model(model, folder, {"": "disk"})
    graph_of(model, device_map={"": "disk"}).run(EVAL, progress="none")
    graph_of(chain(), device_map="auto", offload="cpu").run(EVAL, progress="none")
    graph = graph_of(from_files(folder), device_map={"": "disk"})
    with hint("write offload='cpu', or freeze the node: graph.freeze('NODE')"):
        graph.run(TRAIN, progress="none")
    graph_of(chain(), device_map="auto", offload="cpu").run(TRAIN, progress="none")
    graph.freeze("net")
    graph.run(EVAL, progress="none")


def test_an_offloaded_model_is_not_compiled(hint: Any) -> None:
    def run(**settings: Any) -> Any:
        losses = [aa.AppliedLoss("mse", on="net")]
        phase = aa.TrainPhase("train", data="all", losses=losses, accelerator="cpu", **settings)
        with warnings.catch_warnings():
            warnings.simplefilter("error", aa.errors.CompileWarning)
            return graph_of(cpu_offload(chain())).run(phase, progress="none")

    with hint("leave compile out: they run uncompiled"):
        run(compile="steps")
    assert run().loss.size  # without compile


def test_single_tensors(hint: Any, folder: Path, tmp_path: Path) -> None:
    model = chain()
    for name in ("0.nothing", "7.weight"):
        with hint("use a name of model.state_dict()"):
            set_module_tensor_to_device(model, name, "cpu")
    for name in model.state_dict():
        set_module_tensor_to_device(model, name, "cpu")
    with hint("write device='cpu', or use disk_offload(model)"):
        set_module_tensor_to_device(model, "0.weight", "disk")
    set_module_tensor_to_device(model, "0.weight", device="cpu")
    disk_offload(chain(), tmp_path / "new")
    with hint("pass value=, or load a checkpoint"):
        set_module_tensor_to_device(empty(), "0.weight", "cpu")
    set_module_tensor_to_device(empty(), "0.weight", "cpu", value=torch.ones(4, 3))
    load_checkpoint_in_model(empty(), folder)
    model = from_files(folder)
    with hint("load the model without 'disk'"), align_module_device(model[0], "cpu"), torch.no_grad():  # type: ignore[index]
        model[0].weight.add_(1)  # type: ignore[index]
    model = load_checkpoint_and_dispatch(empty(), folder, {"": "cpu"})
    with align_module_device(model[0], "cpu"), torch.no_grad():  # type: ignore[index]
        model[0].weight.add_(1)  # type: ignore[index]


def test_weights_by_name(hint: Any, folder: Path, tmp_path: Path) -> None:
    with hint("write 'layer.weight'"):
        offload_weight(X, "../x", tmp_path)
    offload_weight(X, "layer.weight", tmp_path)
    with hint("write save_folder='FOLDER'"):
        OffloadedWeightsLoader()
    with hint("write save_folder='FOLDER'"):
        OffloadedWeightsLoader(index={"a": {"shape": [1], "dtype": "float32"}})["a"]
    assert len(OffloadedWeightsLoader(save_folder=folder)) == 4


def test_layers_with_narrow_weights(hint: Any) -> None:
    with hint("write storage_dtype=torch.float8_e4m3fn"):
        attach_layerwise_casting_hooks(chain(), None, torch.float32)  # type: ignore[arg-type]
    model = chain()
    attach_layerwise_casting_hooks(model, storage_dtype=torch.float8_e4m3fn, compute_dtype=torch.float32)
    with hint("call the model under torch.no_grad(), or freeze it: model.requires_grad_(False)"):
        model(X)
    with torch.no_grad():
        model(X)
    model.requires_grad_(False)(X)
    model = chain()
    with torch.no_grad():
        model[0].weight.fill_(1e6)
    with hint("exclude it: skip_modules_pattern={}"):
        attach_layerwise_casting_hooks(model, torch.float16, torch.float32)
    attach_layerwise_casting_hooks(model, torch.float16, torch.float32, skip_modules_pattern="0")


def test_plans_of_other_blocks(hint: Any) -> None:
    model = chain()
    planned = infer_auto_device_map(model, {"cpu": "1kB", "disk": "1MB"}, headroom=0)
    with hint("plan the map again: infer_auto_device_map(model, max_memory)"):
        dispatch_model(model, DeviceMap({"": "disk"}, planned.plan))
    dispatch_model(model, infer_auto_device_map(model, max_memory={"cpu": "1MB"}))


class Saves(nn.Sequential):
    """A class of another library, which saves itself without `state_dict=`."""

    def save_pretrained(self, folder: Path) -> None:
        save_file(self.state_dict(), folder / "own.safetensors")


def test_values_of_weights_in_files(hint: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = Saves(nn.Linear(3, 4), nn.Linear(4, 3))
    load_checkpoint_and_dispatch(model, folder, {"": "disk"})
    with hint("save the values: save_file(get_state_dict_offloaded_model(model), 'model.safetensors')"):
        model.save_pretrained(folder)
    save_file(get_state_dict_offloaded_model(model), folder / "again.safetensors")
    assert torch.equal(from_files(folder)(X), load_checkpoint_and_dispatch(chain(), folder / "again.safetensors")(X))
    monkeypatch.setattr("anyaccel_offload.torch.offload.host_memory", lambda: (1000, 10))
    with hint("copy the files, or read the weights one at a time: model.state_dict()[name].clone()"):
        get_state_dict_offloaded_model(model)
    assert torch.equal(model.state_dict()["0.weight"].clone(), model[0].weight)
