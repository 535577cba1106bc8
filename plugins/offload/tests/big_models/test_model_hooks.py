"""Hooks of Accelerate's kind: arguments, outputs, errors, threads and removal; compared with Accelerate where it is."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyaccel.errors import AnyaccelError, ConfigError
from anyaccel_offload.torch import (
    AlignDevicesHook,
    ModelHook,
    SequentialHook,
    add_hook_to_module,
    cpu_offload,
    hook_of,
    remove_hook_from_module,
)


class Adds(ModelHook):
    """Adds to its input and multiplies its output; counts calls."""

    def __init__(self, amount: float, seen: list[str]) -> None:
        self.amount, self.seen = amount, seen

    def init_hook(self, module: nn.Module) -> nn.Module:
        self.seen.append(f"init {self.amount}")
        return module

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        self.seen.append(f"before {self.amount}")
        return (args[0] + self.amount, *args[1:]), kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        self.seen.append(f"after {self.amount}")
        return output * (1 + self.amount)

    def on_error(self, module: nn.Module) -> None:
        self.seen.append(f"error {self.amount}")

    def detach_hook(self, module: nn.Module) -> nn.Module:
        self.seen.append(f"detach {self.amount}")
        return module


X = torch.linspace(-1, 1, 6).view(2, 3)


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def test_a_hook_changes_arguments_and_outputs_and_leaves_no_trace() -> None:
    seen: list[str] = []
    module = linear()
    assert add_hook_to_module(module, Adds(1, seen)) is module
    assert torch.equal(module(X), linear()(X + 1) * 2)
    assert remove_hook_from_module(module) is module and hook_of(module) is None
    assert torch.equal(module(X), linear()(X))
    assert seen == ["init 1", "before 1", "after 1", "detach 1"]
    assert not any(vars(module)[name] for name in ("_forward_pre_hooks", "_forward_hooks"))
    assert "forward" not in vars(module)


@pytest.mark.parametrize("append", [False, True])
def test_another_hook_replaces_the_first_or_comes_after_it_as_in_accelerate(append: bool) -> None:
    accelerate = pytest.importorskip("accelerate.hooks")

    class Theirs(accelerate.ModelHook):  # type: ignore[name-defined,misc]
        def __init__(self, amount: float) -> None:
            self.amount = amount

        def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return (args[0] + self.amount,), kwargs

        def post_forward(self, module: nn.Module, output: Any) -> Any:
            return output * (1 + self.amount)

    seen: list[str] = []
    mine, theirs = linear(), linear()
    for amount in (1, 2):
        add_hook_to_module(mine, Adds(amount, seen), append=append)
        accelerate.add_hook_to_module(theirs, Theirs(amount), append=append)
    assert torch.equal(mine(X), theirs(X))
    assert ("detach 1" in seen) != append


class Fails(nn.Module):
    def forward(self, x: Tensor, error: type[Exception] | None = None) -> Tensor:
        if error is not None:
            raise error("mine")
        return x


def test_an_error_in_the_forward_ends_what_was_begun() -> None:
    """Accelerate calls nothing then."""
    seen: list[str] = []
    module = add_hook_to_module(Fails(), SequentialHook(Adds(1, seen), Adds(2, seen)))
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            module(X, error=KeyError)
    try:
        raise ValueError
    except ValueError:  # an error that is handled outside is none of the call
        assert torch.equal(module(X), (X + 3) * 6)
    assert seen[2:6] == ["before 1", "before 2", "error 1", "error 2"]
    assert seen[-4:] == ["before 1", "before 2", "after 1", "after 2"]


def test_an_error_of_a_hook_ends_those_before_it_alone() -> None:
    class Raises(ModelHook):
        def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("not ready")

        def on_error(self, module: nn.Module) -> None:
            raise AssertionError("it was never begun")

    seen: list[str] = []
    module = add_hook_to_module(linear(), SequentialHook(Adds(1, seen), Raises(), Adds(2, seen)))
    with pytest.raises(RuntimeError, match="not ready"):
        module(X)
    assert seen[2:] == ["before 1", "error 1"]
    remove_hook_from_module(module)
    assert torch.equal(module(X), linear()(X))


def test_threads_have_calls_of_their_own() -> None:
    """Accelerate keeps the device of the inputs in the hook."""
    hook = AlignDevicesHook("cpu", io_same_device=True)
    module = add_hook_to_module(Fails(), hook)
    wrong: list[int] = []

    def calls(i: int) -> None:
        for k in range(200):
            try:
                wrong.extend([i] * (module(X + i, error=KeyError if k % 3 == 0 else None).sum() != (X + i).sum()))
            except KeyError:
                wrong.extend([i] * (k % 3 != 0))

    threads = [threading.Thread(target=calls, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_hooks_of_submodules_are_taken_away_together_and_a_replaced_forward_keeps_its_hook() -> None:
    seen: list[str] = []
    model = nn.Sequential(linear(), nn.ReLU())
    add_hook_to_module(model, Adds(1, seen))
    add_hook_to_module(model[0], Adds(2, seen))
    model[0].forward = lambda x: x  # type: ignore[method-assign]
    assert torch.equal(model(X), (X + 3).mul(3).relu() * 2)
    remove_hook_from_module(model, recurse=True)
    assert hook_of(model) is hook_of(model[0]) is None and seen[-2:] == ["detach 1", "detach 2"]


def test_inputs_are_aligned_and_outputs_go_back() -> None:
    module = add_hook_to_module(linear(), AlignDevicesHook("cpu", io_same_device=True))
    assert torch.equal(module(X), linear()(X))
    assert torch.equal(copy.deepcopy(linear())(X), module(X))


class NotTheModule(ModelHook):
    def init_hook(self, module: nn.Module) -> nn.Module:
        return nn.ReLU()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: add_hook_to_module("net", ModelHook()), "module"),
        (lambda: add_hook_to_module(linear(), "hook"), "hook"),
        (lambda: add_hook_to_module(linear(), ModelHook(), append=1), "append"),
        (lambda: add_hook_to_module(linear(), NotTheModule()), "returns another object than the module"),
        (lambda: add_hook_to_module(cpu_offload(linear()), ModelHook()), "this model is offloaded"),
        (lambda: remove_hook_from_module(None), "module"),
        (lambda: copy.deepcopy(add_hook_to_module(linear(), ModelHook())), "can be neither pickled nor copied"),
        (lambda: SequentialHook(ModelHook(), 3), "hook"),
        (lambda: AlignDevicesHook("disk"), "cannot compute"),
        (lambda: AlignDevicesHook("cuda:99"), "does not exist"),
        (lambda: AlignDevicesHook("cpu", io_same_device="no"), "io_same_device"),
        (lambda: AlignDevicesHook("cpu", skip_keys=1), "skip_keys"),
    ],
)
def test_wrong_arguments_are_refused(call: Any, says: str) -> None:
    with pytest.raises(AnyaccelError, match=says) as raised:
        call()
    assert raised.value.hint


def test_errors_are_of_the_configuration() -> None:
    with pytest.raises(ConfigError):
        add_hook_to_module(linear(), object())  # type: ignore[arg-type]
