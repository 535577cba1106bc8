"""Programs on the Apple GPU, whose operators are checked before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyaccel.backend import Program
from anyaccel.segment import Segment
from anyaccel_mps.placement import MpsPlacement
from anyaccel_torch.compute import TorchCompute

if TYPE_CHECKING:
    from anyaccel_mps.operator_support import OperatorSupport


class MpsCompute(MpsPlacement, TorchCompute):
    """As `TorchCompute`; refuses segments with operators that MPS lacks, or warns where torch falls back to the CPU."""

    def build(self, segment: Segment) -> Program:
        """As `Compute.build`, after a dry run that finds the operators of a step.

        Raises:
            PhaseError: MPS lacks some of them, and PYTORCH_ENABLE_MPS_FALLBACK is not set.
        """
        support = self.operator_support()
        if support is not None:
            from anyaccel_mps.operator_check import check_operators

            check_operators(segment, support)
        return super().build(segment)

    def operator_support(self) -> OperatorSupport | None:
        """Which operators MPS has; None where this torch does not know, and operators are not checked."""
        try:
            import anyaccel_mps.dry_run  # noqa: F401
            from anyaccel_mps.operator_support import OperatorSupport
        except ImportError:  # both use private names of torch, which may move
            return None
        support = OperatorSupport()
        return support if support.is_known() else None
