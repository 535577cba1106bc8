"""A registry with good and broken plugins in any order, checked against a model of two dictionaries."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis_profiles import examples

from anyaccel.device import Device
from anyaccel.errors import AnyaccelError, FrameworkError, NoBackendError
from anyaccel.plugin_testing import TinyBackend, entry, plugin_module
from anyaccel.registry import Registry

FRAMEWORKS = ("a", "b", "c")
KINDS = ("cpu", "gpu", "mps")
rows = st.lists(
    st.tuples(st.sampled_from(FRAMEWORKS), st.sets(st.sampled_from(KINDS), min_size=1)),
    max_size=2,
    unique_by=lambda r: r[0],
)
names = st.sampled_from(["p", "q", "r", "s"])
ways = st.sampled_from(["misspelt", "argument", "alien", "shadow"])


def made(offers) -> list[TinyBackend]:
    return [TinyBackend(framework, sorted(kinds)) for framework, kinds in offers]


def broken(way: str):
    hooks = {
        "misspelt": {"backend": lambda: ()},
        "argument": {"backends": lambda: made([("c", {"xpu"})]), "epoch_end": lambda run, loss: None},
        "alien": {"backends": lambda: [TinyBackend("c", ("xpu",)), object()]},
        "shadow": {"backends": lambda: [TinyBackend("c", ("xpu",)), TinyBackend("numpy", ("xpu",))]},
    }
    return plugin_module(way, **hooks[way])


class RegistryMachine(RuleBasedStateMachine):
    """Rules register; invariants compare what the registry answers with the model's table."""

    @initialize(found=st.lists(st.tuples(names, rows), max_size=3))
    def load(self, found) -> None:
        self.table: dict[tuple[str, str], TinyBackend] = {}
        self.good: set[str] = {"numpy"}
        self.seen: set[str] = {"numpy"}
        offered = [(name, made(offers)) for name, offers in found]
        entries = [
            entry(name, plugin_module(name, backends=lambda b=b: b), f"dist-{i}") for i, (name, b) in enumerate(offered)
        ]
        self.registry = Registry(lambda: TinyBackend("numpy"), lambda: entries)
        for name, backends in sorted(offered, key=lambda pair: pair[0]):
            self.model_takes(name, backends)
        assert self.registry.frameworks[0] == "numpy"

    def model_takes(self, name: str, backends: list[TinyBackend]) -> bool:
        """Whether the model takes a plugin as a whole: its name is new, and none of its pairs is taken."""
        pairs = {(b.framework, kind): b for b in backends for kind in b.kinds}
        if name in self.seen:
            return False
        self.seen.add(name)
        free = {pair: backend for pair, backend in pairs.items() if pair not in self.table}
        self.table.update(free)
        if len(free) == len(pairs):
            self.good.add(name)
        return len(free) == len(pairs)

    @rule(name=names, offers=rows)
    def register_good(self, name, offers) -> None:
        backends = made(offers)
        module = plugin_module(name, backends=lambda: backends)
        if self.model_takes(name, backends):
            self.registry.register(module, name)
        else:
            with pytest.raises(AnyaccelError):
                self.registry.register(module, name)

    @rule(name=st.sampled_from(["x", "y"]), way=ways)
    def register_broken(self, name, way) -> None:
        with pytest.raises(Exception):  # noqa: B017  # which one is the subject of test_broken_plugins
            self.registry.register(broken(way), name)

    @rule(framework=st.sampled_from([*FRAMEWORKS, "d"]), kind=st.sampled_from([*KINDS, "xpu"]))
    def find(self, framework, kind) -> None:
        backend = self.table.get((framework, kind))
        assert self.registry.serves(framework, kind) == (backend is not None)
        if backend is None:
            with pytest.raises(FrameworkError):
                self.registry.find(framework, kind)
        else:
            assert self.registry.find(framework, kind) is backend
            assert self.registry.serving(framework, Device(kind)) is backend

    @rule(data=st.data())
    def owner(self, data) -> None:
        framework = data.draw(st.sampled_from(FRAMEWORKS))
        cell = TinyBackend(framework).new()
        if any(name == framework for name, _ in self.table):
            assert self.registry.owner(cell) == framework
        else:
            with pytest.raises(NoBackendError):
                self.registry.owner(cell)

    @invariant()
    def the_table_is_the_models(self) -> None:
        served = {framework for framework, _ in self.table}
        assert set(self.registry.frameworks) == served | {"numpy"}
        assert set(self.registry.backends) - {self.registry.find("numpy")} == set(self.table.values())
        for framework in served:
            assert set(self.registry.kinds(framework)) == {kind for name, kind in self.table if name == framework}

    @invariant()
    def plugins_that_work_are_the_models(self) -> None:
        assert {p.name for p in self.registry.plugins if not p.is_broken} == self.good


TestRegistry = RegistryMachine.TestCase
TestRegistry.settings = settings(max_examples=examples(60), stateful_step_count=15, deadline=None)
