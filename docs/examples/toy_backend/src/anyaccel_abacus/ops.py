"""What the adapter asks of abacus, so that it can train with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import abacus

from anyaccel import Device, Exchange
from anyaccel.adapter import ArrayOps, VjpResult
from anyaccel_abacus.placement import AbacusPlacement


class AbacusOps(ArrayOps):
    """Linear as a function of its weights."""

    xp = abacus

    def __init__(self, backend: Any) -> None:
        self._placement: AbacusPlacement = backend
        self._exchange: Exchange = backend

    def parameters(self, model: Any) -> Mapping[str, Any]:
        """The weights."""
        return model.weights  # type: ignore[no-any-return]

    def buffers(self, model: Any) -> Mapping[str, Any]:
        """A Linear has none."""
        return {}

    def write(self, model: Any, parameters: Mapping[str, Any], buffers: Mapping[str, Any]) -> None:
        """Give the user's model the result."""
        model.weights = dict(parameters)

    def vjp(
        self,
        model: Any,
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
        inputs: tuple[Any, ...],
        train: bool,
        key: int,
    ) -> VjpResult:
        """abacus's own differentiation."""
        y, back = abacus.vjp(parameters, *inputs)

        def pullback(cotangents: tuple[Any, ...]) -> tuple[Mapping[str, Any], tuple[Any, ...]]:
            gradients, cotangent = back(*cotangents)
            return gradients, (cotangent,)

        return VjpResult((y,), pullback)

    def move(self, array: Any, device: Device) -> Any:
        """As the backend's."""
        return self._placement.move(array, device)

    def gather_rows(self, column: Any, start: int, stop: int, order: Any) -> Any:
        """As the backend's."""
        return self._exchange.gather_rows(column, start, stop, order)

    def arange(self, count: int, like: Any) -> Any:
        """At the place of `like`."""
        with abacus.at(like.place):
            return abacus.arange(count)
