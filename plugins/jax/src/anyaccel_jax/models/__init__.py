"""Models of every library of JAX as pure functions of their parameters, buffers and inputs.

Offers `base.Model`, which all are; `dispatch.as_model`, which turns an object into one; the models `SequentialMLP` and
`SequentialCNN` (`builtin`); and for each library its own class: `function`, `linen`, `nnx`, `equinox`, `keras`. Stands
on JAX, and each module on its library; nothing is imported before it is used.
"""
