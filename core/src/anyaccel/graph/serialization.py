"""Serialization: nodes to and from plain data. Reading imports nothing and names only registered objects."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from anyaccel.accelerator import Accelerator
from anyaccel.adapter.call_layout import CallLayout, batch_axes_of
from anyaccel.arguments import flag, shown
from anyaccel.backend import Backend, Compute
from anyaccel.data import FeatureSet, Reference
from anyaccel.errors import ConfigError, GraphError
from anyaccel.graph.nodes import (
    FROZEN_MODES,
    LAYOUT_SETTINGS,
    MODES,
    ConcatNode,
    ModelNode,
    Node,
    check_label,
    layout_config,
    one_of,
)
from anyaccel.registry import registry
from anyaccel.specs import Optimizer

_COMPUTED = ("precision", "remat", "sharding")
"""Settings of nodes that are text, and left out where they are not set."""
_MODEL_KEYS = {
    *("type", "label", "upstreams", "arguments", "accelerator", "optimizer", "framework", "outputs", "modes", "frozen"),
    *("batch_axes", *_COMPUTED, *LAYOUT_SETTINGS),
    *("frozen_mode", "model"),
}
_CONCAT_KEYS = {"type", "label", "upstreams", "axis"}
_SHARED, _OWN = "shared_with", "own"
_HINT = "pass the dict from get_config()"
_MODEL_HINT = "write {'framework': ..., 'name': ..., 'config': {...}}"


def checked(config: Any, keys: set[str], needed: set[str], what: str) -> dict[str, Any]:
    """Return `config` as a dict, which may have `keys` and must have those in `needed`.

    Raises:
        ConfigError: it is not a dict, or has other keys.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(f"{shown(config)} is not the configuration of {what}", hint=_HINT)
    unknown = sorted(set(map(str, config)) - keys)
    if unknown:
        raise ConfigError(
            f"the configuration of {what} has unknown keys: {', '.join(unknown)}",
            available=", ".join(sorted(keys)),
            hint=_HINT,
        )
    missing = sorted(needed - set(config))
    if missing:
        raise ConfigError(
            f"the configuration of {what} lacks {', '.join(missing)}",
            available=", ".join(sorted(map(str, config))),
            hint=_HINT,
        )
    return dict(config)


def by_label(feature_sets: Iterable[FeatureSet]) -> dict[str, FeatureSet]:
    """Feature sets by label.

    Raises:
        ConfigError: two have the same label.
    """
    labelled: dict[str, FeatureSet] = {}
    is_several = isinstance(feature_sets, Iterable) and not isinstance(feature_sets, str)
    values = feature_sets.values() if isinstance(feature_sets, Mapping) else feature_sets
    sets = list(values) if is_several else []
    if not is_several or not all(isinstance(item, FeatureSet) for item in sets):
        raise ConfigError(f"feature_sets={shown(feature_sets)} are not feature sets", hint="write feature_sets=[data]")
    for feature_set in sets:
        if labelled.setdefault(feature_set.label, feature_set) is not feature_set:
            raise ConfigError(f"two feature sets are called {feature_set.label!r}", hint="give each a unique label")
    return labelled


def entries(config: Mapping[str, Any], key: str, what: str) -> list[Any]:
    """The list under a key.

    Raises:
        ConfigError: it is not a list.
    """
    if not isinstance(config[key], (list, tuple)):
        raise ConfigError(f"{key} of {what} must be a list, got {shown(config[key])}", hint=_HINT)
    return list(config[key])


def checked_classes(allow: Iterable[type]) -> tuple[type, ...]:
    """Return the classes that a configuration may name.

    Raises:
        ConfigError: not a list of classes.
    """
    classes = tuple(allow) if isinstance(allow, Iterable) and not isinstance(allow, str) else (allow,)
    if not all(isinstance(cls, type) for cls in classes):
        raise ConfigError(f"allow={shown(allow)} is not a list of classes", hint="write allow=[MyModel]")
    return classes


def optimizer_entry(optimizer: Optimizer | None) -> dict[str, Any] | None:
    """Return the optimizer of a saved graph: its configuration, or its name if it belongs to a framework."""
    if optimizer is None or optimizer.own is None:
        return None if optimizer is None else optimizer.get_config()
    return {_OWN: optimizer.name}


def read_optimizer(entry: Any) -> Optimizer | None:
    """Return the optimizer of a graph's configuration.

    Raises:
        ConfigError: malformed, or it was a framework's own.
    """
    if isinstance(entry, Mapping) and _OWN in entry:
        raise ConfigError(
            f"the graph was trained by the optimizer {shown(entry[_OWN])} of a framework, and it has no configuration",
            hint="pass one: ModelGraph.load(folder, optimizer=...)",
        )
    return None if entry is None else Optimizer.from_config(entry)


def has_framework_optimizer(config: Any) -> bool:
    """Return whether the configuration of a graph names an optimizer of a framework, which was not written."""
    return isinstance(config, Mapping) and isinstance(config.get("optimizer"), Mapping) and _OWN in config["optimizer"]


def without_optimizer(config: Any) -> Any:
    """Return the configuration of a graph without its optimizer; anything else unchanged."""
    return {**config, "optimizer": None} if isinstance(config, Mapping) else config


def node_configs(nodes: Iterable[Node]) -> list[dict[str, Any]]:
    """Return nodes as plain data; among nodes that share a model, all but the first refer to the first."""
    first: dict[int, str] = {}
    configs: list[dict[str, Any]] = []
    for node in nodes:
        upstreams = [up if isinstance(up, str) else up.get_config() for up in node.upstreams]
        if isinstance(node, ConcatNode):
            configs.append({"type": "concat", "label": node.label, "upstreams": upstreams, "axis": node.axis})
            continue
        other = first.setdefault(id(node.model), node.label)
        axes = batch_axes_of(node.arguments)
        computed = {name: getattr(node, name) for name in _COMPUTED}
        configs.append(
            {
                "type": "model",
                "label": node.label,
                "upstreams": upstreams,
                "arguments": [list(path) for path in node.arguments] or None,
                "accelerator": node.accelerator.get_config() if node.accelerator else None,
                "optimizer": node.optimizer.get_config() if node.optimizer else None,
                "framework": node.framework,
                "outputs": list(node.outputs) if node.outputs else None,
                "modes": node.modes,
                **({"batch_axes": list(axes)} if axes else {}),
                **{name: value for name, value in computed.items() if value is not None},
                **layout_config(node),
                "frozen": node.frozen,
                "frozen_mode": node.frozen_mode,
                "model": _model_config(node.model) if other == node.label else {_SHARED: other},
            }
        )
    return configs


def _model_config(model: Any) -> dict[str, Any] | None:
    """Return a model by its backend's name for it, or by its class; None if it has no configuration."""
    if not hasattr(model, "get_config"):
        return None
    owners = registry().owners(model)
    for backend in registry().backends_in_use:
        if isinstance(backend, Compute) and backend.framework in owners:  # listing models imports the framework
            name = next((name for name, cls in backend.models().items() if type(model) is cls), None)
            if name is not None:
                return {"framework": backend.framework, "name": name, "config": model.get_config()}
    return {"class": class_name(type(model)), "config": model.get_config()}


def class_name(cls: type) -> str:
    """Return a class as text: `module:qualname`."""
    return f"{cls.__module__}:{cls.__qualname__}"


def read_nodes(
    entries: Iterable[Any], sets: Mapping[str, FeatureSet], models: Mapping[str, Any], allow: Sequence[type]
) -> list[Node]:
    """Rebuild nodes from plain data; `models` has models by node label, `allow` the classes that may be named.

    Raises:
        ConfigError: malformed, or names an object that is neither registered nor given.
    """
    settings: dict[str, Any] = {**dict.fromkeys(_COMPUTED), **LAYOUT_SETTINGS}
    known: dict[str, Any] = dict(models)
    nodes: list[Node] = []
    for entry in entries:
        kind = entry.get("type") if isinstance(entry, Mapping) else None
        if kind == "concat":
            plain = checked(entry, _CONCAT_KEYS, _CONCAT_KEYS - {"type"}, "a ConcatNode")
            nodes.append(ConcatNode(plain["label"], _read_upstreams(plain, sets), plain["axis"]))
            continue
        if kind != "model":
            raise ConfigError(f"unknown type of a node: {shown(kind)}", available="model, concat", hint=_HINT)
        plain = checked(entry, _MODEL_KEYS, {"label", "upstreams"}, "a ModelNode")
        label = check_label(plain["label"], "a node")
        model = known[label] if label in known else _read_model(plain, known, allow)
        axes, paths = plain.get("batch_axes") or [], plain.get("arguments") or []  # of each input
        inputs = _read_arguments(plain, sets)
        if not isinstance(axes, (list, tuple)) or len(axes) not in (0, len(paths)):
            problem = f"node {label!r}: batch_axes={shown(axes)} are not the axes of {len(paths)} inputs"
            raise ConfigError(problem, hint=_HINT)
        node = ModelNode(
            label,
            model,
            inputs,
            Accelerator.from_config(plain["accelerator"]) if plain.get("accelerator") is not None else None,
            optimizer=Optimizer.from_config(plain["optimizer"]) if plain.get("optimizer") is not None else None,
            framework=plain.get("framework"),
            outputs=plain.get("outputs"),
            modes=_mode(plain, "modes", MODES),
            batch_axis={".".join(map(str, path)): axis for path, axis in zip(paths, axes, strict=False)},
            **{name: plain.get(name, default) for name, default in settings.items()},
        )
        node.frozen = flag(ConfigError, f"node {label!r}: ", "frozen", plain.get("frozen", False))
        node.frozen_mode = _mode(plain, "frozen_mode", FROZEN_MODES)
        known.setdefault(label, node.model)
        nodes.append(node)
    return nodes


def _mode(entry: Mapping[str, Any], key: str, choices: tuple[str, ...]) -> str:
    try:
        return one_of(f"node {entry['label']!r}: ", key, entry.get(key, choices[0]), choices)
    except GraphError as error:
        raise ConfigError(error.problem, available=error.available, hint=error.hint) from None


def _read_upstreams(entry: Mapping[str, Any], sets: Mapping[str, FeatureSet]) -> list[Any]:
    ups = entries(entry, "upstreams", f"node {entry['label']!r}")
    return [up if isinstance(up, str) else Reference.from_config(up, sets) for up in ups]


def _read_arguments(entry: Mapping[str, Any], sets: Mapping[str, FeatureSet]) -> Any:
    """Return the inputs of a model, as ModelNode takes them."""
    upstreams = _read_upstreams(entry, sets)
    if not entry.get("arguments"):
        return upstreams
    paths = entries(entry, "arguments", f"node {entry['label']!r}")
    are_paths = all(
        isinstance(path, (list, tuple)) and path and all(isinstance(step, (str, int)) for step in path)
        for path in paths
    )
    if len(paths) != len(upstreams) or not are_paths:
        problem = f"node {entry['label']!r}: arguments={shown(paths)} are not the paths of {len(upstreams)} upstreams"
        raise ConfigError(problem, hint=_HINT)
    positional, by_keyword = CallLayout([tuple(path) for path in paths]).bind(upstreams)
    return by_keyword or positional


def _read_model(entry: Mapping[str, Any], models: Mapping[str, Any], allow: Sequence[type]) -> Any:
    named, label = entry.get("model"), entry["label"]
    if named is None:
        raise ConfigError(
            f"the configuration does not have the model of node {label!r}", hint=f"pass it: models={{{label!r}: ...}}"
        )
    if not isinstance(named, Mapping):
        raise ConfigError(f"node {label!r}: {shown(named)} is not the configuration of a model", hint=_MODEL_HINT)
    if _SHARED in named:
        other = named[_SHARED]
        if other not in list(models):
            raise ConfigError(
                f"node {label!r} shares the model of {other!r}, which is not a node before it",
                available=", ".join(models),
            )
        return models[other]
    if "class" in named:
        cls = next((cls for cls in allow if class_name(cls) == named["class"]), None)
        if cls is None:
            name = named["class"]
            raise ConfigError(
                f"node {label!r}: the configuration names the class {name!r}, which is not registered; nothing was "
                "imported",
                available=", ".join(map(class_name, allow)),
                hint=f"pass the model: models={{{label!r}: ...}}; or, if you trust the class, import it and pass "
                f"allow=[{str(name).rpartition(':')[2]}]",
            )
    else:
        backend, name = registry().find(str(named.get("framework"))), str(named.get("name"))
        offered = backend.models() if isinstance(backend, Compute) else {}
        if name not in offered:
            raise ConfigError(
                f"node {label!r}: {backend.framework} has no model called {name!r}",
                available=", ".join(offered),
                hint=f"pass it: models={{{label!r}: ...}}",
            )
        cls = offered[name]
    config = named.get("config", {})
    if not isinstance(config, Mapping) or not all(isinstance(key, str) for key in config):
        raise ConfigError(f"{shown(config)} is not the configuration of a model", hint="pass a dict with text keys")
    try:
        return cls(**config)
    except TypeError as error:
        problem = getattr(error, "problem", error)
        raise ConfigError(
            f"node {label!r}: its model does not accept its configuration: {problem}",
            hint=f"pass the model: models={{{label!r}: ...}}",
        ) from error


# -- Framework versions: which versions of frameworks and model libraries compute the models of a graph ----------------


_CORE = "anyaccel"


def versions_of(backends: Iterable[Backend]) -> Mapping[str, str]:
    """Return versions by top-level module, as imported modules report them: nothing is imported."""
    roots = dict.fromkeys(root for backend in backends for root in backend.import_roots if not root.startswith(_CORE))
    versions = {root: getattr(sys.modules.get(root), "__version__", None) for root in roots}
    return {root: version for root, version in versions.items() if isinstance(version, str)}
