"""The adapter: a whole `Program` for a framework that has a vjp and an array namespace, from one small class.

A plugin derives from `ArrayOps`, and its `Compute.build` returns `ArrayProgram(segment, ops)`. One whose framework
differentiates and compiles whole functions derives from `TracedOps` instead, and gives a `TracedProgram`. The named
losses and optimizers are computed here, by docs/reference/formulas.md. Arrays are never written to, so that a framework
whose arrays cannot be written to fits as well as one whose arrays can.
"""

from anyaccel.adapter.array_ops import Applied, ArrayOps, Function, Judged, LossFunction, cast, factor_on, scaled
from anyaccel.adapter.array_program import ArrayProgram
from anyaccel.adapter.cache_key import Same, nature
from anyaccel.adapter.losses import loss_function
from anyaccel.adapter.optimizers import ElementwiseRule, Rule, rule
from anyaccel.adapter.step_cursor import Course, Shelf
from anyaccel.adapter.traced_ops import Body, Repeated, TracedOps
from anyaccel.adapter.traced_program import TracedProgram

__all__ = [
    "Applied",
    "ArrayOps",
    "ArrayProgram",
    "Body",
    "Course",
    "ElementwiseRule",
    "Function",
    "Judged",
    "LossFunction",
    "Repeated",
    "Rule",
    "Same",
    "Shelf",
    "TracedOps",
    "TracedProgram",
    "cast",
    "factor_on",
    "loss_function",
    "nature",
    "rule",
    "scaled",
]
