"""ModelGraph: nodes connected to data and to each other, with an optimizer and the state of training."""

from __future__ import annotations

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
from anyaccel.errors import ConfigError, GraphError, PhaseError, StateError
from anyaccel.graph import data_config, serialization, state_dict, state_loading, topology, weight_loading
from anyaccel.graph.drawing import mermaid, notebook
from anyaccel.graph.nodes import FROZEN_MODES, ModelNode, Node, check_label, checked_optimizer, one_of
from anyaccel.graph.plan import Plan
from anyaccel.graph.serialization import versions_of
from anyaccel.graph.shape_inference import Shapes, infer, unfitted
from anyaccel.graph.state_loading import mapped
from anyaccel.graph.weight_loading import Change, LoadedWeights, Names
from anyaccel.html import guarded
from anyaccel.registry import registry
from anyaccel.specs import Optimizer

_PART = "graph"  # of a saved folder

OTHER_NAMES = {
    "fit train train_step train_on_batch train_model": "run a phase over it: graph.run("
    "TrainPhase('train', data='train', losses=[AppliedLoss('mse', on='NODE')]))",
    "predict forward call apply": "evaluate it: graph.run(EvalPhase('predict', data='all')).prediction('NODE')",
    "eval evaluate test score": "evaluate it: graph.run(EvalPhase('test', data='all', metrics=['mse'])).metrics",
    "run_phase execute start": "use run(phase)",
    "compile": "give the optimizer to ModelGraph(nodes, 'adam') and losses to TrainPhase(..., losses=[...])",
    "to cuda cpu gpu device place move": "say where to a phase: TrainPhase(..., accelerator='cpu')",
    "parameters named_parameters weights": "they are in the models: graph['NODE'].model",
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


def _nothing() -> None:
    """What is to be done where models have their values."""


@dataclass(frozen=True, slots=True)
class LiveValues:
    """Where the parameters and optimizer states of a graph are: by default in its models.

    Attributes:
        in_use: whether a phase is running, whose programs hold them.
        write_back: brings models and optimizer states up to date.
    """

    in_use: bool = False
    write_back: Callable[[], None] = _nothing


@class_hints
class ModelGraph(AttributeHints):
    """A directed acyclic graph of models of any framework. Methods that change the graph return it.

    Args:
        nodes: ModelNode and ConcatNode objects, in any order.
        optimizer: for every node without one of its own: an Optimizer, or the first argument of one.
        label: its name in plans and results.
        seed: an int of 64 bits that determines the weights of unbuilt models and all random streams.

    Raises:
        GraphError: duplicate labels, unknown upstreams, a cycle, no node, or an invalid seed.
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
        self.seed = topology.checked_seed(self.label, seed)
        self.optimizer_states = state_dict.OptimizerStates()
        self.progress: dict[str, int] = {}
        self.live_values = LiveValues()  # a phase puts its own here while it runs
        self._shapes: Shapes | None = None
        self._built_with: dict[ModelNode, Any] = {}
        self._nodes: dict[str, Node] = {}
        self._become(nodes)

    def __repr__(self) -> str:
        return f"ModelGraph({', '.join(self._nodes)}; {self.label!r})"

    def _become(self, nodes: Iterable[Node]) -> ModelGraph:
        labelled = topology.by_label(nodes)
        if not labelled:
            raise GraphError(f"graph {self.label!r} has no node", hint="give it ModelNode(...) objects")
        topology.topological(labelled)
        self._nodes, self._shapes, self._built_with = labelled, None, {}
        self.optimizer_states.nodes = labelled
        return self

    # -- nodes and shapes ------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Nodes by label, in the order given."""
        return self._nodes

    def __getitem__(self, label: str) -> Node:
        """A node by its label.

        Raises:
            GraphError: no node has this label.
        """
        if not isinstance(label, str) or label not in self._nodes:
            raise topology.unknown_node(f"graph {self.label!r} has no node {label!r}", label, self._nodes)
        return self._nodes[label]

    @property
    def feature_sets(self) -> dict[str, FeatureSet]:
        """The data that its nodes take, by label; of a loaded graph a DataSchema, which has no rows."""
        return topology.feature_sets(self._nodes.values())

    @property
    def frozen(self) -> tuple[str, ...]:
        """Labels of the frozen nodes."""
        return tuple(label for label, node in self._nodes.items() if isinstance(node, ModelNode) and node.frozen)

    @property
    def input_nodes(self) -> tuple[str, ...]:
        """Labels of the nodes that no other node feeds."""
        return tuple(label for label, node in self._nodes.items() if not topology.parents(node, self._nodes))

    @property
    def output_nodes(self) -> tuple[str, ...]:
        """Labels of the nodes that feed no other."""
        return tuple(topology.outputs(self._nodes))

    @property
    def is_built(self) -> bool:
        """Whether every shape is known."""
        return self._shapes is not None

    @property
    def shapes(self) -> Shapes:
        """What is known of the built graph; builds it if necessary."""
        self.build()
        assert self._shapes is not None
        return self._shapes

    # -- changing --------------------------------------------------------------------------------------------------

    def build(self, force: bool = False) -> ModelGraph:
        """Infer every shape, and build models that are not built yet. Does nothing if that is done for these models.

        The output of an estimator is known once it is fitted; until then shapes after it are unknown.

        Args:
            force: infer again, after a model itself was changed by hand.

        Raises:
            ShapeError: shapes or dtypes do not fit; names the node and both sides.
            NoBackendError: no installed plugin runs the framework of a model.
        """
        arguments.flag(GraphError, "build: ", "force", force)
        is_known = self._shapes is not None and unfitted(self._nodes) == self._shapes.unfitted
        if force or not is_known or any(self._built_with.get(node) is not node.model for node in self._model_nodes()):
            self._shapes = infer(self._nodes, registry(), self.seed)
            self._built_with = {node: node.model for node in self._model_nodes()}
        return self

    def _model_nodes(self) -> list[ModelNode]:
        return [node for node in self._nodes.values() if isinstance(node, ModelNode)]

    def exchange_model(self, before: Any, after: Any) -> None:
        """Give every node with the model `before` the model `after`: the same one, in another place."""
        for node in self._model_nodes():
            if node.model is before:
                node.model = self._built_with[node] = after

    def add_node(self, node: Node) -> ModelGraph:
        """Add a node."""
        return self._become([*self._nodes.values(), node])

    def replace_node(self, label: str | Node, node: Node) -> ModelGraph:
        """Replace a node; the new one feeds what the old one fed, and the old one's optimizer state is dropped.

        Args:
            label: the node of this graph to replace, or its label.
            node: the new one.

        Raises:
            GraphError: there is no such node, or the new one does not fit; the graph is then as it was.
        """
        label = topology.label_of(label, self._nodes, self.label)
        states = self.optimizer_states.without(label)
        with topology.upstreams_kept(self._nodes):
            self._become(topology.replaced(label, node, self._nodes))
        self.optimizer_states.replace(states)
        return self

    def remove_node(self, label: str | Node) -> ModelGraph:
        """Remove a node of this graph, given by itself or its label.

        Raises:
            GraphError: there is no such node, or others depend on it.
        """
        label = topology.label_of(label, self._nodes, self.label)
        states = self.optimizer_states.without(label)
        self._become(topology.removed(label, self._nodes))
        self.optimizer_states.replace(states)
        return self

    def freeze(self, *labels: str | Iterable[str], mode: str = "eval") -> ModelGraph:
        """Do not train these nodes, or any node if none is named, in later phases.

        What a frozen node holds stays as it is: a phase that would train its model, or a parameter that it shares, in
        another node raises a GraphError that names both.

        Args:
            labels: of the nodes.
            mode: in which the nodes run in a training step: `"eval"`, or `"train"`, where dropout is active, batch
                normalization takes the statistics of the batch, and its running statistics move, as in a loop by hand
                that leaves a module in training mode and gives its parameters to no optimizer (GANs).

        Raises:
            GraphError: an object that is not the label of a node, an empty list, or an unknown mode.
        """
        return self._set_frozen(labels, True, one_of("freeze: ", "mode", mode, FROZEN_MODES))

    def unfreeze(self, *labels: str | Iterable[str]) -> ModelGraph:
        """Train these nodes, or all if none is named, again.

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
        """Run a phase on this graph, or several in order, as an Experiment does, which also keeps their results.

        Args:
            phases: one, several, or a list of them; several give a list of results.
            callbacks, progress: as of an Experiment; `resume` as of its `run`.

        Raises:
            AnyaccelError: there are no phases, or one of them cannot run.
        """
        is_list = len(phases) == 1 and isinstance(phases[0], (list, tuple))
        given = tuple(phases[0]) if is_list else phases
        if not given:
            raise PhaseError(f"graph {self.label!r} was given no phases", hint="write graph.run(TrainPhase(...))")
        first, *others = (checked_runnable(phase, f"experiment {self.label!r}") for phase in given)
        results = first.run_on(self, *others, callbacks=callbacks, progress=progress, resume=resume)
        return results if is_list or others else results[0]

    def summary(self) -> str:
        """A table of the nodes with framework, inputs, outputs, parameters and device. Builds the graph."""
        return mermaid.summary(self._nodes, self.shapes, registry(), self.label)

    def visualize(self, format: str = "mermaid", *, plan: Plan | None = None) -> str:
        """The graph as a drawing, coloured by device. Labels are escaped; nothing is built or placed.

        Args:
            format: `"mermaid"`, or `"svg"` for a standalone drawing, which a notebook displays.
            plan: the plan of a phase; shows nodes on its devices, and the routes between them. Without a plan, nodes
                are shown where their models are now, else on the device that they ask for.

        Raises:
            GraphError: an unknown format, or the plan of another graph.
            MissingDistributionError: `"svg"`, and `anyaccel-devtools`, which draws it, is not installed.
        """
        return mermaid.draw(self.label, self._nodes, self._shapes, plan, registry(), format)

    def _repr_html_(self) -> str:
        return guarded(self, lambda: notebook.graph_page(self.label, self._nodes, self._shapes))

    # -- state -----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, np.ndarray]:
        """Everything that is needed to continue training elsewhere, as copies in host memory by name.

        Names: `NODE/parameters/NAME`, `NODE/buffers/NAME`, `NODE/optimizer/SLOT/NAME`, `NODE/optimizer_step`, `seed`,
        `progress/PHASE`, the number of epochs of a training phase, from which sampler order and random streams follow,
        and `transforms/FEATURE_SET/NUMBER/NAME`, what transforms of its data have learned. Ready for `numpy.savez` or
        safetensors. In a callback of a running phase, the current state.
        """
        self.live_values.write_back()
        return state_dict.state(self)

    def load_state(
        self, given: Mapping[str, Any], *, names: Names = None, change: Change | None = None, strict: bool = True
    ) -> ModelGraph:
        """Load what `state` gave; all of it is checked before anything changes.

        Args:
            given: the state.
            names: as of `load_weights`, for a state of other models, as of another framework; the optimizer's state
                goes with the parameters.
            change: as of `load_weights`; it may only put values in another order.
            strict: False loads what has the same name, shape and dtype, and warns of all that it leaves out. A node's
                optimizer state is then loaded only where everything of the node is.

        Raises:
            StateError: names, shapes or dtypes are not those of this graph, its data are transformed in another way
                than those that the state was trained on, or a phase is running; the message has all differences.
        """
        self._check_idle("load a state")
        given = mapped(self, given, names, change)
        state_loading.load_state(self, given, strict=arguments.flag(StateError, "load_state: ", "strict", strict))
        return self

    def save_weights(self, path: str | os.PathLike[str], node: str | Node | None = None) -> tuple[str, ...]:
        """Write parameters and buffers into one file for other tools, and return their names.

        The names are those of the framework: of torch those of `state_dict()`, of others the paths of attributes; with
        `NODE.` before them where several nodes are written. A model that nodes share is written for the first.

        Args:
            path: a `.safetensors` file; with the plugin for torch also `.pt`; or its URL, such as
                `s3://bucket/net.safetensors`. An existing one is replaced.
            node: the only one to write; without it, all that have weights.

        Raises:
            StateError: no weights, or no plugin writes such files.
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
        """Load weights that `save_weights` or another tool wrote; all of it is checked before anything changes.

        Floating values are cast to the model's wider dtypes. Optimizer states, seed and progress stay as they are.

        Args:
            path: a `.safetensors` file; a folder with one, or with shards and their index; with the plugin for torch
                also a `state_dict` (`.pt`, `.pth`, `.bin`), of which no code is run; a URL of any; or a dict of names
                and arrays.
            node: the only one to load into; without it, all that have weights.
            names: the name in the model for each in the file, where they differ; None leaves an array out.
            change: called with the name in the model and the file's array; gives the array to load. Needed where the
                order of axes may differ: an array with another name and equal axes is refused without.
            strict: False loads what fits, also rounded to narrower floats, and warns of the rest.

        Raises:
            StateError: names, shapes or dtypes do not fit (all are named), a damaged file, or a phase is running.
        """
        self._check_idle("load weights")
        strict = arguments.flag(StateError, "load_weights: ", "strict", strict)
        return weight_loading.load(self, path, node, names, change, strict)

    def _check_idle(self, act: str) -> None:
        if self.live_values.in_use:
            raise StateError(f"a phase of graph {self.label!r} is running", hint=f"{act} before or after it")

    # -- configuration and folders ---------------------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """The nodes, their connections, and columns and transforms of their data as plain data, ready for JSON.

        Models that no backend names must be given to `from_config` again. What transforms have learned is in `state()`.

        Raises:
            ConfigError: an optimizer is a framework's own.
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
        """The graph of a configuration from `get_config`.

        Args:
            given: the configuration.
            feature_sets: the data that it refers to by label.
            models: models of nodes whose model no backend names, by node label.
            allow: model classes that the configuration may name besides those of backends; nothing is imported.

        Raises:
            ConfigError: malformed, names something that is not registered and not given, or the data are transformed
                in another way than those of the configuration.
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
        """Write the graph into a folder: its state as safetensors, all else as a `manifest.json`; no pickle.

        What is in the folder is replaced when all is written, at once, and only if it was written by `save`. Models
        that no backend names are not written but for their arrays, and a framework's own optimizer neither: give both
        to `load`.

        Args:
            folder: made if it is not there; or a URL that fsspec opens, such as `s3://bucket/model`.
            extra: further plain data for the manifest, by name.

        Raises:
            ConfigError: the optimizer of a node is a framework's own, or the folder has a manifest of something else.
            StateError: the graph has no state yet, or its arrays cannot be written.
        """
        parts = arguments.mapping(ConfigError, "", "extra", extra)
        if _PART in parts:
            raise ConfigError("extra has a part 'graph', which is the graph itself", hint="choose another name")
        state, versions = self.state(), versions_of(self.shapes.backends.values())
        saved_folder.write(folder, {**parts, _PART: self.saved_config()}, state, versions=versions)

    def saved_config(self) -> dict[str, Any]:
        """The configuration as in a saved folder: a framework's own optimizer of the graph is named, not written.

        Raises:
            ConfigError: the optimizer of a node is a framework's own.
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
        """The graph that `save` wrote, in its state, on the CPU. Runs no code of the folder.

        Its data come without rows: `feature_sets` of the graph have columns and transforms, for
        `new.transform_like(graph.feature_sets[LABEL])`.

        Args:
            folder: that `save` wrote, or its URL.
            models: models of nodes whose model no backend names, by node label, built as when they were saved; they
                get the saved parameters.
            feature_sets: data in place of those without rows; they must be transformed as the saved ones were.
            optimizer: in place of the saved one; needed if that was a framework's own.
            allow: classes of models and transforms that the folder may name besides those that are registered.
            names: for given models of another framework; see `load_state`.
            change: likewise.
            strict: False loads what fits the given models, and warns of the rest; see `load_state`.

        Raises:
            ConfigError: not such a folder, of a newer version, or it names something that is not registered and not
                given.
            StateError: a file was changed or is incomplete, or a model is not like the saved one.
        """
        manifest, arrays = saved_folder.read(folder, _PART)
        own, classes = checked_optimizer(optimizer, "the loaded graph"), serialization.checked_classes(allow)
        config = serialization.without_optimizer(manifest[_PART]) if own else manifest[_PART]
        sets = data_config.with_schemas(config, arrays, serialization.by_label(feature_sets), classes)
        graph = cls.from_config(config, feature_sets=sets, models=models, allow=classes)
        graph.optimizer = own or graph.optimizer
        arrays = mapped(graph, arrays, names, change)
        state_loading.load_state(graph, arrays, strict=arguments.flag(StateError, "load: ", "strict", strict))
        return graph


# -- Runnable: what `ModelGraph.run` runs. Phases, which stand above graphs, derive from it ----------------------------


class Runnable:
    """What can be run on a graph."""

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
            graph: the ModelGraph.
            others: run afterwards.
            callbacks, progress, resume: as of `ModelGraph.run`.

        Returns:
            the results of each.

        Raises:
            AnyaccelError: one of them cannot run.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how it runs")


def checked_runnable(value: Any, who: str) -> Runnable:
    """A phase from an argument.

    Args:
        value: what was given.
        who: is to run it, for messages.

    Raises:
        PhaseError: it is no phase.
    """
    if isinstance(value, Runnable):
        return value
    hint = "pass a TrainPhase, EvalPhase or FitPhase"
    if isinstance(value, (list, tuple)) and value and all(isinstance(part, Runnable) for part in value):
        hint = "give phases one by one: run(*phases)"
    elif isinstance(value, type) and issubclass(value, Runnable):
        hint = f"create one: {value.__name__}('name', data='train', ...)"
    elif isinstance(value, str):
        hint = "pass the phase itself, not its label: run(TrainPhase(...))"
    raise PhaseError(f"{who} cannot run {shown(value)}", hint=hint)
