"""FitPhase: fits estimators and freezes their nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anyaccel.data import SimpleSampler
from anyaccel.errors import PhaseError
from anyaccel.phases.phase import Data, Phase, node_labels


class FitPhase(Phase):
    """Fits estimators (`fit`, `predict`) once to the outputs of the nodes before them, and freezes their nodes.

    Args:
        nodes: labels of the nodes to fit; by default every estimator that is not fitted yet.
        batch_size: samples per forward pass of the nodes before them.
        label, data, accelerator, strict, policy, callbacks, final_device: see Phase.
    """

    kind = "fit"

    def __init__(
        self,
        label: str,
        *,
        data: Data,
        nodes: Sequence[str] | str | None = None,
        batch_size: int = 1024,
        **settings: Any,
    ) -> None:
        self.nodes = node_labels(nodes)
        self.sampler = SimpleSampler(batch_size)
        super().__init__(label, data=data, **settings)

    def _check(self) -> None:
        super()._check()
        if self.losses:
            raise PhaseError(f"phase {self.label!r} is a FitPhase, which takes no losses", hint="leave losses out")

    def get_config(self) -> dict[str, Any]:
        """The phase as plain data; see Phase."""
        nodes = None if self.nodes is None else list(self.nodes)
        return {**super().get_config(), "nodes": nodes, "batch_size": self.sampler.batch_size}
