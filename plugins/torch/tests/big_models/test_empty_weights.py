"""Modules built without memory, beside the same modules really built."""

from __future__ import annotations

import pkgutil
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from anyaccel.errors import ConfigError
from anyaccel_torch import big_models
from anyaccel_torch.big_models import empty_weights, init_empty_weights, init_on_device

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
