"""The random states that a source uses: global generators, and those that its loader, sampler and data set hold."""

from __future__ import annotations

import contextlib
import inspect
import json
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from anyaccel.arguments import shown
from anyaccel.backend import Backend
from anyaccel.errors import SourceError, StateError
from anyaccel.registry import registry

States = Mapping[str, Any]
"""The state of each generator, by where it is held: `"sampler.generator"`."""
_GLOBAL = "global "
_MOST_OBJECTS = 1000
"""Of a source, that are searched for generators."""
_MOST_ITEMS = 100
"""Of a list or a dict: one that is longer holds data."""
_CONTAINERS = frozenset({list, tuple, dict, set, frozenset, FunctionType, MethodType})
"""Types whose objects are no generators; to ask each framework takes longer."""
_PLAIN = (str, bytes, int, float, complex, type(None), np.ndarray, np.generic, ModuleType)


def imported_backends() -> Iterator[Backend]:
    """Yield the backends whose frameworks have been imported."""
    for backend in registry().backends_in_use:
        if backend.import_roots[0] in sys.modules:  # others, such as the plugin's package, do not import the framework
            yield backend


class RandomStates:
    """The generators of NumPy, of Python, and of frameworks that are reachable from a user's source.

    Attributes, lists and dicts are searched, and functions with their closures, bound objects and globals. Worker
    processes have copies, which are not visible here.

    Args:
        origin: A loader, a data set, or a function.
    """

    def __init__(self, origin: Any) -> None:
        self._origin = origin
        self._found: dict[str, Any] | None = None

    def once(self) -> RandomStates:
        """Return an object with the current generators, which are searched for only once."""
        found = RandomStates(self._origin)
        found._found = dict(_search(self._origin))
        return found

    def _generators(self) -> dict[str, Any]:
        return dict(_search(self._origin)) if self._found is None else self._found

    def states(self, *, frameworks: bool = False) -> dict[str, Any]:
        """Return the current states.

        Args:
            frameworks: Include the global generators of frameworks.
        """
        states: dict[str, Any] = {
            f"{_GLOBAL}numpy": np.random.get_state(legacy=False),
            f"{_GLOBAL}python": random.getstate(),
        }
        if frameworks:
            for backend in imported_backends():
                state = backend.generator_state()
                if state is not None:
                    states[f"{_GLOBAL}{backend.framework}"] = state
        return {**states, **self.held()}

    def held(self) -> dict[str, Any]:
        """Return the states of the generators that the source holds, without the global ones."""
        backends = tuple(imported_backends())
        return {name: _state_of(held, backends) for name, held in self._generators().items()}

    def load(self, states: States) -> None:
        """Set the states that `states` gave, here or in another process.

        Raises:
            SourceError: a generator is no longer where it was, or is of another kind.
        """
        generators = self._generators()
        for name, state in states.items():
            if name.startswith(_GLOBAL):
                if name == f"{_GLOBAL}numpy":
                    np.random.set_state(state)
                elif name == f"{_GLOBAL}python":
                    random.setstate(_python_state(state))
                else:
                    for backend in imported_backends():
                        if name == f"{_GLOBAL}{backend.framework}":
                            backend.set_generator_state(state)
                continue
            if name not in generators:
                raise SourceError(
                    f"the random generator {name!r} is no longer in the source",
                    available=", ".join(generators),
                    hint="create the source in the same way as for the run that wrote the checkpoint",
                )
            try:
                generator = generators[name]
                if isinstance(generator, np.random.Generator):
                    generator.bit_generator.state = state
                elif isinstance(generator, np.random.RandomState):
                    generator.set_state(state)
                elif isinstance(generator, np.random.BitGenerator):
                    generator.state = state
                elif isinstance(generator, random.Random):
                    generator.setstate(_python_state(state))
                else:
                    for backend in imported_backends():
                        if backend.owns(generator):
                            backend.set_generator_state(state, generator)
            except (TypeError, ValueError, KeyError, RuntimeError) as error:
                raise SourceError(
                    f"the random generator {name!r} does not accept its earlier state: {error}",
                    hint="create the source in the same way as for the run that wrote the checkpoint",
                ) from error


@contextmanager
def watched_rng() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells, after the context, whether no thread stream can replace frameworks' global
    generators.
    """
    with ExitStack() as stack:
        watches = [stack.enter_context(backend.watch_rng()) for backend in imported_backends()]
        yield lambda: any(getattr(watch, "passed", False) for watch in watches)


@contextmanager
def kept_frameworks() -> Iterator[None]:
    """Restore the global generators of frameworks at the end of the context."""
    kept = [(backend, state) for backend in imported_backends() if (state := backend.generator_state()) is not None]
    try:
        yield
    finally:
        for backend, state in kept:
            backend.set_generator_state(state)


def frameworks_of(states: States) -> dict[str, Any]:
    """Return those of the global generators of frameworks alone."""
    others = (f"{_GLOBAL}numpy", f"{_GLOBAL}python")
    return {name: state for name, state in states.items() if name.startswith(_GLOBAL) and name not in others}


def same_states(one: States, other: States) -> bool:
    """Whether two states are equal."""
    first, second = to_arrays(one), to_arrays(other)
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def to_arrays(states: States) -> dict[str, np.ndarray]:
    """Return states as arrays of bytes, for a file."""
    return {
        name: np.frombuffer(json.dumps(state, default=_as_json).encode(), np.uint8) for name, state in states.items()
    }


def from_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Rebuild states from the output of `to_arrays`.

    Raises:
        StateError: it is malformed.
    """
    try:
        return {
            name: json.loads(np.asarray(array, np.uint8).tobytes(), object_hook=_from_json)
            for name, array in arrays.items()
        }
    except (ValueError, TypeError, KeyError) as error:
        problem = f"a random state in a checkpoint is malformed: {error}"
        raise StateError(problem, hint="use another checkpoint of the folder") from error


def _as_json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "shape": value.shape, "bytes": value.tobytes().hex()}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{shown(value)} is in a random state")


def _from_json(value: dict[str, Any]) -> Any:
    if value.keys() != {"dtype", "shape", "bytes"}:
        return value
    return np.frombuffer(bytes.fromhex(value["bytes"]), value["dtype"]).reshape(value["shape"]).copy()


def _search(origin: Any) -> Iterator[tuple[str, Any]]:
    """Yield the generators that are reached from an object, each once, by where they are, breadth first."""
    seen: set[int] = set()
    waiting: deque[tuple[str, Any]] = deque([("", origin)] if _may_hold(origin) else [])
    kept = []  # ids are of objects that live
    backends = tuple(imported_backends())
    while waiting and len(seen) < _MOST_OBJECTS:
        path, value = waiting.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        kept.append(value)
        if type(value) not in _CONTAINERS and _state_of(value, backends) is not None:
            yield path or "the source itself", value
            continue
        for name, part in _parts(value):
            if _may_hold(part):
                waiting.append((f"{path}.{name}" if path else name, part))


def _may_hold(value: Any) -> bool:
    """Whether an object can be or hold a generator: it is neither plain nor a tensor of any framework."""
    return not (isinstance(value, _PLAIN) or hasattr(type(value), "shape"))


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (list, tuple, set, frozenset)):
        if len(value) <= _MOST_ITEMS:
            yield from ((str(i), part) for i, part in enumerate(value))
    elif isinstance(value, dict):
        if len(value) <= _MOST_ITEMS:
            yield from ((str(key), part) for key, part in value.items())
    elif isinstance(value, FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    elif isinstance(value, type):
        return
    else:
        held = getattr(value, "__self__", None)  # of a method
        if held is not None and not isinstance(held, ModuleType):
            yield "__self__", held
        if inspect.ismethod(value):
            yield from _parts_of_function(value.__func__)
        yield from _attributes(value)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    try:
        held = dict(vars(value))
    except TypeError:
        held = {}
    for cls in type(value).__mro__[:-1]:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            with contextlib.suppress(Exception):  # not set; or of an extension type, which reads as it likes
                held[name] = getattr(value, name)
        if cls.__module__.partition(".")[0] not in sys.stdlib_module_names:
            for name in ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__"):
                function = cls.__dict__.get(name)
                if isinstance(function, FunctionType):
                    yield f"{name}()", function
    yield from held.items()


def _parts_of_function(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the closure, defaults and module globals of a function."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not set yet
            continue
    yield from (("defaults", function.__defaults__), ("keyword defaults", function.__kwdefaults__))
    module = function.__module__ or ""
    root = module.partition(".")[0]
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    in_library = "site-packages" in file or "dist-packages" in file or root in sys.stdlib_module_names
    if root in sys.modules and in_library:  # whose own globals are not searched
        return
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _state_of(value: Any, backends: Iterable[Backend]) -> Any:
    """Return the state of a generator; None of anything else."""
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state(legacy=False)
    if isinstance(value, np.random.BitGenerator):
        return value.state
    if isinstance(value, random.Random):
        return value.getstate()
    for backend in backends:
        if backend.owns(value):
            return backend.generator_state(value)
    return None


def _python_state(state: Any) -> Any:
    """Return a state read from a file in the form that `random.setstate` takes."""
    version, numbers, gauss = state
    return version, tuple(numbers), gauss
