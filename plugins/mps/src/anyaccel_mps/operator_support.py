"""Which of torch's operators the Apple GPU computes: what torch's dispatcher has registered in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch._ops import OpOverload

_COMPOSITE = ("CompositeExplicitAutograd", "CompositeImplicitAutograd")
_DELEGATING = "CompositeExplicitAutogradNonFunctional"  # calls the form that writes into a given tensor
_EVERYWHERE = "aten::add.Tensor"  # no backend is without it
_STAND_IN = "MPSFallback"  # the source file in which torch registers operators for MPS that it computes on the CPU


class Operators:
    """Asks torch's dispatcher, whose Python names are torch's own and may change: where they do, nothing is known.

    `has` and `registered` are the two questions; a subclass may answer them from elsewhere.

    Args:
        key: the dispatcher's name of the backend.
    """

    def __init__(self, key: str = "MPS") -> None:
        self.key = key

    def is_known(self) -> bool:
        """Whether this torch was built with kernels for the backend: without, it can say nothing of them."""
        try:
            return self.has(_EVERYWHERE, self.key)
        except (AttributeError, TypeError):
            return False

    def lacks(self, operator: OpOverload) -> bool:
        """Whether the backend has no kernel for an operator, or one that computes on the CPU.

        An operator that torch puts together from others counts as there.
        """
        name = name_of(operator)
        if self.has(name, self.key):
            return _STAND_IN in self.registered(name)
        if any(self.has(name, key) for key in _COMPOSITE):
            return False
        return not (self.has(name, _DELEGATING) and any(map(self._writes, _writing(operator))))

    def has(self, name: str, key: str) -> bool:
        """Whether an operator, such as `"aten::add.Tensor"`, has a kernel of its own for a dispatch key."""
        try:
            return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))  # noqa: SLF001
        except RuntimeError:  # TorchScript has forms that the dispatcher does not know
            return False

    def registered(self, name: str) -> str:
        """The line of the dispatcher's record that says where the backend's kernel comes from; `""` if there is none.

        A torch that gives no such record says nothing either.
        """
        record: str = getattr(torch._C, "_dispatch_dump", lambda _: "")(name)  # noqa: SLF001
        return next((line for line in record.splitlines() if line.startswith(f"{self.key}:")), "")

    def _writes(self, name: str) -> bool:
        return self.has(name, self.key) or self.has(name, _COMPOSITE[0])


def name_of(operator: OpOverload) -> str:
    """As the dispatcher writes it: `"aten::add.Tensor"`."""
    name: str = operator.name()  # type: ignore[no-untyped-call]
    return name


def _writing(operator: OpOverload) -> list[str]:
    """The forms of an operator that write into a tensor given as keyword."""
    packet = operator.overloadpacket
    forms = [getattr(packet, overload) for overload in packet.overloads()]
    return [name_of(form) for form in forms if any(each.is_out for each in form._schema.arguments)]  # noqa: SLF001
