"""Cells of recurrent layers, which torch computes in one piece on any device but the CPU, from smaller pieces.

Entered where gradients are recorded, so that torch finds the way back through the pieces.
"""

from __future__ import annotations

import torch
from torch import Tensor


def lstm_cell(
    inputs: Tensor, hidden: Tensor, cell: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden state, cell state and what torch would keep for the way back; gates are [batch, 4 * size]."""
    gates = _biased(inputs, input_bias) + _biased(hidden, hidden_bias)
    enter, forget, new, leave = gates.chunk(4, 1)
    after = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(new)
    return torch.sigmoid(leave) * torch.tanh(after), after, gates.detach()


def gru_cell(
    inputs: Tensor, hidden: Tensor, before: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Hidden state and what torch would keep for the way back; gates are [batch, 3 * size]."""
    given, kept = _biased(inputs, input_bias).chunk(3, 1), _biased(hidden, hidden_bias).chunk(3, 1)
    reset, update = torch.sigmoid(given[0] + kept[0]), torch.sigmoid(given[1] + kept[1])
    new = torch.tanh(given[2] + reset * kept[2])
    return (before - new) * update + new, reset.detach()


def _biased(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias
