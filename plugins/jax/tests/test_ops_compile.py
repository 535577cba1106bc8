"""Compiled steps: switched off, reused in later phases, in micro-batches, and without transfers."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anyaccel as aa
from anyaccel.backend import CompileEstimate
from anyaccel.device import Device
from anyaccel.errors import CompileError
from anyaccel.segment import LossTerm, TensorSpec
from anyaccel.specs import Optimizer, Schedule
from anyaccel_jax import Function, JaxBackend, SequentialMLP

CPU = Device("cpu")
pytestmark = pytest.mark.usefixtures("arrays_on_cpu")
ADAM = Optimizer("adam", lr=0.01, schedule=Schedule("cosine", steps=40), clip_norm=0.5)
Data = tuple[np.ndarray, np.ndarray, np.ndarray]
Make = Callable[..., Any]


def asking(parameters: Any, x: Any) -> Any:
    """Cannot be traced: it asks for a value."""
    return x @ parameters["w"] if float(x.sum()) < 1e9 else x[:, :1]


def linear(parameters: Any, x: Any) -> Any:
    return x @ parameters["w"]


def function(backend: JaxBackend, apply: Any) -> Any:
    return backend.place(Function(apply, {"w": jnp.ones((3, 1))}), CPU)


def mlp(backend: JaxBackend, **settings: Any) -> Any:
    model = SequentialMLP(**settings)
    backend.infer(model, [TensorSpec((3,), "float32")], 0)
    return backend.place(model, CPU)


def resident(backend: JaxBackend, data: Data) -> tuple[list[Any], list[Any]]:
    x, y, order = (backend.from_host(array, CPU) for array in data)
    return [x, y], [order, order]


def trained(backend: JaxBackend, segment: Any, data: Data, parts: int = 1, compiled: bool = False) -> np.ndarray:
    columns, orders = resident(backend, data)
    program = backend.build(segment)
    program.seed(9)
    if compiled:
        program.compile(columns, orders, 4, parts)
    result = np.asarray(program.train_steps(columns, orders, 0, 5, 4, parts))[:5]
    program.close()
    return result


# -- ways --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2])
def test_all_modes_draw_the_same_and_give_the_same(
    backend: JaxBackend, segment_of: Make, data: Data, parts: int
) -> None:
    result = [
        trained(backend, segment_of(mlp(backend, dropout=0.4), optimizer=ADAM, compile=mode), data, parts, compiled)
        for mode, compiled in (("off", False), ("auto", False), ("steps", True))
    ]
    np.testing.assert_allclose(result[1], result[0], rtol=2e-6)
    np.testing.assert_array_equal(result[2], result[1])


def test_off_calls_the_model_in_each_step_with_values(backend: JaxBackend, segment_of: Make, data: Data) -> None:
    calls: list[float] = []

    def watched(parameters: Any, x: Any) -> Any:
        calls.append(float(x[0, 0]))
        return linear(parameters, x)

    model = function(backend, watched)
    result = trained(backend, segment_of(model, compile="off"), data)
    assert calls == [float(data[0][data[2][i], 0]) for i in range(0, 20, 4)]
    np.testing.assert_allclose(result, trained(backend, segment_of(function(backend, linear)), data), rtol=1e-6)


def test_off_offers_nothing_and_compiles_nothing(backend: JaxBackend, segment_of: Make, data: Data) -> None:
    columns, orders = resident(backend, data)
    program = backend.build(segment_of(function(backend, linear), compile="off"))
    assert program.estimate_compile(100) is None
    with pytest.raises(CompileError, match=r"steps of segment 's' cannot be compiled: .*built with compile='off'"):
        program.compile(columns, orders, 4)


def test_without_a_word_steps_are_compiled_at_once(backend: JaxBackend, segment_of: Make, data: Data) -> None:
    assert backend.build(segment_of(function(backend, linear))).estimate_compile(1) == CompileEstimate(0.0, 0.0)


def test_a_model_that_cannot_be_traced_runs_eagerly(backend: JaxBackend, segment_of: Make, data: Data) -> None:
    columns, orders = resident(backend, data)
    program = backend.build(segment_of(function(backend, asking), optimizer=ADAM))
    with pytest.raises(CompileError, match="cannot be compiled: ConcretizationTypeError: Abstract tracer") as caught:
        program.compile(columns, orders, 4)
    assert isinstance(caught.value.__cause__, jax.errors.ConcretizationTypeError)
    result = np.asarray(program.train_steps(columns, orders, 0, 5, 4))[:5]
    assert program.untraceable_reason.startswith("ConcretizationTypeError") and program.estimate_compile(100) is None
    with pytest.raises(CompileError, match="ConcretizationTypeError"):
        program.compile(columns, orders, 4)
    other = trained(backend, segment_of(function(backend, linear), optimizer=ADAM), data)
    np.testing.assert_allclose(result, other, rtol=2e-6)


def test_single_acts_of_a_model_that_cannot_be_traced(backend: JaxBackend, segment_of: Make, data: Data) -> None:
    inputs, results = resident(backend, data)[0], []
    for apply in (asking, linear):
        program = backend.build(segment_of(function(backend, apply), optimizer=ADAM, needs_pullback=("x",)))
        if apply is linear:
            _, losses = program.forward(inputs)
        else:  # with a gradient of x, JAX gives no value of it
            _, losses = program.forward(inputs)
            assert "ConcretizationTypeError" in program.untraceable_reason
            with pytest.raises(jax.errors.ConcretizationTypeError):
                program.forward_pullback(inputs)
        results.append(float(losses["l"][0]))
    assert results[0] == pytest.approx(results[1])


def test_an_error_of_the_models_own_passes_unchanged(backend: JaxBackend, segment_of: Make, data: Data) -> None:
    def broken(parameters: Any, x: Any) -> Any:
        raise ZeroDivisionError("of the user's")

    columns, orders = resident(backend, data)
    program = backend.build(segment_of(function(backend, broken)))
    with pytest.raises(ZeroDivisionError, match="of the user's") as caught:
        program.train_steps(columns, orders, 0, 1, 4)
    assert caught.value.__context__ is None and program.untraceable_reason == ""


# -- from phase to phase -----------------------------------------------------------------------------------------------


def counted(calls: list[int]) -> Any:
    def apply(parameters: Any, x: Any) -> Any:
        calls.append(1)
        return linear(parameters, x)

    return apply


def test_the_next_phase_uses_what_was_compiled_with_current_values(
    backend: JaxBackend, segment_of: Make, data: Data
) -> None:
    calls: list[int] = []
    model, plain = function(backend, counted(calls)), function(backend, linear)
    first = trained(backend, segment_of(model, optimizer=ADAM), data)
    traces = len(calls)
    again = trained(backend, segment_of(model, optimizer=Optimizer("adam", lr=0.5, clip_norm=0.5)), data)
    assert traces and len(calls) == traces, "another rate is no other program"
    trained(backend, segment_of(model, optimizer=Optimizer("sgd", lr=0.5)), data)
    assert len(calls) > traces, "another optimizer is one"
    np.testing.assert_array_equal(trained(backend, segment_of(plain, optimizer=ADAM), data), first)
    fast = Optimizer("adam", lr=0.5, clip_norm=0.5)
    np.testing.assert_array_equal(trained(backend, segment_of(plain, optimizer=fast), data), again)


def test_a_changed_module_is_compiled_again(backend: JaxBackend, segment_of: Make, data: Data, nnx: ModuleType) -> None:
    module = nnx.Sequential(nnx.Linear(3, 1, rngs=nnx.Rngs(0)), nnx.Dropout(0.0, rngs=nnx.Rngs(0)))
    backend.place(module, CPU)
    state, result = nnx.to_pure_dict(nnx.state(module)), []
    for rate in (0.0, 0.9, 0.0):
        nnx.update(module, nnx.state(module))
        nnx.replace_by_pure_dict(fresh := nnx.state(module), state)
        nnx.update(module, fresh)
        module.layers[1].rate = rate
        result.append(trained(backend, segment_of(module), data))
    assert (result[0] != result[1]).any()
    np.testing.assert_array_equal(result[0], result[2])


ALPHA = 1.0


class Config:
    """What a user's configuration looks like."""

    scale = 1.0


CONFIG = Config()


def scaled_error(outputs: Any, targets: Any) -> Any:
    return ALPHA * jnp.mean((outputs - targets) ** 2)


def scaled_linear(parameters: Any, x: Any) -> Any:
    return x @ parameters["w"] * CONFIG.scale


@pytest.mark.parametrize("what", ["a global of a loss", "an attribute of an object that a model reads"])
def test_a_value_changed_between_phases_is_compiled_again(
    backend: JaxBackend, segment_of: Make, data: Data, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    model, result = function(backend, scaled_linear), []
    start = backend.state(model)
    for value in (1.0, 2.0):
        if what == "a global of a loss":
            monkeypatch.setitem(globals(), "ALPHA", value)
        else:
            monkeypatch.setattr(CONFIG, "scale", value)
        for mode in ("auto", "off"):
            backend.load_state(model, start)
            result.append(trained(backend, segment_of(model, loss=scaled_error, compile=mode), data))
    np.testing.assert_allclose(result[0], result[1], rtol=1e-5)
    np.testing.assert_allclose(result[2], result[3], rtol=1e-5)
    assert (result[2] != result[0]).any()


def linen_model(cfg: Config) -> Any:
    import flax.linen as nn

    class Block(nn.Module):
        config: Any

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(1, kernel_init=nn.initializers.ones)(x) * self.config.scale

    return nn.Sequential([Block(cfg)])


def nnx_model(cfg: Config) -> Any:
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self) -> None:
            self.dense, self.config = nnx.Linear(3, 1, rngs=nnx.Rngs(0)), cfg

        def __call__(self, x: Any) -> Any:
            return self.dense(x) * self.config.scale

    return nnx.Sequential(Block())


def equinox_model(cfg: Config) -> Any:
    import equinox as eqx

    class Block(eqx.Module):
        dense: Any
        config: Any

        def __call__(self, x: Any, key: Any = None) -> Any:
            return self.dense(x) * self.config.scale

    return eqx.nn.Sequential([Block(eqx.nn.Linear(3, 1, key=jax.random.key(0)), cfg)])


@pytest.mark.parametrize(("library", "make"), [("linen", linen_model), ("nnx", nnx_model), ("eqx", equinox_model)])
def test_a_configuration_inside_a_module_is_compared(
    backend: JaxBackend, segment_of: Make, data: Data, request: pytest.FixtureRequest, library: str, make: Any
) -> None:
    request.getfixturevalue(library)
    config = Config()
    model = backend.wrap(make(config))
    backend.infer(model, [TensorSpec((3,), "float32")], 0)
    start, result = backend.state(model), []
    for scale in (1.0, 2.0):
        config.scale = scale
        for mode in ("auto", "off"):
            backend.load_state(model, start)
            result.append(trained(backend, segment_of(model, compile=mode), data))
    np.testing.assert_allclose(result[0], result[1], rtol=1e-5)
    np.testing.assert_allclose(result[2], result[3], rtol=1e-5)
    assert (result[2] != result[0]).any()


def test_loss_kwargs_that_differ_in_the_middle_only_are_compiled_again(
    backend: JaxBackend, segment_of: Make, data: Data
) -> None:
    class Weighted:
        def __init__(self, weight: Any) -> None:
            self.weight = weight

        def __call__(self, outputs: Any, targets: Any) -> Any:
            return jnp.mean((outputs - targets) ** 2) * jnp.sum(self.weight)

    Weighted.__qualname__ = "Weighted"
    globals()["Weighted"] = Weighted
    model, result = function(backend, linear), []
    start = backend.state(model)
    for middle in (0.0, 1.0):
        weight = np.ones(5000, "float32")
        weight[2500] = middle
        backend.load_state(model, start)
        loss = aa.Loss(Weighted, loss_kwargs={"weight": weight / 5000})
        term = LossTerm("l", "a", loss, ("a", "y"), CPU, 1.0)
        result.append(trained(backend, segment_of(model, losses=(term,)), data))
    np.testing.assert_allclose(result[0][0], result[1][0] * 4999 / 5000, rtol=1e-6)
    assert (result[0] != result[1]).any()


@pytest.mark.parametrize("hook", ["epoch_start", "epoch_end"])
def test_a_value_that_a_callback_changes_between_epochs_is_compiled_anew(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    """Annealing: the numbers are those of uncompiled steps, and an event names the value."""
    losses: list[np.ndarray] = []
    events: dict[str, str] = {}

    def anneal(self: Any, run: Any) -> None:
        globals()["ALPHA"] *= 0.5
        events[run.phase.compile] = " ".join(event.message for event in run.events)

    for mode in ("auto", "off"):
        monkeypatch.setitem(globals(), "ALPHA", 1.0)
        callback = type("Annealing", (aa.Callback,), {hook: anneal})()
        model = Function(linear, {"w": jnp.ones((3, 1))})
        losses.append(train(model, loss=scaled_error, compile=mode, callbacks=[callback])[1])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert "dropped because ALPHA of the loss 'net' has changed" in events["auto"] and "ALPHA" not in events["off"]


def test_a_value_that_a_callback_changes_between_steps_is_refused(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "ALPHA", 1.0)

    class Annealing(aa.Callback):
        def step_end(self, run: Any) -> None:
            globals()["ALPHA"] *= 0.5

    with pytest.raises(CompileError, match=r"ALPHA of the loss 'net' has changed between steps.*compile='off'"):
        train(Function(linear, {"w": jnp.ones((3, 1))}), loss=scaled_error, callbacks=[Annealing()])
    losses = train(
        Function(linear, {"w": jnp.ones((3, 1))}), loss=scaled_error, callbacks=[Annealing()], compile="off"
    )[1]
    assert losses[-1] < 0.05 * losses[0]


def test_a_loss_that_counts_its_traces_is_no_change(train: Callable[..., Any]) -> None:
    """What tracing changes by itself neither compiles anew nor is refused."""
    traces: list[int] = []

    def counting(outputs: Any, targets: Any) -> Any:
        traces.append(1)
        return jnp.mean((outputs - targets) ** 2)

    class Watching(aa.Callback):
        def step_end(self, run: Any) -> None:
            pass

    train(Function(linear, {"w": jnp.ones((3, 1))}), loss=counting, callbacks=[Watching()])
    first = len(traces)
    train(Function(linear, {"w": jnp.ones((3, 1))}), loss=counting, callbacks=[Watching()], epochs=9)
    assert len(traces) == 2 * first


@pytest.mark.parametrize("kind", ["function", "nnx", "keras"])
def test_models_and_what_was_compiled_for_them_are_garbage_collected(
    backend: JaxBackend, segment_of: Make, data: Data, request: pytest.FixtureRequest, kind: str
) -> None:
    from anyaccel.adapter import compile_cache

    if kind == "function":
        model = function(backend, linear)
    elif kind == "nnx":
        nnx = request.getfixturevalue("nnx")
        model = backend.place(nnx.Linear(3, 1, rngs=nnx.Rngs(0)), CPU)
    else:
        keras = request.getfixturevalue("keras")
        model = keras.Sequential([keras.layers.Dense(1)])
        backend.infer(model, [TensorSpec((3,), "float32")], 0)
    gc.collect()
    gone, before = weakref.ref(model), len(compile_cache.CACHE)
    trained(backend, segment_of(model, optimizer=ADAM), data, compiled=True)
    assert len(compile_cache.CACHE) == before + 1
    del model
    gc.collect()
    assert gone() is None and len(compile_cache.CACHE) == before


# -- transfers ---------------------------------------------------------------------------------------------------------


def test_consecutive_steps_send_nothing(backend: JaxBackend, segment_of: Make, data: Data) -> None:
    """By JAX's own guard, which counts arguments of NumPy and of Python among transfers."""
    columns, orders = resident(backend, data)
    program = backend.build(segment_of(mlp(backend, dropout=0.2), optimizer=ADAM))
    program.seed(1)
    for start, count in ((0, 1), (4, 2), (0, 1)):  # compilation here is not counted
        program.train_steps(columns, orders, start, count, 4)
    kept = []
    with jax.transfer_guard("disallow_explicit"):
        for start, count in ((4, 1), (8, 2), (16, 1), (20, 1)):
            kept.append(program.train_steps(columns, orders, start, count, 4))
        with pytest.raises(Exception, match=r"(?i)disallowed host-to-device transfer"):
            program.train_steps(columns, orders, 0, 1, 4)  # an epoch begins: five integers are sent
    with jax.transfer_guard("disallow"):
        kept.append(program.train_steps(columns, orders, 0, 1, 4))
    assert np.isfinite(np.concatenate(kept)).all()


def test_a_phase_sends_little_for_an_epoch(monkeypatch: pytest.MonkeyPatch, data: Data) -> None:
    """The order of each epoch; at the beginning also the scalars of the first step, a table of rates, and a key."""
    from anyaccel_jax import step_loop

    sent: list[int] = []
    put = step_loop._put  # noqa: SLF001
    monkeypatch.setattr(step_loop, "_put", lambda *given: sent.append(given[-1].nbytes) or put(*given))
    source = aa.FeatureSet.from_dict("data", {"x": data[0], "y": data[1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", SequentialMLP(), source.reference())], ADAM)
    ends: list[int] = []

    class Ends(aa.Callback):
        def epoch_end(self, run: Any) -> None:
            ends.append(len(sent))

    phase = aa.TrainPhase(
        "t", data=source, losses=[aa.AppliedLoss("mse", on="net")], batch_size=4, epochs=6, callbacks=[Ends()]
    )
    aa.Experiment("e", graph, progress="none").run_phase(phase)
    assert all(after - before <= 6 for before, after in itertools.pairwise(ends[2:])), ends


def test_processes_with_it_are_not_forked() -> None:
    """JAX keeps threads of its own."""
    assert JaxBackend.fork_safe is False
