"""A graph's wiring to and from plain data. Reading imports nothing and names registered things only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anyaccel.accelerator import Accelerator
from anyaccel.backend import Compute
from anyaccel.data import FeatureSet, Reference
from anyaccel.errors import ConfigError
from anyaccel.graph.nodes import ConcatNode, ModelNode, Node
from anyaccel.recipes import Optimizer
from anyaccel.registry import registry

_MODEL_KEYS = {"type", "label", "upstreams", "accelerator", "optimizer", "framework", "outputs", "frozen", "model"}
_CONCAT_KEYS = {"type", "label", "upstreams", "axis"}


def checked(config: Any, keys: set[str], what: str) -> dict[str, Any]:
    """`config` as a dict with no other than these keys.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"{config!r} is not the configuration of {what}", remedy="give the dict that get_config() made"
        )
    strange = sorted(set(map(str, config)) - keys)
    if strange:
        raise ConfigError(f"the configuration of {what} has no {', '.join(strange)}", there=", ".join(sorted(keys)))
    return dict(config)


def node_config(node: Node) -> dict[str, Any]:
    """A node as plain data."""
    upstreams = [up if isinstance(up, str) else up.get_config() for up in node.upstreams]
    if isinstance(node, ConcatNode):
        return {"type": "concat", "label": node.label, "upstreams": upstreams, "axis": node.axis}
    return {
        "type": "model",
        "label": node.label,
        "upstreams": upstreams,
        "accelerator": node.accelerator.get_config() if node.accelerator else None,
        "optimizer": node.optimizer.get_config() if node.optimizer else None,
        "framework": node.framework,
        "outputs": list(node.outputs) if node.outputs else None,
        "frozen": node.frozen,
        "model": _model_config(node.model),
    }


def _model_config(model: Any) -> dict[str, Any] | None:
    """How a configuration names a model: by a backend's name for it, by its class, or (None) not at all."""
    if not hasattr(model, "get_config"):
        return None
    for backend in registry().backends:
        if isinstance(backend, Compute):
            name = next((name for name, cls in _loaded_models(backend, model).items() if type(model) is cls), None)
            if name is not None:
                return {"framework": backend.framework, "name": name, "config": model.get_config()}
    return {"class": class_name(type(model)), "config": model.get_config()}


def _loaded_models(backend: Any, model: Any) -> Mapping[str, type]:
    """The backend's named models, asked for only if the object is the backend's: that imports its framework."""
    models: Mapping[str, type] = backend.models() if backend.framework in registry().owners(model) else {}
    return models


def class_name(cls: type) -> str:
    """How a configuration writes a class."""
    return f"{cls.__module__}:{cls.__qualname__}"


def read_node(entry: Any, sets: Mapping[str, FeatureSet], models: Mapping[str, Any], allow: Sequence[type]) -> Node:
    """A node from plain data.

    Raises:
        ConfigError: malformed, or it names what is not registered or was not given.
    """
    kind = entry.get("type") if isinstance(entry, Mapping) else None
    if kind == "concat":
        plain = checked(entry, _CONCAT_KEYS, "a ConcatNode")
        return ConcatNode(plain["label"], _read_upstreams(plain, sets), plain["axis"])
    if kind != "model":
        raise ConfigError(f"a node's type is {kind!r}", there="model, concat")
    plain = checked(entry, _MODEL_KEYS, "a ModelNode")
    node = ModelNode(
        plain["label"],
        models[plain["label"]] if plain["label"] in models else _read_model(plain, allow),
        _read_upstreams(plain, sets),
        Accelerator.from_config(plain["accelerator"]) if plain.get("accelerator") else None,
        optimizer=Optimizer.from_config(plain["optimizer"]) if plain.get("optimizer") else None,
        framework=plain.get("framework"),
        outputs=plain.get("outputs"),
    )
    node.frozen = bool(plain.get("frozen", False))
    return node


def _read_upstreams(entry: Mapping[str, Any], sets: Mapping[str, FeatureSet]) -> list[Any]:
    return [up if isinstance(up, str) else Reference.from_config(up, sets) for up in entry["upstreams"]]


def _read_model(entry: Mapping[str, Any], allow: Sequence[type]) -> Any:
    named, label = entry.get("model"), entry["label"]
    if named is None:
        raise ConfigError(
            f"node {label!r} has a model that a configuration cannot hold", remedy=f"give it: models={{{label!r}: ...}}"
        )
    if "class" in named:
        return _allowed(label, named["class"], allow)(**_keywords(named))
    backend = registry().find(str(named.get("framework")))
    offered = backend.models() if isinstance(backend, Compute) else {}
    if named.get("name") not in offered:
        raise ConfigError(
            f"node {label!r}: {backend.framework} has no model called {named.get('name')!r}",
            there=", ".join(offered) or "none",
        )
    return offered[named["name"]](**_keywords(named))


def _allowed(label: str, name: str, allow: Sequence[type]) -> type:
    for cls in allow:
        if class_name(cls) == name:
            return cls
    raise ConfigError(
        f"node {label!r}: the configuration names the class {name!r}, which is not registered; nothing was imported",
        there=", ".join(map(class_name, allow)) or "no class is allowed",
        remedy=f"if you trust it, import it: allow=[{name.rpartition(':')[2]}], or give models={{{label!r}: ...}}",
    )


def _keywords(named: Mapping[str, Any]) -> dict[str, Any]:
    config = named.get("config", {})
    if not isinstance(config, Mapping) or not all(isinstance(key, str) for key in config):
        raise ConfigError(f"{config!r} is not the configuration of a model", remedy="give a dict with text keys")
    return dict(config)
