"""OperatorSupport: the operators that the Apple GPU has, as registered with torch's dispatcher in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch._ops import OpOverload

_COMPOSITE = ("CompositeExplicitAutograd", "CompositeImplicitAutograd")
_DELEGATING = "CompositeExplicitAutogradNonFunctional"  # calls the out= overload
_UNIVERSAL = "aten::add.Tensor"  # every backend has it
_CPU_FALLBACK = "MPSFallback"  # the source file of MPS kernels that compute on the CPU


class OperatorSupport:
    """Query torch's dispatcher by private functions of torch; where they have changed, nothing is known.

    `has` and `registered` are the only queries; a subclass may answer them from another source.

    Args:
        key: Dispatch key of the backend.
    """

    def __init__(self, key: str = "MPS") -> None:
        self.key = key

    def is_known(self) -> bool:
        """Whether this torch was built with kernels for the backend, so that it knows them."""
        try:
            return self.has(_UNIVERSAL, self.key)
        except (AttributeError, TypeError):
            return False

    def lacks(self, operator: OpOverload) -> bool:
        """Whether the backend has no kernel for an operator, or only one that computes on the CPU.

        Composite operators, which torch computes from others, are not lacking.
        """
        name = name_of(operator)
        if self.has(name, self.key):
            return _CPU_FALLBACK in self.registered(name)
        if any(self.has(name, key) for key in _COMPOSITE):
            return False
        if not self.has(name, _DELEGATING):
            return True
        packet = operator.overloadpacket
        for overload in [getattr(packet, word) for word in packet.overloads()]:
            has_out = any(argument.is_out for argument in overload._schema.arguments)  # noqa: SLF001
            if has_out and any(self.has(name_of(overload), key) for key in (self.key, _COMPOSITE[0])):
                return False
        return True

    def has(self, name: str, key: str) -> bool:
        """Whether an operator, such as `"aten::add.Tensor"`, has a kernel for a dispatch key."""
        try:
            return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))  # noqa: SLF001
        except RuntimeError:  # overloads of TorchScript that the dispatcher does not know
            return False

    def registered(self, name: str) -> str:
        """Return the line of the dispatcher's dump about the kernel of the backend; `""` if unknown."""
        dump: str = getattr(torch._C, "_dispatch_dump", lambda _: "")(name)  # noqa: SLF001
        return next((line for line in dump.splitlines() if line.startswith(f"{self.key}:")), "")


def name_of(operator: OpOverload) -> str:
    """Return the dispatcher's name of an operator: `"aten::add.Tensor"`."""
    name: str = operator.name()  # type: ignore[no-untyped-call]
    return name
