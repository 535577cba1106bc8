"""Cells of recurrent layers from elementary operators; torch has fused kernels for them on any device but the CPU.

Registered where gradients are recorded, so that torch differentiates through the elementary operators.
"""

from __future__ import annotations

import torch
from torch import Tensor


def lstm_cell(
    inputs: Tensor, hidden: Tensor, cell: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden state, cell state and the values that torch would save for backward; gates are [batch, 4 *
    size].
    """
    gates = _biased(inputs, input_bias) + _biased(hidden, hidden_bias)
    input_gate, forget_gate, new, output_gate = gates.chunk(4, 1)
    after = torch.sigmoid(forget_gate) * cell + torch.sigmoid(input_gate) * torch.tanh(new)
    return torch.sigmoid(output_gate) * torch.tanh(after), after, gates.detach()


def gru_cell(
    inputs: Tensor, hidden: Tensor, before: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return hidden state and the values that torch would save for backward; gates are [batch, 3 * size]."""
    from_inputs, recurrent = _biased(inputs, input_bias).chunk(3, 1), _biased(hidden, hidden_bias).chunk(3, 1)
    reset, update = torch.sigmoid(from_inputs[0] + recurrent[0]), torch.sigmoid(from_inputs[1] + recurrent[1])
    new = torch.tanh(from_inputs[2] + reset * recurrent[2])
    return (before - new) * update + new, reset.detach()


def _biased(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias
