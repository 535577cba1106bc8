"""References: the columns of a feature set that a graph is wired to, and columns read together as one tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from anyaccel.data.arrow_columns import read_only
from anyaccel.data.casting import first_unrepresentable
from anyaccel.data.column_copy import Source, filled, sources_of
from anyaccel.data.roles import Names, brief, listed, names_of
from anyaccel.data.rows import Rows
from anyaccel.errors import ColumnError, ConfigError, SamplerError
from anyaccel.host_memory import aligned_empty
from anyaccel.segment import TensorSpec
from anyaccel.suggestions import did_you_mean

if TYPE_CHECKING:
    from anyaccel.data.feature_set import FeatureSet

_CONFIG = ("feature_set", "features", "targets", "tags", "stream")


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Reference:
    """Columns of a feature set, chosen by role; what a node of a graph takes as its upstream.

    Args:
        feature_set: whose columns they are.
        features, targets, tags: names of columns of that role; None takes all of them, in their order.
        stream: which stream of a phase's sampler the rows come from, such as `"pair"`; None is its first.

    Raises:
        ColumnError: a name that is not a column of that role, or given twice.
        SamplerError: a stream that cannot be one's name.
    """

    feature_set: FeatureSet
    features: tuple[str, ...]
    targets: tuple[str, ...]
    tags: tuple[str, ...]
    stream: str | None

    def __init__(
        self,
        feature_set: FeatureSet,
        features: Names = None,
        targets: Names = None,
        tags: Names = None,
        stream: str | None = None,
    ) -> None:
        object.__setattr__(self, "feature_set", feature_set)
        object.__setattr__(self, "features", _chosen(feature_set, "feature", feature_set.features, features))
        object.__setattr__(self, "targets", _chosen(feature_set, "target", feature_set.targets, targets))
        object.__setattr__(self, "tags", _chosen(feature_set, "tag", feature_set.tags, tags))
        object.__setattr__(self, "stream", _checked_stream(feature_set, stream))

    def __repr__(self) -> str:
        roles = {"features": self.features, "targets": self.targets, "tags": self.tags}
        told = [f"{role}: {brief(names)}" for role, names in roles.items() if names]
        stream = [] if self.stream is None else [f"stream: {self.stream}"]
        return f"Reference({self.feature_set.label!r}, {'; '.join([*told, *stream])})"

    def get_config(self) -> dict[str, Any]:
        """A plain dict that `from_config` reads back; the feature set is named by its label."""
        return {
            "feature_set": self.feature_set.label,
            "features": list(self.features),
            "targets": list(self.targets),
            "tags": list(self.tags),
            **({} if self.stream is None else {"stream": self.stream}),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], feature_sets: Mapping[str, FeatureSet]) -> Reference:
        """Read what `get_config` wrote; `feature_sets` holds feature sets by label.

        Raises:
            ConfigError: not such a configuration, or its feature set is not among `feature_sets`.
            ColumnError: its columns are not there.
            SamplerError: a stream that cannot be one's name.
        """
        if not isinstance(config, Mapping) or "feature_set" not in config or set(config) - set(_CONFIG):
            raise ConfigError(
                f"{config!r} is not the configuration of a reference", available=f"keys: {listed(_CONFIG)}"
            )
        label = config["feature_set"]
        if label not in feature_sets:
            raise ConfigError(
                f"a reference names the feature set {label!r}, which was not given",
                available=listed(feature_sets),
                hint=did_you_mean(label, feature_sets) if feature_sets else "give it in feature_sets",
            )
        return cls(feature_sets[label], *(config.get(key) for key in _CONFIG[1:]))


def joined_spec(rows: Rows, names: Sequence[str]) -> TensorSpec:
    """Shape per sample and dtype of columns read as one tensor.

    One column is as it is. Several are joined along the last axis, where a scalar counts as shape (1,), in the dtype
    to which NumPy promotes theirs: the wider one, floating where one of them is.

    Raises:
        ColumnError: no names, an unknown one, columns whose shapes but for the last axis differ, or integers that no
            integer dtype holds together (int64 and uint64).
    """
    if not names:
        raise ColumnError(
            f"no columns of {rows.label!r} were named", available=listed(rows.columns), hint="name at least one"
        )
    specs = [rows.spec(name) for name in names]
    if len(specs) == 1:
        return specs[0]
    first = _as_tensor(specs[0])
    for name, spec in zip(names, specs, strict=True):
        if _as_tensor(spec)[:-1] != first[:-1]:
            raise ColumnError(
                f"columns {names[0]!r} ({specs[0]}) and {name!r} ({spec}) of {rows.label!r} cannot be joined",
                available="joined columns are of one shape but for the last axis",
                hint="use separate references as separate inputs",
            )
    return TensorSpec((*first[:-1], sum(_as_tensor(spec)[-1] for spec in specs)), _promoted(rows.label, names, specs))


def joined_changes(rows: Rows, names: Sequence[str]) -> tuple[str, ...]:
    """Which of some columns change their dtype where they are joined: `b int64 as float64`.

    Raises:
        ColumnError: as `joined_spec`.
    """
    dtype, specs = joined_spec(rows, names).dtype, {name: rows.spec(name) for name in names}
    return tuple(f"{name} {spec.dtype} as {dtype}" for name, spec in specs.items() if spec.dtype != dtype)


def joined_array(rows: Rows, names: Sequence[str], dtype: str | None = None) -> np.ndarray:
    """Columns read as one tensor, [n, *shape] as `joined_spec` says, read-only; several are copied, one is not.

    Args:
        rows: whose columns.
        names: of the columns.
        dtype: the floating dtype in which the numbers are used later; integers joined with floats have to fit it too.

    Raises:
        ColumnError: as `joined_spec`; or integers that a floating dtype cannot hold exactly.
    """
    spec = joined_spec(rows, names)
    if len(names) == 1:
        return rows.array(names[0])
    sources = _sources(rows, names, spec.dtype, spec.dtype if dtype is None else dtype)
    return read_only(filled(sources, np.empty((len(rows), *spec.shape), spec.dtype)))


def loadable_array(rows: Rows, names: Sequence[str], dtype: Any) -> np.ndarray:
    """Columns read as one tensor in the dtype in which they are used, [n, *shape], made in one pass.

    Read-only where it is memory of the feature set, as one column that needs nothing done is. Else it is memory of its
    own, C-contiguous and aligned to 64 bytes, and may be given away.

    Args:
        rows: whose columns.
        names: of the columns.
        dtype: whatever NumPy takes for one; integers that are joined with floats have to fit it exactly.

    Raises:
        ColumnError: as `joined_array`.
        TypeError: NumPy has no such dtype.
    """
    spec, wanted = joined_spec(rows, names), np.dtype(dtype)
    sources = _sources(rows, names, spec.dtype, wanted)
    whole = sources[0].as_it_is if len(sources) == 1 else None
    if whole is not None and whole.dtype == wanted:
        return whole
    return filled(sources, aligned_empty((len(rows), *spec.shape), wanted))


def _sources(rows: Rows, names: Sequence[str], joined: str, wanted: Any) -> list[Source]:
    """Where the columns lie, once integers that are joined with floats are known to be exact in both dtypes."""
    if len(names) > 1 and np.dtype(joined).kind == "f":
        for name in names:
            _check_exact(rows, name, [np.dtype(joined), np.dtype(wanted)])
    return sources_of(rows, names)


def _promoted(label: str, names: Sequence[str], specs: Sequence[TensorSpec]) -> str:
    """NumPy's common dtype, but for uint64 and signed integers, of which it would make floats."""
    dtypes = [np.dtype(spec.dtype) for spec in specs]
    found = np.result_type(*dtypes)
    if found.kind != "f" or any(dtype.kind == "f" for dtype in dtypes):
        return str(found)
    kinds = [dtype.kind for dtype in dtypes]
    wide, signed = next(i for i, dtype in enumerate(dtypes) if dtype == np.uint64), kinds.index("i")
    raise ColumnError(
        f"columns {names[signed]!r} ({specs[signed]}) and {names[wide]!r} ({specs[wide]}) of {label!r} cannot be "
        "joined",
        available="no integer dtype holds both",
        hint=f"cast({{{names[wide]!r}: 'int64'}}, keep_splits=True), or separate references as separate inputs",
    )


def _check_exact(rows: Rows, name: str, floats: Sequence[np.dtype[Any]]) -> None:
    """Make sure that integers are exact in floating dtypes."""
    if np.dtype(rows.spec(name).dtype).kind not in "iu":
        return
    array = rows.array(name)
    for wanted in floats:
        if wanted.kind == "f" and (row := first_unrepresentable(array, wanted)) is not None:
            raise ColumnError(
                f"column {name!r} of {rows.label!r} is joined with floats as {wanted}: row {row[0]} holds {row[1]}",
                available=f"{wanted} holds integers to 2**{np.finfo(wanted).nmant + 1} exactly",
                hint=f"make them smaller: fit_transform() with a scaler, say; or take {name!r} out of this reference",
            )


def _as_tensor(spec: TensorSpec) -> tuple[int, ...]:
    return spec.shape or (1,)


def _checked_stream(feature_set: FeatureSet, stream: Any) -> str | None:
    if stream is not None and (not isinstance(stream, str) or not stream or "@" in stream):
        raise SamplerError(
            f"a reference to {feature_set.label!r} reads the stream {stream!r}, which cannot be the name of one",
            available="streams of samplers, such as anchor, pair, positive and negative",
            hint="leave it out to read the first stream",
        )
    return stream


def _chosen(feature_set: FeatureSet, role: str, there: tuple[str, ...], given: Names) -> tuple[str, ...]:
    names = there if given is None else names_of(given)
    for position, name in enumerate(names):
        if name not in there:
            is_else = f", it is a {feature_set.role(name)}" if name in feature_set.columns else ""
            raise ColumnError(
                f"{feature_set.label!r} has no {role} {name!r}{is_else}",
                available=f"{role}s: {listed(there)}",
                hint=did_you_mean(name, there) if there else f"name it in {role}_keys when the feature set is made",
            )
        if name in names[:position]:
            raise ColumnError(f"{role} {name!r} of {feature_set.label!r} was named twice", hint="name it once")
    return names
