"""What simulated devices need of torch's inside, asked for before any of it is used: it may be another in each version.

Written for torch 2.13.0. The rest of the plugin stands on torch's public interface, and needs none of this.
"""

# ruff: noqa: SLF001  (names inside torch are what this is about)

from __future__ import annotations

from importlib import import_module

from anyaccel.errors import CapabilityError

_UNNAMED = "privateuseone"
_NAMES = (
    ("torch.utils.backend_registration", "_setup_privateuseone_for_python_backend"),
    ("torch.autograd", "_engine_run_backward"),
    ("torch.autograd.function", "BackwardCFunction"),
    ("torch._C", "_current_graph_task_id"),
    ("torch._C", "_dispatch_has_kernel_for_dispatch_key"),
    ("torch._C", "_disabled_torch_function_impl"),
    ("torch._C", "_get_privateuse1_backend_name"),
    ("torch._C", "Generator"),
    ("torch._utils", "_rebuild_device_tensor_from_cpu_tensor"),
    ("torch.__future__", "set_swap_module_params_on_conversion"),
)


def prepare() -> None:
    """Tell torch of the simulated devices, once for the process; a second call changes nothing.

    Raises:
        CapabilityError: this torch cannot be given a device by Python code, or another one was given to it.
    """
    import torch

    missing = [f"{module}.{name}" for module, name in _NAMES if not hasattr(import_module(module), name)]
    if missing:
        raise CapabilityError(
            f"torch {torch.__version__} cannot be given simulated devices: it has no {', '.join(missing)}",
            available="they are tested with torch 2.13.0, and use what is no public interface of torch",
            hint="install that version for these tests",
        )
    from anyaccel_torch.simulated.sim_device import KIND

    named = torch._C._get_privateuse1_backend_name()
    if named not in (_UNNAMED, KIND):
        raise CapabilityError(
            f"torch cannot be given simulated devices: its one place for a further kind is taken by {named!r}",
            hint="do it in a process that does not import the package that has taken it",
        )
    from anyaccel_torch.simulated.setup import set_up

    set_up()
