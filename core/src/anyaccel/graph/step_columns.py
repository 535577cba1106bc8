"""Step columns: what a training step of the user's own gets of each batch, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anyaccel.data import Reference
from anyaccel.errors import PhaseError
from anyaccel.graph import input_columns
from anyaccel.graph.input_columns import ColumnSelection, ColumnTable
from anyaccel.graph.nodes import Node
from anyaccel.graph.plan_entries import Assignment, Column
from anyaccel.graph.shape_inference import Shapes, cast


def check_custom_step(phase: str, assigned: Sequence[Assignment]) -> None:
    """Check that one framework computes all nodes, and can run a step of the user's own.

    Raises:
        PhaseError: it is several, or one that cannot.
    """
    frameworks = {assignment.node: assignment.framework for assignment in assigned}
    if len({id(assignment.backend) for assignment in assigned}) > 1:
        raise PhaseError(
            f"phase {phase!r} has a step of your own, which is the code of one framework on one kind of device",
            cause=", ".join(f"{each.node}: {each.framework} on {each.device}" for each in assigned),
            hint="put the nodes of one framework in a graph of their own, or train with losses=[...]",
        )
    if not assigned[0].backend.custom_steps:
        raise PhaseError(
            f"phase {phase!r} has a step of your own, which is not supported for models of {assigned[0].framework}",
            cause=", ".join(f"{node}: {framework}" for node, framework in frameworks.items()),
            hint="train with losses=[...], which may be functions of your own",
        )


def step_columns(
    table: ColumnTable, nodes: Mapping[str, Node], shapes: Shapes, assigned: Mapping[str, Assignment]
) -> dict[str, str]:
    """Names of the loaded columns by the names that a step finds them under.

    These are what the nodes take, in the form in which they take it, and each target of the same data, as stored but
    for its floating dtype. A column goes by its own name (joined ones by `a+b`, those of other streams by `a@STREAM`),
    or where several would have this name, by that in the plan. `features` and `targets` name the only ones.
    """
    roles: dict[str, dict[str, Column]] = {"features": {}, "targets": {}}
    for label, assignment in assigned.items():
        for reference in (each for each in nodes[label].upstreams if isinstance(each, Reference)):
            column = input_columns.feature_column(table, reference, shapes, assignment)
            roles["features"][column.name] = column
            for target in _targets(table, reference, shapes, assignment):
                roles["targets"].setdefault(target.name, target)
    columns = {**roles["targets"], **roles["features"]}
    short = {name: _short_name(column) for name, column in columns.items()}
    names = {text if list(short.values()).count(text) == 1 else name: name for name, text in short.items()}
    only = {role: next(iter(found)) for role, found in roles.items() if len(found) == 1}
    return {**only, **names}


def _targets(table: ColumnTable, reference: Reference, shapes: Shapes, to: Assignment) -> list[Column]:
    columns = []
    for name in reference.targets:
        selection = ColumnSelection(reference.feature_set, (name,), reference.stream)
        spec = cast(reference.feature_set.spec(name), shapes.dtypes[to.node])
        columns.append(table.want(selection, spec, to, "targets"))
    return columns


def _short_name(column: Column) -> str:
    stream = f"@{column.stream}" if column.stream else ""
    return "+".join(column.columns) + stream
