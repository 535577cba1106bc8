"""Simulated torch devices, each test in a process of its own, as they cannot be removed from torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from anyaccel.errors import DeviceMismatchError
from anyaccel_torch.error_translation import raise_if_device_mismatch, translate_errors

HERE = Path(__file__).parent
SWITCH = "ANYACCEL_TORCH_SIMULATE"
LEFT_OUT = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "ANYACCEL_SIMULATE", SWITCH)
LEAST = 290  # tests of the kit that pass; there are more in later versions


def child(*arguments: str, simulate: str | None = "2") -> subprocess.CompletedProcess[str]:
    """A fresh Python with torch's plugin and no other."""
    kept = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    settings = {"ANYACCEL_PLUGINS": "torch"} | ({} if simulate is None else {SWITCH: simulate})
    settings["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # those of others may warn, which is an error here
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=kept | settings, cwd=HERE, timeout=600, check=False
    )


def output_of(program: str, simulate: str | None = "2") -> str:
    """What a program prints; it must succeed."""
    done = child("-W", "error", "-c", program, simulate=simulate)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def run_tests(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a file beside this one, all of which must pass."""
    done = child("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", *options, str(HERE / name))
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_torch_passes_the_conformance_kit_on_two_simulated_devices(tmp_path: Path) -> None:
    """With two devices, only tests of autocast and of processes, which are not simulated, and of blocks are skipped."""
    card = tmp_path / "card"
    run_tests("test_simulated_kit.py", "-p", "anyaccel_devtools.testing.json_report", f"--anyaccel-report={card}")
    lines = [json.loads(line) for line in card.read_text("utf-8").splitlines()]
    facts = next(line for line in lines if "backend" in line)
    assert (facts["framework"], facts["devices"]) == ("torch", ["sim:0", "sim:1"])
    assert {"device": "sim:0"} in lines and lines[-1] == {"end": True}
    ends = [line for line in lines if "test" in line]
    others = {line["message"] for line in ends if line["outcome"] != "passed"}
    autocast = {f"torch has no autocast to {dtype} on 'sim'" for dtype in ("bfloat16", "float16")}
    divided = {"parameters cannot be sharded here", "parameters of single nodes cannot be sharded here"}
    several = {*divided, "there is no CPU, and no sim for each of 2 processes"}
    assert others == {*autocast, *several, "nothing in this model is recomputed"}
    passed = Counter(line["capability"] for line in ends)
    assert set(passed) == {"backend", "exchange", "compute", "multi_step", "memory"}
    assert passed.total() >= LEAST
    assert sum("second" in line["test"] or "another" in line["test"] for line in ends) > 0


def test_on_simulated_devices() -> None:
    """Several files in one process: starting one takes longer than most of them."""
    first, *others = (f"test_simulated_{part}.py" for part in ("device", "refusals", "graphs", "faults", "sharing"))
    assert "skipped" not in run_tests(first, *(str(HERE / name) for name in others)).stdout


def test_transfers_and_clocks_on_simulated_devices() -> None:
    assert "skipped" not in run_tests("test_simulated_transfers.py", str(HERE / "test_simulated_concurrency.py")).stdout


# -- what torch says of it elsewhere ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
        "Expected all tensors to be on the same device, but got mat1 is on cpu, different from other tensors on cuda:0 "
        "(when checking argument in method wrapper_CUDA_addmm)",
        "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
        "Input and parameter tensors are not at the same device, found input tensor at cuda:0 and parameter at cpu",
        "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same",
        "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same or input should be",
        "Tensor for argument #2 'mat1' is on CPU, but expected it to be on GPU (while checking arguments for addmm)",
        "Tensor for argument weight is on cpu but expected on mps",
        "Placeholder storage has not been allocated on MPS device!",
    ],
)
def test_torchs_device_mismatch_messages_are_recognized(message: str) -> None:
    with pytest.raises(DeviceMismatchError) as caught, translate_errors("a step"):
        raise RuntimeError(message)
    text = str(caught.value)
    assert text.startswith(f"a step: an operation received tensors on several devices: {message}; at {__file__}:")
    assert text.endswith("Hint: move them to one device; create tensors on the device of the inputs.")
    with pytest.raises(DeviceMismatchError, match=r"node 'a' on gpu:0 .* its inputs are x on no device; torch says: "):
        raise_if_device_mismatch(RuntimeError(message), "node 'a' on gpu:0", {"x": 3})


@pytest.mark.parametrize(
    "message",
    [
        "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
        "Input type (float) and bias type (double) should be the same",
        "Input type (torch.cuda.DoubleTensor) and weight type (torch.cuda.FloatTensor) should be the same",
        "Input type (torch.DoubleTensor) and weight type (torch.FloatTensor) should be the same",
        "CUDA error: device-side assert triggered",
    ],
)
def test_other_messages_pass(message: str) -> None:
    raise_if_device_mismatch(RuntimeError(message), "node 'a' on gpu:0", {})
    with pytest.raises(RuntimeError) as caught, translate_errors("a step"):
        raise RuntimeError(message)
    assert type(caught.value) is RuntimeError and str(caught.value) == message


# -- switched on and off ---------------------------------------------------------------------------------------------


def test_environment_variable_creates_devices_without_importing_torch() -> None:
    program = """
import anyaccel_torch, sys
backends = anyaccel_torch.backends()
print(*(type(one).__name__ for one in backends), *backends[-1].devices(), "torch" in sys.modules)
print(backends[-1].device_string(backends[-1].devices()[1]), "torch" in sys.modules)
import torch, anyaccel
try:
    torch.device("sim:1")
except RuntimeError:
    print("unknown")
print(anyaccel.Accelerator("sim:1").move(torch.ones(1)).device, torch.device("sim:1"))
"""
    assert output_of(program).splitlines() == [
        "TorchBackend SimulatedBackend sim:0 sim:1 False",
        "sim:1 False",
        "unknown",
        "sim:1 sim:1",
    ]


def test_no_simulated_devices_by_default() -> None:
    program = """
import anyaccel_torch, anyaccel, torch, sys
print(*map(type, anyaccel_torch.backends()), "anyaccel_torch.simulated.registration" in sys.modules)
try:
    anyaccel.Accelerator("sim:0").check("torch")
except anyaccel.errors.FrameworkError as error:
    print(error)
"""
    first, second = output_of(program, simulate=None).splitlines()
    assert first == "<class 'anyaccel_torch.backend.TorchBackend'> False"
    assert second.startswith("no installed plugin runs torch on 'sim'. Available: torch on gpu, xpu, cpu.")


def test_start_works_after_plugins_are_loaded() -> None:
    program = """
import anyaccel, torch
from anyaccel.registry import registry
print(registry().kinds("torch"))
from anyaccel_torch import simulated
print(*simulated.start(3, capacity=1000))
print(registry().kinds("torch")[-1], *anyaccel.devices("sim", framework="torch"))
x = torch.ones(2, device="sim:2")
print(x.device, simulated.running()[2].used)
"""
    assert output_of(program, simulate=None).splitlines() == [
        "('gpu', 'xpu', 'cpu')",
        "sim:0 sim:1 sim:2",
        "sim sim:0 sim:1 sim:2",
        "sim:2 8",
    ]


def test_start_works_before_plugins_are_loaded() -> None:
    program = """
from anyaccel_torch import simulated
simulated.start(2)
import anyaccel
print(*anyaccel.devices("sim", framework="torch"))
"""
    assert output_of(program, simulate=None) == "sim:0 sim:1"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("two", "ANYACCEL_TORCH_SIMULATE='two' is not a count"),
        ("-1", "ANYACCEL_TORCH_SIMULATE='-1' is not a count"),
        ("0", "none was started; set ANYACCEL_TORCH_SIMULATE=1 before Python starts"),
    ],
)
def test_unusable_environment_variable_says_why(text: str, why: str) -> None:
    program = """
import anyaccel
try:
    anyaccel.Accelerator("sim:0").check("torch")
except (anyaccel.errors.DeviceUnavailableError, anyaccel.errors.ConfigError) as error:
    print(error)
"""
    assert why in output_of(program, simulate=text)


REFUSED = """
import torch
{before}
from anyaccel.errors import CapabilityError
from anyaccel_torch import simulated
try:
    simulated.start(2)
except CapabilityError as error:
    print(error)
"""


def test_another_registered_device_raises_capability_error() -> None:
    message = output_of(REFUSED.format(before="torch.utils.rename_privateuse1_backend('npu')"), simulate=None)
    assert message == (
        "torch supports only one additional kind of device, but 'npu' is already registered. "
        "Hint: simulate devices in a process that does not import the package that registers it."
    )


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch.utils.backend_registration", "_setup_privateuseone_for_python_backend"),
        ("torch.autograd", "_engine_run_backward"),
    ],
)
def test_torch_without_needed_private_names_raises_capability_error(module: str, name: str) -> None:
    message = output_of(REFUSED.format(before=f"import {module} as inside; del inside.{name}"), simulate=None)
    assert f"does not support simulated devices: it has no {module}.{name}; torch 2.13.0" in message
    assert message.endswith("Hint: install that version for these tests.")


def test_placement_of_a_chip_stays_small() -> None:
    source = HERE.parent / "src/anyaccel_torch/simulated/backend.py"
    assert len(source.read_text("utf-8").splitlines()) < 100
