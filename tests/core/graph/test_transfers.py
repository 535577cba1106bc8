"""Graphs of two frameworks: routes, copies for writers, data formats, wrapped models, shared devices."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from anyaccel import AppliedLoss, Experiment, FeatureSet, ModelGraph, ModelNode, Optimizer, Plan, TrainPhase, errors
from anyaccel.adapter import ArrayProgram, VjpResult
from anyaccel.backend import Backend, DeviceInfo, Memory
from anyaccel.device import Device
from anyaccel.graph.resolve import route
from anyaccel.install_hints import install_line
from anyaccel.numpy_backend import BatchNorm, Dense, Dropout, Module, NumpyBackend
from anyaccel.numpy_backend.capabilities import NumpyMemory
from anyaccel.numpy_backend.ops import NumpyOps
from anyaccel.phases.executor.cross_segment import TransferEnd, transfer

CPU, GPU = Device("cpu"), Device("gpu")


class Unmoving(NumpyOps):
    """A device is only a word here."""

    def move(self, array, device):
        return array


class Guest(NumpyBackend):
    """NumPy under another name; counts what crosses, and says what a test wants it to say."""

    import_roots = ("guest_models",)
    space = "host"
    image = ("", "")
    writer = False
    refusal = ""

    def __init__(self, framework="guest", kinds=("cpu",), **facts):
        self.framework, self.kinds = framework, kinds
        self.crossed: list[str] = []
        self.shares: list[tuple[Device, float]] = []
        vars(self).update(facts)

    def devices(self):
        return [Device(kind) for kind in self.kinds]

    def owns(self, obj):
        return False

    def device_of(self, obj):
        return Device(self.kinds[0])

    def place(self, obj, device):
        return obj

    def move(self, tensor, device, *, pinned=False):
        return tensor

    def device_info(self, device):
        return DeviceInfo(str(device), memory_space=self.space, identity=getattr(self, "identity", ""))

    def from_dlpack(self, foreign, device):
        self.crossed.append("adopt")
        return np.asarray(foreign)

    def from_host(self, array, device, *, pinned=False):
        self.crossed.append("from_host")
        return np.array(array)

    def build(self, segment):
        return ArrayProgram(segment, Unmoving())

    def mutates_inputs(self, model, inputs):
        return self.writer

    def data_format(self, model):
        return self.image


class Sharing(NumpyMemory):
    def share(self, device, fraction):
        self.backend.shares.append((device, fraction))
        return self.backend.refusal


Guest.capabilities = {**NumpyBackend.capabilities, Memory: Sharing}


@pytest.fixture
def chain(table):
    """`chain("numpy", "guest", ...)`: nodes a, b, ... one after the other by framework, and a phase over them."""

    def make(*frameworks, clip=None, accelerators=None):
        names, source, nodes = "abcdef"[: len(frameworks)], table(x=((4,), "float32"), y=((1,), "float32")), []
        for i, (name, framework) in enumerate(zip(names, frameworks, strict=True)):
            model, up = Dense(1 if name == names[-1] else 3), nodes[-1].label if nodes else source.reference()
            nodes.append(ModelNode(name, model, up, accelerators and accelerators[i], framework=framework))
        graph = ModelGraph(nodes, Optimizer("sgd", lr=0.1, clip_norm=clip))
        phase = TrainPhase("t", data=source, losses=[AppliedLoss("mse", on=names[-1])], batch_size=8)
        return Experiment("e", graph, progress="none"), phase

    return make


# -- routes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "other", "expected"),
    [("host", "host", "share"), ("host", "elsewhere", "host"), ("", "", "host"), ("gpu-1", "gpu-1", "share")],
)
def test_memory_is_shared_where_both_say_the_same_space(space, other, expected):
    assert route(Guest("one", space=space), CPU, Guest("other", space=other), CPU) == expected


@pytest.mark.parametrize("wrong", ["raises", "a text"])
def test_a_device_info_that_is_wrong_promises_no_shared_memory(wrong):
    odd, guest = Guest("one"), Guest("other", space="host")
    odd.device_info = (lambda device: 1 / 0) if wrong == "raises" else (lambda device: "host")
    assert route(odd, CPU, guest, CPU) == "host" == route(guest, CPU, odd, CPU)


def test_within_one_framework_values_are_moved():
    guest = Guest()
    assert route(guest, CPU, guest, GPU) == "move" == route(guest, CPU, Guest(kinds=("gpu",)), GPU)
    array = np.ones(2)
    assert transfer(TransferEnd(guest, CPU), TransferEnd(guest, CPU))(array) is array


def test_scalars_of_numpy_cross_as_arrays():
    guest = Guest()
    crossed = transfer(TransferEnd(NumpyBackend(), CPU), TransferEnd(guest, CPU))(np.float32(3))
    assert isinstance(crossed, np.ndarray) and crossed.shape == ()
    assert guest.crossed == ["adopt"]


def test_a_plan_names_each_value_and_its_gradient(serve, chain):
    serve(Guest())
    experiment, phase = chain("numpy", "guest", "numpy")
    plan = experiment.plan(phase)
    assert [(one.value, one.source, one.target, one.route, one.gradient) for one in plan.crossings] == [
        ("a", "a", "b", "share", False),
        ("a", "b", "a", "share", True),
        ("b", "b", "c", "share", False),
        ("b", "c", "b", "share", True),
    ]
    assert "cross gradient of b: numpy cpu -> guest cpu by shared memory, 12 B per sample" in str(plan).replace(
        ":0", ""
    )
    assert plan.to_dict()["crossings"][1]["gradient"] is True
    assert Plan.from_dict(plan.to_dict()) == plan


def test_frozen_nodes_get_no_gradient(serve, chain):
    serve(Guest())
    experiment, phase = chain("numpy", "guest", "numpy")
    experiment.graph.freeze("a")
    assert [(one.value, one.gradient) for one in experiment.plan(phase).crossings] == [
        ("a", False),
        ("b", False),
        ("b", True),
    ]


def test_a_node_that_may_write_gets_a_copy(serve, chain):
    serve(Guest(writer=True))
    experiment, phase = chain("numpy", "guest", "numpy")
    assert [one.route for one in experiment.plan(phase).crossings if not one.gradient] == ["copy", "share"]
    assert "by shared memory and a copy, because the node may write to it" in str(experiment.plan(phase))


def test_the_planned_crossings_are_those_that_happen(serve, chain):
    shared, apart = Guest("shared"), Guest("apart", space="away")
    serve(shared, apart)
    experiment, phase = chain("numpy", "shared", "apart")
    experiment.run_phase(phase)
    assert shared.crossed.count("adopt") == 3, "a value in each of three steps"
    assert apart.crossed.count("adopt") == 0


@pytest.mark.parametrize("clip", [None, 0.05, 100.0])
def test_a_shared_border_changes_no_number(serve, chain, clip):
    serve(Guest(), Guest("away", space="away"))
    states = []
    for frameworks in (("numpy",) * 3, ("numpy", "guest", "numpy"), ("away", "numpy", "guest")):
        experiment, phase = chain(*frameworks, clip=clip)
        experiment.run_phase(phase)
        states.append(experiment.graph.state())
    for other in states[1:]:
        for name, array in states[0].items():
            np.testing.assert_allclose(other[name], array, rtol=1e-6, err_msg=name)


class Closed(Guest):
    """Promises shared memory that it cannot give."""

    refusal_of_tensors: type[Exception] = RuntimeError

    def from_dlpack(self, foreign, device):
        self.crossed.append("tried")
        raise self.refusal_of_tensors("no DLPack here\nsecond line")


@pytest.mark.parametrize("error", [RuntimeError, errors.MoveError, BufferError, AttributeError])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_where_sharing_fails_values_and_gradients_go_through_host_memory(serve, chain, clip, error):
    closed = Closed("closed", refusal_of_tensors=error)
    serve(Guest("open"), closed)
    states = []
    for frameworks in (("numpy",) * 3, ("closed", "open", "closed")):
        experiment, phase = chain(*frameworks, clip=clip)
        results = experiment.run_phase(phase)
        states.append(experiment.graph.state())
    for name, array in states[0].items():
        np.testing.assert_array_equal(states[1][name], array, err_msg=name)
    told = [event.message for event in results.events if event.kind == "transfer"]
    borders = ["outputs of 'b' go from open on cpu:0 to closed", "gradients of 'a' go from open on cpu:0 to closed"]
    assert [sum(message.startswith(border) for message in told) for border in borders] == [1, 1], "once, not every step"
    assert all(" through host memory, because sharing memory failed (" in message for message in told)
    assert all(message.endswith(f"({error.__name__}: no DLPack here)") for message in told), told
    assert closed.crossed.count("tried") == len(told), "it is not tried again"


def test_running_out_of_memory_at_a_border_is_not_taken_for_a_refusal(serve):
    closed = Closed("closed", refusal_of_tensors=errors.OutOfMemoryError)
    cross = transfer(TransferEnd(NumpyBackend(), CPU), TransferEnd(closed, CPU))
    for _ in range(2):
        with pytest.raises(errors.OutOfMemoryError):
            cross(np.ones(2))
    assert closed.crossed == ["tried", "tried"]


def test_a_value_that_no_route_takes_raises_the_error_of_the_host_route(serve):
    class Refusing(Closed):
        def from_host(self, array, device, *, pinned=False):
            raise errors.MoveError("no int8 here")

    closed, told = Refusing("closed"), []
    cross = transfer(
        TransferEnd(NumpyBackend(), CPU), TransferEnd(closed, CPU), log_event=lambda *event: told.append(event)
    )
    with pytest.raises(errors.MoveError, match="no int8 here") as caught:
        cross(np.ones(2))
    assert "no DLPack here" in str(caught.value.__context__) and not told


def test_a_backend_promises_no_shared_memory_by_default():
    class Silent(Guest):
        device_info = Backend.device_info

    assert Silent().device_info(CPU) == DeviceInfo("cpu:0")
    assert route(Silent(), CPU, NumpyBackend(), CPU) == "host"


@pytest.mark.filterwarnings("ignore::anyaccel.errors.NaNWarning")
def test_a_nan_norm_is_not_hidden_by_clipping(serve, chain):
    """As with one segment: parameters become NaN for everybody to see, and are not quietly left unclipped."""
    serve(Guest())
    states = []
    for frameworks in (("numpy", "numpy"), ("numpy", "guest")):
        experiment, phase = chain(*frameworks, clip=1.0)
        experiment.graph.build()
        experiment.graph["b"].model.parameters["weight"][:] = np.nan
        experiment.run_phase(phase)
        states.append(experiment.graph.state())
    assert all(np.isnan(states[0][name]).all() for name in states[0] if "/parameters/" in name)
    for name, array in states[0].items():
        np.testing.assert_array_equal(states[1][name], array, err_msg=name)


# -- layouts -----------------------------------------------------------------------------------------------------------


def test_images_read_in_another_order_of_axes_are_refused(serve, chain):
    serve(Guest("first", image=("channels_first",) * 2), Guest("last", image=("channels_last",) * 2))
    with pytest.raises(errors.ShapeError) as caught:
        chain("first", "last")[0].graph.build()
    assert str(caught.value) == (
        "node 'b' (last) expects images as channels_last, but 'a' (first) returns them as channels_first [3]. "
        "Hint: add a model between them that moves the channels, or build one of them channels_first."
    )
    chain("first", "first")[0].graph.build()
    chain("first", "numpy", "last")[0].graph.build()


# -- what nodes hold ---------------------------------------------------------------------------------------------------


class Held(Dense):
    """What a node holds instead of a function."""

    def __init__(self, function):
        super().__init__(1)
        self.function = function


class Wrapper(Guest):
    def wrap(self, model):
        return model if isinstance(model, Held) else Held(model)


def test_nodes_hold_wrapped_models_and_share_them(serve, table):
    serve(Wrapper())
    function, ups = object(), table().reference()
    graph = ModelGraph([ModelNode(name, function, ups, framework="guest") for name in ("a", "b")], "sgd").build()
    held = graph["a"].model
    assert isinstance(held, Held) and held.function is function
    assert graph["b"].model is held
    assert graph.build(force=True)["a"].model is held


# -- indices -----------------------------------------------------------------------------------------------------------


class Narrow(Guest):
    """Refuses what has 64 bits, as some frameworks do."""

    index_dtype = "int32"

    def from_host(self, array, device, *, pinned=False):
        assert array.dtype.itemsize <= 4, array.dtype
        return super().from_host(array, device)


def test_orders_and_class_indices_come_in_the_dtype_of_the_framework(serve):
    serve(Narrow())
    draw = np.random.default_rng(0)
    source = FeatureSet.from_dict(
        "fs", {"x": draw.normal(size=(20, 4)).astype("float32"), "c": draw.integers(0, 3, 20)}, ["x"], ["c"]
    )
    graph = ModelGraph([ModelNode("a", Dense(3), source.reference(), framework="guest")], "sgd")
    phase = TrainPhase("t", data=source, losses=[AppliedLoss("cross_entropy", on="a")], batch_size=8, epochs=2)
    results = Experiment("e", graph, progress="none").run_phase(phase)
    assert {column.name: column.spec.dtype for column in results.plan.columns} == {"fs.x": "float32", "fs.c": "int32"}
    bad = FeatureSet.from_dict("fs", {"x": np.zeros((2, 4), "float32"), "c": np.array([0, 3])}, ["x"], ["c"])
    with pytest.raises(errors.ColumnError, match="class index 3"):
        Experiment("e", graph, progress="none").run_phase(
            TrainPhase("u", data=bad, losses=[AppliedLoss("cross_entropy", on="a")], batch_size=2)
        )


# -- devices that several use ------------------------------------------------------------------------------------------


def test_frameworks_share_memory_before_they_are_used(serve, chain):
    one, other, alone = (Guest(name, ("gpu", "cpu")) for name in ("one", "other", "alone"))
    serve(one, other, alone)
    chain("one", "other")[0].graph.build()
    assert one.shares == other.shares == [(GPU, 0.5)]
    assert alone.shares == []
    one.shares.clear()
    chain("one", "one")[0].graph.build()
    assert one.shares == []


def test_a_framework_that_reserved_all_memory_is_an_error_before_placement(serve, chain):
    one = Guest("one", ("gpu", "cpu"), refusal="it took all of it at its start; set THIS before")
    other = Guest("other", ("gpu", "cpu"))
    serve(one, other)
    experiment, phase = chain("one", "other", accelerators=["gpu", "gpu"])
    with pytest.raises(errors.MemoryShareError) as caught:
        experiment.run_phase(phase)
    assert str(caught.value) == (
        "phase 't' uses gpu:0 from one and from other: it took all of it at its start; set THIS before."
    )
    assert other.shares[-1:] == [(GPU, 0.5)]


@pytest.mark.parametrize(("identity", "told"), [(("GPU-1", "GPU-1"), 2), (("GPU-1", "GPU-2"), 1), (("", "GPU-2"), 2)])
def test_devices_are_one_by_identity_where_they_have_one(serve, chain, identity, told):
    one, other = (
        Guest(name, ("gpu", "cpu"), identity=who) for name, who in zip(("one", "other"), identity, strict=True)
    )
    serve(one, other)
    experiment, phase = chain("one", "other", accelerators=["gpu", "gpu"])
    experiment.run_phase(phase)
    assert len(one.shares) == len(other.shares) == told


def test_the_cpu_is_not_shared_out(serve, chain):
    one, other = Guest("one"), Guest("other")
    serve(one, other)
    experiment, phase = chain("one", "other")
    experiment.run_phase(phase)
    assert one.shares == other.shares == []


# -- found by a review -------------------------------------------------------------------------------------------------


def states_of(serve, table, frameworks, middle, losses=None):
    """States after two epochs of a, then `middle()` as b, then c, each of a framework."""
    serve(Guest())
    source, nodes = table(x=((4,), "float32"), y=((1,), "float32")), []
    for name, framework, model in zip("abc", frameworks, (Dense(3), middle(), Dense(1)), strict=True):
        up = nodes[-1].label if nodes else source.reference()
        nodes.append(ModelNode(name, model, up, framework=framework))
    graph = ModelGraph(nodes, Optimizer("sgd", lr=0.1), seed=3)
    phase = TrainPhase("t", data=source, losses=losses or [AppliedLoss("mse", on="c")], batch_size=8, epochs=2)
    graph.freeze("a")
    Experiment("e", graph, progress="none").run_phase(phase)
    return graph.state()


@pytest.mark.parametrize("middle", [lambda: Dropout(0.9), lambda: BatchNorm()], ids=["dropout", "batchnorm"])
def test_what_is_random_or_counts_without_learning_trains_in_a_segment_of_its_own(serve, table, middle):
    """Behind a frozen node, or first of all: nothing there is trained, and it is training all the same."""
    one = states_of(serve, table, ("numpy",) * 3, middle)
    other = states_of(serve, table, ("numpy", "guest", "numpy"), middle)
    for name, array in one.items():
        np.testing.assert_allclose(other[name], array, rtol=1e-6, err_msg=name)


class Rotation(Module):
    """Complex outputs for real inputs."""

    def __init__(self):
        super().__init__()
        self.parameters["phase"] = np.ones(4, "complex64")

    def apply(self, values, inputs, *, train, key):
        return VjpResult((inputs[0] * values["phase"],), lambda c: ({}, [None]))


class Magnitude(Module):
    def __init__(self):
        super().__init__()
        self.parameters["scale"] = np.ones(4, "float32")

    def apply(self, values, inputs, *, train, key):
        return VjpResult((np.abs(inputs[0]) * values["scale"],), lambda c: ({"scale": np.sum(c[0], axis=0)}, [None]))


def test_gradients_of_complex_values_do_not_cross(serve, table):
    """They would be left out without a word, as only floating gradients go back."""
    serve(Guest())
    source = table(x=((4,), "float32"), y=((4,), "float32"))
    nodes = [ModelNode("a", Rotation(), source.reference()), ModelNode("b", Magnitude(), "a", framework="guest")]
    graph = ModelGraph(nodes, "sgd")
    phase = TrainPhase("t", data=source, losses=[AppliedLoss("mse", on="b")], batch_size=8)
    with pytest.raises(errors.GraphError) as caught:
        Experiment("e", graph, progress="none").plan(phase)
    assert str(caught.value) == (
        "the gradient of 'a' (complex64) cannot flow back from guest on cpu:0 to numpy on cpu:0: frameworks define "
        "gradients of complex numbers differently. Hint: return real and imaginary parts as real numbers from 'a', or "
        "freeze it."
    )
    graph.freeze("a")
    crossings = Experiment("e", graph, progress="none").plan(phase).crossings
    assert [(crossing.value, crossing.gradient) for crossing in crossings] == [("a", False)]


def test_a_loss_may_compare_outputs_of_two_frameworks(serve, table):
    losses = [AppliedLoss("mse", on="c"), AppliedLoss("mae", on="b", inputs=["outputs", "a"], label="between")]
    one, two = (
        states_of(serve, table, frameworks, lambda: Dense(3), losses)
        for frameworks in (("numpy",) * 3, ("numpy", "guest", "numpy"))
    )
    for name, array in one.items():
        np.testing.assert_allclose(two[name], array, rtol=1e-6, err_msg=name)


def test_a_loss_on_the_earlier_of_two_frameworks_is_an_error_with_a_hint(serve, table):
    losses = [AppliedLoss("mae", on="a", inputs=["outputs", "b"])]
    with pytest.raises(errors.GraphError) as caught:
        states_of(serve, table, ("numpy", "guest", "numpy"), lambda: Dense(3), losses)
    assert str(caught.value) == (
        "a loss on 'a' compares with 'b', but another framework computes that later. Hint: put the loss on 'b', with "
        "inputs=['outputs', 'a']."
    )


def test_an_unsupported_dtype_is_an_error_with_the_node(serve, table):
    class Narrow(Guest):
        def infer(self, model, inputs, seed):
            raise errors.MoveError("no float64 here", hint="switch it on")

    serve(Narrow())
    graph = ModelGraph([ModelNode("a", Dense(1), table().reference(), framework="guest")], "sgd")
    with pytest.raises(errors.MoveError, match=r"node 'a' does not accept .* no float64 here. Hint: switch it on"):
        graph.build()


def test_a_plugin_that_is_switched_off_is_named_in_the_error(serve, monkeypatch):
    monkeypatch.setenv("ANYACCEL_PLUGINS", "other")
    with pytest.raises(errors.FrameworkError) as caught:
        serve().find("torch")
    assert str(caught.value) == (
        "no plugin for the framework 'torch' is loaded, because ANYACCEL_PLUGINS limits the plugins. Available: "
        f"numpy. Hint: add it to ANYACCEL_PLUGINS ('other' now), or {install_line('anyaccel-torch')}."
    )


@pytest.mark.parametrize("backend", ["jax", "torch", None])
def test_a_model_of_a_framework_without_its_plugin_is_no_estimator(serve, table, monkeypatch, backend):
    """It has `fit` and `predict`, by which it would be trained past everything."""
    serve()
    module = ModuleType("keras")
    if backend is not None:
        module.config = SimpleNamespace(backend=lambda: backend)
    monkeypatch.setitem(sys.modules, "keras", module)
    model = type("Sequential", (), {"__module__": "keras.src", "fit": lambda *_: None, "predict": lambda *_: None})()
    with pytest.raises(errors.NoBackendError) as caught:
        ModelGraph([ModelNode("net", model, table().reference())], "sgd").build()
    framework = backend or "tensorflow"
    assert str(caught.value) == (
        f"node 'net': keras.src.Sequential has no backend: no plugin for the framework '{framework}' is installed; "
        f"KERAS_BACKEND makes Keras compute with {framework} here. Available: backends for numpy. Hint: "
        f"{install_line(f'anyaccel-{framework}')}."
    )
