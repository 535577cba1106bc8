"""Each function and argument of Accelerate's big-model tools: with the same meaning here, or refused with a way."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from anyaccel.errors import CapabilityError, ConfigError, OutOfMemoryError, StateError
from anyaccel_offload import torch as big_models
from anyaccel_offload.torch import accelerate_words as words

PAGE = Path(__file__).parents[4] / "docs/how-to/big-models.md"
NAMES = (
    *("init_empty_weights", "init_on_device", "infer_auto_device_map", "load_checkpoint_and_dispatch"),
    *("load_checkpoint_in_model", "dispatch_model", "cpu_offload", "disk_offload", "cpu_offload_with_hook"),
    *("attach_layerwise_casting_hooks", "remove_hook_from_submodules"),
)
HOOKS = ("add_hook_to_module", "remove_hook_from_module", "AlignDevicesHook", "SequentialHook", "ModelHook")
HELPERS = (
    *("set_module_tensor_to_device", "named_module_tensors", "align_module_device", "check_device_map"),
    *("find_tied_parameters", "retie_parameters", "get_state_dict_offloaded_model", "compute_module_sizes"),
    *("load_state_dict", "offload_state_dict", "offload_weight", "load_offloaded_weight"),
    *("OffloadedWeightsLoader", "extract_submodules_state_dict"),
)


def theirs(name: str) -> Any:
    accelerate = pytest.importorskip("accelerate")
    homes = (accelerate, accelerate.big_modeling, accelerate.hooks, accelerate.utils.modeling, accelerate.utils.offload)
    return next(getattr(home, name) for home in homes if hasattr(home, name))


@pytest.mark.parametrize("name", [*NAMES, *HOOKS, *HELPERS])
def test_each_parameter_is_taken_in_its_place_or_in_a_table(name: str) -> None:
    their = inspect.signature(theirs(name)).parameters
    our = inspect.signature(getattr(big_models, name)).parameters
    tables = {*words.IGNORED, *words.RENAMED, *words.REFUSED}
    assert [each for each in their if each not in our and each not in tables and each != "kwargs"] == []
    by_place = [
        (mine.name, yours.name)
        for mine, yours in zip(our.values(), their.values(), strict=False)
        if mine.kind is mine.POSITIONAL_OR_KEYWORD and mine.kind is yours.kind
    ]
    assert all(mine == yours for mine, yours in by_place), by_place


@pytest.mark.parametrize("name", [*NAMES, *HOOKS])
def test_each_function_is_on_the_page(name: str) -> None:
    assert f"`{name}" in PAGE.read_text("utf-8").partition("## From Accelerate")[2]


@pytest.mark.parametrize("name", words.NAMES)
def test_what_is_not_here_says_what_to_write(name: str) -> None:
    assert theirs_or_none(name)
    with pytest.raises(AttributeError, match=r"Hint: (write|leave|keep) "):
        getattr(big_models, name)


def theirs_or_none(name: str) -> Any:
    accelerate = pytest.importorskip("accelerate")
    homes = (accelerate.hooks, accelerate.utils, accelerate.utils.modeling, accelerate.utils.offload)
    return next((getattr(home, name) for home in homes if hasattr(home, name)), None)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


X = torch.linspace(-1, 1, 12).view(3, 4)


@pytest.mark.parametrize("name", words.REFUSED)
def test_a_refused_argument_says_what_to_write_and_its_plain_value_is_taken(name: str) -> None:
    plain, way = words.REFUSED[name]
    taken = words.takes_accelerates(lambda model: model)
    assert taken(1, **{name: plain}) == 1  # type: ignore[arg-type, call-arg]
    with pytest.raises(ConfigError) as raised:
        taken(1, **{name: "other"})  # type: ignore[arg-type, call-arg]
    assert raised.value.hint == way


def test_calls_as_accelerates_users_write_them(tmp_path: Path) -> None:
    plain = net().eval()
    with torch.no_grad():
        expected = plain(X)
    torch.save(plain.state_dict(), tmp_path / "model.bin")
    with big_models.init_empty_weights():
        model = net().eval()
    big_models.load_checkpoint_and_dispatch(  # type: ignore[call-arg]
        *(model, tmp_path / "model.bin", "auto", {"cpu": "1GB"}),
        no_split_module_classes=["Linear"],
        dtype="float32",
        offload_state_dict=True,
        preload_module_classes=["BatchNorm1d"],
        force_hooks=True,
    )
    assert set(model.hf_device_map.values()) == {"cpu"} and big_models.offload_of(model) is not None
    with torch.no_grad():
        assert torch.equal(model(X), expected)
    big_models.remove_offload(model)
    assert not hasattr(model, "hf_device_map")
    half = net()
    loaded = {"keep_in_fp32_modules": ["1"], "dtype": "torch.float16"}
    big_models.load_checkpoint_in_model(half, tmp_path / "model.bin", **loaded)  # type: ignore[arg-type]
    assert (half[0].weight.dtype, half[1].weight.dtype) == (torch.float16, torch.float32)
    with pytest.raises(ConfigError, match="broadcast_from_rank0"):
        big_models.load_checkpoint_in_model(half, tmp_path / "model.bin", broadcast_from_rank0=True)  # type: ignore[call-arg]


def test_values_of_a_state_dict_are_those_of_an_empty_model() -> None:
    plain = net().eval()
    with big_models.init_empty_weights():
        model = net().eval()
    big_models.cpu_offload(model, "cpu", False, plain.state_dict())
    with torch.no_grad():
        assert torch.equal(model(X), plain(X))
    for wrong, says in (({"9.weight": X}, "which the model does not have"), ({"0.weight": X}, "a different shape")):
        with pytest.raises(ConfigError, match=says):
            big_models.dispatch_model(net(), {"": "cpu"}, None, wrong)


def test_special_dtypes_and_text_of_dtypes_count_in_a_plan() -> None:
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    whole = 2 * 64 * 64 * 4

    def used(**settings: Any) -> int:
        planned = big_models.infer_auto_device_map(model, {"0": "1MB"}, headroom=0, offload="no", **settings)
        assert set(planned.values()) == {"cuda:0"}
        return planned.plan.devices[0].total_bytes

    assert used() == whole
    assert used(dtype="float16") == whole // 2
    assert used(dtype="float16", special_dtypes={"1.weight": torch.float32}) == whole // 4 + whole // 2
    with pytest.raises(ConfigError, match="max_memory has 'nonsense', which is not a device"):
        big_models.infer_auto_device_map(model, {"nonsense": 1})
    with pytest.raises(ConfigError, match="dtype='float17'"):
        big_models.infer_auto_device_map(model, {"cpu": "1GB"}, dtype="float17")


# -- helpers, beside Accelerate's own -------------------------------------------------------------------------------


def test_tensors_are_listed_tied_and_measured_as_accelerate_does() -> None:
    model = net()
    model.register_buffer("mask", torch.ones(3), persistent=False)
    recursing = {"recurse": True}
    for settings in ({}, recursing, {**recursing, "include_buffers": False}, {"remove_non_persistent": True}):
        mine = [name for name, _ in big_models.named_module_tensors(model, **settings)]
        assert mine == [name for name, _ in theirs("named_module_tensors")(model, **settings)]
    assert big_models.compute_module_sizes(model) == theirs("compute_module_sizes")(model)
    half = {"dtype": "float16", "special_dtypes": {"0.weight": torch.float64}}
    sizes = big_models.compute_module_sizes(model, **half)  # type: ignore[arg-type]
    assert sizes["0.weight"] == 8 * 32 and sizes["0.bias"] == 2 * 8  # theirs never counts more than the model has
    layers = nn.Sequential(*[nn.Linear(3, 3) for _ in range(4)])
    big_models.retie_parameters(layers, [["0.weight", "2.weight"], ["1.bias", "3.bias"]])
    assert layers[0].weight is layers[2].weight and layers[1].bias is layers[3].bias
    found = big_models.find_tied_parameters(layers)
    assert (
        sorted(found)
        == sorted(theirs("find_tied_parameters")(layers))
        == [["0.weight", "2.weight"], ["1.bias", "3.bias"]]
    )
    with pytest.raises(ConfigError, match="different shapes"):
        big_models.retie_parameters(net(), [["0.weight", "2.weight"]])


def test_a_tensor_is_set_and_moved() -> None:
    model, value = net(), torch.full((8, 4), 2.0)
    parameter = model[0].weight
    big_models.set_module_tensor_to_device(model, "0.weight", "cpu")
    assert model[0].weight is parameter  # already there
    big_models.set_module_tensor_to_device(model, "0.weight", "meta")
    assert model[0].weight.is_meta and isinstance(model[0].weight, nn.Parameter)
    with pytest.raises(ValueError, match="on the meta device"):
        big_models.set_module_tensor_to_device(model, "0.weight", "cpu")
    big_models.set_module_tensor_to_device(model, "0.weight", "cpu", value, "bfloat16")
    assert torch.equal(model[0].weight, value.bfloat16()) and model[0].weight.requires_grad
    big_models.set_module_tensor_to_device(model[1], "running_mean", "cpu", value=torch.arange(8))
    assert model[1].running_mean.dtype == torch.float32 and "running_mean" in dict(model[1].named_buffers())
    for name, given, says in (
        ("0.weight", torch.ones(2), "which has shape"),
        ("0.nothing", None, "does not have a parameter or a buffer named 'nothing'"),
        ("x.weight", None, "has no module 'x'"),
    ):
        with pytest.raises(ValueError, match=says):
            big_models.set_module_tensor_to_device(model, name, "cpu", given)
    with pytest.raises(StateError, match="offloaded"):
        offloaded = big_models.dispatch_model(net(), {"": "cpu"}, force_hooks=True)
        big_models.set_module_tensor_to_device(offloaded[0], "weight", "meta")


def test_a_module_is_aligned_and_what_is_written_stays(tmp_path: Path) -> None:
    plain, model = net(), big_models.disk_offload(net(), tmp_path / "new", "cpu")
    before = model[0].weight
    with big_models.align_module_device(model[0]):
        assert torch.equal(model[0].weight, plain[0].weight) and type(model[0].weight) is nn.Parameter
    assert model[0].weight is before
    with pytest.raises(CapabilityError, match="stays in a file"), big_models.align_module_device(model[0]):
        model[0].weight.data.add_(1)
        with torch.no_grad():
            model[0].weight.add_(1)
    with pytest.raises(KeyError), big_models.align_module_device(model[0]):
        raise KeyError
    assert model[0].weight is before
    with big_models.align_module_device(plain[0], "meta"):
        assert plain[0].weight.is_meta and not plain[2].weight.is_meta
    assert not plain[0].weight.is_meta
    values = big_models.get_state_dict_offloaded_model(model)
    assert all(type(value) is torch.Tensor and torch.equal(value, plain.state_dict()[k]) for k, value in values.items())


DTYPES = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_folders_of_weights_are_those_of_accelerate(dtype: torch.dtype, tmp_path: Path) -> None:
    weights = {"a.weight": torch.randn(3, 4).to(dtype), "a.scale": torch.tensor(1.0).to(dtype)}
    folders = tmp_path / "theirs", tmp_path / "ours"
    folders[0].mkdir()
    (theirs("offload_state_dict")(folders[0], weights), big_models.offload_state_dict(folders[1], weights))
    for folder in folders:
        for loader in (big_models.OffloadedWeightsLoader, theirs("OffloadedWeightsLoader")):
            found = loader(state_dict={"b": X}, save_folder=folder)
            assert list(found) == ["b", *weights] and len(found) == 3
            for name, value in weights.items():
                assert found[name].dtype == dtype
                assert torch.equal(found[name].reshape(value.shape).float(), value.float())
    with pytest.raises(StateError, match="has the weights of another model"):
        big_models.offload_state_dict(folders[1], weights)
    (folders[1] / "a.weight.dat").write_bytes(b"123")
    with pytest.raises(StateError, match="has 3 bytes, but"):
        big_models.OffloadedWeightsLoader(save_folder=folders[1])["a.weight"]


def test_weights_of_safetensors_are_found_by_name(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = net()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    for settings in (
        {"save_folder": tmp_path},
        {"index": {"0.weight": {"safetensors_file": str(tmp_path / "model.safetensors"), "weight_name": "0.weight"}}},
    ):
        found: Any = big_models.OffloadedWeightsLoader(**settings)  # type: ignore[arg-type]
        assert torch.equal(found["0.weight"], model[0].weight)
    loaded = big_models.load_state_dict(tmp_path / "model.safetensors", {"0": "meta", "1": "cpu", "2.weight": "disk"})
    assert loaded["0.weight"].is_meta and torch.equal(loaded["2.weight"], model[2].weight)
    extracted = big_models.extract_submodules_state_dict(model.state_dict(), ["0", "2"])
    assert list(extracted) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    with pytest.raises(ConfigError, match="it has no arguments"):
        big_models.OffloadedWeightsLoader()


def test_layers_keep_narrow_weights_and_compute_in_wider_ones() -> None:
    ours, their = net().eval(), net().eval()
    settings: dict[str, Any] = {"storage_dtype": torch.float8_e4m3fn, "compute_dtype": torch.float32}
    big_models.attach_layerwise_casting_hooks(ours, **settings, skip_modules_pattern="2")
    theirs("attach_layerwise_casting_hooks")(their, **settings, skip_modules_pattern=["2"])
    kept = [layer.weight.dtype for layer in ours]
    assert kept == [layer.weight.dtype for layer in their] == [torch.float8_e4m3fn, torch.float32, torch.float32]
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(ours(X), their(X))
    with pytest.raises(CapabilityError, match="cannot be trained"):
        ours(X)
    with torch.no_grad(), pytest.raises(RuntimeError):
        ours(torch.ones(1, 9))
    assert [layer.weight.dtype for layer in ours] == kept
    large = nn.Linear(2, 2)
    nn.init.constant_(large.weight, 1e6)
    with pytest.raises(StateError, match="weight would not be finite in float16"):
        big_models.attach_layerwise_casting_hooks(large, "float16", "float32")
    assert large.weight.dtype == torch.float32


def test_a_hook_may_compute_without_gradients() -> None:
    hook: Any = big_models.ModelHook()
    hook.no_grad = True
    model = net()
    big_models.add_hook_to_module(model[0], hook)
    assert model[0](X).grad_fn is None and torch.is_grad_enabled()
    with pytest.raises(RuntimeError):
        model[0](torch.ones(1, 9))
    assert torch.is_grad_enabled() and model(X).grad_fn is not None


def test_all_hooks_of_modules_inside_are_taken_away() -> None:
    model = big_models.dispatch_model(net(), {"": "cpu"}, force_hooks=True)
    big_models.add_hook_to_module(model[2], big_models.ModelHook())
    big_models.remove_hook_from_submodules(model)
    assert big_models.hook_of(model[2]) is None and big_models.offload_of(model) is None
    with pytest.raises(ConfigError, match=r"^AlignDevicesHook has no offload"):
        big_models.AlignDevicesHook("cpu", offload=True)  # type: ignore[call-arg]


REFUSED_MAPS: list[tuple[Callable[[], Any], str]] = [
    (lambda: {"0.weight": "cpu", "0.bias": "disk", "1": "cpu", "2": "cpu"}, "device_map splits '0'"),
    (lambda: {"0": "cpu", "2": "cpu"}, "no device for"),
]


@pytest.mark.parametrize(("given", "says"), REFUSED_MAPS)
def test_a_wrong_map_is_refused_before_files_are_read(given: Callable[[], Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        big_models.load_checkpoint_and_dispatch(net(), tmp_path / "is missing", given())
    if "no device" in says:
        with pytest.raises(ConfigError, match=says):
            big_models.check_device_map(net(), given())


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"cpu": "1KB"}, OutOfMemoryError, r"max_memory=\{'cpu': '1KB'\} is too small: the model does not fit"),
        (
            {"cpu": "1KB", "disk": 0},
            OutOfMemoryError,
            r"max_memory=.*'disk': 0\} is too small.*tier disk 0 B.*allow more in max_memory",
        ),
        ({"meta": "1GB"}, ConfigError, "max_memory has 'meta', which cannot compute"),
        ({"nothing": 1}, ConfigError, "max_memory has 'nothing', which is not a device"),
        ({"cpu": "much"}, ConfigError, r"max_memory\['cpu'\]='much' is not a size"),
        ({"cpu": -1}, ConfigError, r"max_memory\['cpu'\]=-1 is not"),
        ({"cpu": 1, "CPU": 2}, ConfigError, "max_memory has"),
    ],
)
def test_errors_of_max_memory_speak_of_it(given: Any, error: type[Exception], says: str, tmp_path: Path) -> None:
    large = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))
    with pytest.raises(error, match=says):
        big_models.infer_auto_device_map(large, given)
    with pytest.raises(error, match=says):
        big_models.load_checkpoint_and_dispatch(large, tmp_path / "is missing", "auto", given)
