"""Specs of schedules and optimizers: golden values, every message, configurations."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyaccel import Loss, Optimizer, Schedule
from anyaccel.errors import AnyaccelError, ConfigError, SpecError


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule(), {0: 1, 1: 1, 10_000: 1}),
        (Schedule("linear", steps=4), {0: 1, 1: 0.75, 2: 0.5, 3: 0.25, 4: 0, 5: 0, 99: 0}),
        (Schedule("linear", steps=4, final=0.2), {0: 1, 2: 0.6, 4: 0.2, 99: 0.2}),
        (
            Schedule("cosine", steps=4),
            {0: 1, 1: (2 + math.sqrt(2)) / 4, 2: 0.5, 3: (2 - math.sqrt(2)) / 4, 4: 0, 99: 0},
        ),
        (Schedule("cosine", steps=2, final=0.5), {0: 1, 1: 0.75, 2: 0.5, 3: 0.5}),
        (Schedule("exponential", rate=0.25), {0: 1, 1: 0.25, 2: 0.0625}),
        (Schedule("exponential", rate=0.25, every=2), {0: 1, 1: 0.5, 2: 0.25, 3: 0.125}),
        (Schedule("step", rate=0.5, every=3), {0: 1, 2: 1, 3: 0.5, 5: 0.5, 6: 0.25}),
        (Schedule(warmup=4), {0: 0.25, 1: 0.5, 2: 0.75, 3: 1, 4: 1}),
        (Schedule("linear", steps=2, warmup=2), {0: 0.5, 1: 1, 2: 1, 3: 0.5, 4: 0}),
        (Schedule("step", rate=0.1, every=1, warmup=1), {0: 1, 1: 1, 2: 0.1}),
    ],
    ids=lambda value: "" if isinstance(value, dict) else str(value.get_config()),
)
def test_factors_golden(schedule, expected):
    assert {t: schedule.factor(t) for t in expected} == pytest.approx(expected, abs=1e-15)


some = st.one_of(
    st.builds(Schedule, st.just("constant"), warmup=st.integers(0, 5)),
    st.builds(
        Schedule,
        st.sampled_from(["linear", "cosine"]),
        steps=st.integers(1, 9),
        final=st.floats(0, 1),
        warmup=st.integers(0, 5),
    ),
    st.builds(Schedule, st.sampled_from(["exponential", "step"]), rate=st.floats(0.1, 1), every=st.integers(1, 9)),
)


@given(some, st.integers(0, 60))
def test_a_schedule_decreases_from_one_after_its_warmup(schedule, t):
    assert 0 <= schedule.factor(t) <= 1
    if t >= schedule.warmup:
        assert schedule.factor(t + 1) <= schedule.factor(t) + 1e-15


@given(some)
def test_a_schedule_round_trips_through_its_configuration(schedule):
    again = Schedule.from_config(schedule.get_config())
    assert again == schedule
    assert hash(again) == hash(schedule)


def test_settings_may_be_given_in_any_order():
    assert Schedule("linear", steps=3, final=0.5) == Schedule("linear", final=0.5, steps=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "exponential", "rate": -1}, "schedule 'exponential': rate=-1 is not a finite number of at least 0"),
        (
            {"name": "poly"},
            "no schedule is called 'poly'. Available: constant, linear, cosine, exponential, step. Hint: use one",
        ),
        ({"name": int}, "no schedule is called <class 'int'>. Available: constant, linear,"),  # a function of the step
        ({"name": "linear"}, "schedule 'linear' lacks steps. Hint: write Schedule('linear', steps=100)."),
        ({"name": "step", "rate": 0.5}, "schedule 'step' lacks every. Hint: write Schedule('step', every=100)."),
        ({"name": "exponential"}, "schedule 'exponential' lacks rate. Hint: write Schedule('exponential', rate=0.1)."),
        (
            {"name": "cosine", "steps": 3, "end": 1},
            "schedule 'cosine' has no setting end. Available: warmup, steps, final.",
        ),
        ({"name": "constant", "steps": 3}, "schedule 'constant' has no setting steps. Available: warmup. Hint: leave"),
        ({"name": "linear", "steps": 0}, "schedule 'linear': steps=0 is not a number of steps"),
        ({"name": "linear", "steps": 2.5}, "schedule 'linear': steps=2.5 is not a number of steps"),
        ({"name": "step", "rate": 1, "every": -1}, "schedule 'step': every=-1 is not a number of steps"),
        ({"warmup": -1}, "schedule 'constant': warmup=-1 is not a number of steps"),
        ({"warmup": 0.5}, "schedule 'constant': warmup=0.5 is not a number of steps"),
    ],
)
def test_every_message_of_a_schedule(arguments, message):
    with pytest.raises(SpecError) as caught:
        Schedule(**arguments)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("wrong", [math.inf, math.nan, None])
def test_a_count_that_is_not_a_number_is_refused(wrong):
    with pytest.raises(SpecError, match="is not a number of steps"):
        Schedule("linear", steps=wrong)


def halved(step):
    return 0.5**step


def test_a_function_is_a_schedule_and_counts_from_the_end_of_the_warmup():
    schedule = Schedule(halved, warmup=2)
    assert [schedule.factor(t) for t in range(5)] == [0.5, 1.0, 1.0, 0.5, 0.25]
    optimizer = Optimizer("sgd", lr=0.2, schedule=halved)
    assert [optimizer.rate(t) for t in range(3)] == pytest.approx([0.2, 0.1, 0.05])
    assert optimizer.schedule == Schedule(halved) != Schedule(lambda step: 0.5**step)
    assert Schedule(lambda step: np.float32(0.5)).factor(0) == 0.5


@pytest.mark.parametrize("given", [-1.0, float("nan"), None, "half"])
def test_a_function_that_gives_no_factor_is_refused_when_it_is_given(given):
    with pytest.raises(SpecError, match=r"schedule 'wrong': factor=.* is not a finite number of at least 0"):

        def wrong(step):
            return given

        Optimizer("sgd", schedule=wrong)


def test_a_function_has_no_settings_and_no_configuration():
    with pytest.raises(
        SpecError, match=r"schedule 'halved' has no setting steps\. Available: warmup\. Hint: leave it out"
    ):
        Schedule(halved, steps=3)
    with pytest.raises(ConfigError, match="schedule 'halved' belongs to a framework and has no configuration"):
        Optimizer("sgd", schedule=halved).get_config()


# -- optimizers --------------------------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_formulas():
    assert Optimizer("sgd").settings == {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
    assert Optimizer("momentum").settings == {"momentum": 0.9, "nesterov": False, "weight_decay": 0.0}
    assert Optimizer("adam").settings == {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
    assert Optimizer("adamw").settings == {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
    assert (Optimizer().name, Optimizer().lr, Optimizer().clip_norm) == ("adam", 1e-3, None)


def test_groups_have_settings_of_their_own_and_a_configuration():
    schedule = Schedule("linear", steps=4)
    spec = Optimizer(
        "adamw", lr=0.2, weight_decay=0.1, schedule=schedule, groups={"*bias": {"weight_decay": 0, "lr": 1}}
    )
    (pattern, group), *others = spec.groups
    assert (pattern, others) == ("*bias", [])
    assert group == Optimizer("adamw", lr=1, weight_decay=0, schedule=schedule)
    assert Optimizer.from_config(json.loads(json.dumps(spec.get_config()))) == spec
    assert hash(spec) == hash(Optimizer.from_config(spec.get_config()))
    with pytest.raises(ConfigError, match="the predicate of an optimizer's group 'halved'"):
        Optimizer("adamw", groups={halved: {"lr": 1}}).get_config()


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"*bias": {"weight_decay": -1}}, "optimizer 'adamw': weight_decay=-1 is not a finite number of at least 0"),
        ({"*bias": {"decay": 0}}, "optimizer 'adamw' has no setting decay"),
        ({"*bias": {"clip_value": 1.0}}, "has no settings by pattern. Hint: write groups={'*bias': {'lr': 0.1}}"),
        ({"*bias": {"clip_norm": 1.0}}, "has no settings by pattern. Hint: write groups={'*bias': {'lr': 0.1}}"),
        ({"*bias": 3}, "optimizer 'adamw': groups={'*bias': 3} has no settings by pattern"),
        ({3: {"lr": 1}}, "optimizer 'adamw': groups={3: {'lr': 1}} has no settings by pattern"),
        (["*bias"], "optimizer 'adamw': groups=['*bias'] has no settings by pattern"),
    ],
)
def test_every_message_of_groups(groups, message):
    with pytest.raises(SpecError) as caught:
        Optimizer("adamw", groups=groups)
    assert message in str(caught.value)


def test_settings_by_keyword_and_by_dict_are_the_same():
    one = Optimizer("adam", opt_kwargs={"lr": 0.1, "betas": [0.5, 0.9]})
    assert one == Optimizer("ADAM", lr=0.1, betas=(0.5, 0.9))


def test_the_rate_is_the_schedules_factor_times_lr():
    optimizer = Optimizer("sgd", lr=0.2, schedule=Schedule("linear", steps=4))
    assert [optimizer.rate(t) for t in range(6)] == pytest.approx([0.2, 0.15, 0.1, 0.05, 0, 0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"name": "lion"},
            "no optimizer is called 'lion'. Available: sgd, momentum, adam, adamw. Hint: use one of these names",
        ),
        (
            {"name": "adam", "momentum": 0.9},
            "optimizer 'adam' has no setting momentum. Available: lr, schedule, clip_norm, clip_value, betas, eps, wei",
        ),
        ({"name": "sgd", "opt_kwargs": {"b": 1}}, "optimizer 'sgd' has no setting b."),
        ({"lr": 0}, "optimizer 'adam': lr=0 is not a positive number"),
        ({"lr": math.nan}, "optimizer 'adam': lr=nan is not a positive number"),
        ({"lr": math.inf}, "optimizer 'adam': lr=inf is not a positive number"),
        ({"lr": "0.1"}, "optimizer 'adam': lr='0.1' is not a positive number"),
        ({"clip_norm": -1.0}, "optimizer 'adam': clip_norm=-1.0 is not a positive number"),
        ({"clip_norm": 0}, "optimizer 'adam': clip_norm=0 is not a positive number"),
        ({"clip_value": 0}, "optimizer 'adam': clip_value=0 is not a positive number. Hint: write clip_value="),
        ({"clip_value": "1"}, "optimizer 'adam': clip_value='1' is not a positive number"),
        (
            {"clip_norm": 1.0, "clip_value": 1.0},
            "optimizer 'adam': clip_norm and clip_value are both set. Hint: leave one of them out",
        ),
        ({"betas": (0.9, 1.0)}, "optimizer 'adam': betas=(0.9, 1.0) are not two numbers in [0, 1)"),
        ({"betas": (0.9,)}, "optimizer 'adam': betas=(0.9,) are not two numbers in [0, 1)"),
        ({"name": "sgd", "momentum": 1}, "optimizer 'sgd': momentum=1 is not in [0, 1)"),
        ({"weight_decay": -0.1}, "optimizer 'adam': weight_decay=-0.1 is not a finite number of at least 0"),
    ],
)
def test_every_message_of_an_optimizer(arguments, message):
    with pytest.raises(SpecError) as caught:
        Optimizer(**arguments)
    assert str(caught.value).startswith(message)


named = st.one_of(
    st.builds(
        Optimizer, st.sampled_from(["sgd", "momentum"]), lr=st.floats(1e-6, 1), schedule=st.one_of(st.none(), some),
        momentum=st.floats(0, 0.99), nesterov=st.booleans(), clip_norm=st.one_of(st.none(), st.floats(0.1, 9)),
    ),
    st.builds(
        Optimizer, st.sampled_from(["adam", "adamw"]), lr=st.floats(1e-6, 1), schedule=some,
        betas=st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)), weight_decay=st.floats(0, 1),
    ),
)  # fmt: skip


@given(named)
def test_an_optimizer_round_trips_through_its_configuration(optimizer):
    again = Optimizer.from_config(optimizer.get_config())
    assert again == optimizer
    assert hash(again) == hash(optimizer)


@given(named)
def test_a_configuration_is_made_of_plain_values(optimizer):
    import json

    config = optimizer.get_config()
    assert json.loads(json.dumps(config)) == config


def test_a_frameworks_own_optimizer_has_no_configuration():
    class Lion:
        pass

    optimizer = Optimizer(Lion, lr=0.1, anything=3)
    assert (optimizer.name, optimizer.own, optimizer.settings) == ("Lion", Lion, {"anything": 3})
    with pytest.raises(ConfigError, match=r"optimizer 'Lion' belongs to a framework.*use a named optimizer"):
        optimizer.get_config()


@pytest.mark.parametrize("wrong", [None, 3, "adam", [("name", "adam")], {1: "adam"}, {"schedule": "linear"}])
def test_an_object_that_is_not_a_configuration_is_refused(wrong):
    with pytest.raises(ConfigError, match="is not the configuration of"):
        Optimizer.from_config(wrong)


@pytest.mark.parametrize("wrong", [{"name": "adam", "what": 1}, {"schedule": {"name": "linear"}}, {"name": None}])
def test_a_configuration_with_unknown_names_is_refused(wrong):
    with pytest.raises(AnyaccelError):
        Optimizer.from_config(wrong)


def test_an_object_that_is_not_an_optimizer_is_refused():
    class Adam:
        pass

    with pytest.raises(SpecError) as caught:
        Optimizer(Adam())
    assert str(caught.value) == (
        "an object of type Adam cannot be used as an optimizer. Available: names: sgd, momentum, adam, adamw. Hint: "
        "pass a name, or the optimizer's class, so that every node gets a separate instance."
    )


def test_numbers_of_numpy_are_taken_without_a_warning_and_kept_as_numbers_of_python():
    """A float32 was compared with the largest float64, of which NumPy warned."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule = Schedule("step", rate=0.5, every=np.int64(3))
        spec = Optimizer("adam", lr=np.float32(0.5), eps=np.float32(0.25), schedule=schedule)
    assert type(spec.lr) is float and json.loads(json.dumps(spec.get_config())) == spec.get_config()
    assert spec.settings["eps"] == 0.25 and spec.rate(3) == 0.25


@pytest.mark.parametrize("value", [10**400, np.float32("inf"), np.float64("nan")])
def test_numbers_that_no_float_holds_are_refused(value):
    with pytest.raises(SpecError, match=r"eps=.* is not a finite number of at least 0.*Hint: write eps=0.1"):
        Optimizer("adam", eps=value)


@pytest.mark.parametrize("spec", [Optimizer, Schedule, Loss])
def test_an_empty_configuration_is_not_that_of_the_defaults(spec):
    with pytest.raises(ConfigError, match=r"\{\} is not the configuration of .*Hint: pass the dict from get_config"):
        spec.from_config({})


WARMUPS = ("warmup_steps", "num_warmup_steps")
NORMS = ("max_grad_norm", "max_norm", "grad_clip", "gradient_clip_val", "global_clipnorm")


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: Optimizer("adam", backend="torch"), "leave it out: the framework of each node builds it"),
        (lambda: Loss("mse", reduction="mean"), "leave it out: losses are means"),
        *((lambda word=word: Schedule("linear", steps=26, **{word: 3}), "it is called 'warmup'") for word in WARMUPS),
        (lambda: Schedule(halved, warmup_steps=3), "it is called 'warmup'"),
        (lambda: Schedule("linear", steps=9, warmup_epochs=1), "it is called 'warmup', and counts steps, not epochs"),
        (
            lambda: Schedule("linear", steps=9, warmup_ratio=0.1),
            "it is called 'warmup', and is a number of steps, not a fraction",
        ),
        (lambda: Schedule("cosine", T_max=9), "it is called 'steps'"),
        (lambda: Schedule("exponential", decay_rate=0.9, every=10), "it is called 'rate'"),
        (lambda: Schedule("exponential", rate=0.9, decay_steps=10), "it is called 'every'"),
        (
            lambda: Schedule("linear", num_training_steps=9, warmup=3),
            "it is called 'steps', and counts from the end of the warm-up",
        ),
        *((lambda word=word: Optimizer("adamw", **{word: 1.0}), "it is called 'clip_norm'") for word in NORMS),
        (
            lambda: Optimizer("adamw", clipnorm=1.0),
            "it is called 'clip_norm', and limits the norm of all gradients together",
        ),
        (lambda: Optimizer("adamw", clipvalue=1.0), "it is called 'clip_value'"),
        (lambda: Optimizer("adam", learning_rate=0.1), "it is called 'lr'"),
        (
            lambda: Optimizer("adam", warmup_steps=3),
            "it belongs to the schedule: schedule=Schedule('cosine', steps=1000, warmup=100)",
        ),
    ],
)
def test_settings_of_other_libraries_have_a_hint(make, hint):
    with pytest.raises(SpecError) as caught:
        make()
    assert caught.value.hint == hint
