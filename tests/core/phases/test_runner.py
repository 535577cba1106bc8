"""After an error or an interrupt: models have their state back, complete epochs are kept, training can continue."""

from __future__ import annotations

import gc
import sys
import weakref

import numpy as np
import pytest

from anyaccel import AppliedLoss
from anyaccel.adapter import VjpResult
from anyaccel.data import FeatureSet
from anyaccel.errors import DeviceUnavailableError, OutOfMemoryError, PhaseError, StateError
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.numpy_backend import (
    BatchNorm,
    Dense,
    Dropout,
    Module,
    NumpyBackend,
    Sequential,
    SequentialMLP,
    simulate,
)
from anyaccel.phases import Callback, EvalPhase, Run, TrainPhase, execute
from anyaccel.specs import Optimizer

MSE = AppliedLoss("mse", on="net")


class Tripwire(Module):
    """The identity, which raises in one training step."""

    def __init__(self, step, error):
        super().__init__()
        self.left, self.error = step, error

    def apply(self, values, inputs, *, train, key):
        if train:
            self.left -= 1
            if self.left == 0:
                raise self.error
        return VjpResult(inputs, lambda cotangents: ({}, cotangents))


ERRORS = [RuntimeError("oops"), KeyboardInterrupt(), SystemExit(1), GeneratorExit()]


@pytest.fixture(params=ERRORS, ids=lambda error: type(error).__name__)
def error(request):
    return type(request.param)(*request.param.args)


@pytest.fixture(params=["one segment", "listened"])
def way(request, at):
    """Callbacks with which a loop takes many steps a call, or one."""
    return [] if request.param == "one segment" else [at("step_end", lambda run: None)]


# -- in a step ---------------------------------------------------------------------------------------------------------


def test_after_an_error_in_a_step_models_have_their_state_back(error, way, sims, line, experiment, train, owned):
    wire = Tripwire(7, error)
    graph = line(Sequential(Dense(4), wire, Dense(1)))
    graph.build()
    ours = experiment(graph)
    before = graph.state()
    with pytest.raises(type(error)) as caught:
        ours.run_phase(train(epochs=3, accelerator="sim:0", callbacks=way))
    assert caught.value is error
    (epoch,) = ours.history[-1].epochs
    assert (epoch.number, epoch.steps) == (0, 4)
    assert ours.history[-1].error is error
    state = graph.state()
    assert graph.progress == {"train": 1}
    assert state["net/optimizer_step"] == 6
    assert all(np.isfinite(array).all() for array in state.values())
    changed = [name for name in before if not np.array_equal(before[name], state[name])]
    assert changed == [
        "net/parameters/0.weight",
        "net/parameters/0.bias",
        "net/parameters/2.weight",
        "net/parameters/2.bias",
    ]
    assert str(NumpyBackend().device_of(graph["net"].model)) == "sim:0"
    assert owned(graph, "sim:0") == 21 * 3 * 4
    result = ours.run_phase(train(epochs=2, accelerator="sim:0"))
    assert [epoch.number for epoch in result.epochs] == [1, 2]
    assert graph.progress == {"train": 3}


def test_an_interrupted_epoch_is_repeated_with_its_order(line, experiment, train, at):
    """The next run starts with the epoch that the interrupt left incomplete."""

    def stop(run):
        if (run.epoch, run.step) == (1, 1):
            raise KeyboardInterrupt

    graph = line()
    with pytest.raises(KeyboardInterrupt):
        experiment(graph).run_phase(train(epochs=3, callbacks=[at("step_end", stop)]))
    assert graph.progress == {"train": 1}


def test_an_interrupt_between_epochs_loses_nothing(line, experiment, train, at, values, same):
    """Interrupted after an epoch and started again, training gives what it would have given."""

    def stop(run):
        if run.epoch == 1:
            raise KeyboardInterrupt

    whole, cut = line(), line()
    experiment(whole).run_phase(train(epochs=4))
    with pytest.raises(KeyboardInterrupt):
        experiment(cut).run_phase(train(epochs=4, callbacks=[at("epoch_end", stop)]))
    experiment(cut).run_phase(train(epochs=2))
    same(values(whole), values(cut))


def test_out_of_memory_in_a_step_leaves_state_whole(line, experiment, train, owned):
    graph = line(SequentialMLP((1,), 2, 64))
    ours = experiment(graph)
    with simulate(1, capacity=9_000):
        with pytest.raises(OutOfMemoryError, match=r"not enough memory for \d+ bytes on sim:0"):
            ours.run_phase(train(batch_size=16, epochs=2, accelerator="sim:0"))
        assert all(np.isfinite(array).all() for array in graph.state().values())
    ours.run_phase(train(batch_size=16))
    assert owned(graph, "sim:0") == 0


def test_out_of_memory_in_placement_can_be_repeated_elsewhere(data, experiment, train, owned):
    nodes = [
        ModelNode("first", Dense(8), data.reference(["x"], ["y"])),
        ModelNode("net", SequentialMLP((1,), 2, 64), "first"),
    ]
    graph = ModelGraph(nodes, "adam")
    ours = experiment(graph)
    ours.run_phase(train())
    before = graph.state()
    with simulate(1, capacity=600) as (sim,):
        with pytest.raises(OutOfMemoryError):
            ours.run_phase(train(accelerator="sim:0"))
        assert sim.used == owned(graph, "sim:0") <= 600
        after = graph.state()
        assert list(after) == list(before)
        assert all(np.array_equal(before[name], after[name]) for name in before)
    ours.run_phase(train())
    assert graph.progress == {"train": 2}


def test_an_error_in_a_validation_keeps_what_was_trained(line, experiment, train, monkeypatch):
    apply = Dense.apply

    def fail(self, values, inputs, *, train, key):
        if not train and len(inputs[0]) == 8:
            raise RuntimeError("in the validation")
        return apply(self, values, inputs, train=train, key=key)

    graph, other = line(), line()
    experiment(other).run_phase(train())
    monkeypatch.setattr(Dense, "apply", fail)
    with pytest.raises(RuntimeError, match="in the validation"):
        experiment(graph).run_phase(train(epochs=2, validation="val"))
    np.testing.assert_array_equal(graph["net"].model.parameters["weight"], other["net"].model.parameters["weight"])
    assert graph.progress == {"train": 1}


# -- in the building and in the releasing of programs ------------------------------------------------------------------


class Custody:
    """Makes the build of a segment, or the close of its program, raise."""

    def __init__(self, monkeypatch):
        self.fail_build, self.fail_release, self.released = None, None, []
        build = NumpyBackend.build

        def watched(backend, segment):
            if self.fail_build is not None:
                raise self.fail_build
            program = build(backend, segment)
            release = program.close

            def end():
                self.released.append(segment.label)
                if self.fail_release is not None:
                    raise self.fail_release
                return release()

            program.close = end
            return program

        monkeypatch.setattr(NumpyBackend, "build", watched)


@pytest.mark.parametrize("failure", [RuntimeError("stuck"), KeyboardInterrupt("again")], ids=lambda e: type(e).__name__)
def test_a_failing_release_is_the_error_of_the_phase(failure, line, experiment, train, at, monkeypatch):
    custody, heard = Custody(monkeypatch), []
    custody.fail_release = failure
    ours = experiment(line())
    with pytest.raises(type(failure)) as caught:
        ours.run_phase(train(callbacks=[at("phase_end", lambda **told: heard.append(told["error"]))]))
    assert heard == [failure] and caught.value is failure is ours.history[-1].error
    assert len(ours.history[-1].epochs) == 1


@pytest.mark.parametrize("failure", [RuntimeError("stuck"), KeyboardInterrupt("again")], ids=lambda e: type(e).__name__)
def test_a_failing_release_is_a_note_on_the_error_of_the_phase(failure, line, experiment, train, at, monkeypatch):
    custody = Custody(monkeypatch)
    custody.fail_release = failure

    def fail(run):
        raise ValueError("first")

    with pytest.raises(ValueError, match="first") as caught:
        experiment(line()).run_phase(train(callbacks=[at("epoch_end", fail)]))
    assert caught.value.__notes__ == [f"release also failed: {type(failure).__name__}: {failure}"]


def test_programs_are_closed_once(line, experiment, train, evaluate, monkeypatch):
    custody = Custody(monkeypatch)
    ours = experiment(line())
    ours.run_phase(train())
    ours.run_phase(evaluate())
    assert custody.released == ["numpy:0"] * 2


def test_a_program_that_cannot_be_built_is_the_error_of_the_phase(line, experiment, train, monkeypatch):
    custody = Custody(monkeypatch)
    custody.fail_build = RuntimeError("no compiler")
    graph = line()
    with pytest.raises(RuntimeError, match="no compiler"):
        experiment(graph).run_phase(train())
    assert graph.optimizer_states == graph.progress == {}
    custody.fail_build = None
    experiment(graph).run_phase(train())


# -- afterwards --------------------------------------------------------------------------------------------------------


def test_nodes_go_to_the_final_device_also_after_an_error(sims, line, experiment, train, at):
    def fail(run):
        raise RuntimeError

    graph = line()
    with pytest.raises(RuntimeError):
        experiment(graph).run_phase(train(accelerator="sim:0", final_device="cpu", callbacks=[at("epoch_end", fail)]))
    assert sims[0].used == 0
    assert str(NumpyBackend().device_of(graph["net"].model)) == "cpu:0"


def test_nodes_stay_if_nothing_was_placed(sims, line, experiment, train, at):
    def refuse(phase, plan):
        raise RuntimeError

    graph = line()
    ours = experiment(graph)
    ours.run_phase(train(accelerator="sim:0"))
    for phase in (
        train(accelerator="sim:0", final_device="cpu", callbacks=[at("before_placement", refuse)]),
        train(accelerator="sim:0", final_device="cpu", data="nope"),
        train(accelerator="sim:9", final_device="cpu"),
    ):
        with pytest.raises(Exception, match=r"^$|nope|sim:9"):
            ours.run_phase(phase)
        assert str(NumpyBackend().device_of(graph["net"].model)) == "sim:0"


def test_optimizer_state_goes_to_the_final_device_too(sims, line, experiment, train):
    graph = line()
    experiment(graph).run_phase(train(accelerator="sim:0", final_device="sim:1"))
    assert sims[0].used == 0
    slots = graph.optimizer_states["net"].slots["weight"]
    assert {str(slots[slot].device) for slot in ("m", "v")} == {"sim:1"}


# -- what errors keep alive --------------------------------------------------------------------------------------------


class Keeper(Module):
    """A user's model that fails in its third step."""

    def __init__(self):
        super().__init__()
        self.dense, self.steps = Dense(1), 0
        self.dtype = "float32"

    @property
    def is_built(self):
        return self.dense.is_built

    def build(self, inputs, seed):
        self.dense.build(inputs, seed)
        self.parameters = self.dense.parameters

    def apply(self, values, inputs, *, train, key):
        if train:
            self.steps += 1
            self.check()
        return self.dense.apply(values, inputs, train=train, key=key)

    def check(self):
        wanted = "still here"
        if self.steps == 3:
            raise ValueError(wanted)


def test_an_error_in_the_history_keeps_nothing_on_a_device(sims, line, experiment, train, at, owned):
    def fail(run):
        raise RuntimeError

    graph = line()
    ours = experiment(graph)
    for moment in ("after_placement", "after_loading"):
        with pytest.raises(RuntimeError):
            ours.run_phase(train(accelerator="sim:0", callbacks=[at(moment, lambda phase, plan: fail(None))]))
        assert sims[0].used == owned(graph, "sim:0") == 16
    for moment in ("epoch_start", "step_end", "epoch_end"):
        with pytest.raises(RuntimeError):
            ours.run_phase(train(accelerator="sim:0", validation="val", callbacks=[at(moment, fail)]))
        assert sims[0].used == owned(graph, "sim:0")
    assert all(result.error is not None for result in ours.history)


@pytest.mark.parametrize("where", ["step", "validation"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_an_error_in_a_step_does_not_keep_the_columns(where, nodes, sims, table, line, experiment, train, monkeypatch):
    """Frames of closures cannot be cleared; they must not hold the columns."""
    many = table(5000)
    apply, left = Dense.apply, [7]

    def fail(self, values, inputs, **settings):
        left[0] -= settings["train"] == (where == "step")
        if left[0] == 0:
            del inputs  # this frame is the user's, and in an evaluation a batch is a view of its column
            raise RuntimeError
        return apply(self, values, inputs, **settings)

    graph = line(Dense(1), source=many)
    if nodes == 2:
        graph.add_node(ModelNode("other", Dense(1), many.reference(["x"], ["y"])))
    graph.build()
    monkeypatch.setattr(Dense, "apply", fail)
    validation = EvalPhase("check", data="all", batch_size=100)
    ours = experiment(graph)
    with pytest.raises(RuntimeError):
        ours.run_phase(train(data=many, accelerator="sim:0", batch_size=50, validation=validation))
    assert sims[0].used < 5000 * 4


def test_frames_of_the_users_code_keep_their_values(line, experiment, train):
    with pytest.raises(ValueError, match="still here") as caught:
        experiment(line(Keeper())).run_phase(train())
    trace = caught.value.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    assert trace.tb_frame.f_locals["wanted"] == "still here"


def test_frames_of_an_out_of_memory_error_are_all_cleared(experiment, train, line):
    class Greedy(Keeper):
        def check(self):
            raise OutOfMemoryError("full")

    with simulate(1) as (sim,):
        graph = line(Greedy())
        ours = experiment(graph)
        with pytest.raises(OutOfMemoryError):
            ours.run_phase(train(accelerator="sim:0"))
        assert sim.used < 24 * 4 * 4
        assert ours.history[-1].error is not None


def test_frames_of_the_cause_of_an_error_are_cleared_too(line, experiment, train):
    class Chained(Keeper):
        def check(self):
            try:
                raise OSError("below")
            except OSError as error:
                raise OutOfMemoryError("above") from error

    with simulate(1) as (sim,):
        with pytest.raises(OutOfMemoryError):
            experiment(line(Chained())).run_phase(train(accelerator="sim:0"))
        assert sim.used < 24 * 4 * 4


def test_a_run_that_is_kept_holds_nothing_on_a_device(sims, line, experiment, train, owned):
    class Holder(Callback):
        def step_end(self, run):
            self.run = run

    graph, holder = line(), Holder()
    experiment(graph).run_phase(train(accelerator="sim:0", callbacks=[holder]))
    assert sims[0].used == owned(graph, "sim:0")
    assert holder.run.step_losses() == {}
    with pytest.raises(
        PhaseError,
        match=r"phase 'train' is not running, so there is no state to snapshot or restore\. Hint: call this in a",
    ):
        holder.run.snapshot()
    with pytest.raises(PhaseError, match="is not running"):
        holder.run.restore(None)


def test_a_phase_frees_its_graph(line, experiment, train):
    graph = line()
    experiment(graph).run_phase(train())
    gone = weakref.ref(graph)
    del graph
    gc.collect()
    assert gone() is None


def test_the_model_of_a_replaced_node_is_freed_at_once(sims, line, experiment, train, data):
    gc.collect()
    gc.disable()
    try:
        graph = line()
        experiment(graph).run_phase(train(accelerator="sim:0"))
        graph.replace_node("net", ModelNode("net", Dense(1), data.reference(["x"], ["y"])))
        assert sims[0].used == 0
    finally:
        gc.enable()


# -- one phase at a time -----------------------------------------------------------------------------------------------


def test_a_second_phase_on_a_running_graph_is_refused(line, experiment, train, evaluate, at, values, same):
    """While a phase runs its programs hold the parameters; another phase would read old ones, and be overwritten."""
    told = []

    def nested(run):
        with pytest.raises(PhaseError) as caught:
            ours.run_phase(evaluate("inner"))
        told.append(str(caught.value))

    graph, plain = line(), line()
    ours = experiment(graph)
    result = ours.run_phase(train(epochs=2, callbacks=[at("epoch_end", nested)]))
    experiment(plain).run_phase(train(epochs=2))
    assert (
        told
        == [
            "phase 'inner' cannot start: 'train' is running on graph 'graph'. Hint: evaluate with "
            "TrainPhase(validation=...), or after that phase has ended."
        ]
        * 2
    )
    same(values(graph), values(plain))
    assert [type(item).__name__ for item in ours.history] == ["EvalResults", "EvalResults", "TrainResults"]
    assert isinstance(ours.history[0].error, PhaseError) and result.error is None


def test_a_phase_may_begin_when_the_last_one_ends(line, experiment, train, evaluate, at):
    result = []
    graph = line()
    ours = experiment(graph)

    def after(**told):
        result.append(ours.run_phase(evaluate("inner")).loss)

    ours.run_phase(train(callbacks=[at("phase_end", after)]))
    assert result == [ours.run_phase(evaluate()).loss]


def test_graphs_do_not_wait_for_each_other(line, experiment, train, evaluate, at):
    other = experiment(line())
    inner = at("epoch_end", lambda run: other.run_phase(evaluate()))
    experiment(line()).run_phase(train(callbacks=[inner]))
    assert len(other.history) == 1


def test_a_phase_that_failed_leaves_the_graph_free(line, experiment, train):
    ours = experiment(line())
    with pytest.raises(DeviceUnavailableError):
        ours.run_phase(train(accelerator="sim:3"))
    ours.run_phase(train())


def test_the_state_of_a_graph_at_the_end_of_an_epoch_is_that_of_the_epoch(
    sims, line, experiment, train, at, same, owned
):
    """As for checkpoints: taking one changes nothing, and training continues from it to the same numbers."""

    def take(run):
        taken.append(graph.state())

    taken, graph, plain, resumed = [], line(noisy()), line(noisy()), line(noisy())
    callbacks = [at(moment, take) for moment in ("step_end", "epoch_end")]
    experiment(graph).run_phase(train(epochs=3, accelerator="sim:0", callbacks=callbacks))
    experiment(plain).run_phase(train(epochs=3))
    assert len(taken) == 3 * (4 + 1)
    same(taken[-1], graph.state())
    same(plain.state(), graph.state())
    resumed.load_state(taken[4])
    experiment(resumed).run_phase(train(epochs=2))
    same(resumed.state(), graph.state())
    assert sims[0].used == owned(graph, "sim:0")


def noisy():
    return Sequential(Dense(4), BatchNorm(), Dropout(0.3), Dense(1))


def test_loading_a_state_into_a_running_graph_is_refused(line, experiment, train, at):
    def load(run):
        graph.load_state(before)

    graph = line().build()
    before = graph.state()
    with pytest.raises(
        StateError, match=r"a phase of graph 'graph' is running\. Hint: load a state before or after it"
    ):
        experiment(graph).run_phase(train(callbacks=[at("epoch_end", load)]))
    graph.load_state(before)


# -- a way to run without an experiment --------------------------------------------------------------------------------


def test_a_run_can_be_executed_by_itself(line, train, data):
    graph = line()
    run = Run(train(epochs=2), graph)
    assert execute(run) is None
    assert repr(run) == "Run('train', 2 epochs done)"
    assert run.rows["data"] is data["train"]
    assert [epoch.number for epoch in run.history] == [0, 1]


def test_a_training_phase_over_sgd_keeps_its_step_count(data, experiment):
    graph = ModelGraph([ModelNode("net", Dense(1), data.reference(["x"], ["y"]))], Optimizer("sgd", lr=0.1))
    experiment(graph).run_phase(TrainPhase("t", data="train", losses=[MSE], batch_size=4))
    assert graph.optimizer_states["net"].step == 4


class FramesAbove(Callback):
    """Finds arrays that the calls around a training hold in their own variables."""

    held: list[str]

    def epoch_end(self) -> None:
        self.held, frame = [], sys._getframe()  # noqa: SLF001
        while frame is not None:
            for name, value in frame.f_locals.items():
                if isinstance(value, np.ndarray) and len(value) == 61:
                    self.held.append(f"{frame.f_code.co_name}: {name}")
            frame = frame.f_back


def test_no_call_around_a_training_holds_an_array_of_the_data() -> None:
    """On another device, these arrays are copies that only take host memory."""
    data = FeatureSet.from_dict("d", {"x": np.ones((61, 3)), "y": np.ones((61, 1))}, ["x"], ["y"])
    graph = ModelGraph([ModelNode("net", SequentialMLP((1,)), data.reference())], Optimizer("sgd", lr=0.1))
    frames = FramesAbove()
    graph.run(TrainPhase("t", data="all", losses=[AppliedLoss("mse", on="net")], epochs=1, callbacks=[frames]))
    assert frames.held == []
