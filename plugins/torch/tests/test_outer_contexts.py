"""Contexts around a phase: autocast is refused, no_grad and inference_mode are left, the rest is obeyed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import anyaccel as aa
from anyaccel.errors import PhaseError

X = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")
DATA = aa.FeatureSet.from_dict("d", {"x": X, "y": 2 * X[:, :1]}, ["x"], ["y"])
MSE = [aa.AppliedLoss("mse", on="net")]
AUTOCAST = "torch.autocast('cpu', torch.bfloat16)"


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))


def trained(model: nn.Module, **settings: Any) -> Any:
    graph = aa.ModelGraph([aa.ModelNode("net", model, DATA.reference())], aa.Optimizer("sgd", lr=0.1))
    losses = {} if "step" in settings else {"losses": MSE}
    phase = aa.TrainPhase("t", data="all", sampler=aa.SimpleSampler(16), epochs=3, **losses, **settings)
    return aa.Experiment("e", graph, progress="none").run_phase(phase)


def by_hand(*, mixed: bool = False) -> tuple[list[float], np.ndarray]:
    """Mean losses of three epochs of two batches, and what the model then gives; of `mixed`, with its own autocast."""
    model, x, y = net(), torch.tensor(X), torch.tensor(2 * X[:, :1])
    optimizer, means = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(3):
        losses = []
        for start in (0, 16):
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                output = model(x[start : start + 16])
            loss = nn.functional.mse_loss(output.float(), y[start : start + 16])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        means.append(sum(losses) / 2)
    return means, model(x).detach().numpy()


@contextmanager
def changed(write: Callable[[Any], object], value: Any, before: Any) -> Iterator[None]:
    write(value)
    try:
        yield
    finally:
        write(before)


LEFT_OR_OBEYED: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no context": nullcontext,
    "inference_mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast of another device": lambda: torch.autocast("xpu", torch.bfloat16, enabled=torch.xpu.is_available()),
    "default dtype": lambda: changed(torch.set_default_dtype, torch.float64, torch.float32),
    "default device": lambda: changed(torch.set_default_device, "meta", None),
    "device": lambda: torch.device("meta"),
    "deterministic": lambda: changed(torch.use_deterministic_algorithms, True, False),
    "saved on the CPU": torch.autograd.graph.save_on_cpu,
    "one thread of autograd": lambda: torch.autograd.set_multithreading_enabled(False),
    "forked random numbers": lambda: torch.random.fork_rng(devices=[]),
}


@pytest.mark.parametrize("context", LEFT_OR_OBEYED)
def test_a_phase_computes_as_a_loop_by_hand_outside_of_the_context(context: str) -> None:
    means, outputs = by_hand()
    model = net()
    with LEFT_OR_OBEYED[context]():
        before = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        results = trained(model)
        assert (torch.is_inference_mode_enabled(), torch.is_grad_enabled()) == before
        graph = aa.ModelGraph([aa.ModelNode("net", model, DATA.reference())])
        evaluated = aa.Experiment("e", graph, progress="none").run_phase(aa.EvalPhase("v", data="all", outputs="net"))
    assert np.allclose(results.loss, means, rtol=1e-5)
    assert np.allclose(evaluated.prediction("net"), outputs, atol=1e-6)
    assert not any(parameter.is_inference() for parameter in model.parameters())
    told = [event.message for event in results.events if event.kind == "context"]
    assert len(told) == (context in ("inference_mode", "no_grad")) and all(context in message for message in told)


def test_fit_and_predict_inside_inference_mode_are_those_outside() -> None:
    outside, model = aa.fit(net(), DATA, loss="mse", epochs=2, progress="none"), net()
    with torch.inference_mode():
        inside = aa.fit(model, DATA, loss="mse", epochs=2, progress="none")
        assert np.array_equal(inside.predict(DATA), outside.predict(DATA))
    assert list(inside.results.loss) == list(outside.results.loss)


def test_a_model_that_was_made_in_inference_mode_is_refused_and_trains_where_it_was_made_outside() -> None:
    with torch.inference_mode():
        model = net()
    with pytest.raises(
        aa.errors.AnyaccelError, match=r"created in torch\.inference_mode.*create the model outside of it"
    ):
        trained(model)
    assert trained(net()).loss[-1] < trained(net()).loss[0]


# -- autocast ----------------------------------------------------------------------------------------------------------


def phases() -> dict[str, Callable[[], Any]]:
    fitted = aa.fit(net(), DATA, loss="mse", epochs=1, progress="none")
    graph = aa.ModelGraph([aa.ModelNode("net", net(), DATA.reference())], "sgd")
    experiment = aa.Experiment("e", graph, progress="none")
    return {
        "train": lambda: trained(net()),
        "evaluate": lambda: experiment.run_phase(aa.EvalPhase("v", data="all", losses=MSE)),
        "plan": lambda: experiment.plan(aa.TrainPhase("t", data="all", losses=MSE)),
        "fit": lambda: aa.fit(net(), DATA, loss="mse", epochs=1, progress="none"),
        "predict": lambda: fitted.predict(DATA),
    }


@pytest.mark.parametrize("route", ["train", "evaluate", "plan", "fit", "predict"])
def test_a_phase_inside_autocast_is_refused_before_anything_moves(route: str) -> None:
    """The weights of the first step stay in autocast's cache: the loss was 5.53 in every epoch."""
    run = phases()[route]
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(PhaseError) as caught:
            run()
        assert torch.is_autocast_enabled("cpu")
    assert f"runs inside {AUTOCAST}, and node " in caught.value.problem
    assert "run the phase outside this context" in caught.value.hint and "precision='bf16-mixed'" in caught.value.hint
    run()  # as the hint says


def test_the_precision_of_the_hint_computes_as_autocast_of_every_step_by_hand() -> None:
    means, _ = by_hand(mixed=True)
    assert np.allclose(trained(net(), precision="bf16-mixed").loss, means, rtol=1e-3)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_phase_with_a_precision_leaves_autocast_and_its_cache(enabled: bool) -> None:
    """Also of an outer context that is disabled inside: torch keeps the cache until the outermost ends."""
    outside, model = trained(net(), precision="bf16-mixed"), net()
    with torch.autocast("cpu", torch.bfloat16):
        stale = model(torch.tensor(X))  # its weights are cached now
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            inside = trained(model, precision="bf16-mixed")
        assert not torch.equal(model(torch.tensor(X)), stale), "the cache had the weights of before"
        depth = torch.autocast_increment_nesting()
        torch.autocast_decrement_nesting()
        assert depth == 2
    assert list(inside.loss) == list(outside.loss) and inside.loss[-1] < 0.7 * inside.loss[0]
    told = [event.message for event in inside.events if event.kind == "context"]
    assert told == ([f"{AUTOCAST} around the phase is ignored: set precision instead"] if enabled else [])


def custom_step(models: Any, batch: Any, optimizers: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        output = models["net"](batch["features"])
    loss = nn.functional.mse_loss(output.float(), batch["targets"])
    loss.backward()
    optimizers["net"].step()
    optimizers["net"].zero_grad()
    return loss


def test_a_step_of_ones_own_is_refused_there_and_casts_in_the_step_as_the_hint_says() -> None:
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(PhaseError) as caught:
        trained(net(), step=custom_step)
    assert f"enter it in the step: `with {AUTOCAST}:`" in caught.value.hint
    means, _ = by_hand(mixed=True)
    assert np.allclose(trained(net(), step=custom_step).loss, means, rtol=1e-3)


# -- where tensors have no values --------------------------------------------------------------------------------------


def test_a_phase_with_fake_tensors_is_refused() -> None:
    model = net()
    with FakeTensorMode(), pytest.raises(PhaseError, match=r"inside a FakeTensorMode.*Hint: run it outside"):
        trained(model)
    assert np.allclose(trained(model).loss, by_hand()[0], rtol=1e-5)


def test_a_phase_inside_a_transformed_function_is_refused() -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(PhaseError, match=r"inside torch\.func.*Hint: run it outside"):
            trained(net())
        return x.sum()

    torch.func.grad(inside)(torch.ones(2))


def test_a_graph_that_was_built_inside_autocast_has_the_dtypes_of_outside() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        graph = aa.ModelGraph([aa.ModelNode("net", net(), DATA.reference())]).build()
    phase = aa.TrainPhase("t", data="all", losses=MSE, sampler=aa.SimpleSampler(16), epochs=3)
    graph.optimizer = aa.Optimizer("sgd", lr=0.1)
    assert np.allclose(aa.Experiment("e", graph, progress="none").run_phase(phase).loss, by_hand()[0], rtol=1e-5)


def test_a_phase_that_would_be_recorded_by_jit_trace_is_refused() -> None:
    model = net()

    def inside(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(PhaseError, match=r"inside torch\.jit\.trace.*Hint: run it outside"):
            trained(model)
        return x * 2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch, that it will drop jit.trace
        torch.jit.trace(inside, torch.ones(2), check_trace=False)
