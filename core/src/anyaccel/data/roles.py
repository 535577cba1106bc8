"""Roles: which columns are features, targets and tags, chosen by name or read from an Arrow schema's metadata."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any

import pyarrow as pa

from anyaccel.data.arrow_columns import is_numeric, not_numbers
from anyaccel.data.readers.list_columns import leaf
from anyaccel.errors import ColumnError
from anyaccel.suggestions import did_you_mean

ROLES = ("feature", "target", "tag")
Names = str | Iterable[str] | None
NamesOrRest = Names | EllipsisType
"""Names of columns, or `...` for all that are not named otherwise."""
_KEY = b"anyaccel.role"
_SHOWN = 20
_REASONS = 5
_JOINED = 4


class WithRoles:
    """What has a label and columns with roles: rows in memory, or a source of them.

    Args:
        label: of the feature set that it is, belongs to or stands for.
        roles: role of each column, by name.
    """

    def __init__(self, label: str, roles: dict[str, str]) -> None:
        self._label = label
        self._roles = roles

    @property
    def label(self) -> str:
        """Label of the feature set."""
        return self._label

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns."""
        return tuple(self._roles)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns that go into models."""
        return of_role(self._roles, "feature")

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the columns that losses compare with."""
        return of_role(self._roles, "target")

    @property
    def tags(self) -> tuple[str, ...]:
        """Names of the columns that only describe the rows, of any Arrow type."""
        return of_role(self._roles, "tag")


def of_role(roles: Mapping[str, str], role: str) -> tuple[str, ...]:
    """Names of the columns of a role, in their order."""
    return tuple(name for name, its in roles.items() if its == role)


def names_of(given: Names) -> tuple[str, ...]:
    """Column names as a tuple; a plain text is one name and None is none.

    Raises:
        ColumnError: a name is not text.
    """
    alone = isinstance(given, str) or not isinstance(given, Iterable)
    names: tuple[Any, ...] = () if given is None else (given,) if alone else tuple(given)
    for name in names:
        if not isinstance(name, str):
            raise ColumnError(
                f"{name!r} is not the name of a column",
                available="names of columns are text",
                hint="rename the column (pandas: df.columns = df.columns.astype(str))",
            )
    return names


def listed(names: Iterable[object]) -> str:
    """Names for a message: the first twenty, and how many more there are; `nothing` where there is none."""
    shown = [str(name) for name in names]
    more = f", and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return (", ".join(shown[:_SHOWN]) or "nothing") + more


def brief(names: Sequence[str]) -> str:
    """Columns joined to one value, for people: all of a few, else the first three, and how many more there are."""
    more = f" and {len(names) - _JOINED + 1} more" if len(names) > _JOINED else ""
    return "+".join(names[: _JOINED - 1] if more else names) + more


def no_column(label: str, name: object, there: Iterable[object]) -> ColumnError:
    """The error for a column that a feature set does not have."""
    there = list(there)
    return ColumnError(f"{label!r} has no column {name!r}", available=listed(there), hint=did_you_mean(name, there))


def assign_roles(
    label: str, there: Sequence[str], features: NamesOrRest, targets: NamesOrRest, tags: NamesOrRest
) -> dict[str, str]:
    """The role of each chosen column, by name, in the order features, targets, tags.

    Raises:
        ColumnError: a name is unknown, stands in two roles, is the name of two columns, no feature is named, or two
            roles are to have all that are not named otherwise.
    """
    roles: dict[str, str] = {}
    for role, names in zip(ROLES, _without_rest(label, there, (features, targets, tags)), strict=True):
        for name in names:
            if name not in there:
                raise no_column(label, name, there)
            if name in roles:
                raise _twice(label, name, roles[name], role)
            roles[name] = role
    _check(label, there, roles)
    return roles


def _without_rest(label: str, there: Sequence[str], given: Sequence[NamesOrRest]) -> list[tuple[str, ...]]:
    """Names of the columns of each role, with those that are not named otherwise where `...` stands."""
    open_ = [role for role, names in zip(ROLES, given, strict=True) if names is ...]
    if len(open_) > 1:
        raise ColumnError(
            f"the {open_[0]}s and the {open_[1]}s of {label!r} are both to be all columns that are not named otherwise",
            available=listed(there),
            hint="write ... once, and name the columns of the other roles",
        )
    named = [() if names is ... else names_of(names) for names in given]
    taken = {name for names in named for name in names}
    rest = names_of(dict.fromkeys(name for name in there if name not in taken)) if open_ else ()
    return [rest if names is ... else own for names, own in zip(given, named, strict=True)]


def chosen_roles(
    label: str, schema: Any, features: NamesOrRest, targets: NamesOrRest, tags: NamesOrRest
) -> dict[str, str]:
    """The role of each chosen column of an Arrow schema: as named, or as its metadata says where no name is given.

    Raises:
        ColumnError: as `assign_roles`, or as `read_roles`, or `...` means columns that hold no numbers.
    """
    if features is None and targets is None and tags is None:
        return read_roles(label, schema)
    roles = assign_roles(label, schema.names, features, targets, tags)
    open_ = open_roles(features, targets)
    kinds = {name: schema.field(name).type for name, role in roles.items() if role in open_}
    check_rest(label, roles, {name: not_numbers(name, str(kind)) for name, kind in kinds.items() if not _fits(kind)})
    return roles


def _fits(kind: Any) -> bool:
    return is_numeric(kind) or is_numeric(leaf(kind))


def open_roles(features: NamesOrRest, targets: NamesOrRest) -> list[str]:
    """The role, of features and targets, that `...` stands for."""
    return [role for role, names in zip(ROLES, (features, targets), strict=False) if names is ...]


def check_rest(label: str, roles: Mapping[str, str], wrong: Mapping[str, ColumnError]) -> None:
    """Make sure that the columns for which `...` stands can be of its role; `wrong` has what is in the way, by name.

    Raises:
        ColumnError: something is.
    """
    if not wrong:
        return
    role = roles[next(iter(wrong))]
    raise ColumnError(
        f"{len(wrong)} of the columns of {label!r} for which ... stands cannot be {role}s: {listed(wrong)}",
        available="; ".join(error.problem for error in list(wrong.values())[:_REASONS]),
        hint=f"name them as tags, leave them out of the data, or name the {role}s one by one",
    )


def selected(label: str, roles: Mapping[str, str], features: Names, targets: Names, tags: Names) -> list[str]:
    """Names of the columns that are kept, by role; None keeps all of the role, in their order.

    Raises:
        ColumnError: a name that is not a column of that role, or given twice, or no feature is left.
    """
    for role, names in zip(ROLES, (features, targets, tags), strict=True):
        for name in names_of(names):
            if name not in roles:
                raise no_column(label, name, roles)
            if roles[name] != role:
                raise ColumnError(
                    f"{label!r} has no {role} {name!r}, it is a {roles[name]}",
                    available=f"{role}s: {listed(of_role(roles, role))}",
                    hint=f"name it in {roles[name]}s=",
                )
    given = [
        of_role(roles, role) if names is None else names_of(names)
        for role, names in zip(ROLES, (features, targets, tags), strict=True)
    ]
    return list(assign_roles(label, list(roles), *given))


def read_roles(label: str, schema: Any) -> dict[str, str]:
    """The role of each column of an Arrow schema that has one in its field metadata, by name, in schema order.

    Raises:
        ColumnError: no column has a role, a role is not one of `ROLES`, or a name is that of two columns.
    """
    stamped = [(field.name, (field.metadata or {}).get(_KEY)) for field in schema]
    roles = {name: role.decode(errors="replace") for name, role in stamped if role is not None}
    if not roles:
        raise ColumnError(
            f"no column of {label!r} has a role",
            available=f"columns: {listed(schema.names)}; none has 'anyaccel.role' in its metadata",
            hint="name the columns: feature_keys=[...], target_keys=[...]",
        )
    for name, role in roles.items():
        if role not in ROLES:
            raise ColumnError(
                f"column {name!r} of {label!r} has the role {role!r}", available=f"roles: {listed(ROLES)}"
            )
    _check(label, schema.names, roles)
    return roles


def stamp(table: Any, roles: dict[str, str]) -> Any:
    """The columns of an Arrow table that have a role, in the order of `roles`, with it written to their metadata."""
    fields = [table.schema.field(name) for name in roles]
    stamped = [
        field.with_metadata({**(field.metadata or {}), _KEY: role.encode()})
        for field, role in zip(fields, roles.values(), strict=True)
    ]
    return pa.table([table.column(name) for name in roles], schema=pa.schema(stamped, table.schema.metadata))


def _check(label: str, there: Iterable[str], roles: dict[str, str]) -> None:
    for name, count in Counter(there).items():
        if name in roles and count > 1:
            raise ColumnError(f"{label!r} has {count} columns called {name!r}", hint="rename all but one of them")
    if "feature" not in roles.values():
        raise ColumnError(
            f"{label!r} has no feature", available=f"columns: {listed(there)}", hint="name at least one in feature_keys"
        )


def _twice(label: str, name: str, first: str, second: str) -> ColumnError:
    return ColumnError(
        f"column {name!r} of {label!r} cannot be a {second}",
        available=f"it is already a {first}, and a column has one role",
        hint="name it once, or give a copy of it under another name",
    )
