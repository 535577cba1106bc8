"""Shape inference, parameters, and the state of models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from anyaccel import rng
from anyaccel.errors import OutOfMemoryError, ShapeError, StateError
from anyaccel.segment import TensorSpec
from anyaccel_torch import SequentialMLP, module_traits
from anyaccel_torch.backend import TorchBackend


def spec(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape, dtype)


class Function(nn.Module):
    """A module that computes any function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


# -- infer -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "inputs", "outputs"),
    [
        (nn.Linear(3, 2), [spec(3)], [spec(2)]),
        (nn.Conv2d(1, 4, 3), [spec(1, 8, 8)], [spec(4, 6, 6)]),
        (nn.Embedding(5, 2), [spec(7, dtype="int64")], [spec(7, 2)]),
        (nn.BatchNorm1d(3), [spec(3)], [spec(3)]),
        (nn.Bilinear(2, 3, 4), [spec(2), spec(3)], [spec(4)]),
        (nn.Linear(3, 2, dtype=torch.bfloat16), [spec(3, dtype="bfloat16")], [spec(2, dtype="bfloat16")]),
        (Function(lambda x: (x, x.sum(1))), [spec(3)], [spec(3), spec()]),
        (Function(lambda x: {"b": x, "a": x > 0}), [spec(3)], [spec(3), spec(3, dtype="bool")]),
        (Function(lambda x: [x.mean(1).argsort()]), [spec(3)], [spec(dtype="int64")]),
        (nn.LazyLinear(2), [spec(3)], [spec(2)]),
        (
            nn.Sequential(nn.LazyConv1d(2, 1), nn.LazyBatchNorm1d(), nn.Flatten(), SequentialMLP()),
            [spec(3, 4)],
            [spec(1)],
        ),
        (nn.Linear(3, 2, device="meta"), [spec(3)], [spec(2)]),
    ],
)
def test_infer_gives_output_specs(
    backend: TorchBackend, model: nn.Module, inputs: list[TensorSpec], outputs: list[TensorSpec]
) -> None:
    assert backend.infer(model, inputs, 1) == tuple(outputs)
    assert backend.infer(model, inputs, 2) == tuple(outputs)


def test_infer_leaves_modes_buffers_and_random_state(backend: TorchBackend) -> None:
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(3), Function(lambda x: x + torch.randn_like(x)))
    model[1].eval()
    model.register_buffer("calls", torch.zeros(()))
    model.register_forward_hook(lambda m, i, o: setattr(m, "calls", m.calls.add_(1)))
    buffers = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers()}
    random = torch.get_rng_state()
    backend.infer(model, [spec(3)], 0)
    assert (model.training, model[0].training, model[1].training) == (True, True, False)
    assert torch.equal(torch.get_rng_state(), random)
    for name, buffer in model.named_buffers():
        assert buffer is buffers[name][0] and torch.equal(buffer, buffers[name][1])


def test_infer_sees_what_a_model_returns_in_evaluation(backend: TorchBackend) -> None:
    class Auxiliary(nn.Module):
        """Gives a second output in training only, as Inception does."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Any:
            y = self.linear(x)
            return (y, y[:, :1]) if self.training else y

    model = Auxiliary().train()
    assert backend.infer(model, [spec(3)], 0) == (spec(2),)
    assert model.training and model.linear.training


def test_infer_restores_after_an_error(backend: TorchBackend) -> None:
    model = nn.Sequential(nn.Dropout(), nn.Linear(3, 1))
    with pytest.raises(ShapeError):
        backend.infer(model, [spec(4)], 0)
    assert model.training and model[1].training


def test_lazy_modules_are_built_from_the_seed(backend: TorchBackend) -> None:
    random = torch.get_rng_state()
    models = [nn.LazyLinear(2) for _ in range(3)]
    for model, seed in zip(models, (1, 1, 2), strict=True):
        backend.infer(model, [spec(3)], seed)
    first, same, other = (model.weight for model in models)
    assert torch.equal(first, same) and not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), random)


def test_inner_sequential_mlp_is_built_from_seed_and_path(backend: TorchBackend) -> None:
    model = nn.Sequential(SequentialMLP((4,)), SequentialMLP())
    backend.infer(model, [spec(3)], 5)
    alone = SequentialMLP()
    alone.build([(4,)], rng.key(5, "1"))
    assert torch.equal(model[1].layers[0].weight, alone.layers[0].weight)
    assert backend.infer(model, [spec(3)], 6) == (spec(1),)


def test_infer_error_quotes_torch_and_hints_at_the_dtype(backend: TorchBackend) -> None:
    with pytest.raises(ShapeError) as caught:
        backend.infer(nn.Linear(3, 2), [spec(3, dtype="float64")], 0)
    assert str(caught.value) == (
        "Linear does not accept float64[3] per sample; "
        "mat1 and mat2 must have the same dtype, but got Double and Float. Hint: "
        "provide float32 inputs if the dtype is the problem, or convert the model: model.to(torch.float64)."
    )
    assert backend.infer(nn.Linear(3, 2).to(torch.float64), [spec(3, dtype="float64")], 0) == (
        spec(2, dtype="float64"),
    )
    for dtype in ("bool", "uint8"):  # whose model there is not
        with pytest.raises(ShapeError, match=r"Hint: convert the data, array\.astype\('float32'\)"):
            backend.infer(nn.Linear(3, 2), [spec(3, dtype=dtype)], 0)
    with pytest.raises(ShapeError, match=r"float32\[4\] per sample.*\(2x4 and 3x2\).*Hint: correct the sizes"):
        backend.infer(nn.Linear(3, 2), [spec(4)], 0)
    with pytest.raises(ShapeError, match=r"float32\[3\] and float32\[3\] per sample"):
        backend.infer(nn.Linear(3, 2), [spec(3), spec(3)], 0)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda x: x.sum(0),
            r"returns \[3\] for a batch of 2, and \[3\] for.*one axis.*Hint: return outputs with the batch",
        ),
        (lambda x: x.sum(), r"returns \[\] for a batch of 2"),
        (lambda x: x[:1], r"returns \[1, 3\] for a batch of 2"),
        (lambda x: x @ x.T, r"returns \[2, 2\] for a batch of 2, and \[3, 3\] for a batch of 3"),
        (lambda x: (3, None), r"returned a tuple of int, NoneType, which cannot be the output of a node.*Hint: wrap"),
        (lambda x: 3, r"returned a int, which cannot be the output"),
        (lambda x: (), r"returned a tuple of nothing, which cannot be the output"),
    ],
)
def test_unsupported_outputs_raise_shape_error(backend: TorchBackend, function: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        backend.infer(Function(function), [spec(3)], 0)


def test_infer_out_of_memory_raises_out_of_memory_error(backend: TorchBackend) -> None:
    with pytest.raises(OutOfMemoryError, match="not enough memory for a batch of 2 through Function"):
        backend.infer(Function(lambda x: x.new_empty(2**48)), [spec(3)], 0)


def test_large_model_is_inferred_without_values(backend: TorchBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_traits, "LARGE_BYTES", 0)
    seen: list[str] = []
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    model.register_forward_pre_hook(lambda m, inputs: seen.append(inputs[0].device.type))
    assert backend.infer(model, [spec(3)], 0) == (spec(2),)
    assert seen == ["meta", "meta"]
    assert not model[0].weight.is_meta


def test_large_model_that_needs_values_is_run(backend: TorchBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_traits, "LARGE_BYTES", 0)
    model = nn.Sequential(nn.Linear(3, 2), Function(lambda x: x if float(x.sum()) < 1e9 else x[:1]))
    assert backend.infer(model, [spec(3)], 0) == (spec(2),)


@pytest.fixture
def medium(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_traits, "MEDIUM_BYTES", 0)
    monkeypatch.setattr(module_traits, "MEDIUM_TENSOR", 0)


@pytest.mark.usefixtures("medium")
def test_a_model_of_large_tensors_runs_without_values(backend: TorchBackend) -> None:
    seen: list[tuple[str, int]] = []
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2), nn.BatchNorm1d(2))
    model.register_forward_pre_hook(lambda m, inputs: seen.append((inputs[0].device.type, len(inputs[0]))))
    assert backend.infer(model, [spec(dtype="int64")], 0) == (spec(2),)
    assert seen == [("meta", 2), ("meta", 3)]
    assert not model[0].weight.is_meta
    with pytest.raises(ShapeError, match="float64"):  # which its run without values would take
        backend.infer(model[1:], [spec(3, dtype="float64")], 0)


@torch.library.custom_op("anyaccel_tests::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    """A user's operator, which is wrong without values."""
    return x[:, ::2].clone()


@halved.register_fake
def _halved_without_values(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


CONSTANT = torch.ones(3, 3)


@pytest.mark.usefixtures("medium")
@pytest.mark.parametrize(
    ("function", "size"),
    [
        (lambda x: x if float(x.sum()) < 1e9 else x[:1], 4),
        (halved, 2),
        (lambda x: nn.functional.linear(x[:, :3].double(), CONSTANT.to(x.device, torch.float64)).float(), 3),
    ],
    ids=["depends on values", "user's operator", "double precision inside"],
)
def test_a_model_that_may_be_another_without_values_is_run_on_them(
    backend: TorchBackend, function: Any, size: int
) -> None:
    model = nn.Sequential(nn.Linear(3, 4), Function(function))
    assert backend.infer(model, [spec(3)], 0) == (spec(size),)


@pytest.mark.usefixtures("medium")
def test_a_constant_among_tensors_without_values_counts_for_nothing(backend: TorchBackend) -> None:
    seen: list[str] = []

    def product(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.device.type)
        return x @ CONSTANT[:, :2]

    assert backend.infer(nn.Sequential(nn.Linear(3, 3), Function(product)), [spec(3)], 0) == (spec(2),)
    assert seen == ["meta", "cpu", "cpu"]


@pytest.mark.usefixtures("medium")
def test_training_that_needs_values_is_run_on_them(backend: TorchBackend) -> None:
    seen: list[str] = []
    model = Function(lambda x: seen.append(x.device.type) or (x if float(x.sum()) < 1e9 else x[:1]))
    model.weight = nn.Parameter(torch.ones(3))
    assert [output.spec for output in backend.infer_training(model, [spec(3)])] == [spec(3)]
    assert seen == ["meta", "cpu", "cpu"]


def test_layers_of_torch_are_known_to_return_the_same_in_training(backend: TorchBackend) -> None:
    assert backend.infer_training(nn.Sequential(nn.Linear(3, 3), nn.Dropout()), [spec(3)]) is None
    assert backend.infer_training(Function(lambda x: 1 / 0), [spec(3)]) == ()  # unknown


# -- facts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        (nn.Linear(1, 1), "float32"),
        (nn.Linear(1, 1, dtype=torch.bfloat16), "bfloat16"),
        (nn.LazyLinear(1, dtype=torch.float64), "float64"),
        (SequentialMLP(dtype="float64"), "float64"),
        (nn.ReLU(), None),
    ],
)
def test_dtype_of_is_that_of_the_first_floating_parameter(
    backend: TorchBackend, model: nn.Module, dtype: str | None
) -> None:
    assert backend.dtype_of(model) == dtype


def test_parameters_are_listed_by_name(backend: TorchBackend) -> None:
    shared = nn.Linear(2, 2)
    result = backend.parameters(nn.Sequential(shared, shared, nn.Linear(2, 1, bias=False, dtype=torch.float16)))
    assert result == {"0.weight": spec(2, 2), "0.bias": spec(2), "2.weight": spec(1, 2, dtype="float16")}


@pytest.mark.parametrize("model", [nn.LazyLinear(1), SequentialMLP(), nn.Sequential(nn.ReLU(), SequentialMLP())])
def test_state_of_an_unbuilt_model_raises_state_error(backend: TorchBackend, model: nn.Module) -> None:
    for ask in (backend.parameters, backend.state, lambda m: backend.load_state(m, {})):
        with pytest.raises(StateError, match=r"has no parameters yet.*Hint: build the graph"):
            ask(model)


# -- state -----------------------------------------------------------------------------------------------------------


def buffered() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.register_buffer("cache", torch.ones(1), persistent=False)
    return model


def test_state_is_a_copy_with_names(backend: TorchBackend) -> None:
    model = buffered()
    state = backend.state(model)
    assert list(state) == [
        *(f"parameters/{name}" for name in ("0.weight", "0.bias", "1.weight", "1.bias")),
        *(f"buffers/1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")),
    ]
    state["parameters/0.bias"][:] = 9
    assert 9 not in model[0].bias


def test_load_state_writes_in_place(backend: TorchBackend) -> None:
    source, target = buffered(), buffered()
    source[1].running_mean.fill_(3)
    state = backend.state(source)
    for array in state.values():
        array.flags.writeable = False
    before = list(target.parameters())
    backend.load_state(target, state)
    assert all(a is b for a, b in zip(target.parameters(), before, strict=True))
    for name, value in backend.state(target).items():
        np.testing.assert_array_equal(value, state[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parameters/0.bias": None}, r"the state lacks parameters/0\.bias; the model has parameters/0"),
        ({"buffers/x": np.zeros(1)}, r"the state has buffers/x, which is not in the model.*Hint: load the state"),
        (
            {"parameters/0.bias": np.zeros(3, "f4")},
            r"parameters/0\.bias in the state is float32\[3\]; .*\[2\]",
        ),
        (
            {"parameters/0.bias": np.zeros(2)},
            r"is float64\[2\]; .* of the model is float32\[2\]",
        ),
        ({"parameters/0.bias": np.zeros(2, "U1")}, r"parameters/0\.bias in the state is str32\[2\]"),
    ],
)
def test_load_state_checks_everything_before_writing(
    backend: TorchBackend, change: dict[str, Any], message: str
) -> None:
    model = buffered()
    before = backend.state(model)
    state = {name: value for name, value in {**before, **change}.items() if value is not None}
    state["parameters/0.weight"] = state["parameters/0.weight"] + 1
    with pytest.raises(StateError, match=message):
        backend.load_state(model, state)
    np.testing.assert_array_equal(backend.state(model)["parameters/0.weight"], before["parameters/0.weight"])


def test_state_of_an_8_bit_float_raises_state_error(backend: TorchBackend) -> None:
    model = nn.Linear(1, 1).to(torch.float8_e4m3fn)
    with pytest.raises(
        StateError,
        match=r"weight has dtype float8_e4m3fn, which NumPy does not support.*Hint: "
        r"convert the",
    ):
        backend.state(model)
    assert set(backend.state(model.float())) == {"parameters/weight", "parameters/bias"}


def test_live_state_shares_memory_and_forbids_nothing(backend):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).to(torch.bfloat16)
    live, copies = backend.live_state(model), backend.state(model)
    assert live.keys() == copies.keys()
    for name, view in live.items():
        assert view.dtype == copies[name].dtype and view.tobytes() == copies[name].tobytes()
        assert not view.flags.writeable and copies[name].flags.writeable
    weight = live["parameters/0.weight"]
    with torch.no_grad():
        model[0].weight.fill_(2.0)
    assert (weight == 2.0).all() and not (copies["parameters/0.weight"] == 2.0).all()
    del live, weight, view
    model[0].weight.data.resize_(50, 50)  # Tensor.numpy would forbid it


@pytest.mark.parametrize("what", ["transposed", "sliced", "sparse", "8 bits", "meta"])
def test_live_state_of_tensors_that_numpy_cannot_share(backend, what):
    model = torch.nn.Linear(4, 4, bias=False)
    if what == "transposed":
        model.weight = torch.nn.Parameter(torch.randn(4, 4).t())
    elif what == "sliced":
        model.weight = torch.nn.Parameter(torch.randn(8, 8)[::2, ::2])
    elif what == "sparse":
        model.weight = torch.nn.Parameter(torch.eye(4).to_sparse())
    elif what == "8 bits":
        model.weight = torch.nn.Parameter(torch.ones(4, 4).to(torch.float8_e4m3fn), requires_grad=False)
    else:
        model = model.to("meta")
    if what in ("transposed", "sliced"):
        np.testing.assert_array_equal(backend.live_state(model)["parameters/weight"], model.weight.detach().numpy())
        assert backend.state(model)["parameters/weight"].flags.c_contiguous
        return
    with pytest.raises(StateError) as live:
        backend.live_state(model)
    with pytest.raises(StateError) as copied:
        backend.state(model)
    assert str(live.value) == str(copied.value)


@pytest.mark.parametrize("how", ["plain", "read-only", "fortran", "sliced", "big endian", "unaligned", "empty", "one"])
def test_arrays_of_any_kind_are_loaded(backend, how, recwarn):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    model = torch.nn.Linear(4, 3, bias=False)
    if how == "read-only":
        array.setflags(write=False)
    elif how == "fortran":
        array = np.asfortranarray(array)
    elif how == "sliced":
        array = np.repeat(array, 2, axis=1)[:, ::2]
    elif how == "big endian":
        array = array.astype(">f4")
    elif how == "unaligned":
        array = np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:].view(np.float32).reshape(3, 4)
        assert not array.flags.aligned
    elif how == "empty":
        model.weight, array = torch.nn.Parameter(torch.empty(0, 4)), array[:0]
    elif how == "one":
        model.weight, array = torch.nn.Parameter(torch.tensor(0.0)), np.array(3.0, np.float32)
    backend.load_state(model, {"parameters/weight": array})
    np.testing.assert_array_equal(model.weight.detach().numpy(), array)
    assert not list(recwarn)
