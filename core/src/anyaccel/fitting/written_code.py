"""The code that builds the graph and the phase of a fit without `fit`, as text."""

from __future__ import annotations

import contextlib
import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anyaccel.accelerator import Accelerator
from anyaccel.data import FeatureSet, FeatureSetView, SimpleSampler, Source
from anyaccel.data.readers.hf_datasets import has_table
from anyaccel.errors import AnyaccelError
from anyaccel.fitting.tables import TEXT_SUFFIXES, TRAIN, VALIDATION, is_pair, treatment_of
from anyaccel.graph import AppliedLoss, ModelGraph, ModelNode
from anyaccel.phases import EvalPhase, TrainPhase
from anyaccel.phases.settings import PhaseSettings

_DATA = "feature_set"


@dataclass(frozen=True)
class Recipe:
    """Information for the code of a fit that is known only when the fit begins.

    Attributes:
        data: Lines that build the feature set or the source from `data`; empty if it has no code.
        validation: Lines that build the feature set of a validation on other data.
        losses: Code of each loss without a name, in their order.
    """

    data: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()


def recipe_of(
    prepared: Any,
    user_data: Any,
    *,
    validation: Any,
    losses: Any,
    scaler: Any,
    features: Any,
    target: Any,
    seed: int,
    is_weighted: bool = False,
) -> Recipe:
    """Return the recipe of a fit.

    Args:
        prepared: The training data.
        given, validation, losses, scaler, features, target, seed: Arguments of `fit`.
        is_weighted: Whether `fit` added weights, or drew splits by groups or strata.
    """
    named = ["loss"]
    if isinstance(losses, Mapping):
        named = [f"loss[{name!r}]" for name in losses]
    elif isinstance(losses, (list, tuple)):
        named = [f"loss[{place}]" for place in range(len(losses))]
    data = prepared.data
    is_set, is_view = isinstance(user_data, (FeatureSet, FeatureSetView)), isinstance(user_data, FeatureSetView)
    if is_weighted or treatment_of(data) is not None:
        return Recipe((), (), tuple(named))
    texts: list[str] = []
    for fitted in data.transforms if isinstance(data, FeatureSet) else ():
        texts += fitted.results if fitted.role == "target" else ()
    roles = {"features": list(data.features), "target": [name for name in data.targets if name not in texts]}
    if isinstance(data, Source):
        roles |= {"tags": list(data.tags)} if data.tags else {}
        line = f"source = aa.{type(data).__name__}({data.label!r}, data, {_keywords(roles)})"
        return Recipe(("source = data" if isinstance(user_data, Source) else line,), (), tuple(named))
    roles |= {"tags": [*data.tags, *texts]} if data.tags or texts else {}
    if is_set:
        chosen = ""
        if features is not None or target is not None:
            chosen = f"features={roles['features']!r}, target={roles['target']!r}"
        lines = [f"{_DATA} = data{'.feature_set' if is_view else ''}.select({chosen})"]
    else:
        lines = [f"{_DATA} = {_reader('data', user_data, roles)}"]
    lines += [_transform_line(fitted, scaler) for fitted in data.transforms if fitted.fit_on == "all"]
    if prepared.casts:
        lines.append(f"{_DATA} = {_DATA}.cast({prepared.casts!r})")
    rows = f"{_DATA}.take(data.rows, name='given')" if is_view else _DATA
    if prepared.share is not None:
        shares = {TRAIN: 1.0 - prepared.share, VALIDATION: prepared.share}
        lines.append(f"{rows}.split_random({shares!r}, seed={seed})")
    elif is_view:
        lines.append(f"{_DATA}.add_split({prepared.train!r}, data.rows)")
        if isinstance(validation, FeatureSetView) and isinstance(prepared.validation, str):
            lines.append(f"{_DATA}.add_split({prepared.validation!r}, validation.rows)")
    lines += [_transform_line(fitted, scaler) for fitted in data.transforms if fitted.fit_on != "all"]
    other: list[str] = []
    if isinstance(prepared.validation, Mapping):
        made = "validation"
        if not isinstance(validation, (FeatureSet, FeatureSetView)):
            made = _reader("validation", validation, roles)
        if prepared.casts and not isinstance(validation, (FeatureSet, FeatureSetView)):
            made += f".cast({prepared.casts!r})"
        other = [f"validation_set = {made}{f'.transform_like({_DATA})' if data.transforms else ''}"]
    return Recipe(tuple(lines), tuple(other), tuple(named))


def _reader(variable: str, data: Any, roles: Mapping[str, Any]) -> str:
    """Return the call that reads a table."""
    columns = _keywords(roles)
    if isinstance(data, (str, os.PathLike)):
        suffix = Path(data).suffix.lower()
        if suffix in TEXT_SUFFIXES:
            delimiter = ", delimiter='\\t'" if suffix == ".tsv" else ""
            return f"aa.FeatureSet.from_csv('data', {variable}, {columns}{delimiter})"
        return f"aa.FeatureSet.from_parquet('data', {variable}, {columns})"
    if is_pair(data):
        sides = ((0, roles["features"]), (1, [*roles["target"], *roles.get("tags", ())]))
        parts = []
        for place, names in sides:
            part = f"{names[0]!r}: {variable}[{place}]"
            if isinstance(data[place], Mapping):
                part = f"**{variable}[{place}]"
            elif hasattr(data[place], "columns"):
                part = f"**{{name: {variable}[{place}][name] for name in {variable}[{place}].columns}}"
            parts.append(part)
        return f"aa.FeatureSet.from_dict('data', {{{', '.join(parts)}}}, {columns})"
    if isinstance(data, list):
        names = [name for columns in roles.values() for name in columns]
        variable = f"{{name: [row.get(name) for row in {variable}] for name in {names}}}"
    if getattr(getattr(data, "dtype", None), "names", None):
        variable = f"{{name: {variable}[name] for name in {variable}.dtype.names}}"
    if isinstance(data, (Mapping, list, np.ndarray)):
        return f"aa.FeatureSet.from_dict('data', {variable}, {columns})"
    reader = "from_arrow" if has_table(data) else "from_pandas"
    return f"aa.FeatureSet.{reader}('data', {variable}, {columns})"


def _transform_line(fitted: Any, scaler: Any) -> str:
    columns = fitted.columns[0] if len(fitted.columns) == 1 else list(fitted.columns)
    transform = "anyaccel_sklearn.transforms.class_encoder.ClassEncoder()"
    if not fitted.class_labels:
        transform = "scaler"
        if isinstance(scaler, str):
            transform = f"sklearn.preprocessing.{type(fitted.transform).__name__}()"
    role = f", role={fitted.role!r}" if fitted.role else ""
    return f"{_DATA} = {_DATA}.fit_transform({transform}, {columns!r}, fit_on={fitted.fit_on!r}{role})"


def code_of_fit(graph: ModelGraph, phase: TrainPhase, recipe: Recipe) -> str:
    """Return lines of Python that build the graph and the phase, and run it."""
    ((label, data),) = graph.feature_sets.items()
    (node,) = (node for node in graph.nodes.values() if isinstance(node, ModelNode))
    is_source = isinstance(phase.data, Source) or (isinstance(phase.data, Mapping) and not recipe.data)
    lines = list(recipe.data)
    name = "source" if is_source and lines else _DATA
    if not lines:  # features of a table that was treated, or of a model that computes its loss
        lines = [f"{_DATA} = fitted.graph.feature_sets[{label!r}]  # as fit made it: see fitted.columns"]
    lines += recipe.validation
    outputs = "" if node.outputs is None else f", outputs={list(node.outputs)!r}"
    references: list[str] = []
    for reference in node.upstreams:
        columns = "" if reference.features == data.features else repr(list(reference.features))  # type: ignore[union-attr]
        references.append(f"{name}.reference({columns})")
    inputs = references[0] if len(references) == 1 else f"[{', '.join(references)}]"
    if node.arguments:
        by_argument = zip(node.arguments, references, strict=True)
        inputs = f"{{{', '.join(f'{path[0]!r}: {reference}' for path, reference in by_argument)}}}"
    lines.append(f"node = aa.ModelNode({node.label!r}, model, {inputs}{outputs})")
    optimizer = "" if graph.optimizer is None else f", {_written(graph.optimizer, 'optimizer')}"
    lines.append(f"graph = aa.ModelGraph([node]{optimizer}, seed={graph.seed})")
    arguments = {"data": name if is_source and recipe.data else _data_code(phase.data, "fitted.phase.data")}
    if phase.losses:
        arguments["losses"] = _losses_code(phase.losses, recipe)
    if isinstance(phase.validation, EvalPhase):
        rows = phase.validation.data
        written = _data_code(rows, "validation" if recipe.data else "fitted.phase.validation.data")
        if recipe.validation and isinstance(rows, Mapping):
            written = f"{{{', '.join(f'{label!r}: validation_set' for label in rows)}}}"
        evaluated = _settings(phase.validation, {"data": written}, "validation")
        if phase.validation.losses:
            evaluated["losses"] = _losses_code(phase.validation.losses, recipe)
        arguments["validation"] = _call("aa.EvalPhase", repr(phase.validation.label), evaluated)
    arguments = {**arguments, **_settings(phase, arguments, "")}
    lines += [f"phase = {_call('aa.TrainPhase', repr(phase.label), arguments, each_line=True)}"]
    lines.append("results = aa.Experiment('fit', graph).run_phase(phase)")
    needed = ("anyaccel_sklearn.transforms.class_encoder", "sklearn.preprocessing")
    imports = [f"import {module}" for module in needed if any(f"{module}." in line for line in lines)]
    return "\n".join(["import anyaccel as aa", *imports, "", *lines]) + "\n"


def _data_code(data: Any, variable: str) -> str:
    return repr(data) if isinstance(data, str) else variable


def _losses_code(losses: Sequence[AppliedLoss], recipe: Recipe) -> str:
    own, codes = iter(recipe.losses), []
    for loss in losses:
        made = next(own, "loss") if loss.loss.own is not None else _written(loss.loss, "loss")
        if loss.loss.own is None and set(loss.loss.get_config()) == {"loss"}:
            made = repr(loss.loss.name)
        config = {"inputs": list(loss.inputs), "weight": loss.weight, "label": loss.label or None}
        config |= {"sample_weight": loss.sample_weight, "mask": loss.mask}
        usual = {"inputs": ["outputs", "targets"], "weight": 1.0, "label": loss.on or None}
        kept = {name: repr(value) for name, value in config.items() if value != usual.get(name)}
        on = {"on": repr(loss.on)} if loss.on else {}
        codes.append(_call("aa.AppliedLoss", made, {**on, **kept}))
    return f"[{', '.join(codes)}]"


def _settings(phase: PhaseSettings, done: Mapping[str, str], metrics: str) -> dict[str, str]:
    """Return the settings of a phase that differ from their defaults, as code; those in `done` come first."""
    made, drawn = dict(done), phase.sampler
    default = (TrainPhase if phase.trains else EvalPhase)(phase.label, data="train")  # a subclass may need more
    is_usual = isinstance(drawn, SimpleSampler) and drawn == SimpleSampler(drawn.batch_size, shuffle=phase.trains)
    for name in inspect.signature(type(default).__init__).parameters:
        if name in ("self", "label", "losses", *done):
            continue
        if name == "batch_size":
            if isinstance(drawn, SimpleSampler) and is_usual and drawn.batch_size != default.default_batch_size:
                made[name] = repr(drawn.batch_size)
        elif name == "sampler":
            made |= {} if is_usual else {name: _written(phase.sampler, name)}
        elif name == "accelerator" and phase.chooses_device:
            made[name] = "'auto'"
        elif name == "callbacks":
            texts = [_written(it, f"callbacks[{place}]") for place, it in enumerate(phase.callbacks)]
            made |= {name: f"[{', '.join(texts)}]"} if texts else {}
        elif name == "metrics":
            several = getattr(phase, name)
            texts = [_written(it, f"metrics[{place}]") for place, it in enumerate(several)]
            made |= {name: f"[{', '.join(texts)}]"} if texts else {}
        else:
            value = getattr(phase, name)
            if value is not None and value != getattr(default, name):
                made[name] = _written(value, name)
    return made


def _written(value: Any, variable: str) -> str:
    """Return a value as code, or for the user's objects the name of the variable."""
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return repr(value)
    if isinstance(value, Accelerator):
        return repr(str(value))
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_written(it, f'{variable}[{place}]') for place, it in enumerate(value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_written(it, variable)}' for key, it in value.items())}}}"
    cls = type(value)
    if not cls.__module__.startswith("anyaccel.") or not hasattr(cls, "get_config"):
        return variable  # of core's own classes, the configuration equals the arguments
    try:
        config = value.get_config()
    except AnyaccelError:  # an object of a framework
        return variable
    first = next(iter(config))
    usual: Mapping[str, Any] = {}
    if _takes_first(cls, first):
        with contextlib.suppress(AnyaccelError):  # it needs more arguments
            usual = cls(config[first]).get_config()
    kept = {name: it for name, it in config.items() if name == first or name not in usual or usual[name] != it}
    if isinstance(kept.get("schedule"), Mapping):
        kept["schedule"] = value.schedule
    return _call(f"aa.{cls.__name__}", None, {name: _written(it, variable) for name, it in kept.items()}, cls=cls)


def _takes_first(cls: Callable[..., Any], name: str) -> bool:
    parameters = list(inspect.signature(cls).parameters.values())
    return (
        bool(parameters)
        and parameters[0].name in (name, "loss", "measure")
        and parameters[0].kind
        in (
            parameters[0].POSITIONAL_OR_KEYWORD,
            parameters[0].POSITIONAL_ONLY,
        )
    )


def _call(
    name: str, first: str | None, keywords: Mapping[str, str], *, cls: Any = None, each_line: bool = False
) -> str:
    arguments = dict(keywords)
    if cls is not None and arguments and _takes_first(cls, next(iter(arguments))):
        first = arguments.pop(next(iter(arguments)))
    parts = [*([first] if first is not None else []), *(f"{key}={value}" for key, value in arguments.items())]
    if each_line:
        return f"{name}(\n{''.join(f'    {part},{chr(10)}' for part in parts)})"
    return f"{name}({', '.join(parts)})"


def _keywords(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())
