"""FitPhase: fits estimators and freezes their nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

from anyaccel.call_hints import constructor_hints
from anyaccel.data import SimpleSampler
from anyaccel.errors import PhaseError
from anyaccel.phases.callbacks import Callback
from anyaccel.phases.phase import Data, Phase, known_settings, node_labels, split_name


@constructor_hints
class FitPhase(Phase):
    """Fits estimators (`fit`, `predict`) once to the outputs of the nodes before them, and freezes their nodes.

    Args:
        label: name of the phase in results.
        data: name of a split that every feature set has, a FeatureSet or view, or a mapping from the label of each
            feature set to one of these. Also a source, or anything that IterableSource or MapSource takes (a
            DataLoader, a dataset, a generator function), which is read into memory.
        nodes: labels of the nodes to fit; by default every estimator that is not fitted yet.
        batch_size: samples per forward pass of the nodes before them.
        accelerator: where nodes without an accelerator of their own are computed: an Accelerator, a Device, or text
            such as `"gpu:0"`; `"auto"` is the best device on which all frameworks of the graph run. A node whose
            framework has no backend for this kind of device runs on the CPU; the plan notes it and a FallbackWarning
            is issued once.
        strict: raise an error instead of falling back to the CPU.
        policy: name of a plugin's placement policy, for nodes without an accelerator of their own.
        callbacks: Callback objects.
        final_device: device to which the nodes are moved when the phase ends; by default they stay where they are.
        compile: `"auto"` compiles training steps if that pays off, with the reason in `results.events`; `"off"` never
            compiles nor imports a compiler; `"steps"` compiles whole training steps before the first one. All give the
            same numbers within rounding.
        residency: `"resident"` keeps all rows on the devices; `"streamed"` keeps them in host memory and copies them
            ahead of the compute; `"auto"` decides by free memory, and logs it in `results.events`. All give the same
            numbers.
        precision: in which nodes without one of their own are computed: `"float32"`, `"bf16-mixed"`, `"fp16-mixed"`
            (with scaled losses in training), `"bf16"` or `"float64"`; None for the dtypes of the models. Parameters and
            what goes from node to node keep their dtypes.
        matmul_precision: the framework's own setting for matrix products while the phase runs: `"highest"`, `"high"` or
            `"medium"` (torch), those of `jax.default_matmul_precision`, or whether TensorFlow uses TF32, True or False;
            a dict by framework where there are several.
        losses: none; estimators have their own.
    """

    kind = "fit"

    @known_settings
    def __init__(  # noqa: PLR0913 - keywords, each documented
        self,
        label: str = "fit",
        *,
        data: Data,
        nodes: Sequence[str] | str | None = None,
        batch_size: int = 1024,
        accelerator: Any = None,
        strict: bool = False,
        policy: str | None = None,
        callbacks: Iterable[Callback] = (),
        final_device: Any = None,
        compile: str = "auto",
        residency: str = "auto",
        precision: str | None = None,
        matmul_precision: Any = None,
        losses: tuple[()] = (),
    ) -> None:
        self.nodes = node_labels(nodes)
        self.sampler = SimpleSampler(batch_size)
        placing: Any = {"accelerator": accelerator, "strict": strict, "policy": policy, "final_device": final_device}
        running: Any = {"callbacks": callbacks, "compile": compile, "residency": residency}
        running |= {"precision": precision, "matmul_precision": matmul_precision}
        super().__init__(label, data=data, losses=losses, **placing, **running)

    @classmethod
    @known_settings
    def from_split(  # noqa: PLR0913 - keywords, each documented
        cls,
        label: str = "fit",
        *,
        split: str,
        nodes: Sequence[str] | str | None = None,
        batch_size: int = 1024,
        accelerator: Any = None,
        strict: bool = False,
        policy: str | None = None,
        callbacks: Iterable[Callback] = (),
        final_device: Any = None,
        compile: str = "auto",
        residency: str = "auto",
        precision: str | None = None,
        matmul_precision: Any = None,
        losses: tuple[()] = (),
    ) -> Self:
        """A FitPhase over the split of this name, in every feature set that the graph uses.

        Args:
            label: name of the phase.
            split: name of the split.
        """
        placing: Any = {"accelerator": accelerator, "strict": strict, "policy": policy, "final_device": final_device}
        running: Any = {"callbacks": callbacks, "compile": compile, "residency": residency}
        running |= {"precision": precision, "matmul_precision": matmul_precision}
        return cls(
            label,
            data=split_name(label, split),
            nodes=nodes,
            batch_size=batch_size,
            losses=losses,
            **placing,
            **running,
        )

    def _check(self) -> None:
        super()._check()
        if self.losses:
            raise PhaseError(f"phase {self.label!r} is a FitPhase, which takes no losses", hint="leave losses out")

    def get_config(self) -> dict[str, Any]:
        """The phase as plain data; see Phase."""
        nodes = None if self.nodes is None else list(self.nodes)
        return {**super().get_config(), "nodes": nodes, "batch_size": self.sampler.batch_size}
