"""The execution order of a model's blocks, recorded from a call without values, or the order of registration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from anyaccel.adapter.call_layout import CallLayout
from anyaccel.errors import AnyaccelError, ConfigError
from anyaccel_offload.planner import OffloadRequest
from anyaccel_offload.torch.offload import offload_of
from anyaccel_torch.error_translation import first_line
from anyaccel_torch.forward_call import force_eager
from anyaccel_torch.replaced_tensors import call_with, tensor_names, tensor_places
from anyaccel_torch.state_guard import TrialCalls


class BlockOrder:
    """Sorts names of blocks into the execution order of a model.

    Args:
        model: Model of a node.
        request: Request with the inputs of a call.

    Attributes:
        notes: Reasons if the order of registration is used.
    """

    def __init__(self, model: nn.Module, request: OffloadRequest) -> None:
        self._model, self._request = model, request
        self.notes: tuple[str, ...] = ()
        self._known: dict[tuple[str, ...], list[str]] = {}

    def __call__(self, names: Sequence[str]) -> list[str]:
        """Return the names in order.

        Raises:
            ConfigError: The model cannot be called with the request's inputs, and the request requires the order.
        """
        key = tuple(names)
        if key not in self._known:
            self._known[key] = self._ordered(names)
        return self._known[key]

    def _ordered(self, names: Sequence[str]) -> list[str]:
        current = offload_of(self._model)
        if current is not None:  # its calls copy weights, so it must not be called for a plan
            block_names = [block.name for block in current.blocks]
            return [
                *(name for name in block_names if name in names),
                *(name for name in names if name not in block_names),
            ]
        if not self._request.inputs:
            return list(names)
        inputs = [torch.empty(it.shape, dtype=getattr(torch, it.dtype), device="meta") for it in self._request.inputs]
        try:
            args, kwargs = CallLayout(self._request.arguments).bind(inputs, torch.movedim)
            return execution_order(self._model, names, args, kwargs)
        except Exception as error:  # error of the user's code, which may do anything with tensors without values
            said = error.problem if isinstance(error, AnyaccelError) else first_line(error)
            problem = f"{type(self._model).__name__} cannot be called without values: {said}"
            if self._request.requires_order:
                raise ConfigError(problem, hint="pass valid inputs of a call, or leave them out") from error
            self.notes = (f"blocks are in registration order, because {problem}",)
            return list(names)


def execution_order(
    model: nn.Module, blocks: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[str]:
    """Return the blocks in the order of their first use in a call; unused blocks come last.

    The model is called on torch's `meta` device in evaluation mode. Nothing is computed, no file is read, and the model
    is restored afterwards.

    Raises:
        Exception: Any error of the model's forward for such inputs.
    """
    order: dict[str, None] = {}
    on_meta = torch.utils._pytree.tree_map(_on_meta, (tuple(args), dict(kwargs)))  # noqa: SLF001  (torch's, undocumented)
    names = tensor_names(model)
    calls = TrialCalls(model, torch.device("cpu"))
    with calls.evaluating(), torch.no_grad(), force_eager(), _recording(model, blocks, order), torch.device("meta"):
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
    """Return tensors without values like those of a model, by first name."""
    like = tensor_places(model)
    return {
        name: torch.empty(tuple(like[name].shape), dtype=like[name].dtype, device="meta") for name in names.values()
    }


def _on_meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, Tensor) else value
