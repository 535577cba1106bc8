"""Any sequence of phases, interrupts, moves and changes of a graph equals the same sequence on the plain CPU.

A sample of them is run; ANYACCEL_TEST_FULL=1 runs four times as many.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis_profiles import examples

from anyaccel import AppliedLoss
from anyaccel import registry as registry_module
from anyaccel.accelerator import Accelerator
from anyaccel.data import FeatureSet, SimpleSampler
from anyaccel.errors import AnyaccelError, PhaseError
from anyaccel.experiment import Experiment
from anyaccel.graph import ConcatNode, ModelGraph, ModelNode
from anyaccel.numpy_backend import BatchNorm, Dense, Dropout, NumpyBackend, Sequential, SimArray, simulate
from anyaccel.phases import Callback, EvalPhase, TrainPhase
from anyaccel.registry import Registry
from anyaccel.specs import Optimizer

pytestmark = pytest.mark.slow

MSE = AppliedLoss("mse", on="net")
MODELS = ("enc", "side", "net")
DEVICES = ("cpu:0", "sim:0", "sim:1")
wheres = st.sampled_from([None, *DEVICES])
nodes = st.sampled_from(MODELS)
trainings = st.fixed_dictionaries(
    {
        "label": st.sampled_from(["first", "second"]),
        "epochs": st.integers(0, 2),
        "sampler": st.builds(SimpleSampler, st.integers(2, 7), shuffle=st.booleans(), drop_last=st.booleans()),
        "validation": st.sampled_from([None, "val"]),
    }
)


def rows() -> FeatureSet:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(14, 3))
    result = FeatureSet.from_dict("data", {"x": x, "y": x[:, :1] - x[:, 2:]}, ["x"], ["y"])
    result.add_splits({"train": np.arange(9), "val": np.arange(9, 14)})
    return result


def dense(features: int) -> Dense:
    return Dense(features, dtype="float64")


def close(one, other) -> None:
    """Sums over several devices are added up in another order; nothing else may differ."""
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


def graph_on(source: FeatureSet) -> ModelGraph:
    made = [
        ModelNode("enc", Sequential(dense(4), BatchNorm(dtype="float64"), Dropout(0.2)), source.reference()),
        ModelNode("side", dense(2), "enc"),
        ConcatNode("both", ["enc", "side"]),
        ModelNode("net", dense(1), "both"),
    ]
    return ModelGraph(made, Optimizer("adam", lr=0.02, clip_norm=1.0)).build()


class Stop(Callback):
    """Interrupts at the end of a step, counted over the whole run."""

    def __init__(self, after: int) -> None:
        self.left = after

    def step_end(self, run) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


class LifecycleMachine(RuleBasedStateMachine):
    """`real` runs on the device that a rule says, `shadow` on the CPU; all else is equal."""

    @initialize()
    def begin(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(registry_module, "_registry", [Registry(NumpyBackend, lambda: ())])
        self.sims = simulate(2)
        self.data = rows()
        self.real, self.shadow = graph_on(self.data), graph_on(self.data)
        self.ours = Experiment("real", self.real, progress="none")
        self.theirs = Experiment("shadow", self.shadow, progress="none")
        self.runs = 0
        self.devices: dict[str, str] = dict.fromkeys(MODELS, "cpu:0")

    def teardown(self) -> None:
        if hasattr(self, "sims"):
            self.sims.close()
            self.patch.undo()

    # -- phases --------------------------------------------------------------------------------------------------------

    def both(self, make, where):
        """Run a phase twice; what it gives, or the type of what it raises."""
        result = []
        for experiment, accelerator in ((self.ours, where), (self.theirs, None)):
            try:
                result.append(experiment.run_phase(make(accelerator)))
            except (AnyaccelError, KeyboardInterrupt) as error:
                result.append(type(error))
        self.runs += 1
        plan = self.ours.last_run.plan
        if plan is not None and not (isinstance(result[0], type) and issubclass(result[0], AnyaccelError)):
            self.devices.update({label: str(plan.device(label)) for label in MODELS})
        return result

    def train(self, setting, where, callbacks=()):
        def make(accelerator):
            fresh = [Stop(stop.left) for stop in callbacks]
            return TrainPhase(data="train", losses=[MSE], accelerator=accelerator, callbacks=fresh, **setting)

        real, shadow = self.both(make, where)
        if isinstance(real, type):
            assert real is shadow
            assert isinstance(self.ours.last_run.error, real)
        epochs = [[epoch.figures for epoch in experiment.last_run.epochs] for experiment in (self.ours, self.theirs)]
        for ours, theirs in zip(*epochs, strict=True):
            assert list(ours) == list(theirs)
            close(list(ours.values()), list(theirs.values()))
        return real

    @rule(setting=trainings, where=wheres)
    def run_training(self, setting, where) -> None:
        result = self.train(setting, where)
        if set(self.real.frozen) == set(MODELS):
            assert result is PhaseError
        else:
            assert len(result.epochs) == setting["epochs"]

    @rule(setting=trainings, where=wheres, step=st.integers(1, 6))
    def interrupt_training(self, setting, where, step) -> None:
        self.train(setting, where, [Stop(step)])

    @rule(where=wheres, batch=st.integers(1, 6))
    def evaluate(self, where, batch) -> None:
        real, shadow = self.both(
            lambda accelerator: EvalPhase(
                "look", data="val", losses=[MSE], metrics=["mse"], batch_size=batch, accelerator=accelerator
            ),
            where,
        )
        close([real.loss, real.metrics["mse"]], [shadow.loss, shadow.metrics["mse"]])
        close(real.prediction("net"), shadow.prediction("net"))

    @rule(where=st.sampled_from(DEVICES[1:]), after=st.sampled_from(DEVICES))
    def evaluate_and_move(self, where, after) -> None:
        self.both(lambda there: EvalPhase("move", data="val", accelerator=there, final_device=there and after), where)
        self.devices = dict.fromkeys(MODELS, after)

    @rule(setting=trainings, where=st.sampled_from(DEVICES[1:]))
    def refuse(self, setting, where) -> None:
        real, _ = self.both(
            lambda accelerator: TrainPhase(
                data="nowhere", losses=[MSE], accelerator=accelerator, final_device="sim:1", **setting
            ),
            where,
        )
        assert issubclass(real, AnyaccelError)

    # -- changes -------------------------------------------------------------------------------------------------------

    @rule(label=nodes)
    def freeze(self, label) -> None:
        for graph in (self.real, self.shadow):
            graph.freeze(label)

    @rule(label=nodes)
    def unfreeze(self, label) -> None:
        for graph in (self.real, self.shadow):
            graph.unfreeze(label)

    @rule(label=nodes, where=wheres)
    def pin(self, label, where) -> None:
        self.real[label].accelerator = where and Accelerator(where)

    @rule(label=st.sampled_from(["side", "net"]))
    def replace(self, label) -> None:
        for graph in (self.real, self.shadow):
            upstreams = list(graph[label].upstreams)
            graph.replace_node(label, ModelNode(label, dense(2 if label == "side" else 1), upstreams)).build()
        self.devices[label] = "cpu:0"

    @rule(rate=st.sampled_from([0.001, 0.01]), name=st.sampled_from(["adam", "sgd", "momentum"]))
    def change_optimizer(self, rate, name) -> None:
        for graph in (self.real, self.shadow):
            graph.optimizer = Optimizer(name, lr=rate, clip_norm=1.0)

    @precondition(lambda self: self.runs)
    @rule()
    def resume_elsewhere(self) -> None:
        """A new graph with the state of the old one."""
        state, frozen = self.real.state(), self.real.frozen
        pins = {label: self.real[label].accelerator for label in MODELS}
        self.real = graph_on(self.data).load_state(state)
        self.real.optimizer = self.shadow.optimizer
        if frozen:
            self.real.freeze(*frozen)
        for label, pin in pins.items():
            self.real[label].accelerator = pin
        self.ours, self.runs = Experiment("real", self.real, progress="none"), 0
        self.devices = dict.fromkeys(MODELS, "cpu:0")
        gc.collect()  # an experiment and the errors in its history refer to each other

    # -- what always holds ---------------------------------------------------------------------------------------------

    @invariant()
    def the_numbers_are_those_of_the_cpu(self) -> None:
        real, shadow = self.real.state(), self.shadow.state()
        assert sorted(real) == sorted(shadow)
        for name, array in shadow.items():
            close(real[name], array)
            assert np.isfinite(array).all()

    @invariant()
    def nodes_are_where_the_plan_said(self) -> None:
        backend = NumpyBackend()
        for label, device in self.devices.items():
            assert str(backend.device_of(self.real[label].model)) == device
            state = self.real.optimizer_states.get(label)
            for slots in state.slots.values() if state else ():
                assert {str(backend.device_of(array)) for array in slots.values()} <= {device}

    @invariant()
    def devices_hold_parameters_and_optimizer_state_and_nothing_else(self) -> None:
        arrays: list[np.ndarray] = []
        for label in MODELS:
            model = self.real[label].model
            arrays += [*model.parameters.values(), *model.buffers.values()]
        for state in self.real.optimizer_states.values():
            arrays += [array for slots in state.slots.values() for array in slots.values()]
        for sim in self.sims:
            held = sum(a.nbytes for a in arrays if isinstance(a, SimArray) and a.device == sim.device)
            assert sim.used == held

    @invariant()
    def every_run_is_in_the_history(self) -> None:
        assert len(self.ours.history) == self.runs


EXAMPLES = examples(40)
LifecycleMachine.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=15, phases=[Phase.generate])
TestLifecycle = LifecycleMachine.TestCase
