"""Compiled training steps: many in one call, without Python between them. Imported when a phase compiles.

A step is a function of values: parameters, optimizer slots and buffers are arguments and results, and the user's own
modules and losses are called in between. Small models, which spend their time between operations, become one loop in
C++ (torch's scan operator); others a few steps in a call, updated in place; on CUDA, steps are captured in a graph and
replayed. A program's state is read before each call and written after it, so that compiled and uncompiled steps mix.

`steps.compile_steps` compiles; `estimate` predicts the cost and the gain. Stands on `forward_plan`,
`losses`, `optimizers` and `state_guard`, and is used by `step_compiler`.
"""
