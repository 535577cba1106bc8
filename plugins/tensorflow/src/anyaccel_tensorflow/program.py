"""TensorFlowProgram: a TracedProgram in the scope of its device, under strict settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import tensorflow as tf

from anyaccel.adapter.custom_step import CustomStepProgram
from anyaccel.segment import NodeState, Segment
from anyaccel_tensorflow import runtime_config
from anyaccel_tensorflow.custom_step import CustomStep
from anyaccel_tensorflow.device_policy import StrictDevices, silent_copies
from anyaccel_tensorflow.error_translation import translate_errors
from anyaccel_tensorflow.object_location import is_first_cpu
from anyaccel_tensorflow.ops import TensorFlowOps


class TensorFlowProgram(CustomStepProgram):
    """A segment of TensorFlow and Keras models.

    From its creation until it is closed, soft placement is off and the device policy explicit, for the whole process:
    nothing falls back to the CPU, and nothing is copied between devices implicitly.

    Raises:
        SpecError: TensorFlow lacks an optimizer or loss.
        GraphError: two different models share a parameter, and one of them learns.
    """

    def __init__(self, segment: Segment, ops: TensorFlowOps) -> None:
        runtime_config.allow_memory_growth()
        self._ops_in_use = ops
        self._is_on_first_cpu = is_first_cpu(ops.home)
        self._strict_devices = StrictDevices(self)
        # on a CPU, the libraries that multiply matrices end the process where they cannot allocate memory
        self.raises_out_of_memory = all(operation.device.kind != "cpu" for operation in segment.operations)
        try:
            with self.scope(f"segment {segment.label!r}"):
                super().__init__(segment, ops)
        except BaseException:
            self._strict_devices.end()
            raise

    @contextmanager
    def scope(self, subject: str) -> Iterator[None]:
        """Run eager operations on the segment's device inside this context; errors name the subject.

        With several devices, gradients and factors of different devices meet in plain arithmetic, so TensorFlow must
        copy them; the plan lists these devices. If nothing is compiled, numbers in a model's code must be sent to its
        device.
        """
        ops = self._ops_in_use
        copies = ops.uses_several_devices or (ops.eager and not self._is_on_first_cpu)
        with tf.device(ops.home), translate_errors(subject), silent_copies() if copies else nullcontext():
            yield

    def loss_weights(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """Return weights eagerly, so numbers must be sent to the device."""
        with nullcontext() if self._is_on_first_cpu else silent_copies():
            return super().loss_weights(inputs)

    def summed_weights(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """Return summed weights eagerly, like `loss_weights`."""
        with nullcontext() if self._is_on_first_cpu else silent_copies():
            return super().summed_weights(inputs)

    @property
    def can_compile_steps(self) -> bool:
        """Whether steps can be compiled: not on several devices, so that parameters are updated where they are."""
        return super().can_compile_steps and not self._ops_in_use.uses_several_devices

    def create_custom_step(self, step: Callable[..., Any]) -> CustomStep:
        """Create the runner of `step(models, batch, optimizers)`, with the user's own models and optimizers like those
        of Keras.

        Raises:
            PhaseError: it does not take these arguments.
        """
        off = self.segment.compile == "off"
        return CustomStep(step, self.segment, self._ops_in_use, self._layout, self._state, off=off)

    def close(self) -> dict[str, NodeState]:
        """End the program; restores soft placement and the device policy."""
        try:
            return super().close()
        finally:
            self._strict_devices.end()
