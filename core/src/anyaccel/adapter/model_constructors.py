"""The constructors of `SequentialMLP` and `SequentialCNN`, which are the same in every framework."""

from __future__ import annotations

from collections.abc import Sequence

from anyaccel.adapter.model_specs import CNNSpec, MLPSpec, as_shape
from anyaccel.call_hints import constructor_hints


@constructor_hints
class SequentialMLPConstructor:
    """Keywords of `MLPSpec`, made into the spec that the next base class of a framework's model takes.

    Raises:
        SpecError: a setting out of range.
    """

    def __init__(
        self,
        output_shape: Sequence[int] | int = (1,),
        n_layers: int = 2,
        hidden_dim: int = 16,
        activation: str = "relu",
        dropout: float = 0.0,
        dtype: str = "float32",
    ) -> None:
        spec = MLPSpec(as_shape(output_shape), n_layers, hidden_dim, activation, dropout, dtype)
        super().__init__(spec)  # type: ignore[call-arg]


@constructor_hints
class SequentialCNNConstructor:
    """Keywords of `CNNSpec`, made into the spec that the next base class of a framework's model takes.

    Raises:
        SpecError: a setting out of range.
    """

    def __init__(
        self,
        output_shape: Sequence[int] | int = (1,),
        channels: Sequence[int] | int = (8, 16),
        kernel_size: int = 3,
        pool: int = 2,
        activation: str = "relu",
        dropout: float = 0.0,
        dtype: str = "float32",
    ) -> None:
        shapes = as_shape(output_shape), as_shape(channels)
        super().__init__(CNNSpec(*shapes, kernel_size, pool, activation, dropout, dtype))  # type: ignore[call-arg]
