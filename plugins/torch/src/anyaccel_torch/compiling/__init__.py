"""Whole training steps compiled: many in one call, without Python between them. Imported when a phase compiles.

A step is written as a function of values alone: parameters, optimizer slots and buffers come in and go out changed, the
user's own modules and losses are called in between. Small models, whose time is spent between the operations, become
one loop in C++ (torch's scan operator); others one step after the other, changed in place; on CUDA some steps are
captured in a graph and replayed. What a program holds is read before each call and written back after it, so that all
else of the program goes on as if the steps had been plain ones.
"""

from anyaccel_torch.compiling.spec import Work as Work
from anyaccel_torch.compiling.steps import Compiled as Compiled
from anyaccel_torch.compiling.steps import compiled as compiled
