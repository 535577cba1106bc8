"""TensorFlowProgram: TracedProgram in the scope of its device, under strict settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import tensorflow as tf

from anyaccel.adapter import TracedProgram
from anyaccel.segment import NodeState, Segment
from anyaccel_tensorflow import runtime_config
from anyaccel_tensorflow.device_policy import Hold, lenient
from anyaccel_tensorflow.error_translation import telling
from anyaccel_tensorflow.ops import TensorFlowOps
from anyaccel_tensorflow.tree_utils import parsed


class TensorFlowProgram(TracedProgram):
    """A segment of TensorFlow and Keras models.

    From its making until its release, soft placement is off and the device policy explicit, for the whole process:
    nothing falls back to the CPU, and nothing is copied between devices unasked.

    Raises:
        SpecError: an optimizer or loss that TensorFlow lacks.
        GraphError: two different models, one of which learns, share a parameter.
    """

    def __init__(self, segment: Segment, ops: TensorFlowOps) -> None:
        runtime_config.begin()
        self._home = ops.home
        self._several = ops.several
        self._far = parsed(ops.home) != ("CPU", 0)
        self._begun = ops
        self._hold = Hold(self)
        try:
            with self._there(f"segment {segment.label!r}"):
                super().__init__(segment, ops)
        except BaseException:
            self._hold.end()
            raise

    @contextmanager
    def _there(self, what: str) -> Iterator[None]:
        """Eager operations land on the segment's device.

        Of several devices, gradients and factors of different ones meet in plain arithmetic, for which TensorFlow has
        to copy them: as the segment's plan lists these devices, that is no surprise. Nor is it that numbers in a
        model's code are sent to its device, where nothing is compiled.
        """
        easy = self._several or (self._far and self._begun.eager)
        with tf.device(self._home), telling(what), lenient() if easy else nullcontext():
            yield

    @property
    def can_compile_steps(self) -> bool:
        """On several devices steps are taken one by one, so that parameters are updated where they are."""
        return super().can_compile_steps and not self._several

    def seed(self, key: int) -> None:
        """As of `TracedProgram`."""
        with self._there("a seed"):
            super().seed(key)

    # -- computing -------------------------------------------------------------------------------------------------

    def forward(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]]]:
        """As of `TracedProgram`."""
        with self._there(f"a batch through segment {self.segment.label!r}"):
            return super().forward(inputs)

    def forward_pullback(
        self, inputs: Sequence[Any], scale: Mapping[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]], Callable[[Sequence[Any]], tuple[Any, ...]]]:
        """As of `TracedProgram`."""
        what = f"a batch through segment {self.segment.label!r}"
        with self._there(what):
            outputs, losses, pull = super().forward_pullback(inputs, scale)

        def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
            with self._there(f"the way back of {what}"):
                return pull(cotangents)

        return outputs, losses, pullback

    def train_steps(
        self,
        columns: Sequence[Any],
        orders: Sequence[Any],
        start: int,
        n_steps: int,
        batch_size: int,
        n_microbatches: int = 1,
    ) -> Any:
        """As of `TracedProgram`."""
        with self._there(f"steps of segment {self.segment.label!r}"):
            return super().train_steps(columns, orders, start, n_steps, batch_size, n_microbatches)

    def compile(self, columns: Sequence[Any], orders: Sequence[Any], batch_size: int, n_microbatches: int = 1) -> None:
        """As of `TracedProgram`; by XLA, or without it where XLA lacks an operation."""
        with self._there(f"steps of segment {self.segment.label!r}"):
            super().compile(columns, orders, batch_size, n_microbatches)

    def grad_stats(self) -> dict[str, tuple[Any, Any]]:
        """As of `TracedProgram`."""
        with self._there("figures of gradients"):
            return super().grad_stats()

    def clip_factor(self, limit: float, squares: Sequence[Any]) -> Any:
        """As of `TracedProgram`."""
        with self._there("a factor for gradients"):
            return super().clip_factor(limit, squares)

    def optimizer_step(self, scale: Mapping[str, Any] | None = None) -> None:
        """As of `TracedProgram`."""
        with self._there(f"an update of segment {self.segment.label!r}"):
            super().optimizer_step(scale)

    # -- state -----------------------------------------------------------------------------------------------------

    def sync_models(self) -> None:
        """As of `TracedProgram`."""
        with self._there("the state of models"):
            super().sync_models()

    def close(self) -> dict[str, NodeState]:
        """As of `TracedProgram`; soft placement and the device policy are as before then."""
        try:
            return super().close()
        finally:
            self._hold.end()
