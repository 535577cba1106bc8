"""Checks of a Mac for torch on its GPU."""

from __future__ import annotations

from collections.abc import Iterator

from anyaccel.machine import Machine
from anyaccel_devtools.doctor import Check, HealthChecks


class MpsHealthChecks(HealthChecks):
    """Checks of a Mac. Torch's plugin adds those of torch. A device has no checks: the system compiles its kernels."""

    def health_checks(self, machine: Machine) -> Iterator[Check]:
        """Check a Mac with an Apple GPU: missing features, and settings that silently change results or speed."""
        if not any(device.kind == "mps" for device in machine.devices):
            return
        yield Check(
            name="float64 on mps",
            status="WARN",
            message="the Apple GPU has no float64 and complex128; models and tensors with these dtypes are refused",
            fix="cast columns with data.cast({'x': 'float32'}), and models with model.float()",
        )
        fallback = machine.environment.get("PYTORCH_ENABLE_MPS_FALLBACK", "0")
        if fallback not in ("", "0"):
            yield Check(
                name="operators on mps",
                status="WARN",
                message=f"PYTORCH_ENABLE_MPS_FALLBACK={fallback} runs operators missing in MPS on the CPU, slowly",
                fix="unset PYTORCH_ENABLE_MPS_FALLBACK to get a list of them",
            )
        else:
            yield Check(
                name="operators on mps", status="PASS", message="operators missing in MPS are refused before a phase"
            )
