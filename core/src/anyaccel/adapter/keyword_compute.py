"""KeywordCompute: base class of the capability Compute for a framework that calls models with keywords."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from anyaccel.backend import Compute
from anyaccel.segment import OutputSpec, Path, TensorSpec


class KeywordCompute(Compute):
    """Compute with `calls_by_keyword` and `weighs_losses`; `infer` is derived from `infer_outputs`."""

    calls_by_keyword = True
    weighs_losses = True
    moves_batch_axis = True
    """Whether `ArgumentPaths` are heeded: inputs with the batch on another axis than the first."""

    def infer(self, model: Any, inputs: Sequence[TensorSpec], seed: int) -> tuple[TensorSpec, ...]:
        """Return the outputs of `infer_outputs` that have a batch, for positional arguments; see `Compute.infer`."""
        outputs = self.infer_outputs(model, inputs, (), seed)
        return tuple(output.spec for output in outputs if output.batch_axis is not None)

    @abstractmethod
    def infer_outputs(
        self, model: Any, inputs: Sequence[TensorSpec], arguments: Sequence[Path], seed: int
    ) -> tuple[OutputSpec, ...]:
        """Infer outputs at any depth; see `Compute.infer_outputs`. Here `infer` relies on it."""
