"""Wrong programs: micro-batches, compiled steps and compile estimates."""

from __future__ import annotations

from anyaccel.adapter import ArrayProgram
from anyaccel.backend import CompileEstimate
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.precision import ComputesPrecision

from .faults import fault
from .multi_step import SwitchedOps

# -- micro-batches -----------------------------------------------------------------------------------------------------


@fault("multi_step", "test_microbatched_steps_equal_whole_steps[sgd]")
class MicroBatchesAreSummed(ArrayProgram):
    parts = 1

    def train_steps(self, columns, orders, start, n_steps, batch_size, n_microbatches=1):
        self.parts = n_microbatches
        return super().train_steps(columns, orders, start, n_steps, batch_size, n_microbatches)

    def _step_unless_skipped(self, means):
        self._state.map_gradients(lambda gradient: gradient * self.parts)
        super()._step_unless_skipped(means)


@fault("multi_step", "test_microbatched_steps_equal_whole_steps[adam, clipped]")
class MicroBatchesAreSteps(ArrayProgram):
    def train_steps(self, columns, orders, start, n_steps, batch_size, n_microbatches=1):
        result = super().train_steps(columns, orders, start, n_steps * n_microbatches, batch_size // n_microbatches)
        return result.reshape(n_steps, n_microbatches, -1).mean(axis=1)


class BuffersOfTheFirstMicroBatchOnly(ArrayProgram):
    """Buffers change with the first micro-batch only."""

    parts = 1

    def __init__(self, segment, ops):
        super().__init__(segment, ops)
        self.switch = ops

    def train_steps(self, columns, orders, start, n_steps, batch_size, n_microbatches=1):
        self.parts = n_microbatches
        result = super().train_steps(columns, orders, start, n_steps, batch_size, n_microbatches)
        self.parts = 1
        return result

    def forward_pullback(self, inputs, scale=None):
        result = super().forward_pullback(inputs, scale)
        self.switch.off = self.parts > 1
        return result

    def optimizer_step(self, scale=None):
        self.switch.off = False
        super().optimizer_step(scale)


@fault("multi_step", "test_buffers_are_carried_from_micro_batch_to_micro_batch")
class BuffersOfOneMicroBatch(NumpyBackend):
    def build(self, segment):
        return BuffersOfTheFirstMicroBatchOnly(segment, SwitchedOps())


@fault("multi_step", "test_each_micro_batch_draws_its_own_random_numbers")
class MicroBatchesDrawTheSame(ArrayProgram):
    """Each micro-batch draws the numbers of the first."""

    first = None

    def train_steps(self, columns, orders, start, n_steps, batch_size, n_microbatches=1):
        self.first = [] if n_microbatches > 1 else None
        return super().train_steps(columns, orders, start, n_steps, batch_size, n_microbatches)

    def forward_pullback(self, inputs, scale=None):
        if self.first is not None:
            self.first.append(self._draws)
            self._draws = self.first[0]
        return super().forward_pullback(inputs, scale)

    def optimizer_step(self, scale=None):
        super().optimizer_step(scale)
        self.first = None if self.first is None else []


# -- compiling ---------------------------------------------------------------------------------------------------------


@fault("multi_step", "test_compiled_steps_equal_eager_steps")
class CompilingIsAStep(ArrayProgram):
    def compile(self, columns, orders, batch_size, n_microbatches=1):
        self.train_steps(columns, orders, 0, 1, batch_size)


@fault("multi_step", "test_compiled_steps_equal_eager_steps")
class CompiledStepsLackTheLastBatch(ArrayProgram):
    batch = None

    def compile(self, columns, orders, batch_size, n_microbatches=1):
        self.batch = batch_size

    def train_steps(self, columns, orders, start, n_steps, batch_size, n_microbatches=1):
        before = self.snapshot()
        result = super().train_steps(columns, orders, start, n_steps, batch_size, n_microbatches)
        if self.batch not in (None, batch_size):
            self.restore(before)
        return result


class CompiledProgramWithoutBuffers(ArrayProgram):
    """Compiled steps change no buffers."""

    def __init__(self, segment, ops):
        super().__init__(segment, ops)
        self.switch = ops

    def compile(self, columns, orders, batch_size, n_microbatches=1):
        self.switch.off = True


@fault("multi_step", "test_compiled_microbatched_steps_carry_buffers")
class CompiledStepsKeepBuffers(NumpyBackend):
    capabilities = {kind: make for kind, make in NumpyBackend.capabilities.items() if kind is not ComputesPrecision}

    def build(self, segment):
        return CompiledProgramWithoutBuffers(segment, SwitchedOps())


@fault("multi_step", "test_compile_off_is_never_compiled")
class EstimatesAlthoughOff(ArrayProgram):
    def estimate_compile(self, max_steps):
        return CompileEstimate(1.0, 0.5)
