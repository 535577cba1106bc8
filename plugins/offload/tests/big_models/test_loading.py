"""Checkpoints loaded into models, empty or not, beside what transformers and torch load themselves."""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from anyaccel.errors import CapabilityError, ConfigError, MoveError, StateError
from anyaccel_offload.torch import init_empty_weights, load_checkpoint, load_checkpoint_in_model
from anyaccel_offload.torch.checkpoint_files import PIECE, SafetensorsFile, open_checkpoint
from anyaccel_offload.torch.stored_tensor import StoredTensor

from .tiny_transformers import MODELS, built, tied_groups


def empty(name: str) -> nn.Module:
    with init_empty_weights():
        return MODELS[name]().eval()


def assert_same_state(model: nn.Module, other: nn.Module) -> None:
    mine, theirs = model.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    for key, value in theirs.items():
        assert torch.equal(mine[key], value) and mine[key].dtype == value.dtype, key


@pytest.mark.parametrize("shard", ["5GB", "10KB"])
@pytest.mark.parametrize("name", MODELS)
def test_what_transformers_saved_is_loaded_into_an_empty_model(name: str, shard: str, tmp_path: Path) -> None:
    real = built(name)
    real.save_pretrained(tmp_path, max_shard_size=shard, save_original_format=False)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard == "10KB")
    model = empty(name)
    assert load_checkpoint_in_model(model, tmp_path) == ((), (), ())
    assert_same_state(model, real)
    assert tied_groups(model) == tied_groups(real)
    tokens = torch.arange(2, 10).view(1, -1)
    given = {"input_ids": tokens, **({"decoder_input_ids": tokens} if name == "t5" else {})}
    with torch.no_grad():
        assert torch.equal(model(**given).logits, real(**given).logits)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 4, bias=False)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.head.weight


def net() -> nn.Module:
    torch.manual_seed(1)
    made = Net()
    made.norm.running_mean.copy_(torch.arange(4.0))
    return made


def saved(folder: Path, change: Callable[[dict[str, Any]], Any] = lambda it: None) -> Path:
    """A file of the net's values, changed."""
    values = {name: value.clone() for name, value in net().state_dict().items()}
    change(values)
    save_file(values, folder / "model.safetensors")
    return folder / "model.safetensors"


def empty_net() -> nn.Module:
    with init_empty_weights():
        return Net()


@pytest.mark.parametrize("legacy", [False, True])
def test_files_of_torch_are_loaded(tmp_path: Path, legacy: bool) -> None:
    torch.save(net().state_dict(), tmp_path / "model.bin", _use_new_zipfile_serialization=not legacy)
    model = empty_net()
    load_checkpoint(model, tmp_path / "model.bin")
    assert_same_state(model, net())
    shards = {"a.bin": {}, "b.bin": {}}
    for i, (key, value) in enumerate(net().state_dict().items()):
        shards["ab"[i % 2] + ".bin"][key] = value
    for file, values in shards.items():
        torch.save(values, tmp_path / file)
    places = {key: file for file, values in shards.items() for key in values}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    model = empty_net()
    load_checkpoint(model, tmp_path / "pytorch_model.bin.index.json")
    assert_same_state(model, net())


def test_real_parameters_are_written_in_place(tmp_path: Path) -> None:
    model = Net()
    before = dict(model.named_parameters())
    load_checkpoint_in_model(model, saved(tmp_path))
    assert_same_state(model, net())
    assert all(value is before[name] for name, value in model.named_parameters())


def test_dtypes_are_cast_with_islands_of_float32(tmp_path: Path) -> None:
    model = empty_net()
    load_checkpoint_in_model(model, saved(tmp_path), dtype=torch.bfloat16, keep_in_fp32=["norm", "body.bias"])
    dtypes = {name: value.dtype for name, value in model.state_dict().items()}
    wide = {"norm.weight", "norm.bias", "norm.running_mean", "norm.running_var", "body.bias"}
    assert {name for name, dtype in dtypes.items() if dtype == torch.float32} == wide
    assert dtypes["body.weight"] == dtypes["tied.weight"] == torch.bfloat16
    assert dtypes["norm.num_batches_tracked"] == torch.int64
    assert torch.equal(model.body.weight, net().body.weight.bfloat16())


def test_large_tensors_are_cast_piece_by_piece(tmp_path: Path) -> None:
    values = torch.arange(PIECE // 2 + 3, dtype=torch.float32)  # two pieces and a bit
    save_file({"weight": values}, tmp_path / "w.safetensors")
    module = nn.Module()
    module.weight = nn.Parameter(torch.empty(len(values), dtype=torch.float64))
    load_checkpoint_in_model(module, tmp_path / "w.safetensors")
    assert torch.equal(module.weight, values.double())
    module.weight = nn.Parameter(torch.empty(2 * len(values))[::2])
    load_checkpoint_in_model(module, tmp_path / "w.safetensors")
    assert torch.equal(module.weight, values)


def test_one_handle_for_each_file_and_each_byte_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = built("llama")
    real.save_pretrained(tmp_path, max_shard_size="10KB")
    opened: Counter[str] = Counter()
    count = 0
    start, read = SafetensorsFile.__init__, SafetensorsFile.read

    def counted_start(self: SafetensorsFile, path: Path) -> None:
        opened[path.name] += 1
        start(self, path)

    def counted_read(self: SafetensorsFile, begin: int, into: memoryview) -> None:
        nonlocal count
        count += len(into)
        read(self, begin, into)

    monkeypatch.setattr(SafetensorsFile, "__init__", counted_start)
    monkeypatch.setattr(SafetensorsFile, "read", counted_read)
    load_checkpoint_in_model(empty("llama"), tmp_path)
    assert set(opened) == {path.name for path in tmp_path.glob("*.safetensors")} and set(opened.values()) == {1}
    assert count == sum(value.nbytes for value in real.state_dict().values())


@pytest.mark.parametrize("device_map", [None, {"": "cpu"}, {"": "disk"}])
def test_all_that_does_not_fit_is_said_at_once_also_with_a_device_map(tmp_path: Path, device_map: Any) -> None:
    def change(values: dict[str, Any]) -> None:
        del values["head.weight"], values["tied.weight"]
        values["extra"] = torch.zeros(1)
        values["body.weight"] = torch.zeros(4, 5)
        values["norm.weight"] = torch.zeros(4, dtype=torch.int32)

    path, model = saved(tmp_path, change), empty_net()
    with pytest.raises(StateError) as raised:
        load_checkpoint_in_model(model, path, device_map)
    assert raised.value.problem == (
        "load_checkpoint_in_model: the checkpoint does not fit Net: missing: head.weight; unexpected: extra; "
        "body.weight is float32[4, 5] in the checkpoint and float32[4, 3] in the model; "
        "norm.weight is int32[4] in the checkpoint and float32[4] in the model"
    )
    assert "strict=False" in raised.value.hint
    assert model.body.bias.device.type == "meta"
    with pytest.warns(UserWarning, match="missing: head.weight"):
        report = load_checkpoint_in_model(model, path, strict=False)
    assert report == (("head.weight",), ("extra",), ("body.weight", "norm.weight"))
    assert model.body.bias.device.type == "cpu" and model.body.weight.device.type == "meta"


def test_a_tie_that_the_checkpoint_does_not_have_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, lambda values: values.update({"tied.weight": torch.zeros(4, 4)}))
    with pytest.raises(StateError, match=r"head\.weight, tied\.weight are one tensor in the model, but differ"):
        load_checkpoint_in_model(empty_net(), path)


# -- weights that stay in their files --------------------------------------------------------------------------------


def on_disk(tmp_path: Path, **settings: Any) -> nn.Module:
    model = empty_net()
    load_checkpoint_in_model(model, saved(tmp_path), {"": "disk"}, **settings)
    return model.eval()


def test_weights_on_disk_are_read_by_what_uses_them(tmp_path: Path) -> None:
    model, real = on_disk(tmp_path), net().eval()
    assert all(isinstance(each, StoredTensor | nn.Parameter) for each in model.parameters())
    assert model.tied.weight is model.head.weight and model.norm.running_mean.device.type == "cpu"
    x = torch.randn(5, 3)
    with torch.no_grad():
        assert torch.equal(model.body(x), real.body(x))
        assert torch.equal(x @ model.body.weight.t() + model.body.bias, x @ real.body.weight.t() + real.body.bias)
        assert torch.equal(model.body.weight[1:3], real.body.weight[1:3])
    assert_same_state(model, real)
    cast = on_disk(tmp_path, dtype=torch.float64)
    assert torch.equal(cast.body.weight, real.body.weight.double())


def test_gradients_of_weights_on_disk_are_not_lost(tmp_path: Path) -> None:
    model, real = on_disk(tmp_path), net().eval()
    x = torch.randn(5, 3)
    for each in (model, real):
        each.body(x).square().sum().backward()
    assert torch.equal(model.body.weight.grad, real.body.weight.grad)


@pytest.mark.parametrize(
    "write",
    [
        lambda weight, ones: weight.data.add_(1),
        lambda weight, ones: weight.data.copy_(ones),
        lambda weight, ones: weight.data.__setitem__(0, 1.0),
        lambda weight, ones: weight.data.__setitem__(0, ones[0]),
        lambda weight, ones: weight.data.__iadd__(ones),
        lambda weight, ones: setattr(weight, "data", ones),
        lambda weight, ones: nn.init.zeros_(weight),
        lambda weight, ones: torch.add(ones, 1, out=weight.data),
        lambda weight, ones: torch._foreach_add_([weight.data], [ones]),
    ],
)
def test_weights_on_disk_are_not_written(tmp_path: Path, write: Any) -> None:
    model = on_disk(tmp_path)
    with pytest.raises(CapabilityError, match="files are never changed"):
        write(model.head.weight, torch.ones(4, 4))
    assert_same_state(model, net())


def test_weights_on_disk_have_no_address_and_are_not_pickled(tmp_path: Path) -> None:
    model = on_disk(tmp_path)
    with pytest.raises(MoveError, match="has no memory"):
        model.head.weight.data_ptr()
    with pytest.raises(MoveError, match="pickle would not contain"):
        torch.save(model.state_dict(), tmp_path / "other.bin")
    with pytest.raises(RuntimeError, match="invalid python storage"), warnings.catch_warnings(action="ignore"):
        save_file(model.state_dict(), tmp_path / "other.safetensors")


def test_a_file_that_changes_while_weights_rest_in_it_is_refused(tmp_path: Path) -> None:
    model = on_disk(tmp_path)
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"xxxx")
    os.utime(tmp_path / "model.safetensors", ns=(0, 1))
    with pytest.raises(StateError, match="was changed while its tensors were in use"):
        model.head.weight.clone()


def test_files_of_torch_cannot_hold_weights_at_rest(tmp_path: Path) -> None:
    torch.save(net().state_dict(), tmp_path / "model.bin")
    with pytest.raises(StateError, match=r"cannot stay in a file of torch.save.* convert the checkpoint"):
        load_checkpoint_in_model(empty_net(), tmp_path / "model.bin", {"": "disk"})


# -- damaged and hostile files ---------------------------------------------------------------------------------------


def header(entries: Any, body: bytes = b"") -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + body


def entry(begin: int, end: int, shape: Any = (1,), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"abc",
        (2**62).to_bytes(8, "little") + b"{}",
        (10**8 + 1).to_bytes(8, "little") + b"{}",
        header({"weight": entry(0, 4)}),
        header({"weight": entry(0, 4)}, b"abc"),
        header({"weight": entry(0, 4)}, b"abcde"),
        header({"weight": entry(-4, 0)}, b"abcd"),
        header({"weight": entry(0, 2**62, (2**60,))}, b"abcd"),
        header({"weight": entry(0, 4), "other": entry(0, 4)}, b"abcd"),
        header({"weight": entry(0, 4, (2,))}, b"abcd"),
        header({"weight": entry(0, 4, dtype="F99")}, b"abcd"),
        header({"weight": [0, 4]}, b"abcd"),
        header(["weight"]),
        b"\x02\0\0\0\0\0\0\0{\xff",
    ],
    ids=range(15),
)
def test_a_damaged_or_hostile_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(StateError, match=r"cannot be read as safetensors.* Hint: copy or download it again"):
        load_checkpoint_in_model(nn.Linear(1, 1), tmp_path)


@pytest.mark.parametrize("place", ["../model.safetensors", "/model.safetensors", "a\\b.safetensors", "x.py", 3])
def test_an_index_that_leaves_its_folder_is_refused(tmp_path: Path, place: Any) -> None:
    saved(tmp_path)
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"body.weight": place}}))
    with pytest.raises(StateError, match="is not an index of shards"):
        load_checkpoint_in_model(empty_net(), folder)


def test_an_index_that_is_not_true_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"body.weight": "model.safetensors"}}))
    with pytest.raises(StateError, match=r"and its shards differ in body\.bias, head.weight"):
        load_checkpoint_in_model(empty_net(), tmp_path)
    index.write_text(json.dumps({"weight_map": {"body.weight": "absent.safetensors"}}))
    with pytest.raises(StateError, match=r"names 'absent\.safetensors', which is missing"):
        load_checkpoint_in_model(empty_net(), tmp_path)


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("evil",)


def test_code_in_a_file_of_torch_is_not_run(tmp_path: Path) -> None:
    torch.save({"weight": Evil()}, tmp_path / "model.bin")
    with pytest.raises(StateError, match="which would need code to be run"):
        load_checkpoint_in_model(nn.Linear(1, 1), tmp_path / "model.bin")
    assert not Path("evil").exists()


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float16, torch.float64]
)
def test_dtypes_of_files(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.linspace(-2, 2, 8).to(dtype)
    save_file(
        {"w": values, "none": torch.empty(0, 3, dtype=dtype), "one": torch.tensor(1.5).to(dtype)},
        tmp_path / "w.safetensors",
    )
    tensors = open_checkpoint("", tmp_path)
    for name, expected in (("w", values), ("none", torch.empty(0, 3)), ("one", torch.tensor(1.5))):
        made = torch.empty(expected.shape, dtype=dtype)
        tensors[name].read_into(made)
        wide = torch.empty(expected.shape, dtype=torch.float32)
        tensors[name].read_into(wide)
        assert torch.equal(made.float(), expected.float()) and torch.equal(wide, expected.float())


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"model": "net"}, ConfigError, "model='net' is not a module of torch"),
        ({"checkpoint": 3}, StateError, "checkpoint=3 is not a path"),
        ({"checkpoint": "nowhere"}, StateError, "no file or folder 'nowhere' exists"),
        ({"device_map": {}}, ConfigError, "device_map={} is not a dict of names and devices"),
        ({"device_map": {"": "moon"}}, ConfigError, "device_map has 'moon', which is not a device"),
        ({"device_map": {"": True}}, ConfigError, "device_map has True, which is not a device"),
        (
            {"device_map": {"": "cpu", "tail": "cpu"}},
            ConfigError,
            "names 'tail', which the model does not have.* body, norm",
        ),
        ({"device_map": {"body": "cpu"}}, ConfigError, "no device for 'norm.weight', 'norm.bias', 'head.w"),
        ({"dtype": torch.int8}, ConfigError, "dtype=torch.int8 is not a floating dtype"),
        ({"keep_in_fp32": "norm"}, ConfigError, "keep_in_fp32='norm' is not a list of names"),
        ({"strict": 1}, ConfigError, "strict=1 is not True or False"),
    ],
)
def test_wrong_arguments(tmp_path: Path, settings: Any, error: type[Exception], message: str) -> None:
    given = {"model": Net(), "checkpoint": saved(tmp_path), **settings}
    with pytest.raises(error, match=message):
        load_checkpoint_in_model(**given)


def test_values_that_would_be_infinite_are_counted_over_all_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anyaccel_offload.torch.checkpoint_files.PIECE", 8)
    with pytest.raises(StateError, match=r"norm\.weight has 3 values .* such as 70000\.0"):
        load_checkpoint_in_model(
            empty_net(), saved(tmp_path, lambda values: values["norm.weight"][-3:].fill_(70000.0)), dtype=torch.float16
        )


@pytest.mark.parametrize("kind", ["safetensors", "torch"])
def test_a_weight_that_would_be_infinite_is_refused_with_its_name(kind: str, tmp_path: Path) -> None:
    def large(values: dict[str, Any]) -> None:
        values["body.weight"][1, 2] = 70000.0
        values["body.weight"][2, 0] = -1e6
        values["norm.bias"][0] = -torch.inf  # was so before

    path = saved(tmp_path, large)
    if kind == "torch":
        torch.save(load_file(path), tmp_path / "model.bin")
        path = tmp_path / "model.bin"
    says = r"body\.weight has 2 values in the checkpoint that would be infinite in float16, such as 70000\.0.*keep_in"
    with pytest.raises(StateError, match=says):
        load_checkpoint_in_model(empty_net(), path, dtype=torch.float16)
    wide = empty_net()
    load_checkpoint_in_model(wide, path, dtype=torch.float16, keep_in_fp32=["body"])
    assert wide.body.weight[1, 2] == 70000 and wide.norm.bias[0] == -torch.inf
    rounded = empty_net()
    load_checkpoint_in_model(rounded, path, dtype=torch.bfloat16)
    assert rounded.body.weight[1, 2] == torch.tensor(70000.0).bfloat16()
