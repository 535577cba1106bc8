"""Wrong programs: steps in which some inputs are None."""

from __future__ import annotations

import numpy as np

from anyaccel.adapter import ArrayProgram
from anyaccel.numpy_backend.transfers import moved
from anyaccel.segment import NodeState

from .faults import fault


def is_partial(inputs):
    return any(value is None for value in inputs)


class FillsMissingInputs(ArrayProgram):
    """Has methods to put zeros in place of missing inputs."""

    def filled(self, inputs):
        specs = self.segment.inputs.values()
        return [
            moved(np.zeros((6, *spec.shape), spec.dtype), device) if value is None else value
            for value, (spec, device) in zip(inputs, specs, strict=True)
        ]


@fault("compute", "test_operations_that_need_a_missing_input_are_skipped[False]")
class ZerosAreEvaluated(FillsMissingInputs):
    def forward(self, inputs):
        return super().forward(self.filled(inputs))


@fault("compute", "test_operations_that_need_a_missing_input_are_skipped[True]")
class ZerosAreTrainedWith(FillsMissingInputs):
    def forward_pullback(self, inputs, scale=None):
        return super().forward_pullback(self.filled(inputs), scale)


@fault("compute", "test_a_missing_target_skips_only_its_loss[True]")
class SkipsNodesWithoutLoss(ArrayProgram):
    def forward_pullback(self, inputs, scale=None):
        x, t, *rest = inputs
        return super().forward_pullback([None if t is None else x, t, *rest], scale)


@fault("compute", "test_operations_behind_a_skipped_one_are_skipped[False]")
class SkipsNothing(ArrayProgram):
    def forward(self, inputs):
        outputs, losses = super().forward(inputs)
        computed = [value for value in outputs if value is not None]
        return tuple(computed[0] if value is None else value for value in outputs), losses


@fault("compute", "test_nodes_without_a_gradient_are_not_updated")
class ZerosAreGradients(ArrayProgram):
    def optimizer_step(self, scale=None):
        for node, parameters in self._state.parameters.items():
            self._state.add_gradients(node, {name: 0 * array for name, array in parameters.items()})
        super().optimizer_step(scale)


@fault("compute", "test_alternating_inputs_train_each_model_as_if_alone")
class OneStepCountForAll(ArrayProgram):
    def optimizer_step(self, scale=None):
        super().optimizer_step(scale)
        states = self._state.states
        most = max((state.step for state in states.values()), default=0)
        self._state.states = {node: NodeState(most, state.slots) for node, state in states.items()}


@fault("compute", "test_cotangents_of_missing_inputs_are_none")
class CotangentsOfMissingInputsAreZero(ArrayProgram):
    def forward_pullback(self, inputs, scale=None):
        outputs, losses, pullback = super().forward_pullback(inputs, scale)
        return outputs, losses, lambda c: tuple(np.zeros(()) if value is None else value for value in pullback(c))


@fault("compute", "test_buffers_of_skipped_operations_do_not_change")
class BuffersChangeAnyway(FillsMissingInputs):
    def forward_pullback(self, inputs, scale=None):
        if is_partial(inputs):
            super().forward_pullback(self.filled(inputs), scale)
        return super().forward_pullback(inputs, scale)


@fault("compute", "test_a_shared_model_learns_from_the_inputs_that_are_given")
class SharedModelsNeedAllInputs(ArrayProgram):
    def forward_pullback(self, inputs, scale=None):
        result = super().forward_pullback(inputs, scale)
        models = [id(op.model) for op in self.segment.operations if op.model is not None]
        if is_partial(inputs) and len(set(models)) < len(models):
            return *result[:2], lambda cotangents: (None,) * len(self.segment.needs_pullback)
        return result


@fault("compute", "test_a_shared_models_optimizer_state_continues_in_the_next_phase")
class SharedModelsLoseTheirState(ArrayProgram):
    def close(self):
        owner = self._layout.owner
        return {**super().close(), **{label: NodeState() for label in owner if owner[label] != label}}


@fault("compute", "test_grad_stats_cover_only_existing_gradients")
class GradStatsAreZeroIfPartial(ArrayProgram):
    whole = True

    def forward_pullback(self, inputs, scale=None):
        self.whole = not is_partial(inputs)
        return super().forward_pullback(inputs, scale)

    def grad_stats(self):
        result = super().grad_stats()
        return result if self.whole else {name: (squared * 0, finite) for name, (squared, finite) in result.items()}
