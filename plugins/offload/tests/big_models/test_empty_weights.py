"""Modules built without memory, beside the same modules really built."""

from __future__ import annotations

import pkgutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import anyaccel as aa
from anyaccel.errors import ConfigError, MoveError, StateError
from anyaccel_offload import torch as big_models
from anyaccel_offload.torch import (
    empty_weights,
    init_empty_weights,
    init_on_device,
    load_checkpoint_and_dispatch,
)

from .tiny_transformers import MODELS, built, tied_groups

META = torch.device("meta")


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_transformers_is_empty_with_the_shapes_ties_and_buffers_of_a_built_one(name: str) -> None:
    real = built(name)
    with init_empty_weights():
        empty = MODELS[name]()
    assert {each.device for each in empty.parameters()} == {META}
    described = [{n: (v.shape, v.dtype) for n, v in model.state_dict().items()} for model in (real, empty)]
    assert described[0] == described[1]
    assert tied_groups(empty) == tied_groups(real)
    buffers = dict(real.named_buffers())
    assert dict(empty.named_buffers()).keys() == buffers.keys()
    for key, value in empty.named_buffers():
        assert torch.equal(value, buffers[key]), key


def test_all_is_empty_with_buffers_included() -> None:
    with init_empty_weights(include_buffers=True):
        empty = MODELS["llama"]()
    assert {each.device for each in (*empty.parameters(), *empty.buffers())} == {META}


class Tied(nn.Module):
    """Ties of three kinds: an assigned parameter, one registered twice, and one made before it is registered."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight
        own = nn.Parameter(torch.zeros(3))
        self.a, self.b = own, own
        self.children_of = nn.ParameterList([own])


def test_ties_are_kept() -> None:
    with init_empty_weights():
        empty = Tied()
    assert tied_groups(empty) == tied_groups(Tied())
    assert empty.head.weight is empty.embed.weight and empty.a is empty.b and empty.a.device == META


class Buffers(nn.Module):
    """Buffers of every kind, computed as models do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("frequencies", 1 / 10 ** (torch.arange(0, 8, 2) / 8), persistent=False)
        self.register_buffer("filled", torch.empty(3).fill_(2.0))
        self.register_buffer("drawn", torch.randn(5, generator=torch.Generator().manual_seed(1)))
        self.register_buffer("large", torch.rand(300, 300), persistent=False)
        self.register_buffer("none", None)


def test_buffers_are_really_computed() -> None:
    with init_empty_weights():
        empty = Buffers()
    torch.manual_seed(0)
    real = Buffers()
    for name in ("frequencies", "filled", "drawn"):
        assert torch.equal(getattr(empty, name), getattr(real, name))
    assert empty.large.device.type == "cpu" and 0.4 < float(empty.large.mean()) < 0.6
    assert empty.none is None and torch.equal(empty.norm.running_var, torch.ones(4))
    assert empty.norm.weight.device == META and empty.state_dict().keys() == real.state_dict().keys()


class Projection(nn.Module):
    def __init__(self, change: Any) -> None:
        super().__init__()
        self.register_buffer("matrix", change(torch.randn(400, 400)))


@pytest.mark.parametrize("change", [lambda it: it.abs(), lambda it: it.fill_(1.0)], ids=["computed", "written"])
def test_a_buffer_that_cannot_be_computed_without_large_random_values_is_refused(change: Any) -> None:
    with (
        init_empty_weights(),
        pytest.raises(ConfigError, match=r"buffer 'matrix' of Projection .* Hint: .*include_buffers=True"),
    ):
        Projection(change)
    with init_empty_weights(include_buffers=True):
        assert Projection(change).matrix.device == META
    assert Projection(change).matrix.device.type == "cpu"


def test_large_random_parameters_are_not_drawn() -> None:
    class Drawn(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """What is written on the CPU."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            written.extend(str(func) for each in (result,) if isinstance(each, torch.Tensor) and not each.is_meta)
            return result

    written: list[str] = []
    state = torch.get_rng_state()
    with Drawn(), init_empty_weights():  # type: ignore[no-untyped-call]
        assert nn.Parameter(torch.randn(4096, 4096)).is_meta
    assert torch.equal(torch.get_rng_state(), state)
    assert not written
    with Drawn():  # type: ignore[no-untyped-call]
        torch.randn(4, 4)
    assert written


def test_other_threads_build_real_modules() -> None:
    made: list[nn.Module] = []
    with init_empty_weights():
        thread = threading.Thread(target=lambda: made.append(nn.Linear(2, 2)))
        thread.start()
        thread.join()
        assert nn.Linear(2, 2).weight.device == META
    assert made[0].weight.device.type == "cpu"


def test_contexts_end_also_by_an_error_and_nest() -> None:
    with pytest.raises(RuntimeError, match="mine"), empty_weights():
        with init_on_device("cpu"):
            assert nn.Linear(2, 2).weight.device.type == "cpu"
        assert nn.Linear(2, 2).weight.device == META
        raise RuntimeError("mine")
    assert nn.Linear(2, 2).weight.device.type == "cpu"


def test_what_a_parameter_carries_is_kept() -> None:
    module = nn.Module()
    given = nn.Parameter(torch.ones(2, dtype=torch.bfloat16), requires_grad=False)
    given.tag = "kept"  # type: ignore[attr-defined]
    with init_empty_weights():
        module.weight = given
    assert (module.weight.dtype, module.weight.requires_grad, module.weight.tag) == (torch.bfloat16, False, "kept")


def test_on_a_device() -> None:
    with init_on_device("meta"):
        module = Buffers()
    assert module.norm.weight.device == META and module.norm.running_mean.device.type == "cpu"
    with init_on_device(META, include_buffers=True):
        assert Buffers().norm.running_mean.device == META


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: init_empty_weights(include_buffers="yes"), "include_buffers='yes' is not True or False"),
        (lambda: init_on_device(None), "device=None is not a device of torch"),
        (lambda: init_on_device("nowhere"), "device='nowhere' is not a device of torch"),
        (lambda: init_on_device("cpu", include_buffers=1), "include_buffers=1 is not True or False"),
    ],
)
def test_wrong_arguments(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message), call():
        pass


def test_values_can_be_given_later() -> None:
    with init_empty_weights():
        empty = nn.Linear(3, 2)
    real = nn.Linear(3, 2)
    empty.load_state_dict(real.state_dict(), assign=True)
    x: Tensor = torch.ones(1, 3)
    assert torch.equal(empty(x), real(x))


def test_no_public_name_is_that_of_a_module_which_would_take_its_place() -> None:
    """A package has its modules as attributes once they are imported."""
    modules = {module.name for module in pkgutil.iter_modules(big_models.__path__)}
    assert not modules & set(big_models.__all__)


class Rotary(nn.Module):
    """Has frequencies that no checkpoint has."""

    def __init__(self, *, persistent: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer("frequencies", torch.arange(6.0), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.frequencies)


def test_buffers_that_no_checkpoint_has_are_refused_with_what_to_do(tmp_path: Path) -> None:
    net, path, x = Rotary(), tmp_path / "model.safetensors", torch.ones(2, 6)
    save_file(net.state_dict(), path)
    with init_empty_weights(include_buffers=True):
        empty = Rotary()
    message = r"the buffer frequencies has no values.*not persistent.*include_buffers=False.*persistent=True"
    with pytest.raises(StateError, match=message):
        load_checkpoint_and_dispatch(empty, path, device_map="auto")
    with init_empty_weights():
        computed = Rotary()
    torch.testing.assert_close(load_checkpoint_and_dispatch(computed, path, device_map="auto")(x), net(x))
    kept = Rotary(persistent=True)
    kept.load_state_dict(net.state_dict(), strict=False)
    save_file(kept.state_dict(), path)
    with init_empty_weights(include_buffers=True):
        registered = Rotary(persistent=True)
    torch.testing.assert_close(load_checkpoint_and_dispatch(registered, path, device_map="auto")(x), net(x))


def test_nodes_with_parameters_without_values_have_shapes_and_are_refused_where_values_are_needed(
    tmp_path: Path,
) -> None:
    net, path, x = Rotary(), tmp_path / "model.safetensors", np.ones((8, 6), "f4")
    save_file(net.state_dict(), path)
    with init_empty_weights():
        empty = Rotary()
    data = aa.FeatureSet.from_dict("d", {"x": x, "y": x}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", empty, data.reference())], "sgd")
    graph.build()
    assert graph.shapes.specs["net"].shape == (6,)
    phase = aa.EvalPhase("v", data="all", losses=[aa.AppliedLoss("mse", on="net")], accelerator="cpu")
    with pytest.raises(MoveError, match=r"has no values to move.*load_checkpoint_and_dispatch"):
        graph.run(phase, progress="none")
    for needs in (graph.state, lambda: graph.load_weights(path), lambda: graph.save(tmp_path / "graph")):
        with pytest.raises(StateError, match=r"layer\.weight has no values.*load the model first"):
            needs()
    load_checkpoint_and_dispatch(empty, path, device_map={"": "cpu"})
    expected = nn.functional.mse_loss(net(torch.ones(8, 6)), torch.ones(8, 6)).item()
    assert graph.run(phase, progress="none").loss == pytest.approx(expected, rel=1e-5)
    assert "net/parameters/layer.weight" in graph.state()


def test_a_tensor_that_is_larger_than_the_machine_is_not_allocated_for_a_moment() -> None:
    with init_empty_weights():
        net = nn.Linear(2**20, 2**22)  # 16 TiB
    assert net.weight.device == torch.device("meta") and net.weight.shape == (2**22, 2**20)
    with init_empty_weights(), pytest.raises(ConfigError, match="is computed from parameters, or from large random"):
        nn.Module().register_buffer("table", torch.empty(2**28))
