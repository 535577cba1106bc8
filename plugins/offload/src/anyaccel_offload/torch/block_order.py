"""The order of the blocks of a node's model: as it computes them, else as they are registered."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from anyaccel.adapter.call_layout import CallLayout
from anyaccel.errors import AnyaccelError, ConfigError
from anyaccel_offload.planner import OffloadRequest
from anyaccel_offload.torch.execution_order import execution_order
from anyaccel_offload.torch.offload import offload_of
from anyaccel_torch.error_translation import first_line


class BlockOrder:
    """Puts names of blocks in the order in which a model computes them.

    Args:
        model: of a node.
        request: that says how it is called.

    Attributes:
        notes: why the order is that of registration, where it is.
    """

    def __init__(self, model: nn.Module, request: OffloadRequest) -> None:
        self._model, self._request = model, request
        self.notes: tuple[str, ...] = ()
        self._known: dict[tuple[str, ...], list[str]] = {}

    def __call__(self, names: Sequence[str]) -> list[str]:
        """The names in order.

        Raises:
            ConfigError: the model cannot be called as the request says, and it requires the order.
        """
        key = tuple(names)
        if key not in self._known:
            self._known[key] = self._ordered(names)
        return self._known[key]

    def _ordered(self, names: Sequence[str]) -> list[str]:
        current = offload_of(self._model)
        if current is not None:  # its calls copy weights, and it is not to be called for a plan
            known = [block.name for block in current.blocks]
            return [*(name for name in known if name in names), *(name for name in names if name not in known)]
        if not self._request.inputs:
            return list(names)
        inputs = [torch.empty(it.shape, dtype=getattr(torch, it.dtype), device="meta") for it in self._request.inputs]
        try:
            args, kwargs = CallLayout(self._request.arguments).bind(inputs, torch.movedim)
            return execution_order(self._model, names, args, kwargs)
        except Exception as error:  # of the user's code, which may do anything with tensors that have no values
            said = error.problem if isinstance(error, AnyaccelError) else first_line(error)
            problem = f"{type(self._model).__name__} cannot be called without values: {said}"
            if self._request.requires_order:
                raise ConfigError(problem, hint="give the inputs of a call that it takes, or leave them out") from error
            self.notes = (f"blocks are in the order in which they are registered, as {problem}",)
            return list(names)
