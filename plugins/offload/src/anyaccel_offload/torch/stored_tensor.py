"""StoredTensor: a weight in a file. Operators read it when they use it; none writes to it."""

# ruff: noqa: SLF001  (torch documents this interface of such tensors, but not the names)

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from anyaccel.errors import CapabilityError, MoveError
from anyaccel_offload.torch.checkpoint_files import SavedTensor


class StoredTensor(torch.Tensor):
    """A parameter whose values are in a file. It takes no memory; an operator reads it for the time of its computation.

    Attributes:
        saved: Tensor in the file.
    """

    saved: SavedTensor

    @staticmethod
    def __new__(cls, saved: SavedTensor, dtype: torch.dtype, device: torch.device, requires_grad: bool) -> StoredTensor:
        tensor: StoredTensor = torch.Tensor._make_wrapper_subclass(
            cls, saved.shape, dtype=dtype, device=device, requires_grad=requires_grad
        )
        tensor.saved = saved
        tensor._is_param = True  # isinstance(tensor, nn.Parameter) requires this
        return tensor

    def __init__(self, saved: SavedTensor, dtype: torch.dtype, device: torch.device, requires_grad: bool) -> None:
        super().__init__()

    def read(self) -> Tensor:
        """Return its current values in new memory on its device.

        Raises:
            StateError: The file was changed or cannot be read.
        """
        with torch.no_grad():
            made = torch.empty(self.shape, dtype=self.dtype, device=self.device)
            self.saved.read_into(made)
        return made

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Read before tensors of other subclasses, which cannot read it; other operators are dispatched below."""
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if _writes(name, args) or _holds_stored(kwargs.get("out")):
            raise _written(name)
        if any(isinstance(it, Tensor) and type(it) not in _KNOWN for it in tree_leaves((args, kwargs))):
            args, kwargs = tree_map(_read_whole, (args, kwargs))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.detach.default:
            return args[0].likeness(False)
        for i, argument in enumerate(func._schema.arguments):
            value = args[i] if i < len(args) else (kwargs or {}).get(argument.name)
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, StoredTensor):
                raise _written(func._schema.name)
        args, kwargs = tree_map(_read, (args, dict(kwargs or {})))
        return func(*args, **kwargs)

    def likeness(self, requires_grad: bool) -> StoredTensor:
        """Return another tensor for the same values in the file."""
        return StoredTensor(self.saved, self.dtype, self.device, requires_grad)

    @property
    def data(self) -> Tensor:
        """The same values without gradients, as in torch; it cannot be assigned."""
        return self.likeness(False)

    @data.setter
    def data(self, value: Tensor) -> None:
        raise _written("assigning to .data")

    def data_ptr(self) -> int:
        """Refuse to return an address: the tensor has no memory.

        Raises:
            MoveError: Always.
        """
        raise MoveError("this weight stays in a file and has no memory", hint="use weight.clone(), which reads it")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return memo.setdefault(id(self), self.likeness(self.requires_grad))

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise MoveError(
            "this weight stays in a file, which a pickle would not contain",
            hint="save the values: {name: value.clone() for name, value in model.state_dict().items()}",
        )

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"StoredTensor({list(self.shape)}, dtype={self.dtype}, device='{self.device}')"


def _read(value: Any) -> Any:
    return value.read() if isinstance(value, StoredTensor) else value


def _read_whole(value: Any) -> Any:
    """Read a value like `_read`, if no gradient is lost."""
    if isinstance(value, StoredTensor) and value.requires_grad and torch.is_grad_enabled():
        raise CapabilityError(
            "a weight that stays in a file cannot be trained",
            hint="run under torch.no_grad(), or freeze it: weight.requires_grad_(False)",
        )
    return _read(value)


def _holds_stored(value: Any) -> bool:
    return any(isinstance(it, StoredTensor) for it in tree_leaves(value))


def _writes(name: str, args: tuple[Any, ...]) -> bool:
    """Return whether a torch method, by its name, writes to a stored tensor, its first argument."""
    if not args or not _holds_stored(args[0]) or name in _NOT_WRITING:
        return False
    return (name.endswith("_") and not name.endswith("__")) or name == "__setitem__" or name.startswith("__i")


_NOT_WRITING = frozenset({"requires_grad_", "retain_grad_", "__invert__", "__index__", "__int__"})
_KNOWN = (Tensor, torch.nn.Parameter, StoredTensor)


def _written(name: str) -> CapabilityError:
    """Return an error other than a TypeError, which would make `a += b` look for another operator."""
    return CapabilityError(
        f"{name} would write to a weight that stays in a file, but files are never changed",
        hint="load the model without 'disk' in its device_map, or change a copy: weight.clone()",
    )
