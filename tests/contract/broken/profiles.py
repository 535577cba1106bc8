"""Wrong backends whose profiles lack names, have too much, or change numbers, and whose costs are wrong."""

from __future__ import annotations

import contextlib

from anyaccel.adapter.step_costs import StepCost
from anyaccel.adapter.step_profiler import read_trace, write_trace
from anyaccel.numpy_backend.capabilities import NumpyProfiler, NumpyStepCosts
from anyaccel.numpy_backend.ops import NumpyOps

from .faults import fault, having


@fault("compute", "test_a_profile_is_a_trace_with_names")
class ProfilesWithoutNodes(NumpyProfiler):
    def profile_steps(self, path, nodes, devices):
        return super().profile_steps(path, {}, devices)


@fault("compute", "test_profiled_steps_have_the_same_numbers")
class ProfiledModelsGiveTwice(NumpyProfiler):
    """Doubles what models give while somebody looks."""

    @contextlib.contextmanager
    def profile_steps(self, path, nodes, devices):
        plain = NumpyOps.vjp

        def doubled(ops, *args, **keywords):
            applied = plain(ops, *args, **keywords)
            return applied._replace(outputs=tuple(2 * output for output in applied.outputs))

        with super().profile_steps(path, nodes, devices) as mark:
            recording, NumpyOps.vjp = NumpyOps.vjp, doubled
            try:
                yield mark
            finally:
                NumpyOps.vjp = recording


@fault("compute", "test_an_error_ends_a_profile")
class ProfilesLostWithAnError(NumpyProfiler):
    @contextlib.contextmanager
    def profile_steps(self, path, nodes, devices):
        with super().profile_steps(path, nodes, devices) as mark:
            try:
                yield mark
            except ZeroDivisionError as error:
                failure = error
            else:
                failure = None
        if failure is not None:
            path.unlink()
            raise failure


class WritesWhatWasBefore(NumpyProfiler):
    @contextlib.contextmanager
    def profile_steps(self, path, nodes, devices):
        with super().profile_steps(path, nodes, devices) as mark:
            yield mark
        earlier = [{"name": name, "ph": "X", "ts": 1e15, "dur": 0.0, "pid": 1, "tid": 1} for name in self.backend.built]
        write_trace(path, [*read_trace(path), *(earlier if nodes and len(read_trace(path)) == 0 else [])])


@fault("compute", "test_steps_outside_a_profile_are_not_recorded")
class ProfilesOfWhatWasBefore(having(WritesWhatWasBefore)):
    def build(self, segment):
        self.built = [operation.label for operation in segment.operations]
        return super().build(segment)


@fault("compute", "test_costs_grow_with_the_rows")
class CostsOfOneRow(NumpyStepCosts):
    def step_cost(self, segment, batch_size):
        return super().step_cost(segment, 64)


@fault("compute", "test_telling_costs_changes_nothing")
class CostsThatTrain(NumpyStepCosts):
    def step_cost(self, segment, batch_size):
        for operation in segment.operations:
            for name, array in operation.model.parameters.items():
                operation.model.parameters[name] = array * 2
        return StepCost(activations={operation.label: 8 * batch_size for operation in segment.operations})
