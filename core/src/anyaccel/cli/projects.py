"""What a new plugin project consists of, as texts by path. Nothing is written here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from anyaccel.backend import Compute, Exchange, Memory
from anyaccel.cli.bases import Base
from anyaccel.cli.rendering import imports, rendered
from anyaccel.plugin_loader import own_distribution
from anyaccel.testing.subject_discovery import canonical_name

_COMMON = {
    ".github/workflows/ci.yml": "ci.yml",
    ".gitignore": "gitignore",
    "CHANGELOG.md": "CHANGELOG.md",
    "LICENSE": "LICENSE",
    "noxfile.py": "noxfile.py",
    "pyproject.toml": "pyproject.toml",
    "src/{package}/__init__.py": "init.py",
    "tests/known_failures.txt": "known_failures.txt",
    "tests/test_conformance.py": "conformance_test.py",
}
_OWN = {
    "chip": {
        "README.md": "README.md",
        "src/{package}/backend.py": "backend.py",
        "src/{package}/conformance.py": "conformance.py",
        "src/{package}/stand_in.py": "stand_in.py",
        "tests/test_training.py": "training_test.py",
    },
    "framework": {
        "README.md": "README.md",
        "src/{package}/backend.py": "backend.py",
        "src/{package}/conformance.py": "conformance.py",
        "src/{package}/models.py": "models.py",
        "src/{package}/ops.py": "ops.py",
        "src/{package}/placement.py": "placement.py",
        "src/{standin}/__init__.py": "stand_in.py",
        "tests/test_training.py": "training_test.py",
    },
}


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for, checked.

    Attributes:
        name: of the plugin, and of its kind of device.
        framework: who computes.
        author: who holds the copyright; `""` for the authors of the distribution.
    """

    name: str
    framework: str
    author: str = ""

    @property
    def distribution(self) -> str:
        """`anyaccel-my-chip` for `my_chip`."""
        return canonical_name(f"anyaccel-{self.name}")

    @property
    def values(self) -> dict[str, str]:
        """What every template may name."""
        author = self.author or f"The authors of {self.distribution}"
        return {
            "name": self.name,
            "distribution": self.distribution,
            "package": f"anyaccel_{self.name}",
            "standin": f"{self.name}_stand_in",
            "class_name": "".join(part.capitalize() for part in self.name.split("_")),
            "framework": self.framework,
            "author": author,
            "author_quoted": json.dumps(author, ensure_ascii=False),
            "year": str(date.today().year),
            "core": " ".join(filter(None, own_distribution())),
        }


def framework_project(wish: Wish) -> dict[str, str]:
    """A plugin for a new framework, which a small library over NumPy stands in for."""
    values = {
        **wish.values,
        "summary": f"The framework {wish.framework} for anyaccel.",
        "framework_words": wish.framework,
        "dependencies": _dependencies(
            _own(),
            ("numpy>=1.26", "REPLACE: your framework; the stand-in computes with NumPy"),
        ),
    }
    values["packages"] = f'"src/{values["package"]}", "src/{values["standin"]}"'
    return _files("framework", values)


def chip_project(wish: Wish, base: Base) -> dict[str, str]:
    """A plugin for a chip of a framework that is served already, which the host stands in for."""
    words = "NumPy" if base.is_reference else base.cls.framework
    values = {
        **wish.values,
        "summary": f"The chip {wish.name} as a device of anyaccel, with {words}.",
        "framework_words": words,
        "base_class": base.name,
        "host_kind": base.host,
        "stand_in_words": "a simulated device of core" if base.is_reference else f"the {base.host} of {words}",
        "dependencies": _dependencies(*_required(base)),
        "facts": _facts(wish) if base.is_reference else "",
    }
    values["packages"] = f'"src/{values["package"]}"'
    values["capabilities"] = "".join(
        rendered(f"chip/{name}.part.tmpl", values) for name in _CAPABLE if issubclass(base.cls, _CAPABLE[name])
    ).rstrip("\n")
    return _files(
        "chip",
        values,
        {
            "stand_in.py": {"imports": _stand_in_imports(base)},
            "conformance.py": _subject(base, values),
            "training_test.py": _training(base, values),
        },
    )


_CAPABLE: dict[str, type] = {"exchange": Exchange, "compute": Compute, "memory": Memory}


def _files(
    kind: str, values: Mapping[str, str], further: Mapping[str, Mapping[str, str]] | None = None
) -> dict[str, str]:
    found = {}
    for folder, table in (("common", _COMMON), (kind, _OWN[kind])):
        for path, template in table.items():
            mine = {**values, **(further or {}).get(template, {})}
            found[path.format(**values)] = rendered(f"{folder}/{template}.tmpl", mine)
    found[f"src/{values['package']}/py.typed"] = ""
    return dict(sorted(found.items()))


# -- requirements ------------------------------------------------------------------------------------------------------


def _within(distribution: str, version: str) -> str:
    """A requirement of one minor version, where the version is known."""
    known = version.split(".")[:2]
    if len(known) != 2 or not all(part.isdecimal() for part in known):
        return distribution
    major, minor = map(int, known)
    return f"{distribution}>={major}.{minor},<{major}.{minor + 1}"


def _own() -> tuple[str, str]:
    return _within(*own_distribution()), "the contract may change with the next minor version"


def _required(base: Base) -> list[tuple[str, str]]:
    needed = [_own()]
    if base.distribution:
        needed.append((_within(base.distribution, base.version), f"the home of {base.name}"))
    return needed


def _dependencies(*lines: tuple[str, str]) -> str:
    return "\n".join(f"    {json.dumps(requirement)},  # {reason}" for requirement, reason in lines)


# -- parts of a chip ---------------------------------------------------------------------------------------------------


def _facts(wish: Wish) -> str:
    """A plugin may not claim core's own framework, so that its chip is a framework of its own name."""
    return (
        f'    framework = "{wish.framework}"\n'
        "    # NumPy's arrays stay numpy's; who wants them here names the framework: ModelNode(..., framework=...)\n"
        f'    import_roots = ("{wish.framework}",)  # type: ignore[assignment, unused-ignore]\n'
    )


def _stand_in_imports(base: Base) -> str:
    standard = {"collections.abc": ["Sequence"], "contextlib": ["AbstractContextManager"], "typing": ["Any"]}
    installed = {"anyaccel": ["Device"], "anyaccel.backend": ["DeviceInfo"]}
    if issubclass(base.cls, Exchange):
        installed["numpy"] = ["* as np"]
    if issubclass(base.cls, Compute):
        standard["dataclasses"] = ["replace"]
        installed["anyaccel.backend"].append("Program")
        installed["anyaccel.segment"] = ["Segment"]
    if issubclass(base.cls, Memory):
        installed["anyaccel.backend"].append("MemoryInfo")
    installed.setdefault(base.module, []).append(base.name)
    return imports(standard, installed)


def _subject(base: Base, values: Mapping[str, str]) -> dict[str, str]:
    standard = {"collections.abc": ["Callable"], "typing": ["Any"]}
    installed = {"anyaccel": ["Backend"], "pytest": ["* as pytest"]}
    module, _, parent = base.subject.partition(":")
    template = "published" if parent else "reference" if base.is_reference else "plain"
    if parent:
        standard = {}
        installed[module] = [parent]
    else:
        installed["anyaccel.testing"] = ["Subject"]
    if template == "reference":
        standard["collections.abc"].append("Iterator")
        installed["anyaccel.numpy_backend"] = ["BatchNorm", "Dense", "Sequential", "simulate", "zeros"]
    mine = {**values, "subject_base": parent or "Subject"}
    own = {f"{values['package']}.backend": [f"{values['class_name']}Backend"]}
    return {
        "imports": imports(standard, installed, own),
        "subject_base": mine["subject_base"],
        "subject_body": rendered(f"chip/subject_{template}.part.tmpl", mine).rstrip("\n"),
    }


def _training(base: Base, values: Mapping[str, str]) -> dict[str, str]:
    installed = {"anyaccel.registry": ["registry"]}
    if not (issubclass(base.cls, Compute) and issubclass(base.cls, Exchange)):
        return {"imports": imports(installed), "training": ""}
    run = 'results = Experiment("try", graph, progress="none").run_phase(phase)'
    shown = f"    with simulate(1):\n        {run}" if base.is_reference else f"    {run}"
    names = ["AppliedLoss", "Device", "Experiment", "FeatureSet", "ModelGraph", "ModelNode", "Optimizer", "TrainPhase"]
    installed |= {"anyaccel": names, "numpy": ["* as np"], "pytest": ["* as pytest"]}
    if base.is_reference:
        installed["anyaccel.numpy_backend"] = ["simulate"]
    body = rendered("chip/training.part.tmpl", {**values, "run": shown})
    return {"imports": imports({"typing": ["Any"]}, installed), "training": body.rstrip("\n") + "\n"}
