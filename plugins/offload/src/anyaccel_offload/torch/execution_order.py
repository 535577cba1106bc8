"""The order in which the blocks of a model compute, recorded from a call without values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel_torch.forward_call import force_eager
from anyaccel_torch.replaced_tensors import call_with, tensor_names, tensor_places
from anyaccel_torch.state_guard import evaluating


def execution_order(
    model: nn.Module, blocks: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[str]:
    """Blocks in the order in which a call reaches them first; those that it does not reach come last.

    The model is called on torch's `meta` device in evaluation mode: nothing is computed, no file is read, and it is as
    before afterwards.

    Raises:
        Exception: whatever the model's forward raises for such inputs.
    """
    order: dict[str, None] = {}
    on_meta = torch.utils._pytree.tree_map(_on_meta, (tuple(args), dict(kwargs)))  # noqa: SLF001  (torch's, undocumented)
    names = tensor_names(model)
    as_before = evaluating(model, [torch.device("cpu")])
    with as_before, torch.no_grad(), force_eager(), _recording(model, blocks, order), torch.device("meta"):
        call_with(model, _without_values(model, names), names, *on_meta[0], **on_meta[1])
    return [*order, *(name for name in blocks if name not in order)]


@contextmanager
def _recording(model: nn.Module, blocks: Sequence[str], order: dict[str, None]) -> Iterator[None]:
    def hook(name: str) -> Any:
        return lambda *_: order.setdefault(name)

    handles = [model.get_submodule(name).register_forward_pre_hook(hook(name)) for name in blocks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _without_values(model: nn.Module, names: Mapping[str, str]) -> dict[str, Tensor]:
    """Tensors without values like those of a model, by first name."""
    like = tensor_places(model)
    return {
        name: torch.empty(tuple(like[name].shape), dtype=like[name].dtype, device="meta") for name in names.values()
    }


def _on_meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, Tensor) else value
