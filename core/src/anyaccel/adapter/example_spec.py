"""ExampleSpec: the spec of an input with samples of it, for a model that does not accept zeros."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from anyaccel.segment import TensorSpec


@dataclass(frozen=True, slots=True, eq=False)
class ExampleSpec(TensorSpec):
    """A TensorSpec with samples, [n, *shape] in the dtype of their column; equal to one without samples.

    `Compute.infer_outputs`, `infer_training` and `mutates_inputs` receive these for the columns of a model that did not
    accept zeros: lengths, masks, and tokens that represent images have values that the model relies on.
    """

    samples: np.ndarray = field(repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorSpec) and (self.shape, self.dtype) == (other.shape, other.dtype)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))


def example_batch(spec: TensorSpec, batch: int) -> np.ndarray | None:
    """Return a batch of samples, [batch, *shape], to be cast to the spec's dtype; None for a spec without samples.

    If there are fewer samples, they are repeated.
    """
    if not isinstance(spec, ExampleSpec):
        return None
    return spec.samples[np.arange(batch) % len(spec.samples)]
