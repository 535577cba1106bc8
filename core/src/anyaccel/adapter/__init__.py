"""The adapter: a whole `Program` for a framework that has a vjp and an array namespace, from one small class.

A plugin derives from `ArrayOps`, and its `Compute.build` returns `ArrayProgram(segment, ops)`. The named losses and
optimizers are computed here, by docs/reference/formulas.md. Arrays are never written to, so that a framework whose
arrays cannot be written to fits as well as one whose arrays can.
"""

from anyaccel.adapter.losses import loss_function
from anyaccel.adapter.ops import Applied, ArrayOps, Judged, LossFunction, cast, factor_on, scaled
from anyaccel.adapter.optimizers import Rule, rule
from anyaccel.adapter.program import ArrayProgram

__all__ = [
    "Applied",
    "ArrayOps",
    "ArrayProgram",
    "Judged",
    "LossFunction",
    "Rule",
    "cast",
    "factor_on",
    "loss_function",
    "rule",
    "scaled",
]
