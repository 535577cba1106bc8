"""Programs on the Apple GPU, whose operators are looked up before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyaccel.backend import Program
from anyaccel.segment import Segment
from anyaccel_mps.placement import MpsPlacement
from anyaccel_torch.compute import TorchCompute

if TYPE_CHECKING:
    from anyaccel_mps.operator_support import Operators


class MpsCompute(MpsPlacement, TorchCompute):
    """As torch's; a segment with operators that MPS lacks is refused, or reported where torch was told to fall back."""

    def build(self, segment: Segment) -> Program:
        """As `Compute.build`; rehearses a step on shapes alone to learn which operators it needs.

        Raises:
            PhaseError: MPS lacks some, and PYTORCH_ENABLE_MPS_FALLBACK does not ask for the CPU instead.
        """
        operators = self.operators()
        if operators is not None:
            from anyaccel_mps.operator_check import judge

            judge(segment, operators)
        return super().build(segment)

    def operators(self) -> Operators | None:
        """The record of torch's operators, or None where this torch has none of MPS; then nothing is said of them."""
        try:
            import anyaccel_mps.dry_run  # noqa: F401
            from anyaccel_mps.operator_support import Operators
        except ImportError:  # both use names inside torch, which may move
            return None
        found = Operators()
        return found if found.is_known() else None
