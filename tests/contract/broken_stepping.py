"""Wrong backends: whole steps."""

from __future__ import annotations

import numpy as np
from broken import fault

from anyaccel.adapter import ArrayProgram
from anyaccel.numpy_backend import ReferenceBackend
from anyaccel.numpy_backend.ops import ReferenceOps
from anyaccel.numpy_backend.sim_array import put

# -- whole steps -------------------------------------------------------------------------------------------------------


@fault("stepping", "test_steps_are_the_steps_of_the_plain_way[sgd]")
class StepsDropARow(ArrayProgram):
    def steps(self, columns, orders, start, count, batch):
        return np.concatenate([super(StepsDropARow, self).steps(columns, orders, start + i * batch, 1, batch - 1)
                               for i in range(count)])  # fmt: skip


@fault("stepping", "test_steps_are_the_steps_of_the_plain_way[sgd, clipped]")
class StepsDoNotClip(ArrayProgram):
    stepping = False

    def steps(self, columns, orders, start, count, batch):
        self.stepping = True
        found = super().steps(columns, orders, start, count, batch)
        self.stepping = False
        return found

    def apply(self, scale=None):
        super().apply(None if self.stepping else scale)


@fault("stepping", "test_each_column_has_an_order_of_its_own")
class OneOrderForAll(ArrayProgram):
    def steps(self, columns, orders, start, count, batch):
        return super().steps(columns, orders[:1] * len(orders), start, count, batch)


class SwitchedOps(ReferenceOps):
    """Loses buffers while it is switched off."""

    off = False

    def vjp(self, *args):
        applied = super().vjp(*args)
        return applied._replace(buffers=None) if self.off else applied


class StepsWithoutBuffers(ArrayProgram):
    """Its `steps` change no buffers."""

    def __init__(self, segment, ops):
        super().__init__(segment, ops)
        self.switch = ops

    def steps(self, columns, orders, start, count, batch):
        self.switch.off = True
        found = super().steps(columns, orders, start, count, batch)
        self.switch.off = False
        return found


@fault("stepping", "test_buffers_change_as_in_the_plain_way")
class StepsKeepBuffers(ReferenceBackend):
    def build(self, segment):
        return StepsWithoutBuffers(segment, SwitchedOps())


class ReadsOrdersAsWide(ArrayProgram):
    """Takes the memory of an order for that of int64."""

    def steps(self, columns, orders, start, count, batch):
        return super().steps(columns, [order.view("int64") for order in orders], start, count, batch)


@fault("stepping", "test_steps_are_the_steps_of_the_plain_way[sgd]")
class StepsTakeWideOrdersOnly(ReferenceBackend):
    index_dtype = "int32"

    def build(self, segment):
        return ReadsOrdersAsWide(segment, ReferenceOps())


@fault("stepping", "test_losses_are_a_table_on_the_device")
class LossesAreARow(ArrayProgram):
    def steps(self, columns, orders, start, count, batch):
        found = super().steps(columns, orders, start, count, batch)
        return found if len(self.segment.losses) == 1 else found.T


@fault("stepping", "test_one_call_is_two_calls_of_half[random_model]")
class CallsDrawTheSame(ArrayProgram):
    key = 0

    def seed(self, key):
        self.key = key
        super().seed(key)

    def steps(self, columns, orders, start, count, batch):
        super().seed(self.key)
        return super().steps(columns, orders, start, count, batch)


@fault("stepping", "test_steps_follow_the_seed")
class StepsHaveTheirOwnSeed(ArrayProgram):
    fresh = True

    def seed(self, key):
        self.fresh = True
        super().seed(key)

    def steps(self, columns, orders, start, count, batch):
        if self.fresh:
            super().seed(0)
        self.fresh = False
        return super().steps(columns, orders, start, count, batch)


@fault("stepping", "test_steps_start_where_they_are_told")
class StepsCountBatches(ArrayProgram):
    def steps(self, columns, orders, start, count, batch):
        return super().steps(columns, orders, start // batch * batch, count, batch)


@fault("stepping", "test_steps_go_on_from_single_steps")
class StepsHaveTheirOwnState(ArrayProgram):
    def __init__(self, segment, ops):
        super().__init__(segment, ops)
        self.inner = ArrayProgram(segment, ops)

    def steps(self, columns, orders, start, count, batch):
        return self.inner.steps(columns, orders, start, count, batch)


@fault("stepping", "test_a_snapshot_holds_between_steps")
class StepsAreNotRestored(ArrayProgram):
    stepped = False

    def steps(self, columns, orders, start, count, batch):
        self.stepped = True
        return super().steps(columns, orders, start, count, batch)

    def restore(self, snapshot):
        if not self.stepped:
            super().restore(snapshot)


@fault("stepping", "test_steps_are_the_steps_of_the_plain_way[adam]")
class StepsIgnoreTheOrder(ArrayProgram):
    def steps(self, columns, orders, start, count, batch):
        plain = [put(np.arange(len(np.asarray(order))), order.on) for order in orders]
        return super().steps(columns, plain, start, count, batch)
