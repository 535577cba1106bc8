"""Python values that code depends on, read recursively. Two readings differ if any of the values has changed.

Compiled code keeps the values that it has read: globals, closures, defaults, attributes of configurations and models,
arrays. Values of variables are not read, because they are arguments of compiled code.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import sys
import types
import weakref
from argparse import Namespace
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

PLAIN = (type(None), bool, int, float, complex, str, bytes, np.dtype, np.generic, type(Ellipsis), enum.Enum)
"""Types of values that `plain_key` compares."""
_MAX_ARRAY_BYTES = 2**28


class IdentityKey:
    """The identity of an object, by a weak reference: once the object is gone, the key equals nothing.

    Raises:
        TypeError: the object does not support weak references.
    """

    def __init__(self, obj: Any) -> None:
        self._ref = weakref.ref(obj)
        self._hash = id(obj)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IdentityKey):
            return NotImplemented
        obj = self._ref()
        return obj is not None and obj is other._ref()


class Incomparable:
    """The key of a value that cannot be compared: it equals no other key, not even one of the same value."""


def plain_key(value: Any) -> Any:
    """Return the key of a value of a `PLAIN` type: equal for the same type and value, NaN included."""
    if isinstance(value, enum.Enum):
        return type(value), value.name
    if isinstance(value, (float, complex, np.generic)):
        return type(value), repr(value)  # -0.0 is not 0.0, NaN is NaN
    return type(value), value


def array_key(value: Any) -> Any:
    """Return the key of an array from its shape, dtype and bytes."""
    try:
        array = np.asarray(value)
    except Exception:  # a framework's placeholder without values
        return object_key(value)
    if array.nbytes > _MAX_ARRAY_BYTES or array.dtype.hasobject:
        return Incomparable()
    return array.shape, array.dtype.str, hashlib.blake2b(array.tobytes(), digest_size=16).digest()


def object_key(value: Any) -> Any:
    """Return the identity of an object; or the object, if it supports no weak reference but compares by value."""
    try:
        return IdentityKey(value)
    except TypeError:
        pass
    kind: Any = type(value)
    if kind is object:
        return value  # a sentinel, which holds nothing
    if kind.__eq__ is object.__eq__ or kind.__hash__ is None:
        return Incomparable()
    return kind, value


Values = tuple[tuple[str, Any], ...]
"""Pairs of the path to a value, such as `config.alpha`, and its key."""

_MAX_VALUES = 20_000
_MAX_DEPTH = 60
_LIBRARIES = sys.stdlib_module_names | {"numpy", "anyaccel"}
_NAMESPACES = (types.SimpleNamespace, Namespace)
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType)
_CLASS_BOOKKEEPING = {
    *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__slots__"),
    *("__abstractmethods__", "__parameters__", "__orig_bases__", "__match_args__", "__dataclass_fields__"),
    *("__dataclass_params__", "__firstlineno__", "__static_attributes__", "__annotate__", "__annotate_func__"),
    *("__annotations_cache__", "_abc_impl", "__hash__"),
}


class ValueReader:
    """Read values into `pairs`, each object once.

    Code of libraries counts as constant, and their objects count by identity and simple attributes. Other functions are
    followed into the values that they read, other objects into their attributes and classes.

    Args:
        is_part: Function that returns whether a value is skipped, because it is an argument of compiled code.
        libraries: Top-level modules of libraries other than NumPy and Python's standard library.

    Attributes:
        pairs: Pairs of path and key, so far.
    """

    def __init__(self, is_part: Callable[[Any], bool] = lambda _: False, libraries: Container[str] = ()) -> None:
        self.pairs: list[tuple[str, Any]] = []
        self._is_part, self._libraries = is_part, libraries
        self._seen: dict[int, tuple[str, Any]] = {}
        self._seen_modules: set[tuple[str, frozenset[str]]] = set()
        self._depth = 0

    def read(self, path: str, value: Any) -> None:
        """Read a value and everything that it depends on."""
        if isinstance(value, PLAIN):
            self.pairs.append((path, plain_key(value)))
        elif self._is_part(value):
            self.pairs.append((path, "part"))
        elif len(self.pairs) >= _MAX_VALUES or self._depth >= _MAX_DEPTH:
            self.pairs.append((path, Incomparable()))
        elif id(value) in self._seen:
            self.pairs.append((path, ("same as", self._seen[id(value)][0])))
        else:
            self._seen[id(value)] = path, value  # kept alive, so that no other object gets the same id
            self._depth += 1
            try:
                self._read_unseen(path, value)
            finally:
                self._depth -= 1

    def read_attributes(self, path: str, part: Any, ignored: Container[str]) -> None:
        """Read an object's class and its attributes, without the ignored ones."""
        self.read(type(part).__qualname__, type(part))
        for name, value in sorted((_attributes(part) or {}).items()):
            if name not in ignored:
                self.read(f"{path}.{name}" if path else name, value)

    def _read_unseen(self, path: str, value: Any) -> None:
        if isinstance(value, types.FunctionType):
            self._read_function(path, value)
        elif isinstance(value, type):
            self._read_class(path, value)
        elif isinstance(value, Mapping):
            self.pairs.append((path, (type(value), len(value))))
            for i, (key, item) in enumerate(list(value.items())):
                label = key if isinstance(key, str) else f"keys[{i}]"
                self.read(f"{path} keys", key)
                self.read(f"{path}[{label!r}]", item)
        elif isinstance(value, (list, tuple)):
            self.pairs.append((path, (type(value), len(value))))
            for i, item in enumerate(list(value)):
                self.read(f"{path}[{i}]", item)
        elif isinstance(value, (set, frozenset)):
            is_plain = all(isinstance(item, PLAIN) for item in value)
            self.pairs.append((path, frozenset(map(plain_key, value)) if is_plain else Incomparable()))
        elif isinstance(value, types.MethodType):
            self._read_all(path, ("", value.__func__), ("", value.__self__))
        elif isinstance(value, functools.partial):
            self._read_all(path, ("", value.func), (".args", value.args), (".keywords", value.keywords))
        elif isinstance(value, types.BuiltinMethodType):
            owner = value.__self__
            if owner is None or isinstance(owner, types.ModuleType):
                self.pairs.append((path, object_key(value)))
            else:
                self._read_all(path, (".__name__", value.__name__), ("", owner))
        elif isinstance(value, property):
            self._read_all(path, ("", value.fget), ("", value.fset))
        elif isinstance(value, (staticmethod, classmethod)):
            self.read(path, value.__func__)
        elif isinstance(value, (types.ModuleType, weakref.ref, types.CodeType)):
            self.pairs.append((path, object_key(value)))
        elif hasattr(type(value), "__array__"):
            self.pairs.append((path, array_key(value)))
        elif self._is_library(type(value).__module__) and not isinstance(value, _NAMESPACES):
            self.pairs.append((path, object_key(value)))
            self._read_all(path, ("", getattr(value, "__wrapped__", None)))
            for name, attribute in (_attributes(value) or {}).items():
                if _is_simple(attribute):
                    self.read(f"{path}.{name}", attribute)
        else:
            attributes = _attributes(value)
            self.read(type(value).__qualname__, type(value))
            if attributes is None:
                self.pairs.append((path, Incomparable()))
            for name, attribute in (attributes or {}).items():
                self.read(f"{path}.{name}", attribute)

    def _is_library(self, module: Any) -> bool:
        root = str(module).partition(".")[0]
        return root in _LIBRARIES or root in self._libraries

    def _read_function(self, path: str, function: types.FunctionType) -> None:
        self.pairs.append((path, function.__code__))
        defaults = (".__defaults__", function.__defaults__), (".__kwdefaults__", function.__kwdefaults__)
        self._read_all(path, *defaults)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            try:
                self.read(name, cell.cell_contents)
            except ValueError:
                self.pairs.append((name, "empty"))
        if self._is_library(function.__module__):
            return
        for name, value in function.__dict__.items():
            self.read(f"{path}.{name}", value)
        names = _names_in(function.__code__)
        for name, value in names.found_in(function.__globals__):
            self._read_global(name, value, names.attributes)

    def _read_global(self, name: str, value: Any, attributes: frozenset[str]) -> None:
        """Read a global; if it is a module, only the attributes that the code reads."""
        if not isinstance(value, types.ModuleType):
            self.read(name, value)
            return
        if self._is_library(value.__name__) or (value.__name__, attributes) in self._seen_modules:
            return
        self._seen_modules.add((value.__name__, attributes))
        for attribute in sorted(attributes):
            if attribute in vars(value):
                self._read_global(f"{name}.{attribute}", vars(value)[attribute], attributes)

    def _read_class(self, path: str, cls: type) -> None:
        if self._is_library(cls.__module__):
            self.pairs.append((path, cls))
            return
        self.pairs.append((path, IdentityKey(cls)))
        for base in cls.__mro__:
            if self._is_library(base.__module__):
                continue
            for name, member in list(vars(base).items()):
                if name not in _CLASS_BOOKKEEPING and not isinstance(member, _DESCRIPTORS):
                    self.read(f"{base.__qualname__}.{name}", member)

    def _read_all(self, path: str, *values: tuple[str, Any]) -> None:
        for suffix, value in values:
            if value is not None:
                self.read(f"{path}{suffix}", value)


def attributes_key(
    parts: Iterable[tuple[str, Any]],
    ignored: Callable[[Any], Container[str]],
    is_part: Callable[[Any], bool],
    libraries: Container[str] = (),
) -> Values:
    """Return a key from the attributes of a model's parts, and from the code of their classes.

    Args:
        parts: Pairs of path and part.
        ignored: Function that returns the names of the attributes of a part to ignore.
        is_part: Function that returns whether a value is among `parts`, or is a variable, whose value is an argument of
            compiled functions.
        libraries: See `ValueReader`.
    """
    reader = ValueReader(is_part, libraries)
    for path, part in parts:
        reader.pairs.append((path, IdentityKey(type(part))))
        reader.read_attributes(path, part, ignored(part))
    return tuple(reader.pairs)


def values_of(path: str, value: Any, libraries: Container[str] = ()) -> Values:
    """Return the keys of a value and of everything that it depends on."""
    reader = ValueReader(libraries=libraries)
    reader.read(path, value)
    return tuple(reader.pairs)


def changed_paths(before: Values, after: Values) -> list[str]:
    """Return paths of the values that changed between two readings, except those that cannot be compared."""
    old, new = _by_path(before), _by_path(after)
    names = (name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name))
    return [name for name in names if not _has_incomparable(old.get(name)) and not _has_incomparable(new.get(name))]


def _by_path(values: Values) -> dict[str, list[Any]]:
    grouped: dict[str, list[Any]] = {}
    for path, key in values:
        grouped.setdefault(path, []).append(key)
    return grouped


def _has_incomparable(keys: list[Any] | None) -> bool:
    return any(isinstance(key, Incomparable) for key in keys or ())


def _attributes(obj: Any) -> dict[str, Any] | None:
    """Return the attributes of an object in its `__dict__` and slots; None if it has neither."""
    slots = [name for cls in type(obj).__mro__ for name in _slot_names(cls)]
    held = getattr(obj, "__dict__", None)
    if held is None and not slots:
        return None
    return {**{name: getattr(obj, name) for name in slots if hasattr(obj, name)}, **(held or {})}


def _slot_names(cls: type) -> Iterator[str]:
    slots = vars(cls).get("__slots__", ())
    for name in (slots,) if isinstance(slots, str) else slots:
        if name not in ("__dict__", "__weakref__"):
            yield f"_{cls.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name


def _is_simple(value: Any, levels: int = 2) -> bool:
    """Whether a value of a library's object is a setting, not bookkeeping."""
    if isinstance(value, (*PLAIN, types.FunctionType, functools.partial, np.ndarray)):
        return True
    if isinstance(value, Mapping):
        value = list(value.values())
    return levels > 0 and isinstance(value, (list, tuple)) and all(_is_simple(item, levels - 1) for item in value)


class _Names:
    """Names that code and the code inside it read: globals, imported modules, and attributes of anything."""

    def __init__(self, code: types.CodeType) -> None:
        read = set(_names_read(code))
        self._globals = sorted(name for kind, name in read if kind in ("LOAD_GLOBAL", "LOAD_NAME"))
        self._imports = sorted(name for kind, name in read if kind == "IMPORT_NAME")
        self.attributes = frozenset(name for kind, name in read if kind in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"))

    def found_in(self, scope: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the globals in a scope, and the imported modules."""
        yield from ((name, scope[name]) for name in self._globals if name in scope)
        yield from ((name, sys.modules[name]) for name in self._imports if name in sys.modules)


_names_in = functools.lru_cache(maxsize=4096)(_Names)


def _names_read(code: types.CodeType) -> Iterator[tuple[str, str]]:
    """Yield pairs of instruction and name."""
    yield from (
        (instruction.opname, instruction.argval)
        for instruction in dis.get_instructions(code)
        if isinstance(instruction.argval, str)
    )
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_read(constant)
