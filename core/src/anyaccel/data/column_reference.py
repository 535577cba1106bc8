"""Checks of references: which columns and which stream a `Reference` may name, and its configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from anyaccel.arguments import shown
from anyaccel.data.roles import Names, listed, names_of
from anyaccel.data.rows import Rows
from anyaccel.errors import ColumnError, ConfigError, SamplerError
from anyaccel.suggestions import did_you_mean

CONFIG_KEYS = ("feature_set", "features", "targets", "tags", "stream")


def columns_of_role(
    rows: Rows, role: str, columns: tuple[str, ...], given: Names, also: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The given names, which may be of `also`, too; all `columns` of a role for None."""
    names = columns if given is None else names_of(given)
    for position, name in enumerate(names):
        if name not in columns and name not in also:
            actual = f", it is a {rows.role(name)}" if name in rows.columns else ""
            raise ColumnError(
                f"{rows.label!r} has no {role} {name!r}{actual}",
                available=f"{role}s: {listed(columns)}",
                hint=did_you_mean(name, columns) if columns else f"name it in {role}_keys when the feature set is made",
            )
        if name in names[:position]:
            raise ColumnError(f"{role} {name!r} of {rows.label!r} was named twice", hint="name it once")
    return names


def checked_stream(label: str, stream: Any) -> str | None:
    """The name of a stream: None, or text without an `@`."""
    if stream is not None and (not isinstance(stream, str) or not stream or "@" in stream):
        raise SamplerError(
            f"a reference to {label!r} reads the stream {stream!r}, which is not a valid name",
            available="streams of samplers, such as anchor, pair, positive and negative",
            hint="leave it out to read the first stream",
        )
    return stream


def check_config(config: Any, labels: Iterable[str]) -> None:
    """Check the configuration of a reference, given the labels of the feature sets it may name."""
    if not isinstance(config, Mapping) or "feature_set" not in config or set(config) - set(CONFIG_KEYS):
        raise ConfigError(
            f"{shown(config)} is not the configuration of a reference",
            available=f"keys: {listed(CONFIG_KEYS)}",
            hint="give the dict that get_config() made",
        )
    labels = list(labels) if isinstance(labels, Iterable) and not isinstance(labels, str) else []
    if config["feature_set"] not in labels:
        raise ConfigError(
            f"a reference names the feature set {config['feature_set']!r}, which was not given",
            available=listed(labels) if labels else "",
            hint=did_you_mean(config["feature_set"], labels) if labels else "give it in feature_sets",
        )
