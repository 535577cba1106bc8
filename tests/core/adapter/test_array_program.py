"""ArrayProgram: gradients over a segment, shared and frozen models, groups, whole steps, and state."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anyaccel.errors import GraphError
from anyaccel.numpy_backend import Activation, BatchNorm, Dense, Dropout, Module, Sequential, SequentialMLP, VjpResult
from anyaccel.segment import NodeState, ParameterGroup
from anyaccel.specs import Optimizer


class Split(Module):
    """Two outputs: the input times a factor, and minus the input."""

    def __init__(self):
        super().__init__()
        self.parameters["factor"] = np.array([2.0, 3.0])

    def apply(self, values, inputs, *, train, key):
        (x,), factor = inputs, values["factor"]

        def pullback(cotangents):
            p, q = cotangents
            return {"factor": np.sum(p * x, axis=0)}, (p * factor - q,)

        return VjpResult((x * factor, -x), pullback)


class Embedding(Module):
    """Rows of a table by integers, which have no gradient."""

    def __init__(self):
        super().__init__()
        self.parameters["table"] = np.arange(6.0).reshape(3, 2)

    def apply(self, values, inputs, *, train, key):
        (index,), table = inputs, values["table"]

        def pullback(cotangents):
            gradient = np.zeros_like(table)
            np.add.at(gradient, index, cotangents[0])
            return {"table": gradient}, (None,)

        return VjpResult((table[index],), pullback)


@pytest.fixture
def columns(draw):
    return {"x": draw(8, 3), "y": draw(8, 2)}


@pytest.fixture
def ready(backend, segment, node, loss, columns, built):
    """A program of one Dense(2) with mse, its model and its columns."""

    def make(optimizer="sgd", model=None, **settings):
        model = built(model or Dense(2, dtype="float64"), columns["x"])
        terms = settings.pop("losses", [loss("mse", "n y")])
        return backend.build(segment(columns, [node("n", model, "x")], terms, optimizer, **settings))

    return make


def train(program, columns, **settings):
    _, losses, pullback = program.forward_pullback(tuple(columns.values()), **settings)
    pullback([None] * len(program.segment.outputs))
    program.optimizer_step()
    return losses


def gradients(program):
    """Those of all parameters, in the order of the groups' nodes and parameters."""
    gradients = []
    program.map_gradients(lambda gradient: gradients.append(gradient) or gradient)
    return gradients


def parameters(program, label="n"):
    program.close()
    return next(op.model for op in program.segment.operations if op.label == label).parameters


def test_losses_are_the_same_with_and_without_a_pullback(ready, columns):
    program = ready()
    outputs, losses = program.forward(tuple(columns.values()))
    assert outputs == ()
    again = program.forward_pullback(tuple(columns.values()))[1]
    assert [float(part) for part in losses["n"]] == [float(part) for part in again["n"]]
    assert float(losses["n"][1]) == 16


def test_weights_and_scales_of_losses(ready, columns, loss):
    def gradient(scale=None, weight=1.0):
        program = ready(losses=[loss("mse", "n y", weight=weight)])
        program.forward_pullback(tuple(columns.values()), scale)[2]([])
        return math.sqrt(program.grad_stats()["main"][0])

    assert gradient(weight=3.0) == pytest.approx(3 * gradient())
    assert gradient(weight=0.0) == 0
    assert gradient(scale={"n": 1.0}) == pytest.approx(16 * gradient())
    assert gradient(scale={"n": 1 / 16}, weight=3.0) == pytest.approx(gradient())
    assert gradient(scale={"n": np.array(0.5)}) == pytest.approx(8 * gradient())
    assert gradient(scale={"other": 5.0}) == pytest.approx(gradient())


def test_micro_batches_add_up_to_the_whole_batch(ready, columns):
    whole, parts = ready(), ready()
    train(whole, columns)
    for rows in (slice(0, 5), slice(5, 8)):
        parts.forward_pullback([column[rows] for column in columns.values()], {"n": 1 / 16})[2]([])
    parts.optimizer_step()
    for name, value in parameters(whole).items():
        np.testing.assert_allclose(parameters(parts)[name], value, rtol=1e-12)


def test_the_users_model_is_unchanged_until_close(ready, columns):
    program = ready("adam")
    model = program.segment.operations[0].model
    before = {name: (array, array.copy()) for name, array in model.parameters.items()}
    train(program, columns)
    assert all(model.parameters[name] is array for name, (array, _) in before.items())
    first, second = program.close(), program.close()
    assert first == second
    for name, (array, copy) in before.items():
        np.testing.assert_array_equal(array, copy)
        assert not np.array_equal(model.parameters[name], copy)


def test_a_shared_model_adds_its_gradients_and_has_one_state(backend, segment, node, loss, columns, built, slopes):
    model = built(Dense(3, dtype="float64"), columns["x"])
    target = {"x": columns["x"], "y": columns["x"][::-1].copy()}
    chain = [node("a", model, "x"), node("t", Activation("tanh"), "a"), node("b", model, "t")]
    program = backend.build(segment(target, chain, [loss("mse", "b y")], Optimizer("adam")))

    def total():
        a = np.tanh(target["x"] @ model.parameters["weight"].T + model.parameters["bias"])
        return float(np.mean((a @ model.parameters["weight"].T + model.parameters["bias"] - target["y"]) ** 2))

    program.forward_pullback(tuple(target.values()))[2]([])
    for gradient, parameter in zip(gradients(program), model.parameters.values(), strict=True):
        np.testing.assert_allclose(gradient, slopes(total, parameter), atol=1e-7)
    program.optimizer_step()
    assert set(program.optimizer_states()) == {"a"}
    assert program.optimizer_states()["a"].step == 1


def test_a_shared_model_is_kept_under_its_first_trainable_node(backend, segment, node, loss, columns, built):
    model = built(Dense(3, dtype="float64"), columns["x"])
    target = {"x": columns["x"], "y": columns["x"]}
    chain = [node("a", model, "x", trainable=False), node("b", model, "a")]
    kept = NodeState(4, {name: {"velocity": np.ones_like(w)} for name, w in model.parameters.items()})
    program = backend.build(segment(target, chain, [loss("mse", "b y")], "momentum", states={"a": kept}))
    train(program, target)
    assert {label: state.step for label, state in program.optimizer_states().items()} == {"b": 5}


def test_different_models_that_share_a_parameter_are_refused(backend, segment, node, columns, built):
    layer = built(Dense(3, dtype="float64"), columns["x"])
    chain = [node("a", Sequential(layer), "x"), node("b", Sequential(layer, Activation("tanh")), "a")]
    with pytest.raises(GraphError) as caught:
        backend.build(segment(columns, chain))
    assert str(caught.value).startswith("nodes 'a' and 'b' have different models that share the parameter '0.weight'")


def test_frozen_nodes_run_in_evaluation_mode_and_pass_gradients_on(backend, segment, node, loss, columns, built):
    first = built(Dense(3, dtype="float64"), columns["x"])
    frozen = built(Sequential(BatchNorm(dtype="float64"), Dropout(0.5), Dense(2, dtype="float64")), columns["x"])
    before = {name: array.copy() for name, array in [*frozen.parameters.items(), *frozen.buffers.items()]}
    chain = [node("a", first, "x"), node("f", frozen, "a", trainable=False)]
    program = backend.build(segment(columns, chain, [loss("mse", "f y")]))
    weight = first.parameters["weight"]
    ahead = program.forward(tuple(columns.values()))[1]["f"]
    assert float(train(program, columns)["f"][0]) == float(ahead[0])
    program.close()
    for name, array in before.items():
        np.testing.assert_array_equal({**frozen.parameters, **frozen.buffers}[name], array)
    assert not np.array_equal(first.parameters["weight"], weight)
    assert set(program.optimizer_states()) == {"a"}


def test_nothing_flows_back_into_frozen_nodes_without_trained_ones_before(backend, segment, node, loss, columns, built):
    class Root(Module):
        def apply(self, values, inputs, *, train, key):
            assert not train
            return VjpResult(inputs, lambda cotangents: pytest.fail("pulled back"))

    head = built(Dense(2, dtype="float64"), columns["x"])
    chain = [node("r", Root(), "x", trainable=False), node("h", head, "r")]
    program = backend.build(segment(columns, chain, [loss("mse", "h y")]))
    train(program, columns)


def test_a_trainable_node_without_a_group_is_not_updated(backend, segment, node, loss, columns, built):
    model = built(Dense(2, dtype="float64"), columns["x"])
    program = backend.build(segment(columns, [node("n", model, "x")], [loss("mse", "n y")], groups=()))
    before = dict(model.parameters)
    train(program, columns)
    assert program.close() == {}
    assert all(model.parameters[name] is array for name, array in before.items())


def test_several_outputs_of_which_some_have_losses(backend, segment, node, loss, draw, slopes):
    data, model = {"x": draw(4, 2), "y": draw(4, 2)}, Split()
    chain = [node("s", model, "x", outputs=("s.0", "s.1"))]
    settings = {"outputs": ("s.1",), "needs_pullback": ("x",)}
    program = backend.build(segment(data, chain, [loss("mse", "s.0 y")], **settings))
    cotangent = draw(4, 2)

    def total():
        scaled = data["x"] * model.parameters["factor"]
        return float(np.mean((scaled - data["y"]) ** 2) - np.sum(cotangent * data["x"]))

    (out,), _, pullback = program.forward_pullback(tuple(data.values()))
    np.testing.assert_array_equal(out, -data["x"])
    (back,) = pullback([cotangent])
    np.testing.assert_allclose(back, slopes(total, data["x"]), atol=1e-7)
    np.testing.assert_allclose(gradients(program), [slopes(total, model.parameters["factor"])], atol=1e-7)


def test_an_output_that_training_lacks_has_no_cotangent(backend, segment, node, loss, draw):
    received = []

    class Cached(Split):
        def apply(self, values, inputs, *, train, key):
            (x,), factor = inputs, values["factor"]

            def pullback(cotangents):
                received.append(cotangents[1])
                return {"factor": np.sum(cotangents[0] * x, axis=0)}, (cotangents[0] * factor,)

            return VjpResult((x * factor, None if train else -x), pullback)

    columns = {"x": draw(4, 2), "y": draw(4, 2)}
    nodes = [node("n", Cached(), "x", outputs=("n.kept", "n.cache"))]
    program = backend.build(segment(columns, nodes, [loss("mse", "n.kept y")], "sgd"))
    train(program, columns)
    assert received == [None]


def test_an_unused_input_has_a_cotangent_of_zeros(backend, segment, node, draw):
    data = {"x": draw(4, 2), "z": draw(4, 3)}
    chain = [node("s", Split(), "x", outputs=("a", "b"))]
    program = backend.build(segment(data, chain, outputs=("a",), needs_pullback=("z",)))
    (back,) = program.forward_pullback(tuple(data.values()))[2]([None])
    np.testing.assert_array_equal(back, np.zeros((4, 3)))


@pytest.mark.parametrize(("axis", "shape"), [(-1, (4, 2, 6)), (1, (4, 2, 6)), (0, (4, 4, 3)), (-2, (4, 4, 3))])
def test_concatenation_counts_the_axes_of_a_sample(axis, shape, backend, segment, node, draw):
    data = {"p": draw(4, 2, 3), "q": draw(4, 2, 3)}
    chain = [node("c", None, "p q", axis=axis)]
    program = backend.build(segment(data, chain, outputs=("c",), needs_pullback=("q", "p")))
    (joined,), _, pullback = program.forward_pullback(tuple(data.values()))
    assert joined.shape == program.forward(tuple(data.values()))[0][0].shape == shape
    assert [back.tolist() for back in pullback([joined])] == [data["q"].tolist(), data["p"].tolist()]


def test_integer_inputs_have_no_gradient(backend, segment, node, loss):
    data = {"i": np.array([2, 0, 2]), "y": np.zeros((3, 2))}
    model = Embedding()
    program = backend.build(segment(data, [node("e", model, "i")], [loss("mse", "e y")], Optimizer("sgd", lr=3.0)))
    train(program, data)
    program.close()
    np.testing.assert_allclose(model.parameters["table"], [[0, 0], [2, 3], [4 - 8, 5 - 10]])


def test_a_loss_between_two_outputs_trains_both(backend, segment, node, loss, columns, built, slopes):
    a, b = (built(Dense(2, dtype="float64"), columns["x"], seed=seed) for seed in (1, 2))
    program = backend.build(segment(columns, [node("a", a, "x"), node("b", b, "x")], [loss("mse", "a b")]))
    program.forward_pullback(tuple(columns.values()))[2]([])
    for model, gradient in zip((a, b), gradients(program)[1::2], strict=True):
        expected = slopes(lambda: float(np.mean((a(columns["x"]) - b(columns["x"])) ** 2)), model.parameters["bias"])
        np.testing.assert_allclose(gradient, expected, atol=1e-7)


# -- groups, reduce, discard ---------------------------------------------------------------------------------------


def test_each_group_has_its_own_statistics_and_scale(backend, segment, node, loss, columns, built):
    a, b = (built(Dense(2, dtype="float64"), columns["x"], seed=seed) for seed in (1, 2))
    chain = [node("a", a, "x"), node("b", b, "x"), node("c", None, "a b", axis=0)]
    groups = (
        ParameterGroup("slow", Optimizer("sgd", lr=0.1), ("a",)),
        ParameterGroup("fast", Optimizer("sgd", lr=1.0), ("b",)),
    )
    terms = [loss("mse", "a y"), loss("mae", "b y")]
    program = backend.build(segment(columns, chain, terms, groups=groups))
    program.forward_pullback(tuple(columns.values()))[2]([])
    seen = gradients(program)
    program.map_gradients(lambda gradient: gradient * 2)
    stats = program.grad_stats()
    assert float(stats["slow"][0]) == pytest.approx(4 * sum(np.sum(g * g) for g in seen[:2]))
    assert float(stats["fast"][0]) == pytest.approx(4 * sum(np.sum(g * g) for g in seen[2:]))
    assert all(bool(finite) for _, finite in stats.values())
    before = [a.parameters["bias"], b.parameters["bias"]]
    program.optimizer_step({"fast": 0.5})
    program.close()
    np.testing.assert_allclose(a.parameters["bias"], before[0] - 0.1 * 2 * seen[1])
    np.testing.assert_allclose(b.parameters["bias"], before[1] - seen[3])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_gradient_stats_report_gradients_that_are_not_finite(bad, ready, columns):
    program = ready()
    columns["x"][0, 0] = bad
    with np.errstate(invalid="ignore"):
        program.forward_pullback(tuple(columns.values()))[2]([])
    assert not program.grad_stats()["main"][1]


def test_zero_grad_discards_the_gradients(ready, columns):
    program = ready("adam")
    before = dict(parameters(program))
    program.forward_pullback(tuple(columns.values()))[2]([])
    program.zero_grad()
    assert [float(part) for part in program.grad_stats()["main"]] == [0, 1]
    program.optimizer_step()
    assert program.optimizer_states()["n"].step == 0
    assert all(parameters(program)[name] is array for name, array in before.items())


def test_a_group_without_parameters_has_no_gradients(backend, segment, node, columns):
    program = backend.build(segment(columns, [node("t", Activation("tanh"), "x")], outputs=("t",)))
    train(program, columns)
    assert [float(part) for part in program.grad_stats()["main"]] == [0, 1]


# -- whole steps ---------------------------------------------------------------------------------------------------


def stepping(ready, optimizer):
    mlp = SequentialMLP((4,), dtype="float64", dropout=0.2)
    return ready(optimizer, Sequential(mlp, BatchNorm(dtype="float64"), Dense(2, dtype="float64")))


@pytest.mark.parametrize("clip", [None, 0.05, 1e9])
@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw"])
def test_whole_steps_equal_single_ones(name, clip, ready, columns):
    whole, single = (stepping(ready, Optimizer(name, lr=0.05, clip_norm=clip)) for _ in range(2))
    order, losses = np.array([3, 1, 7, 0, 2, 6, 5, 4]), []
    for program in (whole, single):
        program.seed(11)
    means = whole.train_steps(tuple(columns.values()), [order, order], 1, 2, 3)
    for start in (1, 4):
        batch = [column[order[start : start + 3]] for column in columns.values()]
        _, judged, pullback = single.forward_pullback(batch)
        pullback([])
        squares = single.grad_stats()["main"][0]
        single.optimizer_step(None if clip is None else {"main": min(1.0, clip / (math.sqrt(squares) + 1e-6))})
        losses.append(judged["n"][0] / judged["n"][1])
    assert means.shape == (2, 1)
    assert means[:, 0].tolist() == losses
    for program in (whole, single):
        program.close()
    models = [program.segment.operations[0].model for program in (whole, single)]
    for name, value in [*models[0].parameters.items(), *models[0].buffers.items()]:
        np.testing.assert_array_equal(value, {**models[1].parameters, **models[1].buffers}[name])


def test_the_last_step_of_an_epoch_may_be_smaller(ready, columns):
    program = ready()
    means = program.train_steps(tuple(columns.values()), [np.arange(8)] * 2, 0, 2, 5)
    again = ready()
    for mean, rows in zip(means[:, 0], (slice(5), slice(5, 8)), strict=True):
        total, weight = train(again, {name: column[rows] for name, column in columns.items()})["n"]
        assert mean == total / weight


def test_clipping_bounds_the_norm_over_all_parameters_of_a_group(ready, columns):
    program = ready(Optimizer("sgd", lr=1.0, clip_norm=0.01))
    before = dict(parameters(program))
    program.train_steps(tuple(columns.values()), [np.arange(8)] * 2, 0, 1, 8)
    moved = sum(np.sum((parameters(program)[name] - array) ** 2) for name, array in before.items())
    assert math.sqrt(moved) == pytest.approx(0.01, rel=1e-3)


# -- state ---------------------------------------------------------------------------------------------------------


def arrays_in(tree):
    """The arrays in nested dicts, tuples and optimizer states."""
    if isinstance(tree, NodeState):
        tree = tree.slots
    if isinstance(tree, (dict, tuple)):
        return [array for part in (tree.values() if isinstance(tree, dict) else tree) for array in arrays_in(part)]
    return [tree] if isinstance(tree, np.ndarray) else []


def test_a_snapshot_has_the_arrays_of_the_step_themselves(ready, columns):
    """A lazy framework starts to compute what it finds there: docs/how-to/write-a-backend.md says so."""
    program = ready("adam")
    train(program, columns)
    found = {id(array) for array in arrays_in(program.snapshot())}
    slots = [slot for state in program.optimizer_states().values() for slot in arrays_in(state)]
    assert len(slots) == 4 and {id(array) for array in (*slots, *parameters(program).values())} <= found


def test_a_snapshot_can_be_restored_more_than_once(ready, columns):
    program = stepping(ready, "adam")
    program.seed(3)
    train(program, columns)
    kept = program.snapshot()
    after = [float(train(program, columns)["n"][0]) for _ in range(3)]
    for _ in range(2):
        program.restore(kept)
        assert [float(train(program, columns)["n"][0]) for _ in range(3)] == after
    program.restore(kept)
    assert program.optimizer_states()["n"].step == 1


def test_restoring_discards_gradients(ready, columns):
    program = ready()
    kept = program.snapshot()
    program.forward_pullback(tuple(columns.values()))[2]([])
    program.restore(kept)
    assert program.grad_stats()["main"][0] == 0


def test_random_numbers_depend_on_the_seed(ready, columns):
    def losses(key, model):
        program = ready(losses=[], model=model, outputs=("n",))
        program.seed(key)
        return [program.forward_pullback(tuple(columns.values()))[0][0].tolist() for _ in range(2)]

    first, second = losses(1, Dropout(0.5))
    assert first != second
    assert losses(1, Dropout(0.5)) == [first, second]
    assert losses(2, Dropout(0.5)) != [first, second]


def test_buffers_change_in_training_only(ready, columns):
    program = stepping(ready, "sgd")
    model = program.segment.operations[0].model
    program.forward(tuple(columns.values()))
    program.close()
    np.testing.assert_array_equal(model.buffers["1.running_mean"], np.zeros(4))
    train(program, columns)
    program.close()
    assert np.any(model.buffers["1.running_mean"])


def test_states_of_other_nodes_are_kept(ready, columns):
    other = NodeState(9)
    program = ready(states={"elsewhere": other})
    train(program, columns)
    states = program.optimizer_states()
    assert states["elsewhere"] is other
    assert states["n"].step == 1
