"""The adapter: a complete `Program` for a framework, from one small class. It stands on the kernel and `precision`.

A plugin derives from `ArrayOps`, and its `Compute.build` returns `ArrayProgram(segment, ops)`. If the framework
differentiates and compiles whole functions, it derives from `TracedOps` instead and returns a `TracedProgram`. Named
losses and optimizers are computed here, by docs/reference/formulas.md. Arrays are never written to, so frameworks with
immutable arrays work as well as others.

- `ArrayOps`, `ArrayProgram`: a framework as array operations and a vjp of its models; a segment run with them.
- `TracedOps`, `TracedProgram`: the same for a framework that traces; steps are compiled.
- `ScopedProgram`: a `TracedProgram` that runs its calls inside a context of the framework.
- `VjpResult`, `LossResult`, `LossFunction`, `Function`: results of models and losses. `Kind`: the kind of an array's
  values.
- `StepFunction`, `StepLoop`, `StepCursor`, `DeviceScalars`: for `TracedOps.compile_steps`.
- `UpdateRule`, `update_rule`: how optimizers update parameters.
- `IdentityKey`, `attributes_key`, `values_of`: for `TracedOps.cache_key`.
- `loss_function`, `cast`, `factor_on_device`, `scaled`: losses and factors over any `ArrayOps`.

More modules hold code that plugins share; import them by name, `from anyaccel.adapter.call_layout import ...`:

- `keyword_compute`, `call_layout`: models called by keyword, with outputs at any depth and the batch on any axis.
- `model_outputs`: outputs of a model found by calling it, and the errors for models that fail.
- `example_spec`: inputs of models that do not accept zeros.
- `precision_casts`, `loss_scaling`: models computed in another precision, and scaled losses.
- `state_check`: names and checks of states.
- `model_specs`: the models that exist in every framework.
- `nested`: containers of tensors. `device_description`: the CPU, and NVML. `out_of_memory`: its error.
- `memory_figures`: memory figures of plans. `weight_files`: a framework's own names and files of weights.
- `loadable_shapes`: models that take values of other shapes than theirs. `notifying_program`: programs that report each
  step.
- `step_profiler`, `xla_scopes`: profiles of steps, and the nodes that compiled operations belong to.
- `step_costs`: operations and activations of a step.
- `simulated_timing`: clocks of simulated devices.
- `framework_settings`, `process_setting`: global settings that are set while a phase runs.
- `layer_introspection`, `attribute_snapshot`: layers of a library that runs on several frameworks.
"""

from anyaccel.adapter.array_ops import (
    ArrayOps,
    Function,
    Kind,
    LossFunction,
    LossResult,
    VjpResult,
    factor_on_device,
    scaled,
)
from anyaccel.adapter.array_program import ArrayProgram
from anyaccel.adapter.losses import loss_function
from anyaccel.adapter.optimizers import UpdateRule, settings_of, update_rule
from anyaccel.adapter.python_values import IdentityKey, attributes_key, values_of
from anyaccel.adapter.scoped_program import ScopedProgram
from anyaccel.adapter.step_cursor import DeviceScalars, StepCursor
from anyaccel.adapter.traced_ops import StepFunction, StepLoop, TracedOps
from anyaccel.adapter.traced_program import TracedProgram
from anyaccel.formulas import cast

__all__ = [
    "ArrayOps",
    "ArrayProgram",
    "DeviceScalars",
    "Function",
    "IdentityKey",
    "Kind",
    "LossFunction",
    "LossResult",
    "ScopedProgram",
    "StepCursor",
    "StepFunction",
    "StepLoop",
    "TracedOps",
    "TracedProgram",
    "UpdateRule",
    "VjpResult",
    "attributes_key",
    "cast",
    "factor_on_device",
    "loss_function",
    "scaled",
    "settings_of",
    "update_rule",
    "values_of",
]
