"""Plugins that are broken in one way each, for tests that everything else works beside them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from anyaccel.backend import Backend, DeviceInfo, Memory, MemoryInfo
from anyaccel.device import Device
from anyaccel.plugin_testing import FakeEntryPoint, TinyBackend, entry, plugin_module

CPU = Device("cpu")


def broken_plugins(framework: str) -> dict[str, tuple[FakeEntryPoint, str]]:
    """Entry points by name, each with words of the cause that its plugin is listed with; `""` if it only must not harm.

    Names start with `brk_`, and are those of their frameworks, except where one offers what `framework` has.
    """
    targets = {**_modules(), **_backends(framework)}
    return {name: (entry(name, target, f"anyaccel-{name}", "0.3"), words) for name, (target, words) in targets.items()}


class Panic(BaseException):
    """As native code raises it: no Exception."""


class Untold(Exception):
    """An error without a readable text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class _Abstract(Backend):
    """Lacks the methods."""

    framework = "brk_abstract"
    kinds = ("cpu",)
    import_roots = ("tiny_brk_abstract",)


def _raise(error: BaseException) -> Callable[..., Any]:
    def function(*arguments: Any) -> Any:
        raise error

    return function


def _undecorated() -> ModuleType:
    module = ModuleType("undecorated")
    module.backends = lambda: [TinyBackend("brk")]  # type: ignore[attr-defined]
    return module


def _of_contract(version: Any) -> ModuleType:
    module = plugin_module("brk", backends=lambda: [TinyBackend("brk")])
    module.contract = version  # type: ignore[attr-defined]
    return module


class _Remembers(TinyBackend, Memory):
    """A backend as in 0.1: a capability is one of its bases."""

    def memory(self, device: Device) -> MemoryInfo:
        return MemoryInfo(0, 0, 0, 0)

    def release_memory(self, device: Device) -> None:
        pass


def _late_devices() -> Iterator[Device]:
    yield CPU
    raise LookupError("the second device")


def _generator() -> Iterator[Backend]:
    yield TinyBackend("brk")
    raise LookupError("the second one")


def _modules() -> dict[str, tuple[Any, str]]:
    """What is wrong with the module or its hooks."""

    def offering(backends: Callable[..., Any]) -> ModuleType:
        return plugin_module("brk", backends=backends)

    rows = {
        "import": (ModuleNotFoundError("No module named 'brk_native'"), "brk_native"),
        "import_raises": (RuntimeError("two\nlines"), "RuntimeError: two lines"),
        "import_exits": (SystemExit(3), "SystemExit: 3"),
        "import_panics": (Panic("native"), "Panic: native"),
        "import_untold": (Untold(), "Untold: (RuntimeError in str)"),
        "unknown_hook": (plugin_module("brk", backend=_generator), "unknown hook 'backend'"),
        "unknown_argument": (plugin_module("brk", epoch_end=lambda run, loss: None), "loss"),
        "undecorated": (_undecorated(), "no @hookimpl"),
        "backends_raise": (offering(_raise(OSError("no driver"))), "OSError: no driver"),
        "backends_exit": (offering(_raise(SystemExit(1))), "SystemExit: 1"),
        "backends_none": (offering(lambda: None), "returned NoneType, not list"),
        "backends_text": (offering(lambda: "brk"), "returned str, not list"),
        "backends_class": (offering(lambda: [TinyBackend]), "which is not a Backend"),
        "backends_alien": (offering(lambda: [TinyBackend("brk"), object()]), "offers object"),
        "backends_late": (offering(_generator), "LookupError: the second one"),
        "contract_of_0_1": (_of_contract(None), "does not define its contract version"),
        "contract_text": (_of_contract("2"), "has contract = '2', but this anyaccel has contract"),
        "contract_of_tomorrow": (_of_contract(99), "is written for contract 99, but this anyaccel has contract"),
        "policies_list": (plugin_module("brk", policies=lambda: ["first"]), "returned list, not dict"),
        "policies_number": (
            plugin_module("brk", policies=lambda: {"first": 7}),
            "'first' is refused: it is 7, not a fun",
        ),
        "policies_raise": (plugin_module("brk", policies=_raise(KeyError("p"))), "KeyError: 'p'"),
    }
    return {f"brk_{name}": row for name, row in rows.items()}


def _attributes(framework: str) -> dict[str, tuple[Mapping[str, Any], str]]:
    """Attributes of another type, and those of another plugin."""
    return {
        "framework_capital": ({"framework": "Brk"}, "framework='Brk'"),
        "fork_text": ({"fork_safe": "no"}, "fork_safe='no'"),
        "framework_number": ({"framework": 7}, "framework=7"),
        "kinds_text": ({"kinds": "cpu"}, "kinds='cpu'"),
        "kinds_alias": ({"kinds": ("cuda",)}, "kinds=('cuda',)"),
        "kinds_none": ({"kinds": None}, "kinds=None"),
        "roots_text": ({"import_roots": "brk"}, "import_roots='brk'"),
        "roots_none": ({"import_roots": None}, "import_roots=None"),
        "environment_text": ({"environment": "BRK"}, "environment='BRK'"),
        "roots_of_another": ({"import_roots": (framework,)}, ""),
        "conflict": ({"framework": framework}, f"refused for {framework} on cpu"),
        "shadow": ({"framework": "numpy"}, "built into anyaccel"),
    }


def _answers() -> dict[str, tuple[Mapping[str, Any], str]]:
    """Methods that raise, end the process, or answer something else."""
    raising, exiting = _raise(RuntimeError("no\ndriver")), _raise(SystemExit(3))
    return {
        "devices_raise": (
            {"devices": raising},
            "devices() of its backend for FRAMEWORK raised RuntimeError: no",
        ),
        "devices_exit": ({"devices": exiting}, "devices() of its backend for FRAMEWORK raised SystemExit: 3"),
        "devices_panic": ({"devices": _raise(Panic("native"))}, "raised Panic: native"),
        "devices_untold": ({"devices": _raise(Untold())}, "raised Untold: (RuntimeError in str)"),
        "devices_late": ({"devices": _late_devices}, "raised LookupError: the second device"),
        "devices_endless": ({"devices": lambda: itertools.repeat(CPU)}, "not devices of its kinds, each once"),
        "devices_none": ({"devices": lambda: None}, "devices() of its backend for FRAMEWORK raised TypeError"),
        "devices_texts": ({"devices": lambda: ["cpu"]}, "returned ('cpu',), not devices of its kinds"),
        "devices_alien": ({"devices": lambda: [Device("gpu")]}, "not devices of its kinds, each once"),
        "devices_twice": ({"devices": lambda: [CPU, CPU]}, "not devices of its kinds, each once"),
        "owns_raise": ({"owns": raising}, "owns() of its backend for FRAMEWORK raised RuntimeError: no driver"),
        "owns_exit": ({"owns": exiting}, "owns() of its backend for FRAMEWORK raised SystemExit: 3"),
        "owns_text": ({"owns": lambda obj: "yes"}, "returned 'yes', not True or False"),
        "owns_all": ({"owns": lambda obj: True}, ""),
        "info_raise": ({"device_info": raising}, "device_info() of its backend for FRAMEWORK raised RuntimeError"),
        "info_text": ({"device_info": lambda device: "chip"}, "returned 'chip', not a complete DeviceInfo"),
        "info_numbers": ({"device_info": lambda device: DeviceInfo(7)}, "not a complete DeviceInfo"),  # type: ignore[arg-type]
        "name_raise": ({"device_string": raising}, "device_string() of its backend for FRAMEWORK raised RuntimeError"),
        "name_none": ({"device_string": lambda device: None}, "returned None, not a text"),
        "reason_raise": ({"unavailable_reason": raising}, "unavailable_reason() of its backend for FRAMEWORK raised"),
        "reason_exit": ({"unavailable_reason": exiting}, "unavailable_reason() of its backend for FRAMEWORK raised"),
        "reason_none": ({"unavailable_reason": lambda device: None}, "returned None, not a text"),
        "everything_raises": (
            dict.fromkeys(("devices", "owns", "device_info", "device_string", "unavailable_reason"), raising),
            "devices() of its backend for FRAMEWORK raised RuntimeError: no",
        ),
    }


def _backends(framework: str) -> dict[str, tuple[Any, str]]:
    """What is wrong with a backend: its attributes, its methods, or what it offers."""
    raising, exiting = _raise(RuntimeError("no\ndriver")), _raise(SystemExit(3))
    offered = {
        f"brk_{name}": (_offering(f"brk_{name}", facts), words.replace("FRAMEWORK", f"brk_{name}"))
        for name, (facts, words) in {**_attributes(framework), **_answers()}.items()
    }
    return {
        **offered,
        "brk_facts_raise": (_offering_class("brk_facts", framework=property(exiting)), "SystemExit: 3"),
        "brk_facts_change": (
            _offering_class("brk_facts_change", kinds=property(lambda self: ("cpu",))),
            "a computed kin",
        ),
        "brk_attributes_raise": (_offering_class("brk_attributes_raise", __getattr__=raising), ""),
        "brk_owns_property": (
            _offering_class("brk_owns_property", owns=property(raising), import_roots=(framework,)),
            "owns() of its backend for",
        ),
        "brk_unhashable": (_offering_class("brk_unhashable", __hash__=None, __eq__=raising), ""),
        "brk_mixin": (plugin_module("brk", backends=lambda: [_Remembers("brk")]), "which derives from Memory"),
        "brk_capabilities": (
            _offering("brk_capabilities", {"capabilities": {"memory": Memory}}),
            "a backend with capabilities={'memory'",
        ),
        "brk_left": (
            _offering("brk_left", {"capabilities": {Memory: Memory}, "release_memory": raising}),
            "offers TinyBackend with release_memory, which belongs to a capability",
        ),
        "brk_abstract": (plugin_module("brk", backends=lambda: [_Abstract()]), "TypeError"),  # type: ignore[abstract]
    }


def _offering(name: str, facts: Mapping[str, Any]) -> ModuleType:
    """A plugin with one backend, whose framework counts as imported and which has these attributes."""
    backend = TinyBackend(name, ("cpu",))
    assert backend.cell
    for attribute, value in facts.items():
        setattr(backend, attribute, value)
    return plugin_module(name, backends=lambda: [backend])


def _offering_class(name: str, **attributes: Any) -> ModuleType:
    """As `_offering`, of a class with these attributes."""
    facts = {"framework": name, "kinds": ("cpu",), "import_roots": (f"tiny_{name}",), "_vendor": "", "_absent": ""}
    own = {"__init__": lambda self: None, "_devices": [CPU], "_current": [CPU], **facts, **attributes}
    return plugin_module(name, backends=lambda: [type("Broken", (TinyBackend,), own)()])
