"""Roles of columns: features, targets and tags, chosen by name or read from the metadata of an Arrow schema."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any, NamedTuple

import pyarrow as pa

from anyaccel.arguments import shown
from anyaccel.data.arrow_columns import Pad, is_numeric, list_leaf, not_numbers
from anyaccel.errors import ColumnError, DataError
from anyaccel.suggestions import did_you_mean

ROLES = ("feature", "target", "tag")
Names = str | Iterable[str] | None
NamesOrRest = Names | EllipsisType
"""Names of columns, or `...` for all that no other role names."""
_KEY = b"anyaccel.role"
SURROGATES = re.compile("[\ud800-\udfff]")
"""Halves of surrogate pairs, which are no characters."""
_SHOWN = 20
_REASONS = 5
_JOINED = 4


class RoleNames(NamedTuple):
    """Names of columns by role, as a user gives them; one of the three may be `...`."""

    features: NamesOrRest = None
    targets: NamesOrRest = None
    tags: NamesOrRest = None


class WithRoles:
    """Base class of everything with a label and columns with roles: rows in memory, and sources of rows.

    Args:
        label: Label of the feature set.
        roles: Role of each column, by name.
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
        """Names of the columns that are inputs of models."""
        return of_role(self._roles, "feature")

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the columns that losses compare outputs with."""
        return of_role(self._roles, "target")

    @property
    def tags(self) -> tuple[str, ...]:
        """Names of the columns that only describe the rows, of any Arrow type."""
        return of_role(self._roles, "tag")


def check_label(label: str) -> None:
    """Check the label of a feature set or source."""
    if not isinstance(label, str) or not label or "." in label or SURROGATES.search(label):
        raise DataError(
            f"{shown(label)} is not a label of a feature set",
            cause="labels must be valid UTF-8 text without a dot, because 'LABEL.COLUMN' names a column",
            hint="choose another label"
            if isinstance(label, str)
            else "write FeatureSet.from_dict('data', {'x': x, 'y': y}, ['x'], ['y'])",
        )


def of_role(roles: Mapping[str, str], role: str) -> tuple[str, ...]:
    """Return names of the columns of a role, in their order."""
    return tuple(name for name, column_role in roles.items() if column_role == role)


def names_of(value: Names) -> tuple[str, ...]:
    """Return column names as a tuple; a single text is one name, None means no names."""
    is_single = isinstance(value, str) or not isinstance(value, Iterable)
    names: tuple[Any, ...] = () if value is None else (value,) if is_single else tuple(value)
    for name in names:
        if not isinstance(name, str):
            raise _no_text(name)
        if SURROGATES.search(name):  # half of a pair, as wrongly decoded bytes have: no file can hold it
            raise ColumnError(
                f"{shown(name)} cannot be the name of a column: it has a lone surrogate, which UTF-8 cannot encode",
                hint=f"rename it, for example to {name.encode('utf-8', 'replace').decode()!r}",
            )
    return names


def _no_text(name: object) -> ColumnError:
    return ColumnError(
        f"{name!r} cannot be the name of a column",
        cause="column names must be text",
        hint="rename the columns (pandas: df.columns = ['_'.join(map(str, name)) for name in df.columns])"
        if isinstance(name, tuple)
        else "rename the column (pandas: df.columns = df.columns.astype(str))",
    )


def listed(names: Iterable[object]) -> str:
    """Return names for a message: the first twenty, and how many more there are; `nothing` for an empty list."""
    texts = [str(name) for name in names]
    more = f", and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return (", ".join(texts[:_SHOWN]) or "nothing") + more


def brief(names: Sequence[str]) -> str:
    """Return a human-readable list of joined columns: up to four names, otherwise the first three and the number of
    others.
    """
    more = f" and {len(names) - _JOINED + 1} more" if len(names) > _JOINED else ""
    return "+".join(names[: _JOINED - 1] if more else names) + more


def no_column(label: str, name: object, columns: Iterable[object]) -> ColumnError:
    """Create the error for a column that a feature set does not have."""
    columns = list(columns)
    has_no_text = bool(columns) and not any(isinstance(column, str) for column in columns)
    return ColumnError(
        f"{label!r} has no column {name!r}",
        available=listed(columns) if columns else "",
        hint=_no_text(columns[0]).hint if has_no_text else did_you_mean(name, columns),
    )


def assign_roles(label: str, columns: Sequence[str], role_names: RoleNames) -> dict[str, str]:
    """Return the role of each chosen column, by name, in the order features, targets, tags."""
    named: dict[str, tuple[str, ...]] = {}
    open_: list[str] = []
    for role, chosen in zip(ROLES, role_names, strict=True):
        if chosen is ...:
            open_.append(role)
        named[role] = () if chosen is ... else names_of(chosen)
    if len(open_) > 1:
        raise ColumnError(
            f"both the {open_[0]}s and the {open_[1]}s of {label!r} are set to '...'",
            available=listed(columns),
            hint="use ... for one role, and name the columns of the others",
        )
    if open_:
        taken = {name for names in named.values() for name in names}
        named[open_[0]] = names_of(dict.fromkeys(name for name in columns if name not in taken))
    roles: dict[str, str] = {}
    for role, names in named.items():
        for name in names:
            if name not in columns:
                raise no_column(label, name, columns)
            if name in roles:
                raise ColumnError(
                    f"column {name!r} of {label!r} cannot be a {role}",
                    cause=f"it is already a {roles[name]}, and a column can have only one role",
                    hint="name it once, or add a copy of it under another name",
                )
            roles[name] = role
    _check(label, columns, roles, needs_feature=role_names.tags is not ...)
    return roles


def chosen_roles(label: str, schema: Any, role_names: RoleNames) -> dict[str, str]:
    """Return the role of each chosen column of an Arrow schema: as named, or from its metadata if all three are
    None.
    """
    if all(names is None for names in role_names):
        return read_roles(label, schema)
    roles = assign_roles(label, schema.names, role_names)
    open_ = open_roles(role_names)
    types = {name: schema.field(name).type for name, role in roles.items() if role in open_}
    errors = {
        name: not_numbers(name, str(kind))
        for name, kind in types.items()
        if not (is_numeric(kind) or is_numeric(list_leaf(kind)))
    }
    check_rest(label, roles, errors)
    return roles


def open_roles(role_names: RoleNames) -> list[str]:
    """Return the role, of features and targets, that was given as `...`."""
    return [role for role, names in zip(ROLES[:2], role_names, strict=False) if names is ...]


def check_rest(label: str, roles: Mapping[str, str], errors: Mapping[str, ColumnError]) -> None:
    """Check that the columns covered by `...` can have its role; `errors` says by name why they cannot."""
    if not errors:
        return
    role = roles[next(iter(errors))]
    texts = (
        "; for texts, store token ids" if any("token ids" in (error.hint or "") for error in errors.values()) else ""
    )
    sparse = next((f"; or {error.hint}" for error in errors.values() if "toarray()" in (error.hint or "")), "")
    raise ColumnError(
        f"{len(errors)} of the remaining columns of {label!r} cannot be {role}s: {listed(errors)}",
        cause="; ".join(error.problem for error in list(errors.values())[:_REASONS]),
        hint=f"name them as tags, leave them out of the data, or list the {role}s explicitly{texts}{sparse}",
    )


def selected(label: str, roles: Mapping[str, str], features: Names, targets: Names, tags: Names) -> list[str]:
    """Return names of the columns that a selection keeps; None keeps all of the role, in their order."""
    kept: list[tuple[str, ...]] = []
    for role, names in zip(ROLES, (features, targets, tags), strict=True):
        kept.append(of_role(roles, role) if names is None else names_of(names))
        for name in kept[-1]:
            if name not in roles:
                raise no_column(label, name, roles)
            if roles[name] != role:
                raise ColumnError(
                    f"{label!r} has no {role} {name!r}, it is a {roles[name]}",
                    available=f"{role}s: {listed(of_role(roles, role))}",
                    hint=f"name it among the {roles[name]}s",
                )
    return list(assign_roles(label, list(roles), RoleNames(*kept)))


def read_roles(label: str, schema: Any) -> dict[str, str]:
    """Return the role of each column of an Arrow schema that has one in its field metadata, by name, in schema
    order.
    """
    roles: dict[str, str] = {}
    for field in schema:
        stamped = (field.metadata or {}).get(_KEY)
        if stamped is not None:
            roles[field.name] = stamped.decode(errors="replace")
    if not roles:
        raise ColumnError(
            f"no column of {label!r} has a role",
            cause=f"columns: {listed(schema.names)}; none has 'anyaccel.role' in its metadata",
            hint="name the columns: features=[...], target=[...]",
        )
    for name, role in roles.items():
        if role not in ROLES:
            raise ColumnError(
                f"column {name!r} of {label!r} has the role {role!r}", available=f"roles: {listed(ROLES)}"
            )
    _check(label, schema.names, roles, needs_feature="tag" not in roles.values())
    return roles


def stamp(table: Any, roles: Mapping[str, str]) -> Any:
    """Return the columns of an Arrow table that have a role, in the order of `roles`, with the role in their
    metadata.
    """
    fields = [
        field.with_metadata({**(field.metadata or {}), _KEY: role.encode()})
        for field, role in ((table.schema.field(name), role) for name, role in roles.items())
    ]
    return pa.table([table.column(name) for name in roles], schema=pa.schema(fields, table.schema.metadata))


def _check(label: str, columns: Iterable[str], roles: Mapping[str, str], *, needs_feature: bool) -> None:
    """Check names and roles; of tags alone features can be made by a transform."""
    for name, count in Counter(columns).items():
        if name in roles and count > 1:
            raise ColumnError(f"{label!r} has {count} columns called {name!r}", hint="rename all but one of them")
    if needs_feature and "feature" not in roles.values():
        raise ColumnError(
            f"{label!r} has no feature",
            available=f"columns: {listed(columns)}",
            hint="name at least one in features",
        )


def checked_pads(label: str, pad: Any, columns: Mapping[str, str]) -> dict[str, Pad]:
    """Return the argument `pad=` as a Pad for each column.

    Args:
        label: Label of the feature set.
        pad: A number or a Pad by column; None for no column.
        columns: Role of each column.
    """
    if pad is None:
        return {}
    if not isinstance(pad, Mapping):
        raise ColumnError(
            f"pad={shown(pad)} of {label!r} does not name the columns",
            available=listed(columns),
            hint=f"write pad={{{next(iter(columns))!r}: 0}}",
        )
    pads = {name: value if isinstance(value, Pad) else Pad(value) for name, value in pad.items()}
    for name, column_pad in pads.items():
        if columns.get(name) not in ("feature", "target"):
            raise ColumnError(
                f"pad= of {label!r} names {shown(name)}, which is not a feature or target",
                available=listed(name for name, role in columns.items() if role != "tag"),
                hint="name columns that are features or targets",
            )
        if column_pad.mask is not None and column_pad.mask in columns:
            raise ColumnError(
                f"the mask of {name!r} of {label!r} is called {column_pad.mask!r}, but a column has that name",
                available=listed(columns),
                hint="choose another name for the mask, or leave mask= out and use the column",
            )
    return pads
