"""Defaults of ArrayOps: a subclass with the abstract methods only can train."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from anyaccel import adapter
from anyaccel.adapter import ArrayOps, ArrayProgram, VjpResult, loss_function
from anyaccel.errors import CapabilityError, GraphError, ShapeError, SpecError
from anyaccel.numpy_backend import Dense
from anyaccel.numpy_backend.ops import NumpyOps
from anyaccel.segment import ParameterGroup
from anyaccel.specs import Loss, Optimizer

GROUPS = (ParameterGroup("main", Optimizer("sgd", lr=0.1), ("n",)),)


class Line:
    """A model of no framework: y = slope * x."""

    def __init__(self):
        self.slope = np.array([2.0])


class MinimalOps(ArrayOps):
    """Only the abstract methods."""

    xp = np

    def parameters(self, model):
        return {"slope": model.slope}

    def buffers(self, model):
        return {}

    def write(self, model, parameters, buffers):
        model.slope = parameters["slope"]

    def vjp(self, model, parameters, buffers, inputs, train, key):
        (x,), slope = inputs, parameters["slope"]
        return VjpResult((x * slope,), lambda c: ({"slope": np.sum(c[0] * x, axis=0)}, [c[0] * slope]))

    def move(self, array, device):
        return array

    def gather_rows(self, column, start, stop, order):
        return column[start:stop]


def test_minimal_ops_can_train(segment, node, loss):
    columns, model = {"x": np.array([[1.0], [2.0]]), "y": np.array([[3.0], [6.0]])}, Line()
    program = ArrayProgram(
        segment(columns, [node("n", model, "x")], [loss("mse", "n y")], outputs=("n",)), MinimalOps()
    )
    means = program.train_steps(tuple(columns.values()), [None, None], 0, 1, 2)
    assert means.tolist() == [[2.5]]
    program.close()
    assert model.slope.tolist() == [2.0 + 0.1 * 5]
    assert program.forward(tuple(columns.values()))[0][0].tolist() == [[2.5], [5.0]]


def test_minimal_ops_support_class_indices(loss):
    result = loss_function(MinimalOps(), loss("cross_entropy", "n y"))((np.zeros((2, 4)), np.array([0, 3])))
    assert float(result.sum) == pytest.approx(2 * np.log(4))


# -- kinds of arrays ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "kind", "itemsize"),
    [
        ("float16", "floating", 2),
        ("float64", "floating", 8),
        ("complex64", "complex", 8),
        ("int8", "integer", 1),
        ("uint64", "integer", 8),
        ("bool", "boolean", 1),
        (">f4", "floating", 4),
    ],
)
def test_the_kind_of_an_array_follows_from_a_dtype_of_numpy(dtype, kind, itemsize):
    array = np.zeros(2, dtype)
    assert (MinimalOps().kind(array), MinimalOps().itemsize(array)) == (kind, itemsize)


@pytest.mark.parametrize(
    ("name", "kind"), [("bfloat16", "floating"), ("float8_e4m3b11fnuz", "floating"), ("int4", "integer")]
)
def test_dtypes_that_extend_numpy_have_a_kind(name, kind):
    array = np.zeros(2, getattr(pytest.importorskip("ml_dtypes"), name))
    assert (MinimalOps().kind(array), MinimalOps().itemsize(array)) == (kind, array.itemsize)


def test_arrays_that_are_no_numbers_have_no_kind():
    with pytest.raises(CapabilityError) as caught:
        MinimalOps().kind(np.array(["text"]))
    assert str(caught.value).startswith("arrays of <U4 are neither floating, complex, integer nor boolean. Hint: ")


def test_a_dtype_of_the_frameworks_own_asks_for_a_kind_of_its_own():
    """A text such as `half` or `f4` must not be taken for a dtype without gradients."""
    array = SimpleNamespace(dtype=SimpleNamespace())
    for method in ("kind", "itemsize"):
        with pytest.raises(CapabilityError) as caught:
            getattr(MinimalOps(), method)(array)
        assert str(caught.value) == (
            f"{array.dtype} is not a NumPy dtype. Hint: define {method}(self, array) in MinimalOps."
        )


@dataclass(frozen=True)
class OwnDtype:
    """A dtype whose text tells nothing."""

    real: np.dtype


class Half(np.ndarray):
    """An array with such a dtype."""

    dtype = property(lambda self: OwnDtype(np.asarray(self).dtype))


class OwnKinds(MinimalOps):
    """A framework whose dtypes NumPy does not know."""

    def kind(self, array):
        return "floating" if isinstance(array, Half) else super().kind(array)

    def itemsize(self, array):
        return 2 if isinstance(array, Half) else super().itemsize(array)

    def astype(self, array, dtype):
        return np.asarray(array, dtype.real if isinstance(dtype, OwnDtype) else dtype)


def test_losses_ask_for_the_kind_and_not_for_the_name_of_a_dtype(loss):
    probabilities = np.full((2, 4), 0.25, "float32").view(Half)
    result = loss_function(OwnKinds(), loss("cross_entropy", "n y"))((np.zeros((2, 4), "float32"), probabilities))
    assert float(result.sum) == pytest.approx(2 * np.log(4))
    narrow = loss_function(OwnKinds(), loss("mse", "n y"))(
        (np.full((2, 4), 300, "float16").view(Half), np.zeros((2, 4)))
    )
    assert float(narrow.sum) == 8 * 300.0**2, "beyond float16"


def test_custom_losses_are_refused_by_default(loss):
    with pytest.raises(SpecError) as caught:
        loss_function(MinimalOps(), loss(Loss(max), "n y"))
    assert str(caught.value) == ("the loss 'max' is not a named loss. Hint: use a named loss with this framework.")


@pytest.mark.parametrize(("outputs", "targets"), [("complex64", "float32"), ("float32", "complex64")])
def test_named_losses_refuse_complex_numbers(outputs, targets, loss):
    with pytest.raises(ShapeError, match=r"mse does not take complex .* complex64\[2, 3\]\. Hint: use their absolute"):
        loss_function(MinimalOps(), loss("mse", "n y"))((np.zeros((2, 3), outputs), np.zeros((2, 3), targets)))


@pytest.mark.parametrize("trainable", [True, False])
def test_a_complex_parameter_is_refused_where_it_would_be_trained(trainable, segment, node, loss):
    model, columns = Line(), {"x": np.ones((2, 1)), "y": np.ones((2, 1))}
    model.slope = model.slope.astype("complex128")
    operations = [node("n", model, "x", trainable=trainable)]
    made = segment(columns, operations, outputs=("n",), groups=GROUPS if trainable else ())
    if not trainable:
        assert ArrayProgram(made, MinimalOps()).forward(tuple(columns.values()))[0][0].dtype == "complex128"
        return
    with pytest.raises(GraphError) as caught:
        ArrayProgram(made, MinimalOps())
    assert str(caught.value) == (
        "the parameter 'slope' of node 'n' is complex (complex128) and cannot be trained. Hint: store its real and "
        "imaginary parts as two real parameters, or freeze the node."
    )


class Rounding(MinimalOps):
    """An integer output beside the floating one; keeps the cotangents that it gets."""

    def vjp(self, model, parameters, buffers, inputs, train, key):
        applied = super().vjp(model, parameters, buffers, inputs, train, key)

        def pullback(cotangents):
            self.cotangents = cotangents
            return applied.pullback(cotangents[:1])

        return VjpResult((*applied.outputs, np.rint(applied.outputs[0]).astype("int64")), pullback)


def test_an_integer_output_gets_zeros_as_its_cotangent(segment, node, loss):
    columns, ops = {"x": np.array([[1.0], [2.0]]), "y": np.array([[3.0], [7.0]])}, Rounding()
    nodes = [node("n", Line(), "x", outputs=("n.0", "n.1"))]
    terms = [loss("mse", "n.0 y", label="real"), loss("mse", "n.1 y", label="rounded")]
    program = ArrayProgram(segment(columns, nodes, terms, outputs=("n.0",), groups=GROUPS), ops)
    program.forward_pullback(tuple(columns.values()))[2]([None])
    real, rounded = ops.cotangents
    assert real.tolist() == [[-1.0], [-3.0]]
    assert rounded.dtype == np.int64 and not rounded.any()


# -- what is called of xp ----------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[3] / "docs/how-to/write-a-backend.md"
ADAPTER = Path(adapter.__file__).parent


def documented_forms() -> dict[str, set[str]]:
    """By function, the forms in the table of the page."""
    if not PAGE.exists():
        pytest.skip("the documentation is not here")
    rows = re.findall(r"^\| `(\w+)` \| (`\1\(.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    return {name: set(re.findall(rf"`({name}\([^`]*\))`", forms)) for name, forms in rows}


def arity(form: str) -> tuple[int, frozenset[str]]:
    """Positional arguments and names of keywords of a form."""
    call = ast.parse(form).body[0].value
    return len(call.args), frozenset(keyword.arg for keyword in call.keywords)


def is_xp(node: ast.AST) -> bool:
    return getattr(node, "id", "") == "xp" or getattr(node, "attr", "") == "xp"


def test_the_table_of_functions_has_every_call_in_the_adapter_and_no_other():
    called: dict[str, set[object]] = {}
    named: set[str] = set()
    for path in (*ADAPTER.glob("*.py"), ADAPTER.parent / "formulas.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and is_xp(node.value):
                named.add(node.attr)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_xp(node.func.value):
                form = len(node.args), frozenset(keyword.arg for keyword in node.keywords)
                called.setdefault(node.func.attr, set()).add(form)
    documented = {name: set(map(arity, forms)) for name, forms in documented_forms().items()}
    assert called == {name: forms for name, forms in documented.items() if name in called}
    assert named == {*documented, "float32"}


class Recorder:
    """NumPy's functions; records how each is called."""

    def __init__(self):
        self.forms: dict[str, set[str]] = {}

    def __getattr__(self, name):
        function = getattr(np, name)

        def record(*given, **settings):
            words = [*map(described, given), *(f"{key}={value}" for key, value in settings.items())]
            self.forms.setdefault(name, set()).add(f"{name}({', '.join(words)})")
            return function(*given, **settings)

        return function if isinstance(function, type) else record


def described(argument):
    """An argument by the words of the table."""
    if isinstance(argument, (np.ndarray, np.generic)):
        return "booleans" if argument.dtype == bool else "array"
    if isinstance(argument, (list, tuple)):
        if argument and all(type(part) is float for part in argument):
            return "numbers"
        return "shape" if all(isinstance(part, int) for part in argument) else "arrays"
    return "number"


class Recorded(NumpyOps):
    """NumPy's ops over a `Recorder`."""

    arange = ArrayOps.arange
    constant = ArrayOps.constant

    def __init__(self):
        self.xp = Recorder()


LOSSES = ("mse", "mae", "binary_cross_entropy", "cross_entropy")


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
def test_losses_and_optimizers_call_functions_as_the_table_says(optimizer, segment, node, loss, built, draw):
    ops, documented = Recorded(), documented_forms()
    columns = {"x": draw(8, 3), "y": draw(8, 2), "c": np.arange(8) % 2, "w": np.arange(8.0)}
    nodes = [
        node("a", built(Dense(2, dtype="float64"), columns["x"]), "x"),
        node("both", None, "a y", axis=-1),
        node("b", built(Dense(2, dtype="float64"), draw(8, 4)), "both"),
    ]
    terms = [loss(name, "b c" if name == "cross_entropy" else "b y", label=name) for name in LOSSES]
    classes = Loss("cross_entropy", ignore_index=-1, class_weights=[1.0, 2.0], class_axis=1, label_smoothing=0.1)
    terms = [*terms, replace(loss("cross_entropy", "b c w", label="weighted"), loss=classes)]
    spec = Optimizer(optimizer, lr=0.1, clip_norm=0.5)
    program = ArrayProgram(segment(columns, nodes, terms, spec, outputs=("a", "b")), ops)
    program.grad_stats()
    program.train_steps(tuple(columns.values()), [None] * 4, 0, 2, 4, 2)
    program.forward_pullback(tuple(columns.values()))[2]([draw(8, 2), None])
    program.optimizer_step({"main": program.clip_factor(0.5, [program.grad_stats()["main"][0]] * 2)})
    assert {name: forms - documented[name] for name, forms in ops.xp.forms.items() if forms - documented[name]} == {}
    missing = {name for name in documented if documented[name] - ops.xp.forms.get(name, set())}
    assert missing == {"copy", "reshape", "concatenate"} | ({"zeros_like"} if optimizer == "sgd" else set())
