"""Nodes of a graph: models and concatenations, and their inputs."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Number
from types import BuiltinFunctionType, FunctionType, MethodType, NoneType
from typing import Any, ClassVar, NamedTuple

from anyaccel.accelerator import Accelerator
from anyaccel.adapter.call_layout import ArgumentPaths
from anyaccel.arguments import is_integer, shown, text
from anyaccel.attribute_hints import AttributeHints
from anyaccel.call_hints import constructor_hints
from anyaccel.data import FeatureSet, Reference
from anyaccel.data.roles import brief
from anyaccel.device import Device
from anyaccel.distributions import SETTINGS, load
from anyaccel.errors import GraphError
from anyaccel.install_hints import FUNCTION_HINT, VALUES_HINT
from anyaccel.precision import checked_precision
from anyaccel.segment import Path
from anyaccel.specs import Optimizer, is_own_optimizer
from anyaccel.suggestions import did_you_mean

Upstream = Reference | str
"""What feeds a node: columns of a FeatureSet, or the label of a node (`"label"` or `"label.OUTPUT"`)."""

MODES = ("train", "as_is")
FROZEN_MODES = ("eval", "train")

_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)
_NO_MODELS = (NoneType, str, bytes, Number, *_FUNCTIONS)
_CONTAINERS = (list, tuple, dict, set)  # themselves: frameworks derive models from them

_LABEL = re.compile(r"[^./\x00-\x1f\x7f-\x9f\ud800-\udfff]+")


def check_label(label: Any, what: str) -> str:
    """Return `label` if it is valid: text that is not empty and has no `.`, `/`, control characters or outer spaces.

    Raises:
        GraphError: it is not valid.
    """
    if not isinstance(label, str) or not _LABEL.fullmatch(label) or label != label.strip():
        raise GraphError(
            f"{shown(label)} is not a valid label of {what}", hint="use text without '.', '/' or outer spaces"
        )
    return label


def one_of(where: str, name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return a setting that must be one of `choices`.

    Raises:
        GraphError: it is not.
    """
    if isinstance(value, str) and value in choices:
        return value
    hint = did_you_mean(value, choices, f"write {name}={choices[0]!r}")
    raise GraphError(f"{where}unknown {name}={shown(value)}", available=", ".join(map(repr, choices)), hint=hint)


def checked_optimizer(optimizer: Any, whose: str) -> Optimizer | None:
    """Return an optimizer as an Optimizer. A name or an optimizer of a framework is converted, None stays None.

    Raises:
        GraphError: it is not an optimizer.
    """
    if optimizer is None or isinstance(optimizer, Optimizer):
        return optimizer
    if not (isinstance(optimizer, str) or is_own_optimizer(optimizer)):
        raise GraphError(
            f"the optimizer of {whose} is an object of {type(optimizer).__name__}",
            hint="write optimizer=Optimizer('adam', lr=1e-3)",
        )
    return Optimizer(optimizer)


@constructor_hints
@dataclass(eq=False, slots=True, init=False, repr=False)
class ModelNode(AttributeHints):
    """A model in a graph.

    Args:
        label: Name of the node in the graph. You can leave it out: `ModelNode(model, data)` is named `"model"`.
        model: A model of any framework that has a plugin, or an estimator with `fit` and `predict`. Nodes with the same
            object share its parameters.
        upstream_ref: Input of the model: a FeatureSet for all its features, `feature_set.reference(...)`, or a node or
            its label. A list of these are the positional arguments of the model's call, a dict its keyword arguments;
            each item may again be a list or dict.
        accelerator: Device of this node, which overrides the phase's; it never falls back to another device.
        optimizer: Optimizer of this node, which overrides the graph's.
        framework: Framework of the model, if its class does not show it.
        outputs: Names for the outputs of a model that has several. By default, these are the paths to them in the
            return value (`logits`, `encoder.hidden`, `0`). Outputs that the model returns only in training (auxiliary
            heads) are named after the others. Losses may take them, and evaluations leave these losses out; other nodes
            may not take them.
        modes: With `"train"`, the default, the whole model is in training mode while the node trains, including a part
            that was in evaluation mode (as in models from `from_pretrained`). With `"as_is"`, each part keeps its mode
            from the start of a phase; for frameworks with modes of layers (torch).
        precision: Precision of this node, which overrides the phase's: `"float32"`, `"bf16-mixed"`, `"fp16-mixed"`,
            `"bf16"` or `"float64"`.
        remat: Rematerialization (gradient checkpointing): values that are not kept for the backward pass but computed
            again, which saves memory and takes time. `"blocks"` for the repeated parts of the model, or a pattern of
            names of its parts (`"encoder.layer.*"`).
        sharding: How replicas store the parameters and optimizer state of this node, which overrides the phase's:
            `"full"` or `"full offload"` (see `TrainPhase`), or `"none"` for a full copy on each replica.
        batch_axis: Axis of the batch in the inputs of the model, such as 1 for recurrent layers with time first: a
            number for all inputs, or a mapping by keyword. The batch axis of outputs is detected.
        device_map: For a model that is larger than a device: a device for each named part, or `"cpu"` or `"disk"` for
            weights that are stored there and copied to a device in each step; or `"auto"` to plan it.
        max_memory: Maximum memory for a planned map: bytes, or text such as `"20GiB"`, for each device, `"cpu"` and
            `"disk"`. By default, the free memory of the node's device and the host.
        offload: Where a planned map may store weights that do not fit on the devices: `"no"`, `"cpu"` or `"disk"`.

    Attributes:
        frozen: Whether the node is not trained; set by `ModelGraph.freeze`.
        frozen_mode: The mode, `"eval"` or `"train"`, of a frozen node in a training step.

    Raises:
        GraphError: an invalid label, model, upstream, `modes`, `precision`, `remat`, `sharding`, `batch_axis` or device
            map.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> data = aa.FeatureSet.from_dict("line", {"x": np.zeros((8, 1), "float32")}, ["x"])
        >>> net = aa.ModelNode("net", aa.SequentialMLP([1]), data, accelerator="cpu", optimizer="sgd")
        >>> net.label, net.accelerator.device
        ('net', Device(kind='cpu', index=0))
    """

    label: str
    model: Any
    upstreams: tuple[Upstream, ...]
    arguments: tuple[Path, ...]
    accelerator: Accelerator | None
    optimizer: Optimizer | None
    framework: str | None
    outputs: tuple[str, ...] | None
    modes: str
    precision: str | None
    remat: str | None
    sharding: str | None
    device_map: str | dict[str, str | int] | None
    max_memory: dict[str | int, int] | None
    offload: str
    frozen: bool
    frozen_mode: str

    attribute_hints: ClassVar[Mapping[str, str]] = {
        "parameters named_parameters state_dict load_state_dict weights layers forward predict eval": "ask its model: "
        "node.model",
        "train fit run": "a graph runs phases: graph.run(phase)",
        "to cuda device": "set the device: ModelNode(..., accelerator='cpu')",
        "freeze unfreeze": "the graph does: graph.freeze('NODE')",
        "name": "it is label",
        "output": "a loss names the node: AppliedLoss('mse', on='NODE')",
    }

    def __init__(  # noqa: PLR0913 - keywords, each documented
        self,
        label: Any,
        model: Any,
        upstream_ref: Any = None,
        accelerator: Any = None,
        *,
        optimizer: Optimizer | str | type | None = None,
        framework: str | None = None,
        outputs: Iterable[str] | None = None,
        modes: str = "train",
        precision: str | None = None,
        remat: str | None = None,
        sharding: str | None = None,
        batch_axis: int | Mapping[str, int] = 0,
        device_map: str | Mapping[str, Any] | None = None,
        max_memory: Mapping[Any, int | str] | None = None,
        offload: str = "no",
    ) -> None:
        if upstream_ref is None and not isinstance(label, str):
            label, model, upstream_ref = "model", label, model
        self.label = check_label(label, "a node")
        if isinstance(model, type):
            raise GraphError(
                f"the model of node {label!r} is the class {model.__name__}",
                hint=f"create one: {model.__name__}(...)",
            )
        if isinstance(model, _NO_MODELS) or type(model) in _CONTAINERS or type(model) is OrderedDict:
            hint = "pass a model object of a framework, such as SequentialMLP(...)"
            if isinstance(model, _FUNCTIONS):
                hint = f"pass an object of a model class that calls the function; {FUNCTION_HINT}"
            elif isinstance(model, tuple):
                hint = f"pass the model itself; {VALUES_HINT}"
            elif isinstance(model, Mapping):
                hint = "if this is the state of a model, create the model, load the state, and pass the model"
            raise GraphError(f"the model of node {label!r} is a {type(model).__name__}: {shown(model)}", hint=hint)
        self.model = model
        if not isinstance(upstream_ref, (list, tuple, Mapping)):
            self.upstreams, arguments = (_upstream(label, upstream_ref),), ()
        else:
            pairs = list(_paths(label, upstream_ref, ()))
            if not pairs:
                raise _no_upstream(label)
            upstreams, paths = zip(*pairs, strict=True)
            is_positional = paths == tuple((i,) for i in range(len(paths)))
            checked = (
                _upstream(label, upstream, by_keyword=isinstance(path[0], str))
                for upstream, path in zip(upstreams, paths, strict=True)
            )
            self.upstreams, arguments = tuple(checked), () if is_positional else paths
        self.arguments = arguments
        if type(batch_axis) is not int or batch_axis != 0:
            paths = arguments or tuple((i,) for i in range(len(self.upstreams)))
            names = [".".join(map(str, path)) for path in paths]
            by_name = batch_axis if isinstance(batch_axis, Mapping) else dict.fromkeys(names, batch_axis)
            for name, axis in by_name.items():
                if name not in names:
                    raise GraphError(
                        f"node {label!r}: batch_axis has {shown(name)}, which is not an input",
                        available=", ".join(names),
                        hint=did_you_mean(name, names, "use the names of upstream_ref"),
                    )
                if not is_integer(axis) or axis < 0:
                    raise GraphError(
                        f"node {label!r}: batch_axis={shown(axis)} is not the number of an axis",
                        hint="write batch_axis=1",
                    )
            axes = [int(by_name.get(name, 0)) for name in names]
            if any(axes):
                self.arguments = ArgumentPaths(paths, axes)
        self.accelerator = None if accelerator is None else Accelerator.of(accelerator)
        self.optimizer = checked_optimizer(optimizer, f"node {label!r}")
        where = f"node {label!r}: "
        self.framework = None if framework is None else text(GraphError, where, "framework", framework)
        self.outputs = None
        if outputs is not None:
            distinct = tuple(outputs) if isinstance(outputs, (list, tuple)) else ()
            if not distinct or len(set(map(str, distinct))) < len(distinct):
                names_of_outputs = [outputs] if isinstance(outputs, str) else ["mean", "variance"]
                raise GraphError(
                    f"{where}outputs must be a list of distinct names, got {outputs!r}",
                    hint=f"write outputs={names_of_outputs}",
                )
            self.outputs = tuple(check_label(name, "an output") for name in distinct)
        self.modes = one_of(where, "modes", modes, MODES)
        self.precision = None if precision is None else checked_precision(GraphError, where, precision)
        self.remat = None if remat is None else text(GraphError, where, "remat", remat, "text", "'blocks'")
        self.sharding = None if sharding is None else load(SETTINGS, "ModelNode.sharding")(where, sharding)
        layout: tuple[Any, Any, Any] = device_map, max_memory, offload
        for (name, default), value in zip(LAYOUT_SETTINGS.items(), layout, strict=True):
            if type(value) is not type(default) or value != default:
                layout = divided_layout(name).settings(where, *layout)
                break
        self.device_map, self.max_memory, self.offload = layout
        self.frozen, self.frozen_mode = False, "eval"

    def __repr__(self) -> str:
        where = f" on {self.accelerator}" if self.accelerator else ""
        return f"ModelNode({self.label!r}, {model_name(self.model)}{where})"

    @property
    def kind(self) -> ModelKind:
        """How a graph and its phases handle the model."""
        return kind_of(self.model)

    def reference(self, output: str | None = None) -> str:
        """Return the text that another node takes as `upstream_ref`: the label, or `LABEL.OUTPUT` for one of several
        outputs.
        """
        if output is None:
            return self.label
        return f"{self.label}.{text(GraphError, f'node {self.label!r}: ', 'output', output)}"


@constructor_hints
@dataclass(eq=False, slots=True, init=False, repr=False)
class ConcatNode:
    """Concatenate inputs along one axis of a sample, on the device of the node that takes the result.

    Args:
        label: Name of the node in the graph.
        upstream_refs: Two or more inputs, each as `ModelNode.upstream_ref` takes it.
        concat_axis: Axis of a sample, without the batch; negative axes count from the end.

    Raises:
        GraphError: an invalid label, axis or upstream, or fewer than two upstreams.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> data = aa.FeatureSet.from_dict("d", {"a": np.zeros((8, 2), "f4"), "b": np.zeros((8, 3), "f4")}, ["a", "b"])
        >>> left = aa.ModelNode("left", aa.SequentialMLP([4]), data.reference("a"))
        >>> both = aa.ConcatNode("both", [left, data.reference("b")], concat_axis=0)
        >>> graph = aa.ModelGraph([left, both, aa.ModelNode("head", aa.SequentialMLP([1]), both)]).build()
        >>> graph.shapes.specs["both"].shape
        (7,)
    """

    label: str
    upstreams: tuple[Upstream, ...]
    axis: int

    def __init__(self, label: str, upstream_refs: Any, concat_axis: int = -1) -> None:
        self.label = check_label(label, "a node")
        several = upstream_refs if isinstance(upstream_refs, (list, tuple)) else [upstream_refs]
        if not several:
            raise _no_upstream(label)
        self.upstreams = tuple(_upstream(label, upstream) for upstream in several)
        if not isinstance(concat_axis, int) or isinstance(concat_axis, bool):
            problem = f"ConcatNode {label!r}: concat_axis must be an int, got {shown(concat_axis)}"
            raise GraphError(problem, hint="write concat_axis=-1")
        self.axis = concat_axis
        if len(self.upstreams) < 2:
            raise GraphError(
                f"ConcatNode {label!r} has {len(self.upstreams)} upstream", hint="pass two or more upstream_refs"
            )

    def __repr__(self) -> str:
        return f"ConcatNode({self.label!r}, {len(self.upstreams)} inputs)"

    @property
    def kind(self) -> ModelKind:
        """The kind of a node whose model has nothing to train."""
        return kind_of(None)

    def reference(self) -> str:
        """Return the text that another node takes as `upstream_ref`: the label."""
        return self.label


Node = ModelNode | ConcatNode


def model_name(model: Any) -> str:
    """Return the human-readable name of a model, mostly the name of its class."""
    return kind_of(model).shown_name(model)


def refuse_settings(node: ModelNode, *names: str) -> None:
    """Refuse settings for a model that does not support them.

    Raises:
        GraphError: one is set.
    """
    for name in names:
        value = getattr(node, name)
        if value is not None:
            problem = f"node {node.label!r} has {name}={value!r}, but is {node.kind.fixed}"
            raise GraphError(problem, hint=f"leave {name} out")


def _no_upstream(label: str) -> GraphError:
    return GraphError(f"node {label!r} has no upstream", hint="pass feature_set.reference(...) or the label of a node")


def _paths(label: str, inputs: Any, path: Path) -> Iterator[tuple[Any, Path]]:
    if isinstance(inputs, Mapping):
        items: Iterable[tuple[Any, Any]] = inputs.items()
    elif isinstance(inputs, (list, tuple)):
        items = enumerate(inputs)
    else:
        yield inputs, path
        return
    for key, item in items:
        if not isinstance(key, (str, int)) or (isinstance(inputs, Mapping) and not isinstance(key, str)):
            raise GraphError(
                f"node {label!r} has an upstream under {key!r}, which is not text",
                hint="write {'NAME': feature_set.reference(...)}, with the argument names of the model's call",
            )
        yield from _paths(label, item, (*path, key))


def _upstream(label: str, upstream: Any, *, by_keyword: bool = False) -> Upstream:
    if isinstance(upstream, Reference) and not by_keyword:
        leaking = [name for name in upstream.features if name in upstream.feature_set.targets]
        if leaking:
            raise GraphError(
                f"node {label!r} takes {', '.join(leaking)} as an input, which is a target of "
                f"{upstream.feature_set.label!r}",
                available=f"features: {', '.join(upstream.feature_set.features)}",
                hint="for a model that computes its loss, pass all "
                f"inputs by name: {{'labels': {upstream.feature_set.label}.reference({leaking[0]!r}), ...}}",
            )
    if isinstance(upstream, (str, Reference)):
        return upstream
    if isinstance(upstream, (ModelNode, ConcatNode)):
        return upstream.label
    if isinstance(upstream, FeatureSet):
        return upstream.reference()
    raise GraphError(
        f"node {label!r} has an upstream of type {type(upstream).__name__}",
        hint="pass feature_set.reference(...), a node, or the label of a node",
    )


class ColumnSelection(NamedTuple):
    """Columns of a feature set, read from a stream of its sampler; None is the first stream.

    Its text, `FEATURE_SET.COLUMN` with columns joined by `+` and `@STREAM`, is the name of their value.
    """

    feature_set: FeatureSet
    names: tuple[str, ...]
    stream: str | None = None

    def __str__(self) -> str:
        stream = "" if self.stream is None else f"@{self.stream}"
        return f"{self.feature_set.label}.{'+'.join(self.names)}{stream}"

    @property
    def shown(self) -> str:
        """The human-readable name; for many columns, the name of the first."""
        return str(self._replace(names=(brief(self.names),)))


def features_of(reference: Reference) -> ColumnSelection:
    """Return the columns that are an input of a node."""
    return ColumnSelection(reference.feature_set, reference.features, reference.stream)


# -- the layout of a model: on the device of its node, or on several, which is a feature of a distribution -------------


LAYOUT_SETTINGS: Mapping[str, Any] = {"device_map": None, "max_memory": None, "offload": "no"}
"""The arguments of a ModelNode that a distribution offers, each with what leaves a model whole on its device."""


class Layout:
    """Place each model whole on the device of its node. A distribution with other layouts derives from this class."""

    def settings(self, where: str, device_map: Any, max_memory: Any, offload: Any) -> tuple[Any, Any, Any]:
        """Return the settings as a node stores them.

        Raises:
            GraphError: a wrong value, or settings that contradict each other.
        """
        return device_map, max_memory, offload

    def assign(self, node: Any, assignment: Any, request: Any, registry: Any, shapes: Any) -> Any:
        """Return the assignment of a node, with the places of the parts that are not on its device.

        Raises:
            AnyaccelError: its model cannot be placed like this.
        """
        return assignment

    def read(self, plain: Any) -> Any:
        """Rebuild the layout of an assignment from plain data.

        Raises:
            KeyError, TypeError, ValueError: malformed.
        """
        raise ValueError(f"{shown(plain)} where models are whole")

    def place(self, node: Any, backend: Any, device: Device, plan: Any) -> Any:
        """Place the model of a node as the plan of its blocks defines; the plan is None if the phase does not change
        it.
        """
        return backend.place(node.model, device)


_WHOLE = Layout()


def divided_layout(setting: str = "device_map") -> Layout:
    """Return the layout of models that are split over several places.

    Raises:
        MissingDistributionError: the distribution with this setting of nodes is not installed.
    """
    layout: Layout = load(SETTINGS, f"ModelNode.{setting}")
    return layout


def layout_of(node: Any) -> Layout:
    """Return the layout of the model of a node."""
    return _WHOLE if getattr(node, "device_map", None) is None else divided_layout()


def layout_config(node: ModelNode) -> dict[str, Any]:
    """Return the settings of a node's layout as plain data for JSON, without unset ones."""
    values = {name: getattr(node, name) for name in LAYOUT_SETTINGS}
    plain = {
        name: {str(key): item for key, item in value.items()} if isinstance(value, Mapping) else value
        for name, value in values.items()
    }
    return {name: value for name, value in plain.items() if value != LAYOUT_SETTINGS[name]}


# -- Model kinds: what a graph asks of a node's model besides computing; a model that is no framework's answers itself
#
# An object that no framework owns may be a model by a distribution's extension of the point `node_models`: a function
# of the object that gives the model for it, a `ModelKind` and of a framework that computes it, or None.


class ModelKind:
    """How a graph and its phases handle a model. This base class is for models of frameworks, trained by gradients."""

    fixed = ""
    """What messages call a model that is computed as it is, in no precision, sharding or blocks; `""` for others."""

    joins_integers = False
    """Whether several columns of integers may be one input."""

    tries_other_inputs = True
    """Whether it is tried with samples, and with scalars as [1], where it does not take zeros."""

    passes_nan_on = True
    """Whether NaN in its inputs is in its outputs."""

    @property
    def has_outputs(self) -> bool:
        """Whether the model can return outputs yet."""
        return True

    @property
    def learns_from_steps(self) -> bool:
        """Whether it can learn from each step of a TrainPhase without gradients; see `anyaccel.phases.learners`."""
        return False

    def shown_name(self, model: Any) -> str:
        """Return the human-readable name of the model's class."""
        return type(model).__name__

    def held_by(self, model: Any) -> Any:
        """Return the object that has the state, which only one phase at a time uses."""
        return model

    def check_inputs(self, node: Any) -> None:
        """Check the inputs of a node with the model.

        Raises:
            GraphError: the model cannot take them.
        """

    def dtype_hint(self, label: str, dtype: str) -> str:
        """Return how the model of a node can output a dtype; `""` if it cannot."""
        return ""


_OF_A_FRAMEWORK = ModelKind()


def kind_of(model: Any) -> ModelKind:
    """Return how a model is handled."""
    return model if isinstance(model, ModelKind) else _OF_A_FRAMEWORK
