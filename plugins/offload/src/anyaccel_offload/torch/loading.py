"""Loading: read checkpoints into models, each tensor directly to its final place."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anyaccel.arguments import check, flag, shown
from anyaccel.call_hints import call_hints
from anyaccel.errors import ConfigError, StateError
from anyaccel.printable import printable
from anyaccel_offload.torch.accelerate_words import takes_accelerates
from anyaccel_offload.torch.checkpoint_files import FileTensor, SavedTensor, open_checkpoint
from anyaccel_offload.torch.device_map import DISK, check_is_there, checked_map, entry_for
from anyaccel_offload.torch.dtype_names import named_dtype
from anyaccel_offload.torch.stored_tensor import StoredTensor
from anyaccel_torch.error_translation import translate_errors

WHERE = "load_checkpoint_in_model: "
_CPU = torch.device("cpu")


class LoadedCheckpoint(NamedTuple):
    """The names that did not match in a load that was not strict; all empty otherwise.

    Attributes:
        missing_keys: Names in the model without a tensor in the checkpoint.
        unexpected_keys: Names in the checkpoint that the model does not have.
        mismatched_keys: Names in the model whose tensor in the checkpoint has another shape, or another kind of dtype.
    """

    missing_keys: tuple[str, ...]
    unexpected_keys: tuple[str, ...]
    mismatched_keys: tuple[str, ...]


@dataclass(kw_only=True)
class _Target:
    """A tensor of the model with all its names."""

    tensor: Tensor
    names: list[str] = field(default_factory=list)


@takes_accelerates
@call_hints
def load_checkpoint_in_model(
    model: nn.Module,
    checkpoint: Any,
    device_map: Mapping[str, Any] | None = None,
    *,
    dtype: torch.dtype | str | None = None,
    keep_in_fp32: Iterable[str] = (),
    strict: bool = True,
) -> LoadedCheckpoint:
    """Load a checkpoint into a model, whose parameters may be empty.

    Tensors are read in the order of the files, each once, directly to their device. In addition to the model, this uses
    at most 16 MiB of host memory (one tensor if it is not contiguous). If something does not match, nothing is loaded.

    >>> import torch
    >>> from anyaccel_offload.torch import init_empty_weights, load_checkpoint_in_model
    >>> torch.save(torch.nn.Linear(4, 1).state_dict(), "model.bin")
    >>> with init_empty_weights():
    ...     net = torch.nn.Linear(4, 1)
    >>> load_checkpoint_in_model(net, "model.bin").missing_keys
    ()
    >>> net(torch.ones(3, 4)).shape
    torch.Size([3, 1])

    Args:
        model: Model to load into. Parameters on torch's `meta` device are replaced; ties are kept.
        checkpoint: A `.safetensors` file, a file of `torch.save`, an index of shards, or a folder with one of them.
        device_map: Device of each part; weights of parts on `"disk"` stay in their safetensors files. None loads to the
            device of the model, or to the CPU for empty parameters.
        dtype: Dtype that floating tensors are cast to; None for the model's own.
        keep_in_fp32: Names of modules or tensors, or last parts of such names, that are loaded as float32.
        strict: Whether all names, shapes and kinds of dtypes must match.

    Returns:
        The names that did not match.

    Raises:
        ConfigError: An argument is wrong, or the device map does not match the model.
        StateError: The checkpoint does not exist, is damaged, or, if `strict`, does not match; the message lists
            everything.
        OutOfMemoryError: A device is full.
    """
    check(ConfigError, WHERE, "model", model, lambda it: isinstance(it, nn.Module), "a module of torch", "net")
    flag(ConfigError, WHERE, "strict", strict)
    fits = lambda it: not isinstance(it, str) and all(isinstance(name, str) and name for name in it)  # noqa: E731
    islands = tuple(check(ConfigError, WHERE, "keep_in_fp32", keep_in_fp32, fits, "a list of names", "['norm']") or ())
    wanted = named_dtype(WHERE, dtype)
    places = {} if device_map is None else checked_map(WHERE, model, device_map)
    for value in places.values():
        check_is_there(WHERE, value)
    saved = open_checkpoint(WHERE, checkpoint)
    found: dict[int, _Target] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, Tensor):
            problem = f"{WHERE}{name} of {type(model).__name__} is {type(value).__name__}, not a tensor"
            raise StateError(problem, hint="load this model with model.load_state_dict")
        found.setdefault(id(value), _Target(tensor=value)).names.append(name)
    targets = list(found.values())
    # Match saved tensors with the model's tensors, and list the names that do not match
    chosen, missing, mismatched = [], [], {}
    for target in targets:
        source = next((saved[name] for name in target.names if name in saved), None)
        if source is None:
            missing.append(target.names[0])
        elif tuple(target.tensor.shape) != source.shape or _kind(target.tensor.dtype) != _kind(source.dtype):
            mine, theirs = (f"{it.dtype}{list(it.shape)}".removeprefix("torch.") for it in (target.tensor, source))
            mismatched[target.names[0]] = f"{theirs} in the checkpoint and {mine} in the model"
        else:
            chosen.append((target, source))
    tensor_names = {name for target in targets for name in target.names}
    unexpected = [name for name in saved if name not in tensor_names]
    report = LoadedCheckpoint(tuple(missing), tuple(unexpected), tuple(mismatched))
    parts = [f"missing: {', '.join(report.missing_keys)}"] if report.missing_keys else []
    parts += [f"unexpected: {', '.join(report.unexpected_keys)}"] if report.unexpected_keys else []
    parts += [f"{name} is {how}" for name, how in mismatched.items()]
    problem = f"{WHERE}the checkpoint does not fit {type(model).__name__}: {'; '.join(parts)}" if parts else ""
    if problem and (strict or not chosen):
        converts = missing and unexpected and hasattr(model, "from_pretrained")
        raise StateError(
            problem,
            hint=f"if the files are of this model, its library converts their names: load it with model = "
            f"{type(model).__name__}.from_pretrained(FOLDER), then dispatch_model(model, device_map)"
            if converts
            else "use the checkpoint of this model, or load the matching parts with strict=False",
        )
    if problem:
        warnings.warn(printable(problem), UserWarning, stacklevel=2)
    for target, source in chosen:
        # A tensor that the checkpoint has under several names must be the same under each.
        for name in target.names:
            other = saved.get(name)
            if other is not None and other is not source and not source.has_values_of(other):
                raise StateError(
                    f"{WHERE}{', '.join(target.names)} are one tensor in the model, but differ in the checkpoint",
                    hint="build the model without the tie, for example with tie_word_embeddings=False",
                )
    for target, source in sorted(chosen, key=lambda pair: _position(pair[1])):
        place = places[entry_for(target.names[0], places) or ""] if places else None
        if not target.tensor.dtype.is_floating_point:
            target_dtype = target.tensor.dtype
        elif any(f".{island}." in f".{name}." for name in target.names for island in islands):
            target_dtype = torch.float32
        else:
            target_dtype = wanted or target.tensor.dtype
        _load(model, target, source, place, target_dtype)
    return report


load_checkpoint = load_checkpoint_in_model


def _kind(dtype: torch.dtype) -> object:
    """Return the kind of a dtype: dtypes of one kind are cast to each other, others only to themselves."""
    return "floating" if dtype.is_floating_point else dtype


def _position(source: SavedTensor) -> tuple[str, int]:
    return (str(source.file.path), source.entry.begin) if isinstance(source, FileTensor) else ("", 0)


def _load(
    model: nn.Module, target: _Target, source: SavedTensor, place: torch.device | str | None, dtype: torch.dtype
) -> None:
    old = target.tensor
    if place == DISK and isinstance(old, nn.Parameter):
        if not isinstance(source, FileTensor):
            problem = f"{WHERE}{target.names[0]} cannot stay in a file of torch.save"
            raise StateError(problem, hint="convert the checkpoint to safetensors, or write 'cpu' instead of 'disk'")
        replace(model, target.names, StoredTensor(source, dtype, _CPU, old.requires_grad))
        return
    device_before = _CPU if old.device.type == "meta" or isinstance(old, StoredTensor) else old.device
    device = _CPU if place == DISK else torch.device(device_before if place is None else place)
    with torch.no_grad(), translate_errors(f"{target.names[0]} of shape {list(old.shape)} on {device}"):
        if (old.device, old.dtype) == (device, dtype) and not isinstance(old, StoredTensor):
            source.read_into(old)
            return
        made = torch.empty(source.shape, dtype=dtype, device=device)
        source.read_into(made)
    if isinstance(old, nn.Parameter):
        made = nn.Parameter(made, requires_grad=old.requires_grad)
    replace(model, target.names, made)


def replace(model: nn.Module, names: Iterable[str], value: Tensor) -> None:
    """Replace the tensor that a model has under these names.

    Raises:
        StateError: A name does not belong to a parameter or buffer of a module.
    """
    for name in names:
        path, _, last = name.rpartition(".")
        module = model.get_submodule(path)
        table = getattr(module, "_parameters" if isinstance(value, nn.Parameter) else "_buffers")
        if last not in table:
            raise StateError(
                f"{shown(name)} is not a parameter or buffer of {type(module).__name__}", hint="see its docs"
            )
        table[last] = value
