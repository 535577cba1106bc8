"""Python values that captured steps have read: a CUDA graph has no guards, as torch's compiler has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from anyaccel.adapter import attributes_key, values_of
from anyaccel.adapter.python_values import Values
from anyaccel.segment import Segment

_LIBRARIES = frozenset({"torch", "torchvision", "torchaudio", "keras", "triton", "anyaccel_torch"})
_BOOKKEEPING = frozenset(vars(nn.Module()))


def watched_values(segment: Segment, modules: Iterable[nn.Module]) -> Values:
    """Return the plain attributes and the code of modules, and the values read by the losses of a segment."""

    def is_part(value: Any) -> bool:
        return isinstance(value, (nn.Module, nn.Parameter))

    pairs: list[tuple[str, Any]] = []
    for module in modules:
        pairs += attributes_key(module.named_modules(), lambda _: _BOOKKEEPING, is_part, _LIBRARIES)
    for term in segment.losses:
        read = values_of("loss", (term.loss.own, term.loss.kwargs), _LIBRARIES)
        pairs += [(f"{path} of the loss {term.label!r}", key) for path, key in read]
    return tuple(pairs)
