"""What a tensor on a simulated device does that is no operator of torch: copies, saving, and what it refuses."""

# ruff: noqa: SLF001  (names inside torch, which inside.py asks for before)

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor


class Wrapper(torch.Tensor):
    """A tensor that says it is on a device, and has its values, strides and memory in `held`, a tensor of the CPU.

    What torch does below its operators it would not find here, so it is written out.
    """

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device) -> Wrapper:
        made: Wrapper = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=device,
        )
        made.held = held
        return made

    def __init__(self, held: Tensor, device: torch.device) -> None:
        super().__init__()

    @property
    def data(self) -> Tensor:
        """As torch's: the values without their history; assigning replaces them."""
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined, no-any-return]

    @data.setter
    def data(self, value: Tensor) -> None:
        reshape(self, value)
        self.held = value.held  # type: ignore[attr-defined]

    def data_ptr(self) -> int:
        """Where the values really are; equal for tensors that share memory."""
        return self.held.data_ptr()

    def numpy(self, *, force: bool = False) -> Any:
        """As torch's of a GPU: refused, unless a copy is asked for.

        Raises:
            TypeError: the values are not in host memory.
        """
        if force:
            return self.detach().cpu().numpy(force=True)
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            "memory first."
        )

    def tolist(self) -> Any:
        """As torch's: brought to the host, and waited for."""
        return self.detach().cpu().tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user support the deepcopy protocol at the moment"
            )
        with torch.no_grad():
            made: Any = self.detach().clone()
            if hasattr(self, "_is_param"):
                made = torch.nn.Parameter(made, requires_grad=False)
            made.grad = copy.deepcopy(self.grad, memo)
        memo[id(self)] = made.requires_grad_(self.requires_grad)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Saved as its values and its device, as torch saves tensors of devices that it knows little of."""
        values = self.detach().cpu(), self.dtype, str(self.device), self.requires_grad
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, values

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError(f"a tensor on {self.device} cannot be handed over: nobody else knows a simulated device")

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        text, grad = repr(self.held.detach()).removesuffix(")"), ", requires_grad=True" if self.requires_grad else ""
        return f"{text}, device='{self.device}'{grad})"


def reshape(tensor: Tensor, like: Tensor) -> None:
    """Let torch take a tensor for one of the shape and strides of another; `held` is not touched."""
    torch.Tensor.data.__set__(tensor, like)  # type: ignore[attr-defined]
