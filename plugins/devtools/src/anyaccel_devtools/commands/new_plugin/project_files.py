"""The files of a new plugin project: templates of `commands/templates`, filled in. Nothing is written here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from importlib.resources import files
from string import Template

from anyaccel.adapter.transfer_observer import ObservesTransfers
from anyaccel.backend import Compute, Exchange, Memory
from anyaccel.plugin_loader import own_distribution
from anyaccel_devtools.commands.new_plugin.base_backend import BaseBackend
from anyaccel_devtools.testing.subject_discovery import canonical_name

_WIDTH = 120
_STOOD_IN: dict[type, str] = {Memory: "memory", ObservesTransfers: "transfers"}
_COMMON = {
    ".github/workflows/ci.yml": "ci.yml",
    ".gitignore": "gitignore",
    "CHANGELOG.md": "CHANGELOG.md",
    "LICENSE": "LICENSE",
    "noxfile.py": "noxfile.py",
    "pyproject.toml": "pyproject.toml",
    "src/{package}/__init__.py": "init.py",
    "tests/conftest.py": "conftest.py",
    "tests/known_failures.txt": "known_failures.txt",
    "tests/test_conformance.py": "conformance_test.py",
}
_BY_KIND = {
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
class PluginOptions:
    """The checked options.

    Attributes:
        name: Name of the plugin and of its kind of device.
        framework: Framework that computes.
        author: Copyright holder; `""` for the authors of the distribution.
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
        """The values that every template may use."""
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
            "devtools": _one_minor_version("anyaccel-devtools", own_distribution()[1]),
        }


def framework_project(options: PluginOptions) -> dict[str, str]:
    """Return texts by path of a plugin for a new framework, with a small library over NumPy as a stand-in."""
    values = {
        **options.values,
        "summary": f"The framework {options.framework} for anyaccel.",
        "framework_words": options.framework,
        "dependencies": _dependencies(
            _core_requirement(), ("numpy>=1.26", "REPLACE: your framework; the stand-in computes with NumPy")
        ),
    }
    values["packages"] = f'"src/{values["package"]}", "src/{values["standin"]}"'
    return _fill_in("framework", values)


def chip_project(options: PluginOptions, base: BaseBackend) -> dict[str, str]:
    """Return texts by path of a plugin for a chip of a supported framework, with another device as a stand-in."""
    words = "NumPy" if base.is_built_in else base.cls.framework
    requirements = [_core_requirement()]
    if base.distribution:
        requirements.append((_one_minor_version(base.distribution, base.version), f"has {base.name}"))
    values = {
        **options.values,
        "summary": f"The chip {options.name} as a device of anyaccel, with {words}.",
        "framework_words": words,
        "base_class": base.name,
        "host_kind": base.host_kind,
        "stand_in_words": "a simulated device of core" if base.is_built_in else f"the {base.host_kind} of {words}",
        "dependencies": _dependencies(*requirements),
        "facts": _facts(options) if base.is_built_in else "",
    }
    values["packages"] = f'"src/{values["package"]}"'
    parts = [name for name, kind in (("exchange", Exchange), ("compute", Compute)) if issubclass(base.cls, kind)]
    values["parts"] = "".join(render(f"chip/{name}.part.tmpl", values) for name in parts).rstrip("\n")
    stood_in = {kind: part for kind, part in _STOOD_IN.items() if kind in base.cls.capabilities}
    values["capability_classes"] = "".join(render(f"chip/{part}.part.tmpl", values) for part in stood_in.values())
    table_rows = [f"        {kind.__name__}: StandIn{_STOOD_IN[kind].capitalize()},\n" for kind in stood_in]
    if not table_rows:
        values["capability_table"] = ""
    else:
        head = "    capabilities: ClassVar[Capabilities] = {\n"
        values["capability_table"] = f"{head}        **{base.name}.capabilities,\n{''.join(table_rows)}    }}\n\n"
    standard = {"collections.abc": ["Sequence"], "contextlib": ["AbstractContextManager"], "typing": ["Any"]}
    installed = {"anyaccel": ["Device"], "anyaccel.backend": ["DeviceInfo"]}
    if issubclass(base.cls, Exchange):
        installed["numpy"] = ["* as np"]
    if issubclass(base.cls, Compute):
        standard["dataclasses"] = ["replace"]
        installed["anyaccel.backend"].append("Program")
        installed["anyaccel.segment"] = ["Segment"]
    if Memory in base.cls.capabilities:
        installed["anyaccel.backend"] += ["Memory", "MemoryInfo"]
    if ObservesTransfers in base.cls.capabilities:
        standard["contextlib"].append("nullcontext")
        installed["anyaccel.adapter.transfer_observer"] = ["ObservesTransfers", "Record"]
    if not base.cls.capabilities.keys().isdisjoint(_STOOD_IN):
        standard["typing"].append("ClassVar")
        installed["anyaccel.capability"] = ["Capabilities"]
    installed.setdefault(base.module, []).append(base.name)
    further = {
        "stand_in.py": {"imports": import_lines(standard, installed)},
        "conformance.py": _subject_values(base, values),
        "training_test.py": _training_values(base, values),
    }
    return _fill_in("chip", values, further)


def _fill_in(
    kind: str, values: Mapping[str, str], further: Mapping[str, Mapping[str, str]] | None = None
) -> dict[str, str]:
    """Return all texts by path; `further` has values that only one template uses."""
    texts = {f"src/{values['package']}/py.typed": ""}
    for folder, table in (("common", _COMMON), (kind, _BY_KIND[kind])):
        for path, template in table.items():
            own_values = {**values, **(further or {}).get(template, {})}
            texts[path.format(**values)] = render(f"{folder}/{template}.tmpl", own_values)
    return dict(sorted(texts.items()))


def render(template: str, values: Mapping[str, str]) -> str:
    """Return a template of the folder `templates`, filled in; every name in it must have a value."""
    return Template(files("anyaccel_devtools.commands").joinpath("templates", template).read_text("utf-8")).substitute(
        values
    )


# -- requirements ------------------------------------------------------------------------------------------------------


def _core_requirement() -> tuple[str, str]:
    return _one_minor_version(*own_distribution()), "the contract may change with the next minor version"


def _one_minor_version(distribution: str, version: str) -> str:
    """Return a requirement of one minor version, where the version is known."""
    numbers = version.split(".")[:2]
    if len(numbers) != 2 or not all(part.isdecimal() for part in numbers):
        return distribution
    major, minor = map(int, numbers)
    return f"{distribution}>={major}.{minor},<{major}.{minor + 1}"


def _dependencies(*lines: tuple[str, str]) -> str:
    return "\n".join(f"    {json.dumps(requirement)},  # {reason}" for requirement, reason in lines)


# -- parts of a chip's files -------------------------------------------------------------------------------------------


def _facts(options: PluginOptions) -> str:
    """Return the attributes; a plugin may not claim NumPy, so a chip over it is a framework with its own name."""
    return (
        f'    framework = "{options.framework}"\n'
        "    # Arrays of NumPy stay on its own devices; a node asks for these: ModelNode(..., framework=...)\n"
        f'    import_roots = ("anyaccel_{options.name}",)  # type: ignore[assignment, unused-ignore]\n'
    )


def _subject_values(base: BaseBackend, values: Mapping[str, str]) -> dict[str, str]:
    standard = {"collections.abc": ["Callable"], "typing": ["Any"]}
    installed = {"anyaccel": ["Backend"], "pytest": ["* as pytest"]}
    module, _, parent = base.subject.partition(":")
    template = "published" if parent else "numpy" if base.is_built_in else "plain"
    if parent:
        standard = {}
        installed[module] = [parent]
    else:
        installed["anyaccel_devtools.testing"] = ["Subject"]
    if template == "numpy":
        standard["collections.abc"].append("Iterator")
        installed["anyaccel.numpy_backend"] = ["Activation", "BatchNorm", "Dense", "Sequential", "simulate", "zeros"]
    package_imports = {f"{values['package']}.backend": [f"{values['class_name']}Backend"]}
    return {
        "imports": import_lines(standard, installed, package_imports),
        "subject_base": parent or "Subject",
        "subject_body": render(f"chip/subject_{template}.part.tmpl", values).rstrip("\n"),
    }


def _training_values(base: BaseBackend, values: Mapping[str, str]) -> dict[str, str]:
    installed = {"anyaccel.registry": ["registry"]}
    if not (issubclass(base.cls, Compute) and issubclass(base.cls, Exchange)):
        return {"imports": import_lines(installed), "training": ""}
    run = 'results = Experiment("try", graph, progress="none").run_phase(phase)'
    lines = f"    with simulate(1):\n        {run}" if base.is_built_in else f"    {run}"
    names = ["AppliedLoss", "Device", "Experiment", "FeatureSet", "ModelGraph", "ModelNode", "Optimizer", "TrainPhase"]
    installed |= {"anyaccel": names, "numpy": ["* as np"], "pytest": ["* as pytest"]}
    if base.is_built_in:
        installed["anyaccel.numpy_backend"] = ["simulate"]
    body = render("chip/training.part.tmpl", {**values, "run": lines})
    return {"imports": import_lines({"typing": ["Any"]}, installed), "training": body.rstrip("\n") + "\n"}


# -- import statements -------------------------------------------------------------------------------------------------


def import_lines(*sections: Mapping[str, Iterable[str]]) -> str:
    """Return import statements, sorted for linters.

    Args:
        sections: Names by module, for the standard library, for installed packages, and for the project itself. The
            name `* as NAME` imports the module itself as NAME.
    """
    return "\n\n".join("\n".join(_section(section)) for section in sections if section)


def _section(section: Mapping[str, Iterable[str]]) -> list[str]:
    modules, members = [], []
    for module, names in sorted(section.items()):
        if not (ordered := sorted(set(names), key=_sort_key)):
            continue
        if ordered[0].startswith("* as "):
            modules.append(f"import {module} as {ordered[0][5:]}".removesuffix(f" as {module}"))
        else:
            members.append(_from_import(module, ordered))
    return modules + members


def _from_import(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in names), ")"])


def _sort_key(name: str) -> tuple[int, str]:
    """Sort constants, then classes, then functions."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)
