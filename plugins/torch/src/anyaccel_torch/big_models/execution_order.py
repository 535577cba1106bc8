"""The order in which the blocks of a model compute, recorded from a call without values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel_torch.big_models.model_blocks import places
from anyaccel_torch.forward_call import force_eager
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
    as_before = evaluating(model, [torch.device("cpu")])
    with as_before, torch.no_grad(), force_eager(), _recording(model, blocks, order), torch.device("meta"):
        torch.func.functional_call(model, _state(model), *on_meta)
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


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Tensors without values in place of a model's, each tied one by one of its names."""
    tensors = {id(place.tensor): place for place in places(model)}.values()
    return {
        place.name: torch.empty(tuple(place.tensor.shape), dtype=place.tensor.dtype, device="meta") for place in tensors
    }


def _on_meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, Tensor) else value
