"""Wrong programs: several steps in one call."""

from __future__ import annotations

from functools import partial

import numpy as np

from anyaccel.adapter import ArrayProgram
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.numpy_backend.ops import NumpyOps, NumpyProgram
from anyaccel.numpy_backend.sim_array import put

from .faults import fault

# -- whole steps -------------------------------------------------------------------------------------------------------


@fault("multi_step", "test_train_steps_equal_single_steps[nesterov]")
class StepsDropARow(ArrayProgram):
    def train_steps(self, columns, orders, start, n_steps, batch_size):
        run = super().train_steps
        return np.concatenate([run(columns, orders, start + i * batch_size, 1, batch_size - 1) for i in range(n_steps)])


@fault("multi_step", "test_train_steps_equal_single_steps[adam, clipped]")
class StepsDoNotClip(ArrayProgram):
    def __init__(self, segment, ops):
        super().__init__(segment, ops)
        self._state.clip_factors = dict


@fault("multi_step", "test_told_steps_are_the_same_steps")
class GoesOnAfterTheLastToldStep(NumpyProgram):
    """Does all steps of the call, and tells of those before the end."""

    def train_and_notify(self, columns, orders, start, n_steps, batch_size, after_step, n_microbatches=1):
        table = self.train_steps(columns, orders, start, n_steps, batch_size, n_microbatches)
        told = next((i for i in range(n_steps) if after_step(partial(table.__getitem__, slice(i, i + 1)))), n_steps - 1)
        return table[: told + 1]


@fault("multi_step", "test_batches_may_begin_anywhere_and_have_any_size")
class BatchesOfTwoBeginARowEarly(ArrayProgram):
    """As a slice that is padded to three rows and clamped at the end."""

    def train_steps(self, columns, orders, start, n_steps, batch_size, n_microbatches=1):
        clamped = batch_size == 2 and start + batch_size == len(orders[0])
        return super().train_steps(columns, orders, start - clamped, n_steps, batch_size, n_microbatches)


class CountsTwice(ArrayProgram):
    """Enters gradients into the norm of its steps as often as their parameters are used."""

    def __init__(self, segment, ops):
        super().__init__(segment, ops)
        clip_factors, models = self._state.clip_factors, [op.model for op in segment.operations]
        times = self.times_used(models)
        self._state.clip_factors = lambda: {name: factor / times**0.5 for name, factor in clip_factors().items()}


@fault("multi_step", "test_clipped_steps_count_shared_parameters_once[model]")
class StepsCountSharedModelsTwice(CountsTwice):
    def times_used(self, models):
        return len(models) / len(set(map(id, models)))


@fault("multi_step", "test_clipped_steps_count_shared_parameters_once[tied_model]")
class StepsCountTiedParametersTwice(CountsTwice):
    def times_used(self, models):
        layers = [id(layer) for layer in getattr(models[0], "layers", ())]
        return len(layers) / len(set(layers)) if layers else 1


@fault("multi_step", "test_train_steps_continue_from_single_steps")
class EvaluatesWhatSingleStepsLearnt(ArrayProgram):
    """Evaluation does not see what `train_steps` changed."""

    stale = None

    def train_steps(self, columns, orders, start, n_steps, batch_size, n_microbatches=1):
        self.stale = self.snapshot()
        return super().train_steps(columns, orders, start, n_steps, batch_size, n_microbatches)

    def forward(self, inputs):
        current = self.snapshot()
        if self.stale is not None:
            self.restore(self.stale)
        result = super().forward(inputs)
        self.restore(current)
        return result


@fault("multi_step", "test_each_column_has_its_own_order")
class OneOrderForAllColumns(ArrayProgram):
    def train_steps(self, columns, orders, start, n_steps, batch_size):
        return super().train_steps(columns, orders[:1] * len(orders), start, n_steps, batch_size)


class SwitchedOps(NumpyOps):
    """Drops buffers while `off` is set."""

    off = False

    def vjp(self, *args):
        applied = super().vjp(*args)
        return applied._replace(buffers=None) if self.off else applied


class StepsWithoutBuffers(ArrayProgram):
    """`train_steps` changes no buffers."""

    def __init__(self, segment, ops):
        super().__init__(segment, ops)
        self.switch = ops

    def train_steps(self, columns, orders, start, n_steps, batch_size):
        self.switch.off = True
        result = super().train_steps(columns, orders, start, n_steps, batch_size)
        self.switch.off = False
        return result


@fault("multi_step", "test_buffers_change_as_in_single_steps")
class StepsKeepBuffers(NumpyBackend):
    def build(self, segment):
        return StepsWithoutBuffers(segment, SwitchedOps())


class ReadsOrdersAsWide(ArrayProgram):
    """Reads int32 orders as int64."""

    def train_steps(self, columns, orders, start, n_steps, batch_size):
        return super().train_steps(columns, [order.view("int64") for order in orders], start, n_steps, batch_size)


@fault("multi_step", "test_train_steps_equal_single_steps[nesterov]")
class StepsTakeWideOrdersOnly(NumpyBackend):
    index_dtype = "int32"

    def build(self, segment):
        return ReadsOrdersAsWide(segment, NumpyOps())


@fault("multi_step", "test_losses_are_a_matrix_on_the_device")
class LossesAreTransposed(ArrayProgram):
    def train_steps(self, columns, orders, start, n_steps, batch_size):
        result = super().train_steps(columns, orders, start, n_steps, batch_size)
        return result if len(self.segment.losses) == 1 else result.T


@fault("multi_step", "test_one_call_equals_two_calls_of_half[random_model]")
class CallsDrawTheSame(ArrayProgram):
    key = 0

    def seed(self, key):
        self.key = key
        super().seed(key)

    def train_steps(self, columns, orders, start, n_steps, batch_size):
        super().seed(self.key)
        return super().train_steps(columns, orders, start, n_steps, batch_size)


@fault("multi_step", "test_steps_follow_the_seed")
class StepsHaveTheirOwnSeed(ArrayProgram):
    fresh = True

    def seed(self, key):
        self.fresh = True
        super().seed(key)

    def train_steps(self, columns, orders, start, n_steps, batch_size):
        if self.fresh:
            super().seed(0)
        self.fresh = False
        return super().train_steps(columns, orders, start, n_steps, batch_size)


@fault("multi_step", "test_batches_may_begin_anywhere_and_have_any_size")
class StepsCountBatches(ArrayProgram):
    def train_steps(self, columns, orders, start, n_steps, batch_size):
        return super().train_steps(columns, orders, start // batch_size * batch_size, n_steps, batch_size)


@fault("multi_step", "test_train_steps_continue_from_single_steps")
class StepsHaveTheirOwnState(ArrayProgram):
    def __init__(self, segment, ops):
        super().__init__(segment, ops)
        self.inner = ArrayProgram(segment, ops)

    def train_steps(self, columns, orders, start, n_steps, batch_size):
        return self.inner.train_steps(columns, orders, start, n_steps, batch_size)


@fault("multi_step", "test_restore_undoes_train_steps")
class StepsAreNotRestored(ArrayProgram):
    stepped = False

    def train_steps(self, columns, orders, start, n_steps, batch_size):
        self.stepped = True
        return super().train_steps(columns, orders, start, n_steps, batch_size)

    def restore(self, snapshot):
        if not self.stepped:
            super().restore(snapshot)


@fault("multi_step", "test_train_steps_equal_single_steps[adamw]")
class StepsIgnoreTheOrder(ArrayProgram):
    def train_steps(self, columns, orders, start, n_steps, batch_size):
        plain = [put(np.arange(len(np.asarray(order))), order.on) for order in orders]
        return super().train_steps(columns, plain, start, n_steps, batch_size)
