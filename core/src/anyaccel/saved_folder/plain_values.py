"""Values as plain data, ready for JSON, with separate arrays, and back; no pickle."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from anyaccel.arguments import shown
from anyaccel.errors import ConfigError

KIND = "$"
"""The key of the name of what a mapping stands for."""
HINT = "pass the folder or the dict without changes"
_PLAIN = (str, bool, int, type(None))

Arrays = dict[str, np.ndarray]


class NotPlainError(Exception):
    """An object whose state is not plain: a function, say, or an object of an unknown class."""


def refuse(value: Any, arrays: Arrays, path: str) -> Any:
    """Raise NotPlainError."""
    raise NotPlainError(f"{path}: {shown(value)}")


Write = Callable[[Any, Arrays, str], Any]


def plain(value: Any, arrays: Arrays, path: str, other: Write = refuse) -> Any:
    """Return a value as plain data; its arrays of numbers are added to `arrays`, under `path`.

    Args:
        value: Any value.
        arrays: Mapping that receives the arrays.
        path: Prefix of the names in `arrays`.
        other: Function that writes a value that is neither plain nor an array, as a mapping with `KIND`; it may be
            called with parts of it.

    Raises:
        NotPlainError: a part of it is neither plain nor an array, and `other` does not write it.
    """
    if isinstance(value, _PLAIN) and type(value) in _PLAIN:
        return value
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "biuf":
            is_transposed = value.flags.f_contiguous and not value.flags.c_contiguous
            arrays[path] = np.array(value.T if is_transposed else value, order="C")
            # The order of axes decides the last bit of a product.
            return {KIND: "array", "name": path, "transposed": is_transposed}
        if value.dtype.kind not in "OU":
            raise NotPlainError(f"{path}: an array of {value.dtype}")
        items = plain(value.reshape(-1).tolist(), arrays, path, other)
        return {KIND: "array", "dtype": value.dtype.str, "shape": list(value.shape), "items": items}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {KIND: "scalar", "dtype": value.dtype.name, "value": plain(value.item(), arrays, path, other)}
    if isinstance(value, np.dtype):
        return {KIND: "dtype", "name": value.str}
    if isinstance(value, type) and issubclass(value, (np.number, np.bool_)):
        return {KIND: "type", "name": np.dtype(value).name}
    if isinstance(value, dict):
        return {KIND: "dict", "items": plain([[key, item] for key, item in value.items()], arrays, path, other)}
    if type(value) is tuple:
        return {KIND: "tuple", "items": plain(list(value), arrays, path, other)}
    if isinstance(value, (np.generic, type, tuple)):
        raise NotPlainError(f"{path}: {shown(value)}")
    if type(value) is float:
        return value if math.isfinite(value) else {KIND: "float", "value": repr(value)}
    if type(value) is list:
        return [plain(item, arrays, f"{path}/{index}", other) for index, item in enumerate(value)]
    return other(value, arrays, path)


class PlainReader:
    """Read the output of `plain`. A subclass also reads the output of `other`, by its `readers`.

    Args:
        arrays: Arrays by their names in the plain data.
    """

    readers: Mapping[str, Callable[[Any, Mapping[str, Any]], Any]]
    """By kind: what reads a mapping of it."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._arrays = arrays

    def value(self, plain: Any) -> Any:
        """Return the value of plain data.

        Raises:
            ConfigError: it is malformed.
        """
        if isinstance(plain, list):
            return [self.value(item) for item in plain]
        if not isinstance(plain, Mapping):
            return plain
        try:
            return self.readers[plain[KIND]](self, plain)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{shown(plain)} is not a saved value", hint=HINT) from error

    def array(self, plain: Mapping[str, Any]) -> np.ndarray:
        """Return an array: of numbers by its name, or of text and objects by its items."""
        if "name" in plain:
            array = np.array(self._arrays[plain["name"]], order="C")
            return array.T if plain["transposed"] else array
        flat = np.empty(len(plain["items"]), dtype=object)
        flat[:] = self.value(plain["items"])
        return flat.reshape(plain["shape"]).astype(np.dtype(plain["dtype"]))


PlainReader.readers = {
    "array": lambda reader, plain: reader.array(plain),
    "scalar": lambda reader, plain: np.dtype(plain["dtype"]).type(reader.value(plain["value"])),
    "dtype": lambda reader, plain: np.dtype(plain["name"]),
    "type": lambda reader, plain: np.dtype(plain["name"]).type,
    "dict": lambda reader, plain: {reader.value(key): reader.value(value) for key, value in plain["items"]},
    "tuple": lambda reader, plain: tuple(reader.value(plain["items"])),
    "float": lambda reader, plain: float(plain["value"]),
}
