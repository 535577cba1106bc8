"""KeywordCompute: the capability Compute of a framework that calls models with keywords, as a base class."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from anyaccel.backend import Compute
from anyaccel.segment import OutputSpec, Path, TensorSpec


class KeywordCompute(Compute):
    """Compute with `calls_by_keyword` and `weighs_losses`: from `infer_outputs` follows `infer`."""

    calls_by_keyword = True
    weighs_losses = True
    moves_batch_axis = True
    """Whether `ArgumentPaths` are heeded: inputs with the batch on another axis than the first."""

    def infer(self, model: Any, inputs: Sequence[TensorSpec], seed: int) -> tuple[TensorSpec, ...]:
        """As `Compute.infer`: the outputs of `infer_outputs` that have a batch, for positional arguments."""
        outputs = self.infer_outputs(model, inputs, (), seed)
        return tuple(output.spec for output in outputs if output.batch_axis is not None)

    @abstractmethod
    def infer_outputs(
        self, model: Any, inputs: Sequence[TensorSpec], arguments: Sequence[Path], seed: int
    ) -> tuple[OutputSpec, ...]:
        """As `Compute.infer_outputs`, which here is what `infer` stands on."""
