"""Programs: donation, devices, precision, and randomness."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anyaccel as aa
from anyaccel.adapter.traced_program import MAX_STEPS_PER_CALL
from anyaccel.device import Device
from anyaccel.errors import DeviceMismatchError, GraphError, MoveError, OutOfMemoryError, SpecError, StateError
from anyaccel.segment import NodeState, TensorSpec
from anyaccel.specs import Loss, Optimizer
from anyaccel_jax import Function, JaxBackend, SequentialMLP, compute
from anyaccel_jax.ops import JaxOps

CPU, SECOND = Device("cpu"), Device("cpu", 1)
ADAM = Optimizer("adam", lr=0.01)
Data = tuple[np.ndarray, np.ndarray, np.ndarray]


def linear(parameters: Any, x: Any) -> Any:
    return x @ parameters["w"]


def resident(backend: JaxBackend, data: Data, device: Device = CPU) -> list[Any]:
    return [backend.from_host(array, device) for array in data]


def steps(program: Any, columns: list[Any], count: int = 3, start: int = 0) -> np.ndarray:
    x, y, order = columns
    return np.asarray(program.train_steps((x, y), (order, order), start, count, 4))[:count]


def is_alive(tree: Any) -> bool:
    return not any(leaf.is_deleted() for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))


# -- donation ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["kept", "donated"])
def donation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """The state of large models is donated; here that of all models, or of none."""
    if request.param == "donated":
        monkeypatch.setattr(compute, "DONATED_BYTES", 0)
    return bool(request.param == "donated")


def test_the_state_of_large_models_is_donated(backend: JaxBackend, segment_of: Any, data: Data, donation: bool) -> None:
    """The tests below rely on it."""
    model = backend.place(Function(linear, {"w": jnp.ones((3, 1))}), CPU)
    program = backend.build(segment_of(model, optimizer=ADAM))
    given: list[Any] = []
    program.map_gradients(given.append)
    snapshot = program.snapshot()
    steps(program, resident(backend, data))
    inside = list(flat(program.snapshot()))
    steps(program, resident(backend, data))
    assert is_alive([inside, flat(snapshot)]), "what was handed out stays"
    pointers = [state_pointers(program) for _ in range(2) if steps(program, resident(backend, data)).any()]
    assert (pointers[0] == pointers[1]) == donation


def state_pointers(program: Any) -> set[int]:
    """Addresses of a program's parameters, read without changing the program."""
    return {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(program._state.parameters)}  # noqa: SLF001


def test_the_users_arrays_live_through_everything(
    backend: JaxBackend, segment_of: Any, data: Data, donation: bool
) -> None:
    given = {"w": jnp.ones((3, 1))}
    model = backend.place(Function(linear, given), CPU)
    columns, before = resident(backend, data), dict(model.parameters)
    program = backend.build(segment_of(model, optimizer=ADAM))
    kept: list[Any] = [given, before, columns]
    first = steps(program, columns)
    kept += [program.snapshot(), program.optimizer_states()]
    program.sync_models()
    kept += [dict(model.parameters), program.snapshot()]
    steps(program, columns)
    program.restore(kept[3])
    np.testing.assert_array_equal(steps(program, columns), steps_again(program, kept[3], columns))
    kept.append(program.close())
    assert is_alive([state.slots if isinstance(state, NodeState) else state for state in flat(kept)])
    assert is_alive(model.parameters) and first.shape == (3, 1)
    np.testing.assert_array_equal(before["w"], np.ones((3, 1)))


def steps_again(program: Any, snapshot: Any, columns: list[Any]) -> np.ndarray:
    program.restore(snapshot)
    return steps(program, columns)


def flat(obj: Any) -> list[Any]:
    """Everything in dicts, lists, tuples and optimizer states."""
    if isinstance(obj, NodeState):
        return flat(dict(obj.slots))
    if isinstance(obj, dict):
        return [part for item in obj.values() for part in flat(item)]
    return [part for item in obj for part in flat(item)] if isinstance(obj, (list, tuple)) else [obj]


def test_states_of_an_earlier_phase_live_on(backend: JaxBackend, segment_of: Any, data: Data, donation: bool) -> None:
    columns = resident(backend, data)
    model = backend.place(Function(linear, {"w": jnp.ones((3, 1))}), CPU)
    program = backend.build(segment_of(model, optimizer=ADAM))
    steps(program, columns)
    states = program.close()
    steps(backend.build(segment_of(model, optimizer=ADAM, states=states)), columns)
    assert is_alive(flat(dict(states)))


def test_an_nnx_modules_own_arrays_live_on(
    backend: JaxBackend, segment_of: Any, data: Data, nnx: ModuleType, donation: bool
) -> None:
    model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    backend.place(model, CPU)
    before = nnx.to_pure_dict(nnx.state(model))
    program = backend.build(segment_of(model, optimizer=ADAM))
    steps(program, resident(backend, data))
    assert is_alive(before) and is_alive(nnx.state(model))
    program.sync_models()
    steps(program, resident(backend, data))
    assert is_alive(nnx.state(model)) and (nnx.state(model)["kernel"][...] != before["kernel"]).any()


def test_more_steps_than_one_call_does(backend: JaxBackend, segment_of: Any, donation: bool) -> None:
    count = MAX_STEPS_PER_CALL + 3
    x = np.random.default_rng(0).normal(size=(count, 3)).astype("f4")
    columns = resident(backend, (x, x[:, :1].copy(), np.arange(count, dtype="i4")))
    result = []
    for cuts in ([count], [MAX_STEPS_PER_CALL, 3], [7, count - 7]):
        program = backend.build(
            segment_of(backend.place(Function(linear, {"w": jnp.ones((3, 1))}), CPU), optimizer=ADAM)
        )
        begins = np.cumsum([0, *cuts])
        result.append(
            [
                np.asarray(program.train_steps(columns[:2], [columns[2]] * 2, int(start), n, 1))[:n]
                for start, n in zip(begins, cuts, strict=False)
            ]
        )
        assert program.optimizer_states()["a"].step == count
    for parts in result:
        assert [len(part) for part in parts] in ([count], [MAX_STEPS_PER_CALL, 3], [7, count - 7])
        np.testing.assert_allclose(np.concatenate(parts), np.concatenate(result[0]), rtol=1e-5)


@pytest.mark.parametrize("good", [0, 9])
def test_after_a_step_that_failed_the_model_has_good_values(data: Data, donation: bool, good: int) -> None:
    calls: list[int] = []

    def count(_: Any) -> None:
        calls.append(1)
        if len(calls) > good:
            raise ValueError("the sensor is broken")

    def apply(parameters: Any, x: Any, train: bool) -> Any:
        if train:
            jax.debug.callback(count, x[0, 0])
        return x @ parameters["w"]

    model = Function(apply, {"w": jnp.ones((3, 1))})
    source = aa.FeatureSet.from_dict("data", {"x": data[0], "y": data[1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", model, source.reference())], ADAM)
    phase = aa.TrainPhase("t", data=source, losses=[aa.AppliedLoss("mse", on="net")], batch_size=8, epochs=5)
    with pytest.raises(Exception, match="the sensor is broken") as caught:
        aa.Experiment("e", graph, progress="none").run_phase(phase)
    assert isinstance(caught.value, jax.errors.JaxRuntimeError)
    assert is_alive(model.tree) and np.isfinite(graph.state()["net/parameters/w"]).all()
    assert not any("lost" in note for note in getattr(caught.value, "__notes__", ())), "there is a snapshot"
    assert not good or donation or not (model.tree["w"] == 1).all(), "what the calls before it learned is kept"
    assert good or (model.tree["w"] == 1).all()


def test_values_that_a_failed_step_took_along_are_said_to_be_lost(backend: JaxBackend, segment_of: Any) -> None:
    program = backend.build(segment_of(backend.place(Function(linear, {"w": jnp.ones((3, 1))}), CPU), optimizer=ADAM))
    for array in jax.tree.leaves(program._state.parameters):  # noqa: SLF001
        array.delete()
    with pytest.raises(StateError, match=r"a Function were lost in a step that failed.*from the start of the phase"):
        program.close()


def test_values_whose_computation_failed_late_are_not_written() -> None:
    class Late:
        def is_deleted(self) -> bool:
            return False

        def block_until_ready(self) -> None:
            raise jax.errors.JaxRuntimeError("INTERNAL: the step failed")

    model = Function(linear, {"w": jnp.ones((3, 1))})
    with pytest.raises(StateError, match="a Function were lost in a step that failed"):
        JaxOps(lambda array, device: array).write(model, {"w": Late()}, {})
    np.testing.assert_array_equal(model.parameters["w"], np.ones((3, 1)))


def test_a_failure_that_jax_tells_late_is_an_out_of_memory_error(
    backend: JaxBackend, segment_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On waiting for the state, for a snapshot and for models, and on reading; nothing is written to the models."""
    model = backend.place(Function(linear, {"w": jnp.ones((3, 1))}), CPU)
    program = backend.build(segment_of(model, optimizer=ADAM))
    written, array, loss = dict(model.parameters), jnp.ones(3, "float32"), jnp.ones(())

    def fail(*arrays: Any) -> Any:
        raise jax.errors.JaxRuntimeError("INTERNAL: Error dispatching computation: Out of memory allocating 8 bytes.")

    monkeypatch.setattr(jax, "block_until_ready", fail)
    for call in (program.synchronize, program.snapshot, program.sync_models):
        with pytest.raises(OutOfMemoryError, match=r"not enough memory for a training step: INTERNAL.*8 bytes\. Hint"):
            call()
    monkeypatch.setattr(np, "asarray", fail)
    with pytest.raises(OutOfMemoryError, match="not enough memory for the computation of an array of 12 bytes"):
        backend.to_host(array)
    monkeypatch.setattr(jax, "device_get", fail)
    with pytest.raises(OutOfMemoryError, match="not enough memory for the losses of training steps"):
        backend.scalars([loss])
    assert all(model.parameters[name] is written[name] for name in written)


# -- devices -----------------------------------------------------------------------------------------------------------


def test_a_segment_over_two_devices_trains_as_on_one(data: Data) -> None:
    result = []
    for second in ("cpu:0", "cpu:1"):
        source = aa.FeatureSet.from_dict("data", {"x": data[0], "y": data[1]}, ["x"], ["y"])
        nodes = [
            aa.ModelNode("a", SequentialMLP(4), source.reference()),
            aa.ModelNode("b", SequentialMLP(1), "a", accelerator=second),
            aa.ModelNode("c", SequentialMLP(1), "a"),
        ]
        graph = aa.ModelGraph(nodes, Optimizer("adam", lr=0.01, clip_norm=0.5))
        losses = [aa.AppliedLoss("mse", on="b"), aa.AppliedLoss("mse", on="c", weight=0.5)]
        phase = aa.TrainPhase("t", data=source, losses=losses, sampler=aa.SimpleSampler(8), epochs=4)
        results = aa.Experiment("e", graph, progress="none").run_phase(phase)
        assert aa.device_of(graph["b"].model) == Device.parse(second)
        state = {name: value for name, value in graph.state().items() if "optimizer_step" not in name}
        result.append((results.loss, state))
    np.testing.assert_allclose(result[1][0], result[0][0], rtol=1e-5)
    for name, value in result[0][1].items():
        np.testing.assert_allclose(result[1][1][name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_cotangents_are_on_the_device_of_their_value(backend: JaxBackend, segment_of: Any) -> None:
    segment = segment_of(Function(linear, {"w": jnp.ones((3, 1))}), needs_pullback=("x",))
    (op,), (term,) = segment.operations, segment.losses
    backend.place(op.model, SECOND)
    program = backend.build(replace(segment, operations=(replace(op, device=SECOND),), losses=(term,)))
    x, y = (jax.device_put(jnp.ones(shape), jax.devices("cpu")[0]) for shape in ((4, 3), (4, 1)))
    outputs, losses, pullback = program.forward_pullback((x, y))
    (back,) = pullback([None])
    assert [backend.device_of(tensor) for tensor in (outputs[0], losses["l"][0], back)] == [SECOND, CPU, CPU]
    np.testing.assert_allclose(back, np.full((4, 3), 2 * (3 - 1) / 4))


def test_inputs_on_another_device_raise(backend: JaxBackend, segment_of: Any) -> None:
    program = backend.build(segment_of(backend.place(Function(linear, {"w": jnp.ones((3, 1))}), CPU)))
    x, y = (backend.from_host(np.ones(shape, "f4"), SECOND) for shape in ((4, 3), (4, 1)))
    with pytest.raises(DeviceMismatchError, match=r"a training step: arrays are on several devices.*\[0\].*\[1\]"):
        program.forward((x, y))


# -- precision ---------------------------------------------------------------------------------------------------------


def test_float64_models_need_64_bits(backend: JaxBackend, data: Data) -> None:
    source = aa.FeatureSet.from_dict("data", {"x": data[0], "y": data[1]}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", SequentialMLP(dtype="float64"), source.reference())], "adam")
    with pytest.raises(MoveError, match=r"JAX would convert float64 to float32, .*jax_enable_x64"):
        graph.build()


def test_columns_of_int64_are_not_narrowed(backend: JaxBackend) -> None:
    source = aa.FeatureSet.from_dict("data", {"x": np.arange(8)[:, None], "y": np.ones((8, 1))}, ["x"], ["y"])
    model = Function(lambda p, x: p["w"][x[:, 0]], {"w": jnp.zeros((8, 1))})
    with pytest.raises(MoveError, match=r"JAX would convert int64 to int32.*astype\('int32'\)"):
        aa.ModelGraph([aa.ModelNode("net", model, source.reference())], "adam").build()


def test_class_indices_of_int64_are_taken_all_the_same(train: Any, data: Data) -> None:
    """Class indices are int32 on JAX, whatever dtype the table has."""
    x, kind = data[0], (data[0][:, 0] > 0).astype("int64")
    source = aa.FeatureSet.from_dict("data", {"x": x, "kind": kind}, ["x"], ["kind"])
    graph = aa.ModelGraph([aa.ModelNode("net", SequentialMLP(2), source.reference())], Optimizer("adam", lr=0.05))
    phase = aa.TrainPhase("t", data=source, losses=[aa.AppliedLoss("cross_entropy", on="net")], epochs=30)
    results = aa.Experiment("e", graph, progress="none").run_phase(phase)
    assert results.loss[-1] < results.loss[0] / 2


X64 = """
import numpy as np, jax, jax.numpy as jnp
import anyaccel as aa
from anyaccel_jax import SequentialMLP, JaxBackend
jax.config.update("jax_enable_x64", True)
x = np.random.default_rng(0).normal(size=(32, 3))
source = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, :1] ** 2}, ["x"], ["y"])
found = []
for framework in ("jax", "numpy"):
    model = aa.registry.registry().computing(framework).models()["SequentialMLP"](dtype="float64")
    optimizer = aa.Optimizer("adamw", lr=0.01, clip_norm=0.1)
    graph = aa.ModelGraph([aa.ModelNode("net", model, source.reference())], optimizer)
    phase = aa.TrainPhase("t", data=source, losses=[aa.AppliedLoss("mse", on="net")], batch_size=8, epochs=20)
    found.append((aa.Experiment("e", graph, progress="none").run_phase(phase).loss, graph.state()))
np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-12)
for name, value in found[1][1].items():
    assert found[0][1][name].dtype == value.dtype, name
    np.testing.assert_allclose(found[0][1][name], value, rtol=1e-9, atol=1e-14)
print(found[0][1]["net/parameters/layers.0.weight"].dtype)
"""


def test_with_64_bits_a_whole_run_is_that_of_the_reference() -> None:
    code = X64.replace("aa.registry.registry()", "__import__('anyaccel.registry').registry.registry()")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert (done.stdout.strip(), done.returncode) == ("float64", 0), done.stderr


def test_16_bit_models_train(backend: JaxBackend, train: Any) -> None:
    model = Function(linear, {"w": jnp.ones((3, 1), jnp.bfloat16)})
    result, losses = train(model, Optimizer("adam", lr=0.05))
    assert result.parameters["w"].dtype == "bfloat16" == backend.dtype_of(result) and losses[-1] < losses[0]


# -- randomness and losses ---------------------------------------------------------------------------------------------


def test_keys_do_not_depend_on_the_users_choice_of_generator(backend: JaxBackend, segment_of: Any, data: Data) -> None:
    result = []
    for name in ("threefry2x32", "rbg"):
        with jax.default_prng_impl(name):
            model = SequentialMLP(dropout=0.5)
            backend.infer(model, [TensorSpec((3,), "float32")], 0)
            program = backend.build(segment_of(backend.place(model, CPU)))
            program.seed(2**63 + 5)
            result.append(steps(program, resident(backend, data)))
    np.testing.assert_array_equal(result[0], result[1])


@pytest.mark.parametrize("seed", [3, 2**32, (7 << 32) + 3, 2**64 - 1])
def test_a_key_is_made_of_all_64_bits_of_a_seed(seed: int) -> None:
    high, low = JaxOps(lambda array, device: array).key(seed).tolist()
    assert (high << 32) + low == seed


def test_dropout_drops_its_share_of_elements(backend: JaxBackend) -> None:
    model = SequentialMLP(1, n_layers=2, hidden_dim=20_000, activation="identity", dropout=0.25)
    backend.infer(model, [TensorSpec((1,), "float32")], 0)
    parameters = {name: jnp.ones_like(parameter) / parameter.size for name, parameter in model.parameters.items()}
    parameters |= {"layers.0.weight": jnp.ones((20_000, 1)), "layers.0.bias": jnp.zeros(20_000)}
    parameters["layers.1.bias"] = jnp.zeros(1)
    (y,), _ = model.apply(parameters, {}, [jnp.ones((4, 1))], True, jax.random.key(0))
    np.testing.assert_allclose(y, 1.0, atol=0.02)
    assert len(set(np.asarray(y).ravel())) == 4


def test_losses_of_ones_own(train: Any) -> None:
    expected = train(Function(linear, {"w": jnp.ones((3, 1))}))
    own = train(Function(linear, {"w": jnp.ones((3, 1))}), loss=lambda y, t: jnp.mean((y - t) ** 2))
    np.testing.assert_allclose(own[1], expected[1], rtol=1e-6)
    np.testing.assert_allclose(own[0].tree["w"], expected[0].tree["w"], rtol=1e-6)


def test_a_loss_per_sample_raises(backend: JaxBackend, segment_of: Any) -> None:
    segment = segment_of(backend.place(Function(linear, {"w": jnp.ones((3, 1))}), CPU))
    (term,) = segment.losses
    program = backend.build(replace(segment, losses=(replace(term, loss=Loss(lambda y, t: (y - t) ** 2)),)))
    with pytest.raises(SpecError, match=r"returns shape \[4, 1\].*mean over the batch"):
        program.forward((jnp.ones((4, 3)), jnp.ones((4, 1))))


def test_writing_to_inputs_is_never_feared(backend: JaxBackend) -> None:
    assert not backend.mutates_inputs(SequentialMLP(), [TensorSpec((3,), "float32")])


def rotate(parameters: Any, x: Any) -> Any:
    return jax.lax.complex(x @ parameters["real"], x @ parameters["imag"])


def magnitude(parameters: Any, x: Any) -> Any:
    return jnp.abs(x) @ parameters["scale"]


@pytest.mark.parametrize("compile_steps", ["off", "steps"])
def test_gradients_flow_through_a_complex_value_between_nodes(compile_steps: str) -> None:
    rng = np.random.default_rng(0)
    columns = {"x": rng.normal(size=(16, 4)).astype("float32"), "y": rng.normal(size=(16, 3)).astype("float32")}
    data = aa.FeatureSet.from_dict("data", columns, ["x"], ["y"])
    first = {"real": jnp.full((4, 3), 0.3), "imag": jnp.full((4, 3), 0.1)}
    second = {"scale": jnp.full((3, 3), 0.5)}

    def losses(*models: Any) -> Any:
        nodes = [aa.ModelNode("a", models[0], data.reference())]
        nodes += [aa.ModelNode("b", model, "a") for model in models[1:]]
        loss = aa.AppliedLoss("mse", on=nodes[-1].label)
        phase = aa.TrainPhase("train", data=data, losses=[loss], batch_size=8, epochs=4, compile=compile_steps)
        graph = aa.ModelGraph(nodes, aa.Optimizer("sgd", lr=0.1))
        return aa.Experiment("e", graph, progress="none").run_phase(phase).loss

    both = Function(lambda parameters, x: magnitude(parameters, rotate(parameters, x)), {**first, **second})
    apart = Function(rotate, first), Function(magnitude, second)
    np.testing.assert_allclose(losses(*apart), losses(both), rtol=1e-5)


def test_a_complex_parameter_is_refused_and_not_trained_along_a_conjugated_gradient() -> None:
    columns = {"x": np.ones((8, 3), "float32"), "y": np.zeros((8, 3), "float32")}
    data = aa.FeatureSet.from_dict("data", columns, ["x"], ["y"])
    model = Function(lambda p, x: jnp.abs(p["w"] - (1 + 1j) * x) ** 2, {"w": jnp.zeros(3, jnp.complex64)})
    graph = aa.ModelGraph([aa.ModelNode("a", model, data.reference())], "sgd")
    phase = aa.TrainPhase("train", data="all", losses=[aa.AppliedLoss("mse", on="a")], batch_size=8)
    with pytest.raises(GraphError, match=r"the parameter 'w' of node 'a' is complex \(complex64\)"):
        aa.Experiment("e", graph, progress="none").run_phase(phase)
