"""The moments of a phase: their order, what they are told, and that the last one always comes."""

from __future__ import annotations

import inspect
import re
import weakref

import numpy as np
import pytest

from anyaccel import AppliedLoss, SimpleSampler, hookspecs
from anyaccel.adapter import ArrayProgram
from anyaccel.data import FeatureSet
from anyaccel.errors import DeviceUnavailableError, OutOfMemoryError, PhaseError, SpecError
from anyaccel.experiment import Experiment
from anyaccel.graph import ModelGraph, ModelNode
from anyaccel.hookspecs import HOOKS, hookimpl
from anyaccel.numpy_backend import Dense, NumpyBackend, simulate
from anyaccel.phases import Callback, Run, TrainPhase
from anyaccel.phases.memory_error import release_frames
from anyaccel.plugin_testing import plugin_module
from anyaccel.specs import Optimizer

BEFORE_LOOP = ["phase_start", "before_placement", "after_placement", "after_loading"]


class Oops(Exception):
    """Raised by tests."""


@pytest.fixture
def listen(numpy_only, spy):
    """`listen(moments, act)`: a plugin and a callback write down what they hear; gives the list and the callback."""

    def make(moments=HOOKS, act=None):
        seen = []
        numpy_only.register(spy("plugin", seen, moments), "spy")
        return seen, spy("callback", seen, moments, act)

    return make


def names(seen, who):
    return [moment for kind, moment, _ in seen if kind == who]


# -- order and arguments -----------------------------------------------------------------------------------------------


def test_a_callback_names_only_the_arguments_it_wants(line, experiment, train):
    heard = []

    def hears(moment):
        return lambda self: heard.append(moment)

    bare = type("Bare", (Callback,), {moment: hears(moment) for moment in HOOKS})()
    experiment(line()).run_phase(train(callbacks=[bare]))
    assert set(heard) == set(HOOKS) and heard.count("step_end") == 4


def test_moments_are_listed_in_the_order_of_the_file():
    source = inspect.getsource(hookspecs)
    specified = re.findall(r"@hookspec\ndef (\w+)", source)
    assert specified == ["backends", "policies", *HOOKS]


def test_callbacks_have_the_moments_of_plugins_with_the_same_arguments():
    for moment in HOOKS:
        hook = inspect.signature(getattr(hookspecs, moment))
        method = inspect.signature(getattr(Callback, moment))
        assert list(hook.parameters) == list(method.parameters)[1:]


@pytest.mark.parametrize("who", ["plugin", "callback"])
def test_training_calls_the_moments_in_order(who, listen, line, experiment, train):
    seen, callback = listen()
    experiment(line()).run_phase(train(epochs=2, callbacks=[callback]))
    heard = names(seen, who)
    epoch = ["epoch_start", *["step_end"] * 4, "epoch_end"]
    assert [each for each in heard if each != "steps_done"] == [*BEFORE_LOOP, *epoch, *epoch, "phase_end"]
    for at, moment in enumerate(heard):  # after the steps that it is about, and before the epoch ends
        assert moment != "steps_done" or heard[at - 1] == "step_end"
        assert moment != "epoch_end" or heard[at - 1] == "steps_done"


def test_plugins_hear_each_moment_before_callbacks(listen, line, experiment, train):
    seen, callback = listen()
    experiment(line()).run_phase(train(callbacks=[callback]))
    assert [kind for kind, _, _ in seen] == ["plugin", "callback"] * (len(seen) // 2)
    assert [moment for _, moment, _ in seen[::2]] == [moment for _, moment, _ in seen[1::2]]


def test_callbacks_of_the_experiment_come_before_those_of_the_phase(spy, line, experiment, train):
    first, second, order = [], [], []
    ours = spy("callback", first, act=lambda moment: order.append("experiment"))
    theirs = spy("callback", second, act=lambda moment: order.append("phase"))
    experiment(line(), callbacks=[ours]).run_phase(train(callbacks=[theirs]))
    assert order == ["experiment", "phase"] * len(first)


@pytest.mark.parametrize("phase", ["eval", "nothing"])
def test_phases_without_epochs_call_the_other_moments(phase, listen, line, experiment, train, evaluate):
    seen, callback = listen()
    made = evaluate(callbacks=[callback]) if phase == "eval" else train(epochs=0, callbacks=[callback])
    experiment(line()).run_phase(made)
    assert names(seen, "plugin") == [*BEFORE_LOOP, "phase_end"]


@pytest.mark.parametrize("who", ["plugin", "callback"])
def test_moments_are_told_the_phase_its_plan_and_its_run(who, listen, line, experiment, train):
    seen, callback = listen()
    ours = experiment(line())
    phase = train(callbacks=[callback])
    result = ours.run_phase(phase)
    for kind, moment, told in seen:
        if kind != who:
            continue
        assert list(told) == list(inspect.signature(getattr(hookspecs, moment)).parameters)
        assert told.get("phase", phase) is phase
        assert told.get("plan", result.plan) is result.plan
        assert isinstance(told.get("run", Run(phase, ours.graph)), Run)
    assert seen[-1][2]["error"] is None


@pytest.mark.parametrize("who", ["plugin", "callback"])
def test_all_moments_of_an_execution_are_told_one_run(who, listen, line, experiment, train):
    seen, callback = listen()
    ours, phase = experiment(line()), train(callbacks=[callback])
    for _ in range(2):
        ours.run_phase(phase)
    runs = [told["run"] for kind, moment, told in seen if kind == who and moment != "steps_done"]
    assert len(runs) == (len(HOOKS) - 1) * 2 + 2 * 3  # four steps in each
    assert len(set(map(id, runs))) == 2
    assert runs[0].experiment == "e" and runs[0].graph is ours.graph and runs[0].phase is phase


def test_a_run_outside_of_an_experiment_has_no_label_of_one(line, train):
    assert Run(train(), line()).experiment == ""


def test_an_evaluation_is_in_the_run_when_its_end_is_told(listen, line, experiment, evaluate):
    seen, callback = listen(
        ("after_loading", "phase_end"), act=lambda moment: heard.append(seen[-1][2]["run"].evaluation)
    )
    heard = []
    result = experiment(line()).run_phase(evaluate(metrics=["r2"], callbacks=[callback]))
    before, after = heard
    assert before is None
    assert after.named == {"loss": result.loss, "loss.net": result.losses["net"], "r2": result.metrics["r2"]}
    assert after.outputs["net"] is result.prediction("net")


def test_a_training_gives_no_evaluation(listen, line, experiment, train):
    seen, callback = listen(("phase_end",))
    validated = train(validation="val", callbacks=[callback])
    ours = experiment(line())
    ours.run_phase(validated)
    assert seen[-1][2]["run"].history[0].validated
    assert [told["run"].evaluation for _, _, told in seen] == [None] * 2


def test_an_evaluation_that_fails_leaves_none(listen, line, experiment, evaluate):
    def broken(outputs, targets):
        raise Oops("no measure")

    seen, callback = listen(("phase_end",))
    with pytest.raises(SpecError, match=r"metric 'broken' .* raised Oops: no measure"):
        experiment(line()).run_phase(evaluate(metrics=[broken], callbacks=[callback]))
    assert seen[-1][2]["run"].evaluation is None
    assert isinstance(seen[-1][2]["error"].__cause__, Oops)


def test_a_run_counts_epochs_and_steps_from_nought(at, line, experiment, train):
    heard = []
    steps = at("step_end", lambda run: heard.append((run.epoch, run.step)))
    experiment(line()).run_phase(train(epochs=2, callbacks=[steps]))
    assert heard == [(epoch, step) for epoch in range(2) for step in range(4)]


def test_an_epoch_is_in_the_history_when_its_end_is_told(at, line, experiment, train):
    heard = []
    ends = at("epoch_end", lambda run: heard.append([epoch.number for epoch in run.history]))
    experiment(line()).run_phase(train(epochs=3, callbacks=[ends]))
    assert heard == [[0], [0, 1], [0, 1, 2]]


def test_the_losses_of_a_step_can_be_asked_for(at, line, experiment, train):
    heard = []
    steps = at("step_end", lambda run: heard.append(run.step_losses()["net"]))
    result = experiment(line()).run_phase(train(batch_size=8, callbacks=[steps]))
    assert len(heard) == 2
    assert result.loss[0] == pytest.approx(sum(heard) / 2)


def test_a_step_moment_set_on_an_object_is_heard(line, experiment, train):
    heard = []
    callback = Callback()
    callback.step_end = lambda run: heard.append(run.step)
    experiment(line()).run_phase(train(callbacks=[callback]))
    assert heard == [0, 1, 2, 3]


def test_what_moments_return_changes_nothing(numpy_only, spy, line, experiment, train, values, same):
    plain, told = line(), line()
    experiment(plain).run_phase(train())
    answers = {moment: lambda self, **_: "something else" for moment in HOOKS}
    experiment(told).run_phase(train(callbacks=[type("Talker", (Callback,), answers)()]))
    same(values(plain), values(told))


# -- before anything has moved -----------------------------------------------------------------------------------------


def test_nothing_has_moved_before_placement(sims, at, line, experiment, train):
    graph = line().build()
    before = dict(graph["net"].model.parameters)
    seen = []

    def look(phase, plan):
        seen.append(plan.device("net"))
        assert all(s.transfers.into.number == s.transfers.between.number == s.used == 0 for s in sims)
        assert all(graph["net"].model.parameters[name] is array for name, array in before.items())

    experiment(graph).run_phase(train(accelerator="sim:1", callbacks=[at("before_placement", look)]))
    assert [str(device) for device in seen] == ["sim:1"]


def test_models_have_moved_after_placement_and_data_after_loading(sims, at, line, experiment, train):
    used = {}
    callbacks = [
        at("after_placement", lambda phase, plan: used.update(placed=sims[0].used)),
        at("after_loading", lambda phase, plan: used.update(loaded=sims[0].used)),
    ]
    experiment(line()).run_phase(train(accelerator="sim:0", callbacks=callbacks))
    assert used == {"placed": 4 * 4, "loaded": 4 * 4 + 16 * (3 + 1) * 4}


def test_a_plugin_may_refuse_before_placement(sims, numpy_only, spy, line, experiment, train):
    def refuse(moment):
        if moment == "before_placement":
            raise PermissionError("not on this device")

    numpy_only.register(spy("plugin", [], act=refuse), "guard")
    with pytest.raises(PermissionError, match="not on this device"):
        experiment(line()).run_phase(train(accelerator="sim:0"))
    assert sims[0].used == sims[0].transfers.into.number == 0


# -- the last moment ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [Oops("no"), KeyboardInterrupt("stop"), SystemExit(3)], ids=lambda e: type(e).__name__
)
@pytest.mark.parametrize("who", ["plugin", "callback"])
@pytest.mark.parametrize("moment", HOOKS[:-1])
def test_the_end_is_told_when_a_listener_raises(moment, who, error, numpy_only, spy, line, experiment, train):
    seen = []

    def act(now):
        if now == moment:
            raise error

    acts = {"plugin": None, "callback": None, who: act}
    numpy_only.register(spy("plugin", seen, act=acts["plugin"]), "spy")
    ours = experiment(line())
    with pytest.raises(type(error)) as caught:
        ours.run_phase(train(callbacks=[spy("callback", seen, act=acts["callback"])]))
    assert caught.value is error
    ends = [(kind, told) for kind, now, told in seen if now == "phase_end"]
    assert [kind for kind, _ in ends] == ["plugin", "callback"]
    assert all(told["error"] is error and told["run"].error is error for _, told in ends)
    assert all((told["plan"] is None) == (moment == "phase_start") for _, told in ends)
    assert ours.history[-1].error is error
    assert len(ours.history[-1].epochs) == (1 if moment == "epoch_end" else 0)


def test_a_moment_ends_with_its_first_exception(numpy_only, spy, line, experiment, train):
    seen = []

    def act(moment):
        if moment == "epoch_start":
            raise Oops

    numpy_only.register(spy("plugin", seen, act=act), "spy")
    with pytest.raises(Oops):
        experiment(line()).run_phase(train(callbacks=[spy("callback", seen)]))
    assert "epoch_start" not in names(seen, "callback")


@pytest.mark.parametrize("hook", HOOKS)
def test_an_exception_of_a_plugin_has_a_note_with_its_name(hook, numpy_only, line, experiment, train):
    def fail():
        raise Oops("no")

    numpy_only.register(plugin_module("quiet", **{hook: lambda: None}), "quiet")
    numpy_only.register(plugin_module("brk", **{hook: fail}), "brk")
    numpy_only.register(plugin_module("last", **{hook: lambda: None}), "last")
    with pytest.raises(Oops, match="no") as caught:
        experiment(line()).run_phase(train())
    assert caught.value.__notes__ == [f"raised in {hook} of plugin brk"]


class Shared:
    """Hooks of several plugins; those of one fail."""

    def __init__(self, fails):
        self.fails = fails

    @hookimpl
    def epoch_end(this):
        if this.fails:
            raise Oops("no")


def test_of_plugins_that_share_a_method_the_one_whose_object_failed_is_named(numpy_only, line, experiment, train):
    for name in ("quiet", "brk", "last"):
        module = plugin_module(name)
        module.epoch_end = Shared(name == "brk").epoch_end
        numpy_only.register(module, name)
    with pytest.raises(Oops) as caught:
        experiment(line()).run_phase(train())
    assert caught.value.__notes__ == ["raised in epoch_end of plugin brk"]


def test_what_a_hook_held_is_free_after_its_frames_are_released(numpy_only, line, experiment, train):
    held = []

    def runs_out():
        rows = np.ones(9)
        held.append(weakref.ref(rows))
        raise MemoryError("no room")

    numpy_only.register(plugin_module("big", epoch_end=runs_out), "big")
    with pytest.raises(MemoryError) as caught:
        experiment(line()).run_phase(train())
    error = caught.value
    del caught
    release_frames(error)
    assert error.__notes__ == ["raised in epoch_end of plugin big"] and held[0]() is None


def oom(graph, ours, train, monkeypatch, callback):
    with simulate(1, capacity=8), pytest.raises(OutOfMemoryError, match="not enough memory for 12 bytes on sim:0"):
        ours.run_phase(train(accelerator="sim:0", callbacks=[callback]))


def oom_loading(graph, ours, train, monkeypatch, callback):
    with simulate(1, capacity=100), pytest.raises(OutOfMemoryError, match="not enough memory for 192 bytes on sim:0"):
        ours.run_phase(train(accelerator="sim:0", residency="resident", callbacks=[callback]))


def unresolved(graph, ours, train, monkeypatch, callback):
    with pytest.raises(DeviceUnavailableError, match="'sim:5' is not on this machine"):
        ours.run_phase(train(accelerator="sim:5", callbacks=[callback]))


def unbuilt(graph, ours, train, monkeypatch, callback):
    monkeypatch.setattr(NumpyBackend, "build", lambda self, segment: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ours.run_phase(train(callbacks=[callback]))


def in_a_step(graph, ours, train, monkeypatch, callback):
    apply = Dense.apply

    def fail(self, values, inputs, *, train, key):
        if train:
            raise Oops("in a step")
        return apply(self, values, inputs, train=train, key=key)

    monkeypatch.setattr(Dense, "apply", fail)
    with pytest.raises(Oops, match="in a step"):
        ours.run_phase(train(callbacks=[callback]))


LAST = {
    unresolved: "phase_start",
    oom: "before_placement",
    oom_loading: "after_placement",
    unbuilt: "after_placement",
    in_a_step: "epoch_start",
}


@pytest.mark.parametrize("fault", LAST, ids=lambda fault: fault.__name__)
def test_the_end_is_told_when_the_phase_fails(fault, listen, line, experiment, train, monkeypatch):
    seen, callback = listen()
    graph = line()
    ours = experiment(graph)
    fault(graph, ours, train, monkeypatch, callback)
    for who in ("plugin", "callback"):
        *before, last, end = names(seen, who)
        assert (last, end) == (LAST[fault], "phase_end")
        assert [*before, last] == [*BEFORE_LOOP, "epoch_start"][: len(before) + 1]
    assert seen[-1][2]["error"] is ours.history[-1].error is not None
    assert (seen[-1][2]["plan"] is None) == (fault is unresolved)
    monkeypatch.undo()


def test_a_phase_that_was_never_started_has_no_end(listen, line, experiment, evaluate):
    seen, callback = listen()
    with pytest.raises(PhaseError, match=r"progress='loud'\. Available: 'auto', 'rich', 'html', "):
        experiment(line(), progress="loud", callbacks=[callback]).run_phase(evaluate())
    assert seen == []


# -- failures of the last moment ---------------------------------------------------------------------------------------


def failing(error):
    class Failing(Callback):
        def phase_end(self, phase, plan, run, error_=None, **_):
            raise error

    return Failing()


def test_failures_at_the_end_are_raised_after_all_were_told(listen, line, experiment, train):
    seen, callback = listen(("phase_end",))
    first, second = Oops("one"), ValueError("two")
    ours = experiment(line())
    with pytest.raises(Oops, match="one") as caught:
        ours.run_phase(train(callbacks=[failing(first), failing(second), callback]))
    assert names(seen, "callback") == ["phase_end"]
    assert caught.value.__notes__ == ["phase_end also failed: ValueError: two"]
    assert len(ours.history[-1].epochs) == 1


def test_failures_at_the_end_are_notes_on_what_ended_the_phase(at, listen, line, experiment, train):
    seen, callback = listen(("phase_end",))

    def fail(run):
        raise ValueError("the cause")

    callbacks = [at("epoch_end", fail), failing(Oops("one")), failing(Oops("two")), callback]
    with pytest.raises(ValueError, match="the cause") as caught:
        experiment(line()).run_phase(train(callbacks=callbacks))
    assert caught.value.__notes__ == ["phase_end also failed: Oops: one", "phase_end also failed: Oops: two"]
    assert names(seen, "callback") == ["phase_end"]


def test_a_failing_plugin_does_not_keep_others_from_the_end(numpy_only, spy, line, experiment, train):
    def fail(moment):
        if moment == "phase_end":
            raise Oops("plugin")

    seen = []
    for i in range(3):
        numpy_only.register(spy("plugin", seen, ("phase_end",), act=fail), f"p{i}")
    with pytest.raises(Oops) as caught:
        experiment(line()).run_phase(train(callbacks=[spy("callback", seen)]))
    assert names(seen, "plugin") == ["phase_end"] * 3
    assert names(seen, "callback")[-1] == "phase_end"
    own, *others = caught.value.__notes__
    assert own == "raised in phase_end of plugin p2"
    assert others == [
        f"phase_end also failed: Oops: plugin (raised in phase_end of plugin {name})" for name in ("p1", "p0")
    ]


@pytest.mark.parametrize("failed", [False, True])
def test_an_interrupt_at_the_end_is_raised_after_all_were_told(failed, at, listen, line, experiment, train):
    seen, callback = listen(("phase_end",))

    def fail(run):
        raise Oops("the cause")

    callbacks = [*([at("epoch_end", fail)] if failed else []), failing(KeyboardInterrupt()), callback]
    with pytest.raises(KeyboardInterrupt) as caught:
        experiment(line()).run_phase(train(callbacks=callbacks))
    assert names(seen, "callback") == ["phase_end"]
    assert (str(caught.value.__context__) == "the cause") == failed


def test_plugins_may_wrap_the_last_moment(numpy_only, line, experiment, train):
    heard = []

    class Wrapper:
        @hookimpl(wrapper=True)
        def phase_end(self, error):
            heard.append("before")
            yield
            heard.append(error)

    numpy_only.register(Wrapper(), "wrapper")
    experiment(line()).run_phase(train())
    assert heard == ["before", None]


def test_plugins_may_leave_arguments_out(numpy_only, line, experiment, train):
    heard = []

    class Brief:
        @hookimpl
        def phase_end(self, error):
            heard.append(error)

        @hookimpl
        def before_placement(self, plan):
            heard.append(plan.phase)

    numpy_only.register(Brief(), "brief")
    experiment(line()).run_phase(train())
    assert heard == ["train", None]


def test_callbacks_may_leave_arguments_out(line, experiment, train):
    heard = []

    class Brief(Callback):
        def phase_start(self, phase):
            heard.append(phase.label)

        def before_placement(self):
            heard.append("placing")

        def after_placement(self, *, run):
            heard.append(run.plan.phase)

        def after_loading(self, plan, *more):
            heard.append((plan.phase, more))

        def phase_end(self, error, **rest):
            heard.append((error, sorted(rest)))

    experiment(line()).run_phase(train(callbacks=[Brief()]))
    assert heard == ["train", "placing", "train", ("train", ()), (None, ["phase", "plan", "run"])]


def test_a_hook_that_requires_other_arguments_is_refused_when_the_callback_is_made():
    def of_keras(self, epoch, logs=None):
        """As Keras calls it."""

    for name, received in (("epoch_end", "run"), ("step_end", "run"), ("phase_start", "phase, run")):
        message = rf"Mine\.{name} requires the argument 'epoch', which this hook does not receive.*: {received}\. "
        with pytest.raises(PhaseError, match=rf"{message}Hint: write def {name}\(self, {received}\)"):
            type("Mine", (Callback,), {name: of_keras})
    for hook in (lambda self: None, lambda self, run, logs=None: None, lambda self, *args, **named: None):
        type("Mine", (Callback,), {"epoch_end": hook})


# -- names of hooks ----------------------------------------------------------------------------------------------------

MISSPELT = {
    "on_epoch_end": "epoch_end",
    "epoch_ends": "epoch_end",
    "on_train_epoch_end": "epoch_end",
    "epochEnd": "epoch_end",
    "on_epoch_begin": "epoch_start",
    "epoch_begin": "epoch_start",
    "epoch_started": "epoch_start",
    "on_batch_end": "step_end",
    "on_train_batch_end": "step_end",
    "steps_end": "step_end",
    "on_train_begin": "phase_start",
    "on_fit_start": "phase_start",
    "on_train_end": "phase_end",
    "phase_ends": "phase_end",
    "on_phase_end": "phase_end",
    "before_placment": "before_placement",
    "after_load": "after_loading",
}


def method(self, *arguments):
    """What a callback does."""


@pytest.mark.parametrize(("name", "meant"), MISSPELT.items())
def test_a_misspelt_hook_is_refused_when_the_callback_is_made_and_its_hint_works(name, meant):
    before = "phase_start, before_placement, after_placement, after_loading"
    hooks = f"{before}, epoch_start, step_end, steps_done, epoch_end, phase_end"
    with pytest.raises(PhaseError) as error:
        type("Mine", (Callback,), {name: method})
    assert str(error.value) == (
        f"Mine.{name} is not a hook of callbacks and would never be called. Available: {hooks}. "
        f"Hint: rename it to {meant!r}; if it is a helper rather than a hook, begin its name with an underscore."
    )
    type("Mine", (Callback,), {meant: method})
    type("Mine", (Callback,), {f"_{name}": method})


def test_a_misspelt_hook_of_a_base_class_is_refused_where_it_becomes_a_callback():
    base = type("Base", (), {"on_epoch_end": method})
    with pytest.raises(PhaseError, match=r"Mine\.on_epoch_end is not a hook"):
        type("Mine", (Callback, base), {})


@pytest.mark.parametrize("name", ["save", "report", "setup", "best_epoch", "losses_of", "end", "start", "on_gpu"])
def test_helpers_of_a_callback_may_have_other_names(name):
    assert callable(getattr(type("Mine", (Callback,), {name: method})(), name))


def test_a_callback_of_two_libraries_has_the_hooks_of_both():
    class Both(Callback):
        def on_epoch_end(self, epoch, logs=None):
            """As Keras calls it."""

        def epoch_end(self, run):
            """As anyaccel does."""

    assert Both()


def test_a_value_may_be_called_like_a_hook():
    assert type("Mine", (Callback,), {"epoch_ends": 3}).epoch_ends == 3


class Every(Callback):
    """Writes down the steps that it hears of, and their mean losses."""

    def __init__(self, n_steps, act=None):
        self.every_n_steps = n_steps
        self.heard, self.losses, self._act = [], [], act

    def step_end(self, run):
        self.heard.append((run.epoch, run.step))
        self.losses.append(run.step_losses()["net"])
        if self._act is not None:
            self._act(run)


def listened(*callbacks, n_rows=44, **settings):
    """An epoch of 11 steps, and another, of a plain layer."""
    x = np.random.default_rng(0).standard_normal((n_rows, 3)).astype("float32")
    data = FeatureSet.from_dict("data", {"x": x, "y": x[:, :1]}, "x", "y")
    graph = ModelGraph([ModelNode("net", Dense(1), data.reference())], Optimizer("sgd", lr=0.1), seed=3)
    losses = [AppliedLoss("mse", on="net")]
    phase = TrainPhase(
        "t", data="all", losses=losses, sampler=SimpleSampler(4), epochs=2, callbacks=callbacks, **settings
    )
    return Experiment("e", graph, progress="none").run_phase(phase)


def test_a_callback_hears_of_every_nth_step_with_the_mean_losses_since():
    each, some, seldom = Every(1), Every(4), Every(100)
    listened(each)
    listened(some, seldom)
    assert each.heard == [(epoch, step) for epoch in range(2) for step in range(11)]
    assert some.heard == [(0, 3), (0, 7), (1, 3), (1, 7)]
    assert seldom.heard == []
    first = np.array(each.losses).reshape(2, 11)[:, :8].reshape(2, 2, 4)
    np.testing.assert_allclose(some.losses, first.mean(axis=2).ravel(), rtol=1e-5)


def test_callbacks_with_intervals_of_their_own_hear_of_their_steps():
    threes, fives = Every(3), Every(5)
    results = listened(threes, fives)
    assert [step for epoch, step in threes.heard if epoch == 0] == [2, 5, 8]
    assert [step for epoch, step in fives.heard if epoch == 0] == [4, 9]
    np.testing.assert_allclose(results.loss, listened().loss, rtol=1e-6)


def test_a_run_that_is_stopped_in_an_nth_step_ends_there():
    some = Every(4, act=lambda run: run.stop("enough"))
    assert [epoch.steps for epoch in listened(some).epochs] == [4]


def test_steps_that_nobody_listens_to_are_one_call(monkeypatch):
    counts = []
    real = ArrayProgram.train_steps

    def counting(self, columns, orders, start, n_steps, *more):
        counts.append(n_steps)
        return real(self, columns, orders, start, n_steps, *more)

    monkeypatch.setattr(ArrayProgram, "train_steps", counting)
    listened(Every(4))
    assert sum(counts) == 22
    assert max(counts) == 4
    assert len(counts) < 12


@pytest.mark.parametrize("wrong", [0, -1, 2.5, "10", True])
def test_an_interval_that_is_no_number_of_steps_is_refused(wrong):
    with pytest.raises(PhaseError, match=r"callback Every: every_n_steps") as caught:
        listened(Every(wrong))
    assert "every_n_steps=10" in caught.value.hint


# -- steps in batches --------------------------------------------------------------------------------------------------


class Batches(Callback):
    """Keeps what it hears of by `steps_done`."""

    def __init__(self, act=None):
        self.heard, self._act = [], act

    def steps_done(self, run, steps):
        assert run.step == steps.numbers[-1]
        self.heard.append(steps)
        if self._act is not None:
            self._act(run)

    @property
    def steps(self):
        return [(steps.epoch, step) for steps in self.heard for step in steps.numbers]

    def losses(self, label):
        return np.concatenate([steps.losses()[label] for steps in self.heard])


def test_all_steps_are_told_of_in_batches_with_the_loss_of_each():
    each, batches = Every(1), Batches()
    listened(each)
    listened(batches)
    assert batches.steps == each.heard
    assert len(batches.heard) < 22  # several in one call
    assert all(len(steps) == len(steps.losses()["net"]) for steps in batches.heard)
    np.testing.assert_allclose(batches.losses("net"), each.losses, rtol=1e-6)
    assert repr(batches.heard[0]) == "FinishedSteps(epoch 0, steps 0 to 0)"


def test_whoever_hears_of_batches_makes_no_call_smaller(monkeypatch):
    counts = []
    real = ArrayProgram.train_steps

    def counting(self, columns, orders, start, n_steps, *more):
        counts[-1].append(n_steps)
        return real(self, columns, orders, start, n_steps, *more)

    monkeypatch.setattr(ArrayProgram, "train_steps", counting)
    for callbacks in ((), (Batches(),)):
        counts.append([])
        listened(*callbacks, n_rows=400)
    assert counts[0] == counts[1]
    assert max(counts[1]) > 8


def test_batches_of_accumulated_steps_have_means_of_their_batches():
    each, batches = Every(1), Batches()
    listened(each, accumulate=2)
    listened(batches, accumulate=2)
    assert batches.steps == each.heard
    np.testing.assert_allclose(batches.losses("net"), each.losses, rtol=1e-6)


def test_batches_and_single_steps_are_heard_side_by_side():
    each, batches = Every(4), Batches()
    listened(each, batches)
    assert batches.steps == [(epoch, step) for epoch in range(2) for step in range(11)]
    assert each.heard == [(0, 3), (0, 7), (1, 3), (1, 7)]


def test_a_run_that_is_stopped_in_a_batch_of_steps_ends_after_it():
    batches = Batches(act=lambda run: run.stop("enough") if run.step >= 2 else None)
    epochs = listened(batches).epochs
    assert len(epochs) == 1
    assert epochs[0].steps == len(batches.steps) < 11


def test_plugins_hear_of_batches_too(numpy_only, line, experiment, train):
    heard = []

    @hookimpl
    def steps_done(steps):
        heard.extend(steps.numbers)

    numpy_only.register(plugin_module("listens", steps_done=steps_done), "listens")
    experiment(line()).run_phase(train(epochs=2))
    assert heard == [0, 1, 2, 3] * 2


def test_what_fails_in_a_batch_names_its_plugin(numpy_only, line, experiment, train):
    @hookimpl
    def steps_done(steps):
        raise ValueError("no")

    numpy_only.register(plugin_module("fails", steps_done=steps_done), "fails")
    with pytest.raises(ValueError, match="no") as caught:
        experiment(line()).run_phase(train())
    assert caught.value.__notes__[0] == "raised in steps_done of plugin fails"
