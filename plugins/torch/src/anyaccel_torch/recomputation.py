"""Parts of a module whose values are not kept for the backward pass, but computed again there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

Call = Callable[..., Any]
_CONTAINERS = (nn.ModuleList, nn.Sequential)


class RecomputedPart:
    """A part of a module that is computed again: a block, or some layers of a sequence.

    Attributes:
        name: Name within the module.
        modules: The block; or the layers, in sequence.
    """

    def __init__(self, name: str, modules: Sequence[nn.Module]) -> None:
        self.name, self.modules = name, tuple(modules)


def parts_to_recompute(model: Any, remat: str) -> dict[nn.Module, list[RecomputedPart]]:
    """Return the parts that `remat` names, by the module whose forward runs them.

    `"blocks"` are the members of the outermost lists and sequences of layers. A sequence whose members have no layers
    inside is split into about as many parts as each has layers. Another text is a pattern of names of modules.
    """
    if not isinstance(model, nn.Module):
        return {}
    if remat == "blocks":
        return dict(_blocks(model, ""))
    matching = [(name, part) for name, part in model.named_modules() if name and fnmatchcase(name, remat)]
    outermost = [
        (name, part)
        for name, part in matching
        if not any(name.startswith(f"{other}.") for other, _ in matching) and not isinstance(part, nn.ModuleList)
    ]
    return {part: [RecomputedPart(name, [part])] for name, part in outermost}


def _blocks(module: nn.Module, path: str) -> Iterator[tuple[nn.Module, list[RecomputedPart]]]:
    children = list(module.named_children())
    if not isinstance(module, _CONTAINERS):
        for name, child in children:
            yield from _blocks(child, f"{path}.{name}".lstrip("."))
        return
    composite = [(name, child) for name, child in children if list(child.children())]
    if isinstance(module, nn.ModuleList) or composite:
        for name, child in composite or children:
            label = f"{path}.{name}".lstrip(".")
            yield child, [RecomputedPart(label, [child])]
    elif len(children) >= 4:
        size = max(2, isqrt(len(children)))
        cuts = range(0, len(children), size)
        groups = [children[start : start + size] for start in cuts]
        labels = [f"{path}.{group[0][0]}-{group[-1][0]}".lstrip(".") for group in groups]
        yield (
            module,
            [RecomputedPart(label, [child for _, child in group]) for label, group in zip(labels, groups, strict=True)],
        )


class ReplacedForwards:
    """The forward of modules, replaced by one whose parts are computed again in the backward pass."""

    def __init__(self, parts: Mapping[nn.Module, Sequence[RecomputedPart]]) -> None:
        self._forwards = {owner: _forward(owner, replacement) for owner, replacement in parts.items()}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inside, the modules have them; then those of before."""
        before = {owner: vars(owner).get("forward") for owner in self._forwards}
        try:
            for owner, forward in self._forwards.items():
                vars(owner)["forward"] = forward
            yield
        finally:
            for owner, own in before.items():
                if own is None:
                    vars(owner).pop("forward", None)
                else:
                    vars(owner)["forward"] = own


def bind_recomputation(call: Call, forwards: ReplacedForwards) -> Call:
    """Return `call` with these forwards of its modules; if it is compiled, they wrap the compiled function."""

    def run(*inputs: Tensor) -> Any:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return call(*inputs)
        with forwards.active():
            return call(*inputs)

    return run


def _forward(owner: nn.Module, parts: Sequence[RecomputedPart]) -> Call:
    if len(parts) == 1 and parts[0].modules == (owner,):
        return partial(_checkpointed, owner.forward, parts[0].modules)

    def forward(x: Any) -> Any:
        for part in parts:
            x = _checkpointed(partial(_in_sequence, part.modules), part.modules, x)
        return x

    return forward


def _in_sequence(modules: Sequence[nn.Module], x: Any) -> Any:
    for module in modules:
        x = module(x)
    return x


def recomputed(call: Call, modules: Sequence[nn.Module]) -> Call:
    """Return `call` so that it keeps only its inputs; `modules` are those that it runs."""
    return partial(_checkpointed, call, modules)


def _checkpointed(function: Call, modules: Sequence[nn.Module], *args: Any, **kwargs: Any) -> Any:
    """Run `torch.utils.checkpoint` with buffers that change once; recomputation begins with the previous ones."""
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    if torch.compiler.is_compiling():  # buffers are values there, and nothing changes them
        return checkpoint(function, *args, use_reentrant=False, context_fn=_keep_random_numbers, **kwargs)
    calls: list[list[_Buffer]] = []

    def run(*args: Any, **kwargs: Any) -> Any:
        if calls:
            with _as_before(calls[0]):
                return function(*args, **kwargs)
        buffers: list[_Buffer] = []
        for inner in dict.fromkeys(inner for module in modules for inner in module.modules()):
            buffers += [_Buffer(inner, key) for key, _ in inner.named_buffers(recurse=False)]
        result = function(*args, **kwargs)
        for buffer in buffers:
            buffer.keep_if_changed()
        calls.append(buffers)
        return result

    return checkpoint(run, *args, use_reentrant=False, **kwargs)


def _keep_random_numbers() -> Any:
    """Return the policy for compiled steps: torch recomputes operations without random numbers, and keeps the
    others.
    """
    contexts: Call = create_selective_checkpoint_contexts
    return contexts(_policy)


def _policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    draws = torch.Tag.nondeterministic_seeded in operator.tags
    return CheckpointPolicy.MUST_SAVE if draws else CheckpointPolicy.MUST_RECOMPUTE


class _Buffer:
    """A buffer of a module, and its values before a call that changed it.

    Kernels of batch normalization change theirs without torch's counting it, but do not compute with them.
    """

    def __init__(self, module: nn.Module, key: str) -> None:
        self.module, self.key = module, key
        self.tensor = getattr(module, key)
        self._version = self.tensor._version  # noqa: SLF001  (torch's count of changes in place)
        self._before: Tensor | None = self.tensor.clone()

    def keep_if_changed(self) -> None:
        """Release the values if the call, which is over, did not change them."""
        if getattr(self.module, self.key) is self.tensor and self.tensor._version == self._version:  # noqa: SLF001
            self._before = None

    def copied(self) -> Tensor:
        """Return a copy of the values before the call."""
        copy: Tensor = (getattr(self.module, self.key) if self._before is None else self._before).clone()
        return copy


@contextmanager
def _as_before(buffers: Sequence[_Buffer]) -> Iterator[None]:
    """Use copies of the previous buffers inside this context; writes to them are dropped."""
    now = [getattr(buffer.module, buffer.key) for buffer in buffers]
    copies = {id(buffer.tensor): buffer.copied() for buffer in buffers}  # of one in two places one
    try:
        for buffer in buffers:
            setattr(buffer.module, buffer.key, copies[id(buffer.tensor)])
        yield
    finally:
        for buffer, tensor in zip(buffers, now, strict=True):
            setattr(buffer.module, buffer.key, tensor)
