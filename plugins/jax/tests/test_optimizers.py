"""Optax: factories and transformations, compared with Optax's own loop."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import SpecError
from anyaccel.specs import Optimizer, Schedule
from anyaccel_jax import Function, JaxBackend

Train = Callable[..., tuple[Any, np.ndarray]]
Batches = list[tuple[np.ndarray, np.ndarray]]
STEPS = 9


def model() -> Function:
    draw = np.random.default_rng(0)
    weights = {"a": draw.normal(size=(3, 5)).astype("f4"), "b": {"c": draw.normal(size=(5, 1)).astype("f4")}}
    return Function(lambda p, x: jnp.tanh(x @ p["a"]) @ p["b"]["c"], weights)


def by_optax(
    optax: Any, transformation: Any, batches: Batches, factor: Callable[[int], float], *, with_value: bool = False
) -> Any:
    """The parameters after Optax's own loop; `factor` scales the changes of each step."""
    own = model()
    parameters = own.parameters
    state = transformation.init(parameters)
    for step, (x, y) in enumerate(batches):
        loss = lambda p, x=x, y=y: ((own.apply(p, {}, [x], True, None)[0][0] - y) ** 2).mean()  # noqa: E731
        value, gradients = jax.value_and_grad(loss)(parameters)
        more = {"value": value} if with_value else {}
        changes, state = transformation.update(gradients, state, parameters, **more)
        parameters = optax.apply_updates(parameters, jax.tree.map(lambda c, s=step: c * factor(s), changes))
    return parameters


MADE: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "adamw": (lambda o: o.adamw, {"weight_decay": 0.1}),
    "lion": (lambda o: o.lion, {}),
    "sgd with momentum": (lambda o: o.sgd, {"momentum": 0.9, "nesterov": True}),
    "adafactor": (lambda o: o.adafactor, {"min_dim_size_to_factor": 2}),
    "adamw with a mask": (lambda o: o.adamw, {"mask": lambda p: {name: name == "a" for name in p}}),
    "a function of the user's": (
        lambda o: lambda learning_rate, clip=0.5: o.chain(o.clip_by_global_norm(clip), o.adam(learning_rate)),
        {"clip": 0.1},
    ),
    "labelled": (
        lambda o: (
            lambda learning_rate: o.multi_transform(
                {"x/y": o.adam(learning_rate), "z": o.sgd(learning_rate)},
                lambda p: {n: "z" if n == "a" else "x/y" for n in p},
            )
        ),
        {},
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_a_function_gets_the_rate_of_each_step(train: Train, batches: Batches, optax: ModuleType, name: str) -> None:
    make, settings = MADE[name]
    schedule = Schedule("linear", steps=6, final=0.2, warmup=2)
    given = Optimizer(make(optax), lr=0.02, schedule=schedule, **settings)
    # Optax calls schedules with its own count of steps, which begins at 0 as ours does.
    rates = jnp.array([given.rate(step) for step in range(STEPS)], jnp.float32)
    expected = by_optax(optax, make(optax)(learning_rate=lambda t: rates[t], **settings), batches, lambda step: 1.0)
    result, losses = train(model(), given)
    assert losses[-1] < losses[0]
    for key, value in expected.items():
        np.testing.assert_allclose(result.parameters[key], value, rtol=2e-5, atol=1e-6)


def test_a_schedule_of_optax_is_a_function_of_the_step(train: Train, batches: Batches, optax: ModuleType) -> None:
    own = optax.warmup_cosine_decay_schedule(0.1, 1.0, 2, STEPS, 0.01)
    expected = by_optax(optax, optax.adam(lambda step: 0.02 * own(step)), batches, lambda step: 1.0)
    result, _ = train(model(), Optimizer("adam", lr=0.02, schedule=own))
    for key, value in expected.items():
        np.testing.assert_allclose(result.parameters[key], value, rtol=2e-5, atol=1e-6)


def test_an_object_has_a_rate_of_its_own_and_ours_is_a_factor(
    train: Train, batches: Batches, optax: ModuleType
) -> None:
    made = optax.chain(optax.clip_by_global_norm(0.3), optax.adam(0.02))
    for settings, factor in (
        ({}, lambda step: 1.0),
        ({"lr": 0.5}, lambda step: 0.5),
        ({"schedule": Schedule("step", rate=0.5, every=2)}, lambda step: 0.5 ** (step // 2)),
    ):
        expected = by_optax(optax, made, batches, factor)
        result, _ = train(model(), Optimizer(made, **settings))
        for key, value in expected.items():
            np.testing.assert_allclose(result.parameters[key], value, rtol=2e-5, atol=1e-6)


def test_anything_made_like_optax_is_taken(train: Train) -> None:
    """Optax itself is not needed."""
    halving = SimpleNamespace(init=lambda p: (), update=lambda g, s, p: (jax.tree.map(lambda w: -0.5 * w, p), s))
    result, _ = train(model(), Optimizer(halving, clip_norm=1.0), epochs=1)
    for key, value in model().parameters.items():
        np.testing.assert_allclose(result.parameters[key], value / 8, rtol=1e-6)


def test_clip_norm_is_applied_before(train: Train, batches: Batches, optax: ModuleType) -> None:
    result, _ = train(model(), Optimizer(optax.sgd, lr=0.5, clip_norm=0.05))
    named, _ = train(model(), Optimizer("sgd", lr=0.5, clip_norm=0.05))
    for key, value in named.parameters.items():
        np.testing.assert_allclose(result.parameters[key], value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("compile_mode", ["off", "steps"])
def test_clip_value_is_optaxs_clip(
    train: Train, batches: Batches, optax: ModuleType, name: str, compile_mode: str
) -> None:
    own = getattr(optax, name)
    expected = by_optax(optax, optax.chain(optax.clip(0.02), own(0.1)), batches, lambda step: 1.0)
    free = by_optax(optax, own(0.1), batches, lambda step: 1.0)
    for optimizer in (Optimizer(name, lr=0.1, clip_value=0.02), Optimizer(own, lr=0.1, clip_value=0.02)):
        result, _ = train(model(), optimizer, compile=compile_mode)
        for key, value in expected.items():
            np.testing.assert_allclose(result.parameters[key], value, rtol=1e-4, atol=1e-5)
        assert max(np.abs(free[key] - value).max() for key, value in expected.items()) > 1e-3


def test_optaxs_adam_is_that_of_the_formulas(train: Train, optax: ModuleType) -> None:
    for name, given in (("adam", optax.adam), ("adamw", optax.adamw)):
        settings = {"weight_decay": 0.1} if name == "adamw" else {}
        first, other = (train(model(), Optimizer(kind, lr=0.03, **settings))[0] for kind in (name, given))
        for key, value in first.parameters.items():
            np.testing.assert_allclose(other.parameters[key], value, rtol=2e-5, atol=1e-6)


# -- state -------------------------------------------------------------------------------------------------------------


def trained(
    optimizer: Optimizer, data: Any, cuts: tuple[int, ...], through_state: bool = False
) -> dict[str, np.ndarray]:
    """The state of a graph after phases of some epochs; optionally with a new graph before each phase."""
    source = aa.FeatureSet.from_dict("data", {"x": data[0], "y": data[1]}, ["x"], ["y"])
    state: dict[str, np.ndarray] | None = None
    graph = aa.ModelGraph([aa.ModelNode("net", model(), source.reference())], optimizer)
    for epochs in cuts:
        if through_state and state is not None:
            graph = aa.ModelGraph([aa.ModelNode("net", model(), source.reference())], optimizer).load_state(state)
        phase = aa.TrainPhase("t", data=source, losses=[aa.AppliedLoss("mse", on="net")], epochs=epochs)
        aa.Experiment("e", graph, progress="none").run_phase(phase)
        state = graph.state()
    assert state is not None
    return state


@pytest.mark.parametrize("name", ["adamw", "adafactor", "labelled"])
@pytest.mark.parametrize("through_state", [False, True], ids=["in place", "through a state"])
def test_training_continues_from_a_state(data: Any, optax: ModuleType, name: str, through_state: bool) -> None:
    make, settings = MADE[name]
    optimizer = Optimizer(make(optax), lr=0.02, **settings)
    straight, cut = trained(optimizer, data, (4,)), trained(optimizer, data, (1, 3), through_state)
    assert set(straight) == set(cut) and any("/optimizer/" in key for key in cut)
    for key, value in straight.items():
        np.testing.assert_allclose(cut[key], value, rtol=1e-5, atol=1e-7, err_msg=key)


def test_a_state_of_another_optimizer_begins_afresh(backend: JaxBackend, segment_of: Any, optax: ModuleType) -> None:
    program = backend.build(segment_of(model(), optimizer=Optimizer(optax.adam)))
    x, y = jnp.ones((4, 3)), jnp.ones((4, 1))
    program.forward_pullback((x, y))[2]([None])
    program.optimizer_step()
    states = program.close()
    assert states["a"].step == 1 and set(states["a"].slots["a"]) == {"0.count", "0.mu", "0.nu"}
    assert set(states["a"].slots["b.c"]) == {"0.mu", "0.nu"}, "what is kept for all stands with the first by name"
    again = backend.build(segment_of(model(), optimizer=Optimizer(optax.adam), states=states))
    assert again.optimizer_states()["a"].step == 1
    other = backend.build(segment_of(model(), optimizer=Optimizer(optax.lion), states=states))
    assert other.optimizer_states()["a"].step == 0


def test_steps_are_compiled_once(backend: JaxBackend, segment_of: Any, optax: ModuleType, data: Any) -> None:
    """The initial state of a transformation is on the parameters' devices; else JAX would compile twice."""
    import logging

    records: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record.getMessage())

    log, keep = logging.getLogger("jax._src.interpreters.pxla"), Keep()
    net = backend.place(model(), aa.Device("cpu"))
    program = backend.build(segment_of(net, optimizer=Optimizer(optax.adam)))
    columns = [backend.from_host(array, aa.Device("cpu")) for array in data]
    propagate, log.propagate = log.propagate, False
    log.addHandler(keep)
    try:
        with jax.log_compiles(True):
            for _ in range(3):
                program.train_steps(columns[:2], [columns[2]] * 2, 0, 2, 4)
    finally:
        log.removeHandler(keep)
        log.propagate = propagate
    assert sum("train_step" in text for text in records) == 1, records


# -- what is refused ---------------------------------------------------------------------------------------------------


def refused(backend: JaxBackend, segment_of: Any, *arguments: Any, **settings: Any) -> str:
    with pytest.raises(SpecError) as caught:
        backend.build(segment_of(model(), optimizer=Optimizer(*arguments, **settings)))
    return str(caught.value)


def test_unusable_optimizers_raise(backend: JaxBackend, segment_of: Any, optax: ModuleType) -> None:
    message = refused(backend, segment_of, optax.clip_by_global_norm, max_norm=1.0)
    assert "has no parameter learning_rate" in message and "Optimizer(clip_by_global_norm(...))" in message
    assert "cannot create the optimizer adam" in refused(backend, segment_of, optax.adam, nothing=3)
    assert "is a finished transformation, but got settings: b1" in refused(
        backend, segment_of, optax.adam(1e-3), b1=0.5
    )
    message = refused(backend, segment_of, lambda learning_rate: 3)
    assert "returns a int" in message and "init and update" in message


PLATEAU: dict[str, Callable[[Any], Any]] = {
    "reduce on plateau": lambda o: o.chain(
        o.adam(0.3), o.contrib.reduce_on_plateau(factor=0.5, patience=1, cooldown=1, accumulation_size=2)
    ),
    "polyak": lambda o: o.polyak_sgd(max_learning_rate=0.5),
}


@pytest.mark.parametrize("name", PLATEAU)
@pytest.mark.parametrize("settings", [{}, {"compile": "off"}, {"sampler": aa.SimpleSampler(4), "accumulate": 2}])
def test_an_optimizer_gets_the_value_of_the_loss_if_it_needs_it(
    train: Train, batches: Batches, optax: ModuleType, data: Any, name: str, settings: dict[str, Any]
) -> None:
    made = PLATEAU[name](optax)
    expected = by_optax(optax, made, batches, lambda step: 1.0, with_value=True)
    source = aa.FeatureSet.from_dict("data", {"x": data[0], "y": data[1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", model(), source.reference())], Optimizer(made))
    settings = {"sampler": aa.SimpleSampler(8), "epochs": 3, **settings}
    phase = aa.TrainPhase("t", data=source, losses=[aa.AppliedLoss("mse", on="net")], **settings)
    aa.Experiment("e", graph, progress="none").run_phase(phase)
    for key, value in expected.items():
        np.testing.assert_allclose(graph["net"].model.parameters[key], value, rtol=2e-5, atol=1e-6)


def test_the_value_is_the_weighted_sum_of_all_losses(optax: ModuleType, data: Any) -> None:
    results = []
    for losses in ([("mse", 3.0)], [("mse", 1.0), ("mse", 2.0)]):
        source = aa.FeatureSet.from_dict("data", {"x": data[0], "y": data[1]}, ["x"], ["y"])
        graph = aa.ModelGraph([aa.ModelNode("net", model(), source.reference())], Optimizer(PLATEAU["polyak"](optax)))
        applied = [aa.AppliedLoss(loss, on="net", weight=w, label=f"l{i}") for i, (loss, w) in enumerate(losses)]
        phase = aa.TrainPhase("t", data=source, losses=applied, sampler=aa.SimpleSampler(8))
        aa.Experiment("e", graph, progress="none").run_phase(phase)
        results.append(graph["net"].model.parameters)
    for key, value in results[0].items():
        np.testing.assert_allclose(results[1][key], value, rtol=2e-5, atol=1e-6)


def test_an_optimizer_that_needs_the_loss_is_refused_where_a_step_is_computed_in_several_parts(
    backend: JaxBackend, segment_of: Any, optax: ModuleType
) -> None:
    program = backend.build(segment_of(model(), optimizer=Optimizer(PLATEAU["polyak"](optax))))
    program.forward_pullback((jnp.ones((4, 3)), jnp.ones((4, 1))))[2]([None])
    with pytest.raises(
        SpecError,
        match=r"needs the value of the loss, but the step is computed in several parts.*Hint: train all nodes",
    ):
        program.optimizer_step()


def test_an_optimizer_that_needs_more_than_gradients_raises(
    backend: JaxBackend, segment_of: Any, optax: ModuleType
) -> None:
    message = refused(backend, segment_of, optax.lbfgs)
    assert "lbfgs needs more than gradients" in message and "value_fn" in message


def test_optimizers_of_other_frameworks_are_refused(backend: JaxBackend, optax: ModuleType) -> None:
    foreign = type("Foreign", (), {"__module__": "another_framework.parts", "__call__": lambda self: None})
    assert backend.unsupported_reason(Optimizer(foreign)) == "Foreign comes from another_framework.parts"
    assert (
        backend.unsupported_reason(Optimizer(optax.adam))
        == ""
        == backend.unsupported_reason(Optimizer(optax.adam(1e-3)))
    )
