"""ModelGraph: nodes connected to data and to each other, with an optimizer and the state of training."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyaccel import arguments, saved_folder
from anyaccel.arguments import shown
from anyaccel.attribute_hints import AttributeHints
from anyaccel.call_hints import class_hints
from anyaccel.data import FeatureSet
from anyaccel.distributions import SETTINGS, load
from anyaccel.errors import ConfigError, GraphError, PhaseError, StateError
from anyaccel.graph import data_config, serialization, state_dict, state_loading, topology, weight_loading
from anyaccel.graph.node_places import summary
from anyaccel.graph.nodes import FROZEN_MODES, ModelNode, Node, check_label, checked_optimizer, one_of
from anyaccel.graph.plan import Plan, drawn_page
from anyaccel.graph.serialization import versions_of
from anyaccel.graph.shape_inference import Shapes, infer
from anyaccel.graph.state_loading import mapped
from anyaccel.graph.weight_loading import Change, LoadedWeights, Names
from anyaccel.registry import registry
from anyaccel.segment import NodeState
from anyaccel.specs import Optimizer

_PART = "graph"  # of a saved folder

OTHER_NAMES = {
    "fit train train_step train_on_batch train_model": "run a phase over it: graph.run("
    "TrainPhase('train', data='train', losses=[AppliedLoss('mse', on='NODE')]))",
    "predict forward call apply": "evaluate it: graph.run(EvalPhase('predict', data='all')).prediction('NODE')",
    "eval evaluate test score": "evaluate it: graph.run(EvalPhase('test', data='all', metrics=['mse'])).metrics",
    "run_phase execute start": "use run(phase)",
    "compile": "pass the optimizer to ModelGraph(nodes, 'adam') and losses to TrainPhase(..., losses=[...])",
    "to cuda cpu gpu device place move": "set it on a phase: TrainPhase(..., accelerator='cpu')",
    "parameters named_parameters weights": "the models have them: graph['NODE'].model",
    "state_dict get_weights": "use state()",
    "load_state_dict set_weights": "use load_state(state)",
    "save_model": "use save(folder)",
    "load_model": "use ModelGraph.load(folder)",
    "add add_module append": "use add_node(ModelNode(...))",
    "layers modules children": "use graph.nodes, or graph['NODE']",
    "plot draw show": "use visualize()",
    "requires_grad_ trainable": "use freeze('NODE') and unfreeze('NODE')",
    "zero_grad backward step loss criterion": "a TrainPhase does this: TrainPhase(..., losses=[AppliedLoss(...)])",
}


@dataclass(frozen=True, slots=True)
class LiveValues:
    """Where the parameters and optimizer states of a graph are; by default in its models.

    Attributes:
        in_use: Whether a running phase holds them in its programs.
        write_back: Function that updates models and optimizer states.
        read: Function that updates models, and returns the optimizer states to be read before the next step.
    """

    in_use: bool = False
    write_back: Callable[[], None] = lambda: None
    read: Callable[[], Mapping[str, NodeState]] = dict


@class_hints
class ModelGraph(AttributeHints):
    """A directed acyclic graph of models of any framework. Methods that change the graph return it.

    Args:
        nodes: ModelNode and ConcatNode objects, in any order.
        optimizer: Optimizer for every node without its own optimizer: an Optimizer, or its first argument, such as
            `"adam"`.
        label: Name of the graph in plans and results.
        seed: An int of 64 bits. It determines the weights of unbuilt models and all random streams.

    Raises:
        GraphError: duplicate labels, unknown upstreams, a cycle, no node, or an invalid seed.

    Example:
        >>> import anyaccel as aa, numpy as np
        >>> x = np.linspace(0, 1, 64, dtype="float32").reshape(64, 1)
        >>> data = aa.FeatureSet.from_dict("line", {"x": x, "y": 2 * x}, ["x"], ["y"])
        >>> encoder = aa.ModelNode("encoder", aa.SequentialMLP([4]), data)
        >>> head = aa.ModelNode("head", aa.SequentialMLP([1]), encoder)
        >>> graph = aa.ModelGraph([encoder, head], aa.Optimizer("adam", lr=1e-2), seed=0)
        >>> graph.input_nodes, graph.output_nodes
        (('encoder',), ('head',))
    """

    attribute_hints = OTHER_NAMES

    def __init__(
        self,
        nodes: Iterable[Node],
        optimizer: Optimizer | str | type | None = None,
        label: str = "graph",
        *,
        seed: int = 0,
    ) -> None:
        self.label = check_label(label, "a graph")
        self.optimizer = checked_optimizer(optimizer, f"graph {label!r}")
        try:
            self.seed = operator.index(seed)
        except TypeError:
            self.seed = 2**63
        if not -(2**63) <= self.seed < 2**63:
            raise GraphError(f"graph {label!r}: seed={shown(seed)} is not an int of 64 bits", hint="write seed=0")
        self.optimizer_states = state_dict.OptimizerStates()
        self.progress: dict[str, int] = {}
        self.live_values = LiveValues()  # a phase puts its own here while it runs
        self._shapes: Shapes | None = None
        self._built_with: dict[str, Any] = {}
        self._nodes: dict[str, Node] = {}
        self._become(nodes)

    def __repr__(self) -> str:
        return f"ModelGraph({', '.join(self._nodes)}; {self.label!r})"

    def _become(self, nodes: Iterable[Node]) -> ModelGraph:
        labelled = topology.by_label(nodes)
        if not labelled:
            raise GraphError(f"graph {self.label!r} has no node", hint="pass ModelNode(...) objects")
        topology.topological(labelled)
        self._nodes, self._shapes, self._built_with = labelled, None, {}
        self.optimizer_states.nodes = labelled
        return self

    # -- nodes and shapes ------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The nodes by label, in the order given."""
        return self._nodes

    def __getitem__(self, label: str) -> Node:
        """Return a node by its label.

        Raises:
            GraphError: no node has this label.
        """
        if not isinstance(label, str) or label not in self._nodes:
            raise topology.unknown_node(f"graph {self.label!r} has no node {label!r}", label, self._nodes)
        return self._nodes[label]

    @property
    def feature_sets(self) -> dict[str, FeatureSet]:
        """The data that its nodes take, by label. A loaded graph has DataSchema objects, which have no rows."""
        return topology.feature_sets(self._nodes.values())

    @property
    def frozen(self) -> tuple[str, ...]:
        """Labels of the frozen nodes."""
        return tuple(label for label, node in self._nodes.items() if isinstance(node, ModelNode) and node.frozen)

    @property
    def input_nodes(self) -> tuple[str, ...]:
        """Labels of the nodes that take no other node as input."""
        return tuple(label for label, node in self._nodes.items() if not topology.parents(node, self._nodes))

    @property
    def output_nodes(self) -> tuple[str, ...]:
        """Labels of the nodes that feed no other node."""
        feeding = topology.upstream_nodes(self._nodes, self._nodes)
        return tuple(label for label in self._nodes if label not in feeding)

    @property
    def is_built(self) -> bool:
        """Whether every shape is known."""
        return self._shapes is not None

    @property
    def shapes(self) -> Shapes:
        """The shapes and dtypes of the built graph; reading it builds the graph if necessary."""
        self.build()
        assert self._shapes is not None
        return self._shapes

    # -- changing --------------------------------------------------------------------------------------------------

    def build(self, force: bool = False) -> ModelGraph:
        """Infer every shape, and build unbuilt models. Does nothing if that is already done for these models.

        The output of an estimator is known after it is fitted; until then, the shapes after it are unknown.

        Args:
            force: Infer again, after you changed a model itself.

        Raises:
            ShapeError: shapes or dtypes do not match; the message names the node and both sides.
            NoBackendError: no installed plugin runs the framework of a model.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> data = aa.FeatureSet.from_dict("line", {"x": np.zeros((8, 3), "float32")}, ["x"])
            >>> graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([2]), data)], seed=0).build()
            >>> graph.shapes.specs["net"]
            TensorSpec(shape=(2,), dtype='float32')
        """
        arguments.flag(GraphError, "build: ", "force", force)
        is_current = False
        if self._shapes is not None and not force:
            is_current = True
            for label, node in self._nodes.items():
                is_unfitted = label in self._shapes.unfitted
                if self._built_with[label] is not getattr(node, "model", None) or node.kind.has_outputs is is_unfitted:
                    is_current = False
        if not is_current:
            self._shapes = infer(self._nodes, registry(), self.seed)
            for label, node in self._nodes.items():
                self._built_with[label] = getattr(node, "model", None)
        return self

    def exchange_model(self, before: Any, after: Any) -> None:
        """Replace the model `before` in every node that has it by `after`, the same model in another place."""
        for label, node in self._nodes.items():
            if isinstance(node, ModelNode) and node.model is before:
                node.model = self._built_with[label] = after

    def add_node(self, node: Node) -> ModelGraph:
        """Add a node."""
        return self._become([*self._nodes.values(), node])

    def replace_node(self, label: str | Node, node: Node) -> ModelGraph:
        """Replace a node. The new node feeds the consumers of the old one, and the old optimizer state is dropped.

        Args:
            label: The node of this graph to replace, or its label.
            node: The new node.

        Raises:
            GraphError: the node does not exist, or the new one does not fit; the graph then stays unchanged.
        """
        label = topology.label_of(label, self._nodes, self.label)
        model = getattr(self._nodes[label], "model", None)
        with topology.upstreams_kept(self._nodes):
            self._become(topology.replaced(label, node, self._nodes))
        others = [other for other in self._nodes.values() if other is not node]
        is_shared = any(getattr(other, "model", None) is model for other in others)
        self.optimizer_states.drop(None if is_shared else model)
        return self

    def remove_node(self, label: str | Node) -> ModelGraph:
        """Remove a node of this graph, given as the node or its label.

        Raises:
            GraphError: the node does not exist, or other nodes depend on it.
        """
        label = topology.label_of(label, self._nodes, self.label)
        dependents = topology.consumers(label, self._nodes)
        if dependents:
            raise GraphError(
                f"node {label!r} feeds {', '.join(map(repr, dependents))}",
                hint="remove or rewire these first, or use replace_node",
            )
        self._become(node for name, node in self._nodes.items() if name != label)
        self.optimizer_states.drop()
        return self

    def freeze(self, *labels: str | Iterable[str], mode: str = "eval") -> ModelGraph:
        """Stop training these nodes, or all nodes if you name none, in later phases.

        The model of a frozen node does not change. If a phase would train it, or one of its parameters, in another
        node, a GraphError names both nodes.

        Args:
            labels: Labels of the nodes.
            mode: Mode of the nodes in a training step. With `"eval"`, they run as in evaluation. With `"train"`,
                dropout is active, batch normalization uses the statistics of the batch, and its running statistics
                change; this is the same as keeping a module in training mode without giving its parameters to an
                optimizer (GANs).

        Raises:
            GraphError: an object that is not the label of a node, an empty list, or an unknown mode.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> data = aa.FeatureSet.from_dict("line", {"x": np.zeros((8, 3), "float32")}, ["x"])
            >>> encoder = aa.ModelNode("encoder", aa.SequentialMLP([4]), data)
            >>> head = aa.ModelNode("head", aa.SequentialMLP([1]), encoder)
            >>> graph = aa.ModelGraph([encoder, head], "adam").freeze("encoder")
            >>> graph.frozen
            ('encoder',)
        """
        return self._set_frozen(labels, True, one_of("freeze: ", "mode", mode, FROZEN_MODES))

    def unfreeze(self, *labels: str | Iterable[str]) -> ModelGraph:
        """Train these nodes again, or all nodes if you name none.

        Raises:
            GraphError: an object that is not the label of a node, or an empty list.
        """
        return self._set_frozen(labels, False)

    def _set_frozen(self, labels: Sequence[str | Iterable[str]], frozen: bool, mode: str = "eval") -> ModelGraph:
        nodes = [self[label] for label in topology.labels_in(labels, self._nodes)]
        for node in nodes:
            if isinstance(node, ModelNode):
                node.frozen, node.frozen_mode = frozen, mode
        return self

    # -- phases and display ----------------------------------------------------------------------------------------

    def run(self, *phases: Any, callbacks: Iterable[Any] = (), progress: Any = "auto", resume: str = "never") -> Any:
        """Run a phase on this graph, or several in order. To keep their results as well, use an Experiment.

        Args:
            phases: One phase, several, or a list of them. Several return a list of results.
            callbacks, progress: See `Experiment`.
            resume: See `Experiment.run`.

        Raises:
            AnyaccelError: `phases` is empty, or one of them cannot run.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> x = np.linspace(0, 1, 64, dtype="float32").reshape(64, 1)
            >>> data = aa.FeatureSet.from_dict("line", {"x": x, "y": 2 * x}, ["x"], ["y"])
            >>> graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([1]), data)], "adam", seed=0)
            >>> train = aa.TrainPhase("train", data=data, losses=aa.AppliedLoss("mse"))
            >>> test = aa.EvalPhase("test", data=data, metrics="r2")
            >>> trained, tested = graph.run(train, test, progress="none")
            >>> trained.loss.shape, list(tested.metrics)
            ((1,), ['r2'])
        """
        is_list = len(phases) == 1 and isinstance(phases[0], (list, tuple))
        chain = tuple(phases[0]) if is_list else phases
        if not chain:
            raise PhaseError(f"graph {self.label!r} received no phases", hint="write graph.run(TrainPhase(...))")
        first, *others = (checked_runnable(phase, f"experiment {self.label!r}") for phase in chain)
        results = first.run_on(self, *others, callbacks=callbacks, progress=progress, resume=resume)
        return results if is_list or others else results[0]

    def summary(self) -> str:
        """Return a table of the nodes with framework, inputs, outputs, parameters and device. Builds the graph.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> data = aa.FeatureSet.from_dict("line", {"x": np.zeros((8, 3), "float32")}, ["x"])
            >>> graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([2]), data)], seed=0)
            >>> print(graph.summary())
            graph 'graph'
            node  model          framework  device  takes       gives       parameters
            net   SequentialMLP  numpy      cpu:0   float32[3]  float32[2]  98
            98 parameters
        """
        return summary(self._nodes, self.shapes, registry(), self.label)

    def visualize(self, format: str = "mermaid", *, plan: Plan | None = None) -> str:
        """Draw the graph, colored by device. Labels are escaped; nothing is built or placed.

        Args:
            format: `"mermaid"`, or `"svg"` for a standalone drawing, which a notebook displays.
            plan: The plan of a phase: nodes are shown on its devices, with the routes between them. Without a plan,
                nodes are shown on the device of their model, or on the device that they request.

        Raises:
            GraphError: an unknown format, or the plan of another graph.
            MissingDistributionError: `anyaccel-devtools`, which draws graphs, is not installed.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> data = aa.FeatureSet.from_dict("line", {"x": np.zeros((8, 3), "float32")}, ["x"])
            >>> graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([2]), data)], seed=0)
            >>> graph.visualize().splitlines()[0]
            'flowchart LR'
        """
        drawing = load(SETTINGS, "ModelGraph.visualize")
        drawn: str = drawing.draw(self.label, self._nodes, self._shapes, plan, registry(), format)
        return drawn

    def _repr_html_(self) -> str:
        def draw(drawing: Any) -> Any:
            return drawing.graph_page(self.label, self._nodes, self._shapes)

        return drawn_page(self, self.label, draw, lambda: self.summary() if self.is_built else repr(self))

    # -- state -----------------------------------------------------------------------------------------------------

    def state(self, *, copy: bool = True) -> dict[str, np.ndarray]:
        """Return everything that is needed to continue training elsewhere, as arrays in host memory by name.

        Names: `NODE/parameters/NAME`, `NODE/buffers/NAME`, `NODE/optimizer/SLOT/NAME`, `NODE/optimizer_step` and
        `seed`. `progress/PHASE` is the number of epochs of a training phase, which determines sampler order and random
        streams. `transforms/FEATURE_SET/NUMBER/NAME` is the fitted state of the transforms of its data. You can pass
        the result to `numpy.savez` or safetensors. In a callback of a running phase, this is the current state.

        Args:
            copy: False saves time and memory if you only read the arrays, and at once: they are read-only, share memory
                with models on the CPU, and change with them.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> data = aa.FeatureSet.from_dict("line", {"x": np.zeros((8, 3), "float32")}, ["x"])
            >>> graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([2], n_layers=1), data)], seed=0).build()
            >>> sorted(graph.state())
            ['net/parameters/layers.0.bias', 'net/parameters/layers.0.weight', 'seed']
        """
        self.live_values.write_back()
        copy = arguments.flag(StateError, "state: ", "copy", copy)
        return dict(state_dict.entries(self, self.optimizer_states, copy=copy))

    def load_state(
        self, given: Mapping[str, Any], *, names: Names = None, change: Change | None = None, strict: bool = True
    ) -> ModelGraph:
        """Load the output of `state`. Everything is checked before anything changes.

        Args:
            given: The state.
            names: See `load_weights`; for a state of other models, such as those of another framework. The state of the
                optimizer follows the parameters.
            change: See `load_weights`; it may only reorder values.
            strict: False loads the arrays with the same name, shape and dtype, and warns about all others. The
                optimizer state of a node is then loaded only if everything of the node is loaded.

        Raises:
            StateError: names, shapes or dtypes do not match this graph, its data are transformed differently from the
                data that the state was trained on, or a phase is running; the message lists all differences.
        """
        self._check_idle("load a state")
        given = mapped(self, given, names, change)
        state_loading.load_state(self, given, strict=arguments.flag(StateError, "load_state: ", "strict", strict))
        return self

    def save_weights(self, path: str | os.PathLike[str], node: str | Node | None = None) -> tuple[str, ...]:
        """Write parameters and buffers into one file for other tools, and return their names.

        The names come from the framework: for torch the names of `state_dict()`, for others the paths of attributes.
        If several nodes are written, `NODE.` comes first. A model shared by several nodes is written once, for the
        first node.

        Args:
            path: A `.safetensors` file; with the plugin for torch also `.pt`; or its URL, such as
                `s3://bucket/net.safetensors`. An existing file is overwritten.
            node: Write only this node; by default all nodes that have weights.

        Raises:
            StateError: no weights, or no plugin writes such files.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> data = aa.FeatureSet.from_dict("line", {"x": np.zeros((8, 3), "float32")}, ["x"])
            >>> graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([2], n_layers=1), data)], seed=0).build()
            >>> graph.save_weights("net.safetensors", "net")
            ('layers.0.weight', 'layers.0.bias')
        """
        self.live_values.write_back()
        return weight_loading.save(self, path, node)

    def load_weights(
        self,
        path: str | os.PathLike[str] | Mapping[str, Any],
        node: str | Node | None = None,
        *,
        names: Names = None,
        change: Change | None = None,
        strict: bool = True,
    ) -> LoadedWeights:
        """Load weights that `save_weights` or another tool wrote. Everything is checked before anything changes.

        Floating values are cast to the model's wider dtypes. Optimizer states, seed and progress do not change.

        Args:
            path: A `.safetensors` file; a folder with one, or with shards and their index; with the plugin for torch
                also a `state_dict` (`.pt`, `.pth`, `.bin`), whose code is not run; a URL of any of these; or a dict of
                names and arrays.
            node: Load only into this node; by default into all nodes that have weights.
            names: The name in the model for each name in the file, where they differ; None drops an array.
            change: Function of the name in the model and the array of the file; it returns the array to load. Required
                if the order of axes may differ, that is, for an array with another name and equal axes.
            strict: False loads the arrays that fit, even if they are rounded to narrower floats, and warns about the
                others.

        Raises:
            StateError: names, shapes or dtypes do not match (all are listed), a damaged file, or a phase is running.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> data = aa.FeatureSet.from_dict("line", {"x": np.zeros((8, 3), "float32")}, ["x"])
            >>> graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([2], n_layers=1), data)], seed=0).build()
            >>> names = graph.save_weights("net.safetensors", "net")
            >>> other = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([2], n_layers=1), data)], seed=1).build()
            >>> other.load_weights("net.safetensors", "net").loaded
            ('layers.0.bias', 'layers.0.weight')
        """
        self._check_idle("load weights")
        strict = arguments.flag(StateError, "load_weights: ", "strict", strict)
        return weight_loading.load(self, path, node, names, change, strict)

    def _check_idle(self, act: str) -> None:
        if self.live_values.in_use:
            raise StateError(f"a phase of graph {self.label!r} is running", hint=f"{act} before or after it")

    # -- configuration and folders ---------------------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """Return the nodes, their connections, and columns and transforms of their data as plain data, ready for JSON.

        Pass models that no backend names to `from_config` again. The fitted state of transforms is in `state()`.

        Raises:
            ConfigError: the optimizer is an optimizer of a framework.
        """
        return self._config(self.optimizer.get_config() if self.optimizer else None)

    def _config(self, optimizer: dict[str, Any] | None) -> dict[str, Any]:
        nodes = serialization.node_configs(self.nodes.values())
        data, _ = data_config.data_configs(self.nodes.values())
        return {"label": self.label, "seed": self.seed, "optimizer": optimizer, "nodes": nodes, "data": data}

    @classmethod
    def from_config(
        cls,
        given: Mapping[str, Any],
        *,
        feature_sets: Iterable[Any] = (),
        models: Mapping[str, Any] | None = None,
        allow: Iterable[type] = (),
    ) -> ModelGraph:
        """Rebuild a graph from the output of `get_config`.

        Args:
            given: The configuration.
            feature_sets: The data that it refers to by label.
            models: Models of nodes whose model no backend names, by node label.
            allow: Model classes that the configuration may name in addition to those of backends; nothing is imported.

        Raises:
            ConfigError: malformed, names an object that is neither registered nor given, or the data are transformed
                differently from those of the configuration.
        """
        plain = serialization.checked(given, {"label", "seed", "optimizer", "nodes", "data"}, {"nodes"}, "a graph")
        sets = serialization.by_label(feature_sets)
        own = arguments.mapping(ConfigError, "", "models", models, "{'NODE': model}")
        classes = serialization.checked_classes(allow)
        nodes = serialization.read_nodes(serialization.entries(plain, "nodes", "a graph"), sets, own, classes)
        optimizer, label = serialization.read_optimizer(plain.get("optimizer")), plain.get("label", "graph")
        labelled = topology.by_label(nodes)
        for name in own:
            topology.label_of(name, labelled, label)
        data_config.check_transforms(plain.get("data"), sets, nodes)
        return cls(nodes, optimizer, label=label, seed=plain.get("seed", 0))

    def save(self, folder: str | os.PathLike[str], *, extra: Mapping[str, Any] | None = None) -> None:
        """Write the graph into a folder: its state as safetensors and everything else in a `manifest.json`, without
        pickle.

        The content of the folder is replaced atomically when everything is written, and only if `save` wrote it. For
        models that no backend names, only their arrays are written; an optimizer of a framework is not written. Pass
        both to `load`.

        Args:
            folder: The folder, created if it does not exist; or a URL that fsspec opens, such as `s3://bucket/model`.
            extra: More plain data for the manifest, by name.

        Raises:
            ConfigError: the optimizer of a node is an optimizer of a framework, or the folder has a manifest of
                something else.
            StateError: the graph has no state yet, or its arrays cannot be written.

        Example:
            >>> import anyaccel as aa, numpy as np
            >>> data = aa.FeatureSet.from_dict("line", {"x": np.zeros((8, 1), "float32")}, ["x"])
            >>> graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([1]), data)], seed=0)
            >>> graph.build().save("model")
            >>> aa.ModelGraph.load("model").output_nodes
            ('net',)
        """
        parts = arguments.mapping(ConfigError, "", "extra", extra)
        if _PART in parts:
            raise ConfigError("extra has a part 'graph', which is the graph itself", hint="choose another name")
        state, versions = self.state(copy=False), versions_of(self.shapes.backends.values())
        saved_folder.write(folder, {**parts, _PART: self.saved_config()}, state, versions=versions)

    def saved_config(self) -> dict[str, Any]:
        """Return the configuration as in a saved folder: an optimizer of a framework is named, not written.

        Raises:
            ConfigError: the optimizer of a node is an optimizer of a framework.
        """
        return self._config(serialization.optimizer_entry(self.optimizer))

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        models: Mapping[str, Any] | None = None,
        feature_sets: Iterable[Any] = (),
        optimizer: Optimizer | str | type | None = None,
        allow: Iterable[type] = (),
        names: Names = None,
        change: Change | None = None,
        strict: bool = True,
    ) -> ModelGraph:
        """Load the graph that `save` wrote, with its state, on the CPU. Runs no code of the folder.

        Its data have no rows. `graph.feature_sets` has their columns and transforms; apply the transforms to new data
        with `new.transform_like(graph.feature_sets[LABEL])`.

        Args:
            folder: A folder that `save` wrote, or its URL.
            models: Models of nodes whose model no backend names, by node label, built as when they were saved; the
                saved parameters are loaded into them.
            feature_sets: Data to use instead of those without rows; they must be transformed like the saved ones.
            optimizer: Optimizer to use instead of the saved one. Required if the saved one is an optimizer of a
                framework.
            allow: Classes of models and transforms that the folder may name in addition to the registered ones.
            names: For models of another framework; see `load_state`.
            change: For models of another framework; see `load_state`.
            strict: False loads the arrays that fit the given models and warns about the others; see `load_state`.

        Raises:
            ConfigError: not such a folder, written by a newer version, or it names an object that is neither registered
                nor given.
            StateError: a file was changed or is incomplete, or a model differs from the saved one.
        """
        return _loaded(cls, folder, models, feature_sets, optimizer, allow, names, change, strict)


def load_to_predict(folder: str | os.PathLike[str], **settings: Any) -> ModelGraph:
    """Load a graph like `ModelGraph.load`; an optimizer of a framework that is not passed is left out, with its state.

    The graph then predicts and evaluates; a training phase asks for an optimizer.
    """
    return _loaded(ModelGraph, folder, needs_optimizer=False, **settings)


def _loaded(
    cls: type[ModelGraph],
    folder: str | os.PathLike[str],
    models: Mapping[str, Any] | None = None,
    feature_sets: Iterable[Any] = (),
    optimizer: Optimizer | str | type | None = None,
    allow: Iterable[type] = (),
    names: Names = None,
    change: Change | None = None,
    strict: bool = True,
    needs_optimizer: bool = True,
) -> ModelGraph:
    manifest, arrays = saved_folder.read(folder, _PART, mapped=True)
    own, classes = checked_optimizer(optimizer, "the loaded graph"), serialization.checked_classes(allow)
    config = manifest[_PART]
    is_left_out = own is None and not needs_optimizer and serialization.has_framework_optimizer(config)
    if own is not None or is_left_out:
        config = serialization.without_optimizer(config)
    sets = data_config.with_schemas(config, arrays, serialization.by_label(feature_sets), classes)
    graph = cls.from_config(config, feature_sets=sets, models=models, allow=classes)
    graph.optimizer = own or graph.optimizer
    if is_left_out:
        arrays = {name: array for name, array in arrays.items() if not state_dict.is_of_optimizer(name)}
    arrays = mapped(graph, arrays, names, change)
    state_loading.load_state(graph, arrays, strict=arguments.flag(StateError, "load: ", "strict", strict))
    return graph


# -- Runnable: what `ModelGraph.run` runs. Phases, which stand above graphs, derive from it ----------------------------


class Runnable:
    """An object that can run on a graph."""

    label: str

    def run_on(
        self,
        graph: Any,
        *others: Runnable,
        callbacks: Iterable[Any] = (),
        progress: Any = "auto",
        resume: str = "never",
    ) -> list[Any]:
        """Run this on a graph, and then the others, in order.

        Args:
            graph: The ModelGraph.
            others: Objects to run afterwards.
            callbacks, progress, resume: See `ModelGraph.run`.

        Returns:
            The results of each.

        Raises:
            AnyaccelError: one of them cannot run.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define how it runs")


def checked_runnable(value: Any, who: str) -> Runnable:
    """Return a phase from an argument.

    Args:
        value: The argument.
        who: The object that runs it, for messages.

    Raises:
        PhaseError: it is not a phase.
    """
    if isinstance(value, Runnable):
        return value
    hint = "pass a TrainPhase, EvalPhase or FitPhase"
    if isinstance(value, (list, tuple)) and value and all(isinstance(part, Runnable) for part in value):
        hint = "pass phases one by one: run(*phases)"
    elif isinstance(value, type) and issubclass(value, Runnable):
        hint = f"create one: {value.__name__}('name', data='train', ...)"
    elif isinstance(value, str):
        hint = "pass the phase itself, not its label: run(TrainPhase(...))"
    raise PhaseError(f"{who} cannot run {shown(value)}", hint=hint)
