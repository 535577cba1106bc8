"""The adapter: a whole `Program` for a framework that has a vjp and an array namespace, from one small class.

A plugin derives from `ArrayOps`, and its `Compute.build` returns `ArrayProgram(segment, ops)`. One whose framework
differentiates and compiles whole functions derives from `TracedOps` instead, and gives a `TracedProgram`. The named
losses and optimizers are computed here, by docs/reference/formulas.md. Arrays are never written to, so that a framework
whose arrays cannot be written to fits as well as one whose arrays can.
"""

from anyaccel.adapter.array_ops import (
    ArrayOps,
    Function,
    LossFunction,
    LossResult,
    VjpResult,
    cast,
    factor_on_device,
    scaled,
)
from anyaccel.adapter.array_program import ArrayProgram
from anyaccel.adapter.cache_key import IdentityKey, attributes_key
from anyaccel.adapter.losses import loss_function
from anyaccel.adapter.optimizers import PerParameterRule, UpdateRule, update_rule
from anyaccel.adapter.step_cursor import DeviceScalars, StepCursor
from anyaccel.adapter.traced_ops import StepFunction, StepLoop, TracedOps
from anyaccel.adapter.traced_program import TracedProgram

__all__ = [
    "ArrayOps",
    "ArrayProgram",
    "DeviceScalars",
    "Function",
    "IdentityKey",
    "LossFunction",
    "LossResult",
    "PerParameterRule",
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
    "update_rule",
]
