"""TensorFlowProgram: a TracedProgram in the scope of its device, under strict settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import tensorflow as tf

from anyaccel.adapter import TracedProgram
from anyaccel.segment import NodeState, Segment
from anyaccel_tensorflow import runtime_config
from anyaccel_tensorflow.device_policy import StrictDevices, silent_copies
from anyaccel_tensorflow.error_translation import translate_errors
from anyaccel_tensorflow.object_location import is_first_cpu
from anyaccel_tensorflow.ops import TensorFlowOps


class TensorFlowProgram(TracedProgram):
    """A segment of TensorFlow and Keras models.

    From its creation until it is closed, soft placement is off and the device policy explicit, for the whole process:
    nothing falls back to the CPU, and nothing is copied between devices unasked.

    Raises:
        SpecError: an optimizer or loss that TensorFlow lacks.
        GraphError: two different models, one of which learns, share a parameter.
    """

    def __init__(self, segment: Segment, ops: TensorFlowOps) -> None:
        runtime_config.allow_memory_growth()
        self._ops_in_use = ops
        self._is_on_first_cpu = is_first_cpu(ops.home)
        self._strict_devices = StrictDevices(self)
        # on a CPU, the libraries that multiply matrices end the process where they cannot allocate memory
        self.raises_out_of_memory = all(operation.device.kind != "cpu" for operation in segment.operations)
        try:
            with self._on_device(f"segment {segment.label!r}"):
                super().__init__(segment, ops)
        except BaseException:
            self._strict_devices.end()
            raise

    @contextmanager
    def _on_device(self, subject: str) -> Iterator[None]:
        """Eager operations land on the segment's device; errors name the subject.

        With several devices, gradients and factors of different devices meet in plain arithmetic, for which TensorFlow
        has to copy them; the plan lists these devices. Where nothing is compiled, numbers in a model's code have to be
        sent to its device.
        """
        ops = self._ops_in_use
        copies = ops.uses_several_devices or (ops.eager and not self._is_on_first_cpu)
        with tf.device(ops.home), translate_errors(subject), silent_copies() if copies else nullcontext():
            yield

    @property
    def can_compile_steps(self) -> bool:
        """Steps on several devices are not compiled, so that parameters are updated where they are."""
        return super().can_compile_steps and not self._ops_in_use.uses_several_devices

    def seed(self, key: int) -> None:
        """As in `TracedProgram`."""
        with self._on_device("a seed"):
            super().seed(key)

    # -- computing -------------------------------------------------------------------------------------------------

    def forward(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]]]:
        """As in `TracedProgram`."""
        with self._on_device(f"a batch through segment {self.segment.label!r}"):
            return super().forward(inputs)

    def forward_pullback(
        self, inputs: Sequence[Any], scale: Mapping[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, tuple[Any, Any]], Callable[[Sequence[Any]], tuple[Any, ...]]]:
        """As in `TracedProgram`."""
        subject = f"a batch through segment {self.segment.label!r}"
        with self._on_device(subject):
            outputs, losses, pull_back = super().forward_pullback(inputs, scale)

        def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
            with self._on_device(f"the backward pass of {subject}"):
                return pull_back(cotangents)

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
        """As in `TracedProgram`."""
        with self._on_device(f"steps of segment {self.segment.label!r}"):
            return super().train_steps(columns, orders, start, n_steps, batch_size, n_microbatches)

    def compile(self, columns: Sequence[Any], orders: Sequence[Any], batch_size: int, n_microbatches: int = 1) -> None:
        """As in `TracedProgram`; by XLA, or without it where XLA lacks an operation."""
        with self._on_device(f"steps of segment {self.segment.label!r}"):
            super().compile(columns, orders, batch_size, n_microbatches)

    def grad_stats(self) -> dict[str, tuple[Any, Any]]:
        """As in `TracedProgram`."""
        with self._on_device("gradient statistics"):
            return super().grad_stats()

    def clip_factor(self, limit: float, squares: Sequence[Any]) -> Any:
        """As in `TracedProgram`."""
        with self._on_device("the clipping factor of gradients"):
            return super().clip_factor(limit, squares)

    def optimizer_step(self, scale: Mapping[str, Any] | None = None) -> None:
        """As in `TracedProgram`."""
        with self._on_device(f"an update of segment {self.segment.label!r}"):
            super().optimizer_step(scale)

    # -- state -----------------------------------------------------------------------------------------------------

    def sync_models(self) -> None:
        """As in `TracedProgram`."""
        with self._on_device("the state of models"):
            super().sync_models()

    def close(self) -> dict[str, NodeState]:
        """As in `TracedProgram`; restores soft placement and the device policy."""
        try:
            with self._on_device("the state of models"):
                return super().close()
        finally:
            self._strict_devices.end()
