"""Tools for single tensors of modules, with Accelerate's names: list, move, set, tie, or store them in files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyaccel.arguments import check, flag, shown
from anyaccel.call_hints import call_hints, constructor_hints
from anyaccel.errors import CapabilityError, ConfigError, StateError
from anyaccel_offload.torch.accelerate_words import takes_accelerates
from anyaccel_offload.torch.checkpoint_files import open_checkpoint
from anyaccel_offload.torch.device_map import DISK, checked_map, device_in_map
from anyaccel_offload.torch.dtype_names import named_dtype
from anyaccel_offload.torch.model_blocks import block_around, places
from anyaccel_offload.torch.model_hooks import ModelHook, add_hook_to_module, remove_hook_from_module
from anyaccel_offload.torch.offload import Offload, offload_of, remove_offload, whole_state
from anyaccel_offload.torch.stored_tensor import StoredTensor
from anyaccel_torch.placement import offloads

_CPU, _META = torch.device("cpu"), torch.device("meta")
_CAST_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_CAST_LAYERS += (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear)  # type: ignore[assignment]


@call_hints
def remove_hook_from_submodules(module: nn.Module) -> None:
    """Remove the hooks of a module and of all its submodules, and those of an offloaded model."""
    remove_hook_from_module(module, recurse=True)
    if offload_of(module) is not None:
        remove_offload(module)


def _owner(where: str, module: Any, name: Any) -> tuple[nn.Module, dict[str, Any], str]:
    """Return the module that has a tensor, the dict of the module, and the tensor's name in it."""
    check(ConfigError, where, "module", module, lambda it: isinstance(it, nn.Module), "a module of torch", "net")
    check(ConfigError, where, "tensor_name", name, lambda it: isinstance(it, str) and it, "a name", "'layer.weight'")
    path, _, last = name.rpartition(".")
    try:
        inner = module.get_submodule(path)
    except AttributeError as error:
        raise ConfigError(
            f"{where}{type(module).__name__} has no module {path!r}", hint="use a name of model.state_dict()"
        ) from error
    for kind in ("_parameters", "_buffers"):
        if vars(inner)[kind].get(last) is not None:
            return inner, vars(inner)[kind], last
    tensor_names = ", ".join(key for kind in ("_parameters", "_buffers") for key in vars(inner)[kind])
    raise ConfigError(
        f"{where}{type(inner).__name__} does not have a parameter or a buffer named {last!r}",
        available=tensor_names,
        hint="use a name of model.state_dict()",
    )


@takes_accelerates
@call_hints
def set_module_tensor_to_device(
    module: nn.Module,
    tensor_name: str,
    device: Any,
    value: Tensor | None = None,
    dtype: torch.dtype | str | None = None,
    *,
    non_blocking: bool = False,
) -> None:
    """Move a parameter or buffer of a module to a device, or set it to a value there.

    >>> import torch
    >>> from anyaccel_offload.torch import set_module_tensor_to_device
    >>> net = torch.nn.Linear(2, 1)
    >>> set_module_tensor_to_device(net, "bias", "cpu", value=torch.tensor([5.0]))
    >>> net.bias.item()
    5.0

    Args:
        module: Module that has the tensor, or a module around it.
        tensor_name: Name with those of the modules between, such as `"layers.0.weight"`.
        device: Target device.
        value: Value in the same shape; required to move a tensor away from torch's `meta` device.
        dtype: Dtype of the result for floating tensors; None keeps the current dtype.
        non_blocking: Whether the host continues while the copy runs.

    Raises:
        ConfigError: The tensor or the device does not exist, or the value has another shape.
        StateError: The tensor has no values and `value` is missing, or the model is offloaded.
    """
    where = "set_module_tensor_to_device: "
    inner, table, name = _owner(where, module, tensor_name)
    target = device_in_map(where, device, "device")
    if isinstance(target, str):
        raise ConfigError(
            f"{where}device='disk' is not a device", hint="write device='cpu', or use disk_offload(model)"
        )
    _refuse_offloaded(where, inner)
    old = table[name]
    wanted = named_dtype(where, dtype)
    if value is None and old.device == _META != target:
        raise ConfigError(f"{where}{tensor_name} is on the meta device", hint="pass value=, or load a checkpoint")
    if value is not None and tuple(value.shape) != tuple(old.shape):
        raise ConfigError(
            f'{where}Trying to set a tensor of shape {value.shape} in "{name}" (which has shape {old.shape})',
            hint="pass a value with the shape of the parameter",
        )
    with torch.no_grad():
        source = old if value is None else value
        kind = wanted if wanted is not None and source.is_floating_point() else old.dtype
        made = source.detach().to(device=target, dtype=kind, non_blocking=non_blocking)
    if value is None and made.data_ptr() == old.data_ptr() and made.device == old.device:
        return
    if isinstance(old, nn.Parameter):
        made = nn.Parameter(made, requires_grad=old.requires_grad)
    table[name] = made


def _refuse_offloaded(where: str, module: nn.Module) -> None:
    for model in list(offloads):
        if any(inner is module for inner in model.modules()):
            raise StateError(f"{where}this model is offloaded", hint="call remove_offload(model) first")


@call_hints
def named_module_tensors(
    module: nn.Module, include_buffers: bool = True, recurse: bool = False, remove_non_persistent: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of a module, then its buffers, with their names.

    >>> from torch import nn
    >>> from anyaccel_offload.torch import named_module_tensors
    >>> [name for name, tensor in named_module_tensors(nn.Linear(2, 1))]
    ['weight', 'bias']

    Args:
        module: Module with the tensors.
        include_buffers: Whether to include buffers.
        recurse: Whether to include the tensors of submodules.
        remove_non_persistent: Whether to leave out buffers that are in no checkpoint.
    """
    yield from module.named_parameters(recurse=recurse)
    if not include_buffers:
        return
    for name, buffer in module.named_buffers(recurse=recurse):
        path, _, last = name.rpartition(".")
        owner = module.get_submodule(path)
        if not (remove_non_persistent and last in owner._non_persistent_buffers_set):  # noqa: SLF001  (torch's)
            yield name, buffer


@call_hints
def find_tied_parameters(model: nn.Module) -> list[list[str]]:
    """List the groups of names that refer to the same parameter."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [sorted(group) for group in names.values() if len(group) > 1]


@call_hints
def retie_parameters(model: nn.Module, tied_params: Iterable[Sequence[str]]) -> None:
    """Let each group of names share one parameter: the first that has values.

    Raises:
        ConfigError: A name is unknown, or parameters of a group have different shapes.
    """
    where = "retie_parameters: "
    for group in tied_params:
        found = [_owner(where, model, name) for name in group]
        tensors = [table[name] for _, table, name in found]
        if len({tuple(tensor.shape) for tensor in tensors}) > 1:
            raise ConfigError(
                f"{where}{', '.join(group)} have different shapes", hint="tie only parameters with the same shape"
            )
        kept = next((tensor for tensor in tensors if tensor.device != _META), tensors[0])
        for _, table, name in found:
            table[name] = kept


@call_hints
@contextmanager
def align_module_device(module: nn.Module, execution_device: Any = None) -> Iterator[None]:
    """Move the parameters of a module, without submodules, to a device inside this context, and back afterwards.

    Changes to them in the context are kept.

    Args:
        module: Module of any model. In an offloaded model, offloaded weights are copied, including those in files.
        execution_device: Target device. None uses the device that computes a module of an offloaded model, and moves
            nothing otherwise.

    Raises:
        ConfigError: The device does not exist.
        CapabilityError: A weight in a file was written to.
    """
    where = "align_module_device: "
    found = _offloaded(module)
    device: Any = None if execution_device is None else device_in_map(where, execution_device, "execution_device")
    if device is None and found is not None:
        device = found[0].device_of(found[1])
    tables = [] if device is None else [vars(module)["_parameters"]]
    if device is not None and found is not None:
        tables.append(vars(module)["_buffers"])
    moved: list[tuple[dict[str, Any], str, Tensor, Tensor, int]] = []
    try:
        for table in tables:
            for name, rest in table.items():
                if rest is None or (rest.device == device and not isinstance(rest, StoredTensor)):
                    continue
                with torch.no_grad():
                    copy = (rest.read() if isinstance(rest, StoredTensor) else rest.detach()).to(device)
                made = nn.Parameter(copy, requires_grad=rest.requires_grad) if isinstance(rest, nn.Parameter) else copy
                table[name] = made
                moved.append((table, name, rest, made, made._version))  # noqa: SLF001  (counts writes)
        yield
    finally:
        for table, name, rest, _, _ in moved:
            table[name] = rest
    for _, name, rest, made, version in moved:
        if made._version == version:  # noqa: SLF001
            continue
        if isinstance(rest, StoredTensor):
            raise CapabilityError(
                f"{where}{name} stays in a file, and files are never changed", hint="load the model without 'disk'"
            )
        with torch.no_grad():
            rest.copy_(made)


def _offloaded(module: nn.Module) -> tuple[Offload, str] | None:
    """Return the `Offload` of a module's model, and the block that the module is in."""
    for model, offload in list(offloads.items()):
        for name, inner in model.named_modules():
            if inner is module:
                blocks = {block.name for block in offload.blocks}
                around = name if name in blocks else block_around(f"{name}.x", blocks)
                return offload, around if around is not None else offload.blocks[0].name
    return None


@call_hints
def get_state_dict_offloaded_model(model: nn.Module) -> dict[str, Tensor]:
    """Return all values of a model in host memory, wherever they are stored; values in files are read."""
    return whole_state(model)


@call_hints
def check_device_map(model: nn.Module, device_map: Mapping[str, Any]) -> None:
    """Check that a map has a device for each parameter and buffer of a model, and no other names.

    Raises:
        ConfigError: It does not.
    """
    check(ConfigError, "check_device_map: ", "model", model, lambda it: isinstance(it, nn.Module), "a module", "net")
    checked_map("check_device_map: ", model, device_map)


@call_hints
def compute_module_sizes(
    model: nn.Module,
    dtype: torch.dtype | str | None = None,
    special_dtypes: Mapping[str, torch.dtype | str] | None = None,
    buffers_only: bool = False,
) -> dict[str, int]:
    """Return the size in bytes of each tensor and module of a model, `""` for all; ties count once for each name.

    >>> from torch import nn
    >>> from anyaccel_offload.torch import compute_module_sizes
    >>> compute_module_sizes(nn.Linear(10, 1))
    {'': 44, 'weight': 40, 'bias': 4}

    Args:
        model: Model, with or without values.
        dtype: Dtype that floating tensors will be cast to.
        special_dtypes: Dtypes of single tensors by name; they override `dtype`.
        buffers_only: Whether to count only buffers.
    """
    where = "compute_module_sizes: "
    wanted = named_dtype(where, dtype)
    special = {name: named_dtype(where, value) for name, value in (special_dtypes or {}).items()}
    sizes: dict[str, int] = {}
    named = [] if buffers_only else list(model.named_parameters(remove_duplicate=False))
    for name, tensor in [*named, *model.named_buffers(remove_duplicate=False)]:
        kind = special.get(name) or (wanted if wanted and tensor.is_floating_point() else tensor.dtype)
        nbytes = tensor.numel() * kind.itemsize
        parts = name.split(".")
        for end in range(len(parts) + 1):
            key = ".".join(parts[:end])
            sizes[key] = sizes.get(key, 0) + nbytes
    return sizes


# -- weights by name in memory and in files, in Accelerate's format ----------------------------------------------------

_WIDTHS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_INDEX = "index.json"


@call_hints
def offload_state_dict(save_dir: Any, state_dict: Mapping[str, Tensor]) -> None:
    """Write tensors to a folder in Accelerate's format: a `.dat` file for each, and `index.json`.

    `disk_offload` and `load_checkpoint_and_dispatch` use safetensors files instead, which need no second copy. Use this
    function for code that reads such folders.

    Raises:
        StateError: The folder has files, which could belong to other weights.
    """
    where = "offload_state_dict: "
    folder = Path(save_dir)
    if (folder / _INDEX).exists():
        raise StateError(f"{where}{str(folder)!r} has the weights of another model", hint="use a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    index: dict[str, Any] = {}
    for name, tensor in state_dict.items():
        offload_weight(tensor, name, folder, index)
    (folder / _INDEX).write_text(json.dumps(index), "utf-8")


@call_hints
def offload_weight(
    weight: Tensor, weight_name: str, offload_folder: Any, index: dict[str, Any] | None = None
) -> dict[str, Any] | None:
    """Write one tensor to `WEIGHT_NAME.dat` in a folder, add its shape and dtype to an index, and return the index."""
    if os.sep in weight_name or weight_name in ("", ".", ".."):
        raise ConfigError(
            f"offload_weight: weight_name={shown(weight_name)} is not a name", hint="write 'layer.weight'"
        )
    values = weight.detach().to(_CPU).contiguous()
    values.reshape(-1).view(torch.uint8).numpy().tofile(Path(offload_folder) / f"{weight_name}.dat")
    if index is not None:
        index[weight_name] = {"dtype": str(values.dtype).removeprefix("torch."), "shape": list(values.shape)}
    return index


@call_hints
def load_offloaded_weight(weight_file: Any, weight_info: Mapping[str, Any]) -> Tensor:
    """Read a tensor that `offload_weight` or Accelerate wrote; it is memory-mapped until it is written to.

    Raises:
        StateError: The size of the file differs from that in the index.
    """
    dtype, shape = named_dtype("load_offloaded_weight: ", weight_info["dtype"], any_kind=True), weight_info["shape"]
    assert dtype is not None
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    size = Path(weight_file).stat().st_size
    if size != nbytes:
        raise StateError(
            f"{str(weight_file)!r} has {size} bytes, but {nbytes} in its index", hint="write the folder again"
        )
    if not nbytes:
        return torch.empty(tuple(shape), dtype=dtype)
    array = np.memmap(weight_file, dtype=np.uint8, mode="c")
    return torch.from_numpy(array).view(dtype).reshape(tuple(shape))


@constructor_hints
class OffloadedWeightsLoader(Mapping[str, Tensor]):
    """Tensors by name, from memory and from a folder; each file is opened once.

    Args:
        state_dict: Tensors in memory, which take precedence.
        save_folder: Folder of `offload_state_dict` or Accelerate, or one with safetensors files.
        index: Index of the weights in files: `{"dtype", "shape"}` for a `.dat` file of `save_folder`, or
            `{"safetensors_file", "weight_name", "dtype"}`. None reads the index in the folder.
        device: Device of tensors from files; None for host memory.

    Raises:
        ConfigError: No argument was passed.
    """

    def __init__(
        self,
        state_dict: Mapping[str, Tensor] | None = None,
        save_folder: Any = None,
        index: Mapping[str, Any] | None = None,
        device: Any = None,
    ) -> None:
        if state_dict is None and save_folder is None and index is None:
            raise ConfigError("OffloadedWeightsLoader: it has no arguments", hint="write save_folder='FOLDER'")
        self.state_dict = dict(state_dict or {})
        self.save_folder = None if save_folder is None else Path(save_folder)
        self.device = _CPU if device is None else device_in_map("OffloadedWeightsLoader: ", device, "device")
        self._opened: dict[str, Mapping[str, Any]] = {}
        if index is None and self.save_folder is not None:
            listed = self.save_folder / _INDEX
            if listed.is_file():
                index = json.loads(listed.read_text("utf-8"))
            else:
                saved = self._opened[str(self.save_folder)] = open_checkpoint("OffloadedWeightsLoader: ", save_folder)
                index = {name: {"safetensors_file": str(self.save_folder)} for name in saved}
        self.index = dict(index or {})
        self.all_keys = list(dict.fromkeys([*self.state_dict, *self.index]))

    def __getitem__(self, key: str) -> Tensor:
        if key in self.state_dict:
            return self.state_dict[key]
        info = self.index[key]
        path = info.get("safetensors_file")
        if path is None:
            if self.save_folder is None:
                raise ConfigError("OffloadedWeightsLoader: no folder", hint="write save_folder='FOLDER'")
            return load_offloaded_weight(self.save_folder / f"{key}.dat", info).to(self.device)
        if str(path) not in self._opened:
            self._opened[str(path)] = open_checkpoint("OffloadedWeightsLoader: ", path)
        saved = self._opened[str(path)][info.get("weight_name", key)]
        dtype = named_dtype("OffloadedWeightsLoader: ", info.get("dtype"), any_kind=True) or saved.dtype
        made = torch.empty(saved.shape, dtype=saved.dtype)
        saved.read_into(made)
        return made.to(device=self.device, dtype=dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self.all_keys)

    def __len__(self) -> int:
        return len(self.all_keys)


@call_hints
def extract_submodules_state_dict(state_dict: Mapping[str, Any], submodule_names: Iterable[str]) -> dict[str, Any]:
    """Return the tensors of some modules in a state dict, by their names in it."""
    names = list(submodule_names)
    prefixes = tuple(f"{name}." for name in names)
    return {key: value for key, value in state_dict.items() if key in names or key.startswith(prefixes)}


@call_hints
def load_state_dict(checkpoint_file: Any, device_map: Mapping[str, Any] | None = None) -> dict[str, Tensor]:
    """Read a file of weights, each tensor to its device in a map; to host memory for `"disk"`, or without a map.

    Raises:
        ConfigError: A value is not a device.
        StateError: The file cannot be read.
    """
    where = "load_state_dict: "
    targets = {name: device_in_map(where, value) for name, value in (device_map or {"": "cpu"}).items()}
    found: dict[str, Tensor] = {}
    for name, saved in open_checkpoint(where, checkpoint_file).items():
        inside = name if name in targets else block_around(name, targets)
        device = targets[inside] if inside is not None else _CPU
        made = torch.empty(saved.shape, dtype=saved.dtype, device=_CPU if device == DISK else device)
        saved.read_into(made)
        found[name] = made
    return found


# -- weights of a narrow dtype that compute in a wider one -------------------------------------------------------------


@constructor_hints
class LayerwiseCastingHook(ModelHook):
    """Stores the weights of a layer in one dtype, and casts them to another while it computes."""

    def __init__(self, storage_dtype: torch.dtype, compute_dtype: torch.dtype, non_blocking: bool = False) -> None:
        self.storage_dtype, self.compute_dtype, self.non_blocking = storage_dtype, compute_dtype, non_blocking

    def init_hook(self, module: nn.Module) -> nn.Module:
        """Cast to the storage dtype."""
        return module.to(dtype=self.storage_dtype, non_blocking=self.non_blocking)

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Cast to the compute dtype.

        Raises:
            CapabilityError: Gradients are requested, but the weights no longer exist.
        """
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in module.parameters()):
            raise CapabilityError(
                f"the weights of this {type(module).__name__} are cast for each call and cannot be trained",
                hint="call the model under torch.no_grad(), or freeze it: model.requires_grad_(False)",
            )
        module.to(dtype=self.compute_dtype, non_blocking=self.non_blocking)
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        """Cast to the storage dtype again; weights get their earlier values."""
        self.init_hook(module)
        return output

    def on_error(self, module: nn.Module) -> None:
        """Cast to the storage dtype again."""
        self.init_hook(module)


@call_hints
def attach_layerwise_casting_hooks(
    module: nn.Module,
    storage_dtype: torch.dtype | str,
    compute_dtype: torch.dtype | str,
    skip_modules_pattern: str | Iterable[str] | None = None,
    skip_modules_classes: tuple[type[nn.Module], ...] | None = None,
    non_blocking: bool = False,
) -> None:
    """Store the weights of linear and convolution layers in a narrow dtype, and compute in a wider one.

    Weights are rounded to the narrow dtype once, in this call. Use it for inference: calls that require gradients of
    these weights are refused.

    Args:
        module: Module whose layers get hooks, in addition to existing ones.
        storage_dtype: Storage dtype, such as `torch.float8_e4m3fn`.
        compute_dtype: Compute dtype, such as `torch.bfloat16`.
        skip_modules_pattern: Regular expressions; modules whose names match are left unchanged.
        skip_modules_classes: Classes whose modules are left unchanged.
        non_blocking: Whether the host continues while casts run.

    Raises:
        ConfigError: An argument is wrong.
        StateError: A weight would be infinite in the narrow dtype; nothing was cast.
    """
    where = "attach_layerwise_casting_hooks: "
    check(ConfigError, where, "module", module, lambda it: isinstance(it, nn.Module), "a module of torch", "net")
    narrow = named_dtype(where, storage_dtype, "storage_dtype")
    wide = named_dtype(where, compute_dtype, "compute_dtype")
    if narrow is None or wide is None:
        raise ConfigError(f"{where}a dtype is missing", hint="write storage_dtype=torch.float8_e4m3fn")
    flag(ConfigError, where, "non_blocking", non_blocking)
    texts = (skip_modules_pattern,) if isinstance(skip_modules_pattern, str) else skip_modules_pattern or ()
    patterns = [re.compile(pattern) for pattern in texts]
    layers = list(_cast_layers(module, "", patterns, skip_modules_classes or ()))
    for name, layer in layers:
        for place in places(layer, name):
            values = place.tensor.detach()
            if bool((values.isfinite() & ~values.to(narrow).float().isfinite()).any()):
                problem = f"{where}{place.name} would not be finite in {str(narrow).removeprefix('torch.')}"
                raise StateError(problem, hint=f"exclude it: skip_modules_pattern={name!r}")
    for _, layer in layers:
        add_hook_to_module(layer, LayerwiseCastingHook(narrow, wide, non_blocking), append=True)


def _cast_layers(
    module: nn.Module, name: str, patterns: Sequence[re.Pattern[str]], classes: tuple[type[nn.Module], ...]
) -> Iterator[tuple[str, nn.Module]]:
    if isinstance(module, classes) or any(pattern.search(name) for pattern in patterns):
        return
    if isinstance(module, _CAST_LAYERS):
        yield name, module
        return
    for key, child in module.named_children():
        yield from _cast_layers(child, f"{name}.{key}".lstrip("."), patterns, classes)
