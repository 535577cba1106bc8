"""Wrong programs: optimizer steps, snapshots, optimizer states and `close`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from anyaccel.adapter import ArrayProgram
from anyaccel.numpy_backend.ops import NumpyOps
from anyaccel.numpy_backend.sim_array import bare
from anyaccel.segment import NodeState
from anyaccel.specs import Optimizer

from .faults import fault


def with_optimizers(segment, change):
    """The segment with `change` applied to every optimizer."""
    return replace(segment, groups=tuple(replace(g, optimizer=change(g.optimizer)) for g in segment.groups))


def copy_of(cls, optimizer, **settings):
    """The spec once more, of another class or with other settings."""
    config = {"lr": optimizer.lr, "schedule": optimizer.schedule, "clip_norm": optimizer.clip_norm}
    return cls(settings.pop("name", optimizer.name), **config, **{**optimizer.settings, **settings})


# -- updates -----------------------------------------------------------------------------------------------------------


class Uncorrected(Optimizer):
    """Adam whose rate undoes the bias correction of the first moment."""

    def rate(self, step):
        beta = self.settings["betas"][0] if "betas" in self.settings else 0.0
        return self.lr * self.schedule.factor(step) * (1 - beta ** (step + 1))


class Late(Optimizer):
    """Counts the steps of its schedule from one."""

    def rate(self, step):
        return self.lr * self.schedule.factor(step + 1)


@fault("compute", "test_an_optimizer_follows_its_formula[adam with betas]")
def adam_without_bias_correction(segment):
    return with_optimizers(segment, lambda o: copy_of(Uncorrected, o))


@fault("compute", "test_an_optimizer_follows_its_formula[a schedule]")
def schedule_off_by_one(segment):
    return with_optimizers(segment, lambda o: copy_of(Late, o))


@fault("compute", "test_an_optimizer_follows_its_formula[adamw with a schedule]")
def adamw_is_adam(segment):
    return with_optimizers(segment, lambda o: copy_of(Optimizer, o, name="adam") if o.name == "adamw" else o)


@fault("compute", "test_an_optimizer_follows_its_formula[nesterov]")
def nesterov_is_momentum(segment):
    return with_optimizers(segment, lambda o: copy_of(Optimizer, o, nesterov=False) if o.name == "momentum" else o)


@fault("compute", "test_an_optimizer_follows_its_formula[sgd with decay]")
def decay_is_ignored(segment):
    return with_optimizers(segment, lambda o: copy_of(Optimizer, o, weight_decay=0.0))


@fault("compute", "test_optimizer_step_scales_gradients_first[sgd with decay]")
class ClippingIsIgnored(ArrayProgram):
    """Ignores scales if weights decay; the kit's micro-batches use scales without decay."""

    def optimizer_step(self, scale=None):
        decays = any(group.optimizer.settings.get("weight_decay") for group in self.segment.groups)
        super().optimizer_step(None if decays else scale)


@fault("compute", "test_optimizer_step_does_not_clip_by_itself")
class ClipsByItself(ArrayProgram):
    def optimizer_step(self, scale=None):
        limits = {group.name: group.optimizer.clip_norm for group in self.segment.groups}
        stats = {name: float(np.asarray(pair[0])) ** 0.5 for name, pair in self.grad_stats().items()}
        clips = {name: min(1.0, limit / (stats[name] + 1e-6)) for name, limit in limits.items() if limit}
        super().optimizer_step(clips if scale is None else scale)


@fault("compute", "test_optimizer_step_clears_the_gradients")
class SmallStepsAreSkipped(ArrayProgram):
    def optimizer_step(self, scale=None):
        if self.segment.groups[0].optimizer.lr > 1e-6:
            super().optimizer_step(scale)


@fault("compute", "test_zero_grad_clears_the_gradients_without_a_step")
class ZeroGradDoesNothing(ArrayProgram):
    busy = False

    def optimizer_step(self, scale=None):
        self.busy = True
        super().optimizer_step(scale)
        self.busy = False

    def restore(self, snapshot):
        self.busy = True
        super().restore(snapshot)
        self.busy = False

    def zero_grad(self):
        if self.busy:
            super().zero_grad()


@fault("compute", "test_map_gradients_replaces_every_gradient")
class MapGradientsIgnoresTheResult(ArrayProgram):
    def map_gradients(self, fn):
        super().map_gradients(lambda gradient: (fn(gradient), gradient)[1])


@fault("compute", "test_map_gradients_follows_the_order_of_the_parameters")
class MapGradientsInReverse(ArrayProgram):
    def map_gradients(self, fn):
        result = []
        super().map_gradients(lambda gradient: (result.append(gradient), gradient)[1])
        after = [fn(gradient) for gradient in reversed(result)][::-1]
        turn = iter(after)
        super().map_gradients(lambda gradient: next(turn))


@fault("compute", "test_grad_stats_are_the_squared_norm_and_finiteness")
class NormIsNotSquared(ArrayProgram):
    def grad_stats(self):
        return {name: (np.sqrt(square), finite) for name, (square, finite) in super().grad_stats().items()}


@fault("compute", "test_grad_stats_detect_non_finite_gradients[inf]")
class AllIsFinite(ArrayProgram):
    def grad_stats(self):
        return {name: (square, finite | True) for name, (square, finite) in super().grad_stats().items()}


# -- lifecycle ---------------------------------------------------------------------------------------------------------


@fault("compute", "test_restore_undoes_everything_a_step_changes[buffered_model]")
class BuffersAreWrittenInPlace(NumpyOps):
    def vjp(self, model, parameters, buffers, *rest):
        applied = super().vjp(model, parameters, buffers, *rest)
        for name, value in (applied.buffers or {}).items():
            np.copyto(bare(buffers[name]), bare(value))
        return applied._replace(buffers=None)


@fault("compute", "test_restore_undoes_everything_a_step_changes[random_model]")
class SnapshotWithoutRandomState(ArrayProgram):
    key = 0

    def seed(self, key):
        self.key = key
        super().seed(key)

    def restore(self, snapshot):
        super().restore(snapshot)
        super().seed(self.key)


@fault("compute", "test_restore_undoes_everything_a_step_changes[model]", also="multi_step")
class SnapshotWorksOnce(ArrayProgram):
    def snapshot(self):
        return [super().snapshot()]

    def restore(self, snapshot):
        super().restore(snapshot.pop())


@fault("compute", "test_restore_clears_gradients")
class RestoreKeepsGradients(ArrayProgram):
    pending = None

    def forward_pullback(self, inputs, scale=None):
        self.pending = inputs
        return super().forward_pullback(inputs, scale)

    def optimizer_step(self, scale=None):
        super().optimizer_step(scale)
        self.pending = None

    def restore(self, snapshot):
        super().restore(snapshot)
        if self.pending is not None:
            super().forward_pullback(self.pending)[2]([None] * len(self.segment.outputs))


@fault("compute", "test_optimizer_states_have_the_slots_of_the_formulas[adam]")
class UnknownSlotNames(ArrayProgram):
    def optimizer_states(self):
        return {
            node: replace(state, slots={p: {f"exp_{k}": v for k, v in s.items()} for p, s in state.slots.items()})
            for node, state in super().optimizer_states().items()
        }


@fault("compute", "test_close_writes_the_result_to_the_users_model", also="multi_step")
class CloseWritesNothing(NumpyOps):
    def write(self, model, parameters, buffers):
        pass


@fault("compute", "test_sync_models_writes_current_values_and_training_continues")
class SyncModelsDoesNothing(ArrayProgram):
    def sync_models(self):
        pass

    def close(self):
        super().sync_models()
        return super().close()


@fault("compute", "test_close_writes_buffers_too")
class CloseWritesNoBuffers(NumpyOps):
    def write(self, model, parameters, buffers):
        super().write(model, parameters, self.buffers(model))


@fault("compute", "test_close_may_be_called_twice")
class CloseWorksOnce(ArrayProgram):
    released = False

    def close(self):
        if self.released:
            raise RuntimeError("released already")
        self.released = True
        return super().close()


@fault("compute", "test_training_continues_from_returned_states")
class StepCountsAreReset(ArrayProgram):
    def close(self):
        return {node: NodeState(0, state.slots) for node, state in super().close().items()}


@fault("compute", "test_training_continues_on_another_device[model]")
def states_elsewhere_are_dropped(segment):
    device = segment.operations[0].device
    result = {
        node: state
        for node, state in segment.states.items()
        if all(slot.device == device for slots in state.slots.values() for slot in slots.values())
    }
    return replace(segment, states=result)
