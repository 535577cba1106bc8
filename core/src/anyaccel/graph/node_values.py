"""Values of a node: the names of what it takes and gives, and whether its model's call has arguments of these names."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from anyaccel.adapter.call_layout import batch_axes_of, is_positional
from anyaccel.backend import ComputingBackend
from anyaccel.data import Reference, joined_spec
from anyaccel.errors import GraphError
from anyaccel.graph import topology
from anyaccel.graph.nodes import ModelNode, Node, column_name, shown_name
from anyaccel.segment import Path, TensorSpec
from anyaccel.suggestions import did_you_mean


def path_name(path: Path) -> str:
    """A path as text: its steps, joined by dots."""
    return ".".join(map(str, path))


# -- outputs -----------------------------------------------------------------------------------------------------------


def output_names(node: Node, paths: Sequence[Path]) -> tuple[str, ...]:
    """Names of a node's outputs, from their paths: the label for one, `label.PATH` for several.

    Raises:
        GraphError: the node names another number of outputs.
    """
    given = node.outputs if isinstance(node, ModelNode) else None
    if given is not None and len(given) != len(paths):
        raise GraphError(
            f"node {node.label!r} names {len(given)} outputs, and its model gives {len(paths)}",
            hint="name each, or none",
        )
    if len(paths) == 1 and given is None:
        return (node.label,)
    return tuple(f"{node.label}.{name}" for name in (given or map(path_name, paths)))


# -- inputs ------------------------------------------------------------------------------------------------------------


def input_names(
    node: Node, outputs: Mapping[str, Sequence[str]], aliases: Mapping[str, str], specs: dict[str, TensorSpec]
) -> tuple[str, ...]:
    """Names of the values that a node takes, in order; adds those of columns to `specs`.

    Args:
        node: the node.
        outputs: names of the values of each node.
        aliases: other names of values.
        specs: of the values so far.

    Raises:
        GraphError: an upstream that is not there, or is several values where one is wanted.
    """
    names: list[str] = []
    for upstream in node.upstreams:
        if isinstance(upstream, Reference):
            names.append(_column(node, upstream, specs))
        else:
            names.extend(_outputs_named(node, upstream, outputs, aliases))
    return tuple(names)


def _column(node: Node, upstream: Reference, specs: dict[str, TensorSpec]) -> str:
    _refuse_joined_integers(node, upstream)
    name, spec = column_name(upstream), joined_spec(upstream.feature_set, upstream.features)
    if specs.setdefault(name, spec) != spec:
        raise GraphError(
            f"node {node.label!r}: {shown_name(upstream)!r} is two different inputs, {specs[name]} and {spec}",
            hint="rename the column that has a '+' in its name",
        )
    return name


def _refuse_joined_integers(node: Node, upstream: Reference) -> None:
    """Several vectors of integers (ids, masks) in one reference would become one long vector of ids."""
    if node.kind.joins_integers:
        return
    specs = {name: upstream.feature_set.spec(name) for name in upstream.features}
    vectors = [name for name, spec in specs.items() if spec.shape and "int" in spec.dtype]
    if len(vectors) > 1:
        casts = dict.fromkeys(vectors, "float32")
        inputs = ", ".join(f"{name!r}: {upstream.feature_set.label}.reference({name!r})" for name in vectors)
        raise GraphError(
            f"node {node.label!r} would get the integer columns {', '.join(vectors)} as one input, joined end to end",
            hint=f"give each as an input of its own, by the name that the model has for it: {{{inputs}}}; or, if these "
            f"are numbers and no ids, make them floating: {upstream.feature_set.label}.cast({casts})",
        )


def _outputs_named(
    node: Node, upstream: str, outputs: Mapping[str, Sequence[str]], aliases: Mapping[str, str]
) -> tuple[str, ...]:
    label, _, output = upstream.partition(".")
    names = tuple(outputs[label])
    if not output and len(names) > 1 and isinstance(node, ModelNode) and node.arguments:
        raise GraphError(
            f"node {node.label!r} takes {upstream!r} as one argument, and it has several outputs",
            available=", ".join(names),
            hint=f"name one: {names[0]!r}",
        )
    if output and upstream not in names and upstream not in aliases:
        problem = f"node {node.label!r} takes {upstream!r}, which {label!r} does not output"
        raise topology.unknown_node(problem, upstream, names)
    return (aliases.get(upstream, upstream),) if output else names


# -- the call ----------------------------------------------------------------------------------------------------------


def check_call(node: ModelNode, backend: ComputingBackend) -> None:
    """Check that a model can be called with what feeds its node, as far as names tell.

    Raises:
        GraphError: the backend has no keywords, the model has no such argument, or a column would be taken as another
            argument than that of its name.
    """
    node.kind.check_inputs(node)
    by_name = node.arguments and not is_positional(node.arguments)
    if any(batch_axes_of(node.arguments)) and not getattr(backend, "moves_batch_axis", False):
        raise GraphError(
            f"node {node.label!r}: {backend.framework} calls models with the batch on the first axis",
            hint="leave batch_axis out, and let the model move the axis itself",
        )
    if by_name and not backend.calls_by_keyword:
        raise GraphError(
            f"node {node.label!r}: {backend.framework} calls models with positional arguments only",
            hint="give a flat list of upstreams, in the order of the model's inputs",
        )
    signature = backend.signature(node.model)
    if signature is not None and by_name:
        parameters = signature.parameters.values()
        taken = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
        known, given = [each.name for each in taken], {path[0] for path in node.arguments}
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        for path in node.arguments:
            if isinstance(path[0], str) and path[0] not in known and not takes_any:
                raise GraphError(
                    f"node {node.label!r}: its model has no input {path[0]!r}",
                    available=", ".join(known),
                    hint=did_you_mean(path[0], known, "use one of these names"),
                )
        missing = [each.name for each in taken if each.default is each.empty and each.name not in given]
        if missing and not any(isinstance(name, int) for name in given):
            raise GraphError(
                f"node {node.label!r}: its model needs the input {missing[0]!r}, which is not given",
                available=", ".join(known),
                hint=f"add it: {{{missing[0]!r}: feature_set.reference(...), ...}}",
            )
    elif signature is not None:
        _check_positions(node, signature)


def _check_positions(node: ModelNode, signature: inspect.Signature) -> None:
    """Refuse a column at the place of one argument that has the name of another, and several without a place."""
    parameters = signature.parameters.values()
    by_keyword = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY and each.default is each.empty]
    if by_keyword and len(by_keyword) == len(signature.parameters):
        raise GraphError(
            f"node {node.label!r}: its model takes its inputs by name, and they are given in an order",
            available=", ".join(by_keyword),
            hint=f"give a dict: {{{', '.join(f'{name!r}: ...' for name in by_keyword)}}}",
        )
    positional = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    columns = [each.features for each in node.upstreams if isinstance(each, Reference) and len(each.features) == 1]
    if len(columns) < len(node.upstreams) or len(columns) < 2:
        return
    names = [features[0] for features in columns]
    if len(set(names)) < len(names):  # streams of a sampler: a column has several places
        return
    for taken, name in zip(positional, names, strict=False):
        if name != taken and name in signature.parameters:
            inputs = ", ".join(f"{each!r}: ..." for each in names)
            raise GraphError(
                f"node {node.label!r}: the column {name!r} would be the argument {taken!r} of its model, "
                f"which has one called {name!r}",
                available=f"arguments in this order: {', '.join(positional)}",
                hint=f"give the inputs by name: {{{inputs}}}",
            )
