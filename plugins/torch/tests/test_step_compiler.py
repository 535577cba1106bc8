"""Steps that cannot be compiled, estimates, and what an interrupt leaves."""

# ruff: noqa: SLF001  (measured times are set)

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from anyaccel.device import Device
from anyaccel.errors import CompileError
from anyaccel.segment import Operation, Segment
from anyaccel.specs import Optimizer
from anyaccel_torch.backend import TorchBackend
from anyaccel_torch.compiling import estimate, steps, strategies, toolchain_check
from anyaccel_torch.step_compiler import StepCompiler

Make = Callable[..., Segment]
Data = tuple[Tensor, Tensor, Tensor]


class Function(nn.Module):
    seen: Tensor

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(3, 1), function
        self.calls = 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, self.linear(x))


def compile(backend: TorchBackend, segment: Segment, data: Data, batch: int = 4, parts: int = 1) -> Any:
    x, y, order = data
    program: Any = backend.build(segment)
    program.compile([x, y], [order, order], batch, parts)
    return program


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions run as plain Python."""
    monkeypatch.setattr(strategies, "torch_compile", lambda function, options: function)
    monkeypatch.setattr(strategies, "_CACHE", OrderedDict())
    monkeypatch.setattr(toolchain_check, "scan", lambda: None)
    monkeypatch.setattr(steps, "_MUCH_SLOWER", math.inf)  # which uncompiled "compiled" steps are


def counting(module: Function, x: Tensor) -> Tensor:
    module.calls += 1
    return x


def replacing(module: Function, x: Tensor) -> Tensor:
    module.seen = module.seen + 1
    return x


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            counting,
            r"a step changes the attribute Function\.calls.*Hint: store .* in a register_buffer",
        ),
        (replacing, r"a step replaces the buffer seen with another tensor.*Hint: update it in place"),
        (lambda module, x: x if x.sum() > 0 else -x, r"steps of segment 's' cannot be traced: .*Hint: avoid Python"),
    ],
)
def test_models_that_cannot_be_compiled_raise_compile_error(
    backend: TorchBackend, segment_of: Make, data: Data, function: Any, message: str
) -> None:
    x, y, order = data
    model = Function(function)
    program: Any = backend.build(segment_of(model))
    with pytest.raises(CompileError, match=message):
        program.compile([x, y], [order, order], 4)
    assert model.calls == 0 and float(model.seen) == 0 and program.compiled_as == ""
    vars(program)["_compiler"]._eager_time = (200e-6, 4)
    assert program.estimate_compile(100) is None
    assert program.train_steps([x, y], [order, order], 0, 3, 4).shape == (3, 1)


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 1, sparse=True)

    def forward(self, x: Tensor) -> Any:
        return self.table(x.abs().long().clamp(0, 4)).sum(1)


def test_unsupported_optimizers_and_sizes_raise_compile_error(
    backend: TorchBackend, segment_of: Make, data: Data
) -> None:
    own = segment_of(nn.Linear(3, 1), optimizer=Optimizer(torch.optim.NAdam, lr=0.1))
    with pytest.raises(
        CompileError, match=r"steps with the optimizer NAdam cannot be compiled.*Available: sgd, momentum, adam, adamw"
    ):
        compile(backend, own, data)
    program: Any = backend.build(own)
    vars(program)["_compiler"]._eager_time = (200e-6, 4)
    assert program.estimate_compile(100) is None
    with pytest.raises(CompileError, match=r"gradients are sparse.*sparse=False"):
        compile(backend, segment_of(Sparse()), data)
    with pytest.raises(CompileError, match=r"steps of 5 rows in 2 micro-batches .*: they are not equal"):
        compile(backend, segment_of(nn.Linear(3, 1)), data, 5, 2)
    with pytest.raises(CompileError, match=r"steps of 25 rows cannot be compiled: the shortest order has 24 rows"):
        compile(backend, segment_of(nn.Linear(3, 1)), data, 25)
    with pytest.raises(CompileError, match=r"no loss reaches a trained parameter"):
        frozen = Operation("f", nn.Linear(3, 1), ("x",), ("a",), Device("cpu"))
        idle = Operation("a", nn.Linear(3, 1), ("x",), ("idle",), Device("cpu"))
        compile(backend, segment_of(None, operations=(frozen, idle)), data)


def test_compile_off_and_several_devices_raise_compile_error(
    backend: TorchBackend, segment_of: Make, data: Data
) -> None:
    segment = segment_of(nn.Linear(3, 1))
    with pytest.raises(CompileError, match=r"steps of segment 's' cannot be compiled.*compile='off'"):
        compile(backend, replace(segment, compile="off"), data)
    other = Operation("b", nn.Linear(3, 1), ("x",), ("b",), Device("meta"))
    with pytest.raises(CompileError, match=r"devices: cpu, meta.*one CPU or CUDA device"):
        from anyaccel_torch.program import TorchProgram

        two = replace(segment, operations=(*segment.operations, other))
        TorchProgram(two, lambda device: torch.device(device.kind)).compile([], [], 4)


@pytest.mark.usefixtures("nothing")
@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"CXX": "no-such-compiler"},
            r"no C\+\+ compiler \(CXX=no-such-compiler is not a program.*Hint: install",
        ),
        ({"PATH": ""}, r"there is no C\+\+ compiler \(CXX is not set"),
        ({"TORCHDYNAMO_DISABLE": "1"}, r"torch's compiler is disabled by TORCHDYNAMO_DISABLE=1.*unset"),
    ],
)
def test_missing_toolchain_is_found_before_compiling(
    backend: TorchBackend, segment_of: Make, data: Data, monkeypatch: pytest.MonkeyPatch, environment: Any, message: str
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(strategies, "torch_compile", lambda *args: pytest.fail("it is needed already"))
    with pytest.raises(CompileError, match=message):
        compile(backend, segment_of(nn.Linear(3, 1)), data)


@pytest.mark.usefixtures("nothing")
def test_missing_headers_raise_compile_error(
    backend: TorchBackend, segment_of: Make, data: Data, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(CompileError, match=r"Python's header files are missing.*Hint: install python3-dev"):
        compile(backend, segment_of(nn.Linear(3, 1)), data)


@pytest.mark.usefixtures("nothing")
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_failed_or_interrupted_compilation_restores_everything(
    backend: TorchBackend, segment_of: Make, data: Data, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def compiler(function: Any, options: Any) -> Any:
        def run(whole: Any, state: Any, xs: Any) -> Any:
            function(whole, state, xs)
            raise error("now")

        return run

    monkeypatch.setattr(strategies, "torch_compile", compiler)
    x, y, order = data
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    program: Any = backend.build(segment_of(model))
    program.seed(1)
    before, random = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else CompileError, match="now"):
        program.compile([x, y], [order, order], 4)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state()) and program.compiled_as == ""
    vars(program)["_compiler"]._eager_time = (200e-6, 4)
    assert (program.estimate_compile(100) is None) is (error is ValueError)
    assert program.optimizer_states()["a"].step == 0


@pytest.mark.usefixtures("nothing")
def test_steps_are_run_by_what_was_compiled_and_compiled_once(
    backend: TorchBackend, segment_of: Make, data: Data, nothing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only with the same numbers: uncompiled steps have these too."""
    compilations, steps_done = [], []
    compile_steps, call = steps.compile_steps, steps.CompiledSteps._call
    monkeypatch.setattr(steps, "compile_steps", lambda *arguments: compilations.append(1) or compile_steps(*arguments))
    monkeypatch.setattr(steps.CompiledSteps, "_call", lambda self, xs: steps_done.append(len(xs[0])) or call(self, xs))
    program = compile(backend, segment_of(nn.Linear(3, 1)), data, batch=1)
    x, y, order = data
    length = steps.UNROLLED
    for _ in range(2):
        steps_done.clear()
        program.compile([x, y], [order, order], 1)
        program.train_steps([x, y], [order, order], 0, 2 * length, 1)
        assert steps_done == [length, length]
    assert len(compilations) == 1


def test_steps_whose_timing_was_disturbed_are_timed_again(
    backend: TorchBackend, segment_of: Make, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, order = data
    timed, calls = steps._timed, []

    def disturbed(*arguments: Any) -> tuple[float, Any]:
        calls.append(arguments)
        return (1e3 if len(calls) < 3 else 1e-9), timed(*arguments)[1]

    monkeypatch.setattr(steps, "_timed", disturbed)
    monkeypatch.setattr(steps, "_MUCH_SLOWER", 1.25)
    program: Any = backend.build(segment_of(nn.Linear(3, 1)))
    program.compile([x, y], [order, order], 4)
    assert len(calls) == 3 and program.compiled_as != ""


@pytest.mark.usefixtures("nothing")
def test_slower_or_wrong_compiled_steps_raise_compile_error(
    backend: TorchBackend, segment_of: Make, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, order = data
    program: Any = backend.build(segment_of(nn.Linear(3, 1)))
    program.train_steps([x, y], [order, order], 0, 2, 4)
    monkeypatch.setattr(steps, "_SLOWER", 0.0)
    with pytest.raises(CompileError, match=r"are slower than uncompiled steps: \d+ us per step instead of \d+ us"):
        program.compile([x, y], [order, order], 4)
    unseen: Any = backend.build(segment_of(nn.Linear(3, 1)))
    monkeypatch.setattr(steps, "_MUCH_SLOWER", 0.0)
    with pytest.raises(CompileError, match=r"are slower than uncompiled steps: \d+ us per step instead of \d+ us"):
        unseen.compile([x, y], [order, order], 4)
    monkeypatch.setattr(steps, "_MUCH_SLOWER", math.inf)
    monkeypatch.setattr(
        strategies, "torch_compile", lambda function, options: lambda *args: [loss + 9 for loss in function(*args)]
    )
    monkeypatch.setattr(strategies, "_CACHE", OrderedDict())
    with pytest.raises(CompileError, match=r"return another loss 'l' than uncompiled steps: .* instead of"):
        compile(backend, segment_of(nn.Linear(3, 1)), data)


def test_estimates_depend_on_model_and_cache(
    backend: TorchBackend, segment_of: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Short steps of few operations pay, others do not; cached compilations take less time."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(estimate, "_compile_seconds", {})
    monkeypatch.setattr(estimate, "_operation_seconds", lambda: 1e-6)
    program: Any = backend.build(segment_of(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))))
    assert program.estimate_compile(100) is None  # no step was measured
    vars(program)["_compiler"]._eager_time = (200e-6, 4)
    assert program.estimate_compile(1) is None
    first = program.estimate_compile(100)
    assert first.step_ratio == pytest.approx((0.12 * 106 + 94) / 200) and first.compile_seconds > 10
    request = vars(program)["_compiler"]._request(torch.device("cpu"))
    key = estimate.request_key(request, 4)
    estimate.remember(key, 12.0)
    assert json.loads((tmp_path / "anyaccel" / f"{key}.json").read_text()) == {"seconds": 12.0}
    assert program.estimate_compile(100).compile_seconds < 1
    monkeypatch.setattr(estimate, "_compile_seconds", {})
    assert 1 < program.estimate_compile(100).compile_seconds < first.compile_seconds
    vars(program)["_compiler"]._eager_time = (10e-3, 4)
    assert program.estimate_compile(100) is None
    monkeypatch.setattr(toolchain_check, "compiler", lambda: "")
    vars(program)["_compiler"]._eager_time = (200e-6, 4)
    assert program.estimate_compile(100) is None


OFF = """
import sys, torch
from torch import nn
from anyaccel.device import Device
from anyaccel.specs import Loss, Optimizer
from anyaccel.segment import LossTerm, Operation, ParameterGroup, Segment, TensorSpec
from anyaccel_torch.backend import TorchBackend

cpu, spec = Device("cpu"), TensorSpec((3,), "float32")
program = TorchBackend().build(Segment(
    "s", (Operation("a", nn.Linear(3, 3), ("x",), ("a",), cpu),), {"x": (spec, cpu), "y": (spec, cpu)}, (),
    (LossTerm("l", "a", Loss("mse"), ("a", "y"), cpu),), (ParameterGroup("g", Optimizer("adam"), ("a",)),),
    compile="off"))
before = {name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))}
x = torch.randn(8, 3)
program.train_steps([x, x], [torch.arange(8)] * 2, 0, 4, 2)
assert program.estimate_compile(10**9) is None
after = {name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor", "anyaccel_torch.comp"))}
print(sorted(after - before - {"anyaccel_torch.compute"}))
"""


def test_compile_off_imports_no_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", OFF], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


EVALUATED = """
import sys
import numpy as np, torch
import anyaccel as aa
from anyaccel_torch import SequentialMLP

x, y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
data = aa.FeatureSet.from_dict("d", {"x": x, "y": y}, ["x"], ["y"])
graph = aa.ModelGraph([aa.ModelNode("net", SequentialMLP(), data.reference())])
found = aa.Experiment("e", graph, progress="none").run_phase(
    aa.EvalPhase("p", data="all", losses=[aa.AppliedLoss("mse", on="net")])
)
print(bool(np.isfinite(found.loss)), "torch._dynamo" in sys.modules)
"""


def test_inference_and_evaluation_import_no_compiler() -> None:
    """torch's optimizers import it by themselves."""
    done = subprocess.run([sys.executable, "-c", EVALUATED], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "True False"


def test_a_failed_compilation_leaves_hooks_on_saved_tensors_enabled() -> None:
    """As it leaves them when `torch.utils.checkpoint` is traced: no module with it could be trained any more."""

    def fail() -> None:
        with strategies.compilation():
            torch._C._autograd._saved_tensors_hooks_disable("torch.func.grad does not yet support saved tensor hooks")
            raise RuntimeError("while tracing")

    with pytest.raises(RuntimeError, match="while tracing"):
        fail()
    x = torch.ones(2, requires_grad=True)
    checkpoint(torch.sin, x, use_reentrant=False).sum().backward()
    assert x.grad is not None


# -- Python values that were read ------------------------------------------------------------------------------------

ALPHA = 1.0


def scaled_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return ALPHA * ((outputs - targets) ** 2).mean()


def test_captured_steps_are_dropped_when_a_value_that_they_read_changes(
    backend: TorchBackend, segment_of: Make, data: Data, monkeypatch: pytest.MonkeyPatch, nothing: None
) -> None:
    """A CUDA graph has no guards; here steps count as captured although they are not."""
    model = Function(lambda module, x: x * module.factor)
    model.factor = 1.0
    program = compile(backend, segment_of(model, loss=scaled_error), data)
    assert program.renew_compiled() == [], "torch's compiler has guards of its own"
    program._compiler.watch()
    assert program.renew_compiled() == [] and program.compiled_as
    monkeypatch.setitem(globals(), "ALPHA", 2.0)
    assert program.renew_compiled() == ["ALPHA of the loss 'l'"] and not program.compiled_as
    model.factor = 2.0
    assert program.renew_compiled() == ["factor"]
    assert program.renew_compiled() == []


@pytest.mark.skipif(not os.environ.get("ANYACCEL_TEST_FULL"), reason="compiles for a minute")
@pytest.mark.parametrize("what", ["a global", "an attribute"])
def test_a_value_changed_between_phases_is_compiled_again(
    backend: TorchBackend, segment_of: Make, data: Data, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    x, y, order = data
    model = Function(lambda module, x: x * module.factor)
    model.factor, result = 1.0, []
    start = {name: value.clone() for name, value in model.state_dict().items()}
    for value in (1.0, 2.0):
        if what == "a global":
            monkeypatch.setitem(globals(), "ALPHA", value)
        else:
            model.factor = value
        for mode in ("steps", "off"):
            model.load_state_dict(start)
            program: Any = backend.build(segment_of(model, loss=scaled_error, compile=mode))
            if mode == "steps":
                program.compile([x, y], [order, order], 4)
            result.append(program.train_steps([x, y], [order, order], 0, 4, 4))
            program.close()
    torch.testing.assert_close(result[0], result[1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(result[2], result[3], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(result[0], result[2])


@pytest.mark.parametrize(("device", "seconds"), [("cpu", 1e-3), ("cuda", 4e-3)])
def test_uncompiled_steps_on_a_cpu_are_timed_by_the_processor(device: str, seconds: float) -> None:
    """Other processes of a busy machine would make them seem slow, and compiled steps worth their while."""
    nothing: Any = None
    compiler = StepCompiler(nothing, nothing, [], [], [], {torch.device(device)})
    compiler.record_eager_time(0.4, 0.1, 100, 8)
    assert compiler._eager_time == (pytest.approx(seconds), 8)
    compiler.record_eager_time(0.4, 0.2, 100, 8)
    assert compiler._eager_time == (pytest.approx(seconds), 8)
    compiler.record_eager_time(0.5, 0.5, 100, 16)
    assert compiler._eager_time == (pytest.approx(5e-3), 16)
