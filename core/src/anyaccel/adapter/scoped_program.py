"""ScopedProgram: a TracedProgram that computes inside a context of its framework."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from anyaccel.adapter.traced_program import Losses, TracedProgram
from anyaccel.segment import NodeState


class ScopedProgram(TracedProgram):
    """A TracedProgram that runs its methods inside `scope`: on its device, for example, or with translated errors.

    The computations of `__init__` do not run inside it.
    """

    @abstractmethod
    def scope(self, subject: str) -> AbstractContextManager[None]:
        """Return the context of one call.

        Args:
            subject: The computation, for messages, such as `"a batch through segment 'net'"`.
        """

    def seed(self, key: int) -> None:
        with self.scope("a seed"):
            super().seed(key)

    def forward(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], Losses]:
        with self.scope(f"a batch through segment {self.segment.label!r}"):
            return super().forward(inputs)

    def forward_pullback(
        self, inputs: Sequence[Any], scale: Mapping[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], Losses, Callable[[Sequence[Any]], tuple[Any, ...]]]:
        """Compute outputs, losses and the pullback like `TracedProgram`; the pullback also runs inside `scope`."""
        subject = f"a batch through segment {self.segment.label!r}"
        with self.scope(subject):
            outputs, losses, pull_back = super().forward_pullback(inputs, scale)

        def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
            with self.scope(f"the backward pass of {subject}"):
                return pull_back(cotangents)

        return outputs, losses, pullback

    def loss_weights(self, inputs: Sequence[Any]) -> dict[str, Any]:
        with self.scope(f"the weights of losses of segment {self.segment.label!r}"):
            return super().loss_weights(inputs)

    def summed_weights(self, inputs: Sequence[Any]) -> dict[str, Any]:
        with self.scope(f"the weights of losses of segment {self.segment.label!r}"):
            return super().summed_weights(inputs)

    def train_steps(
        self,
        columns: Sequence[Any],
        orders: Sequence[Any],
        start: int,
        n_steps: int,
        batch_size: int,
        n_microbatches: int = 1,
    ) -> Any:
        with self.scope(f"steps of {batch_size} rows in segment {self.segment.label!r}"):
            return super().train_steps(columns, orders, start, n_steps, batch_size, n_microbatches)

    def compile(self, columns: Sequence[Any], orders: Sequence[Any], batch_size: int, n_microbatches: int = 1) -> None:
        with self.scope(f"steps of {batch_size} rows in segment {self.segment.label!r}"):
            super().compile(columns, orders, batch_size, n_microbatches)

    def grad_stats(self) -> dict[str, tuple[Any, Any]]:
        with self.scope("gradient statistics"):
            return super().grad_stats()

    def clip_factor(self, limit: float, squares: Sequence[Any]) -> Any:
        with self.scope("the clipping factor of gradients"):
            return super().clip_factor(limit, squares)

    def optimizer_step(self, scale: Mapping[str, Any] | None = None) -> None:
        with self.scope(f"an update of segment {self.segment.label!r}"):
            super().optimizer_step(scale)

    def sync_models(self) -> None:
        with self.scope("the state of models"):
            super().sync_models()

    def close(self) -> dict[str, NodeState]:
        with self.scope("the state of models"):
            return super().close()
