"""Names from before 0.1 are gone from source, documentation and tests, and the migration page lists them.

This test goes with release 0.2.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

import anyaccel

pytestmark = pytest.mark.skipif(
    not anyaccel.__version__.startswith("0.1."), reason="the list of renamed names is kept until 0.2"
)

ROOT = Path(__file__).parents[2]
MIGRATION = "docs/how-to/migrate-0.1.md"
# These name the old names on purpose.
ALLOWED = {
    MIGRATION,
    Path(__file__).relative_to(ROOT).as_posix(),
}

# Old names that mean nothing else: they may not occur as a word anywhere.
WORDS = (
    *("all_devices", "advised_workers", "ReferenceBackend", "ReferenceOps", "ReferenceSubject"),
    *("RecipeError", "MLPRecipe", "CNNRecipe", "check_built", "ElementwiseRule", "factor_on", "SteppingTests"),
    *("TestStepping", "DrawnProgress"),
)
MESSAGES = ("There is:", "To do:")

# Old names that are ordinary words, by class.
MEMBERS = {
    "Backend": ("roots", "forks", "why_not"),
    "Exchange": ("adopt", "rows", "take", "buffer", "send"),
    "Compute": ("mixes", "writes", "refuses", "layout"),
    "Program": ("reduce", "apply", "discard", "publish", "release", "states", "steps", "in_parts", "offer"),
    "AnyaccelError": ("asked", "there", "remedy"),
    "Sampler": ("draws", "mixed"),
}
# Classes whose objects have none of these attributes any more.
ATTRIBUTES = {
    "backend.Backend": MEMBERS["Backend"],
    "backend.Exchange": MEMBERS["Exchange"],
    "backend.Compute": MEMBERS["Compute"],
    "program.MultiStepProgram": MEMBERS["Program"],
    "accelerator.Accelerator": ("written",),
    "data.Sampler": MEMBERS["Sampler"],
    "graph.ModelGraph": ("heads", "tails"),
    "phases.Event": ("what", "text", "routine"),
    "phases.Run": ("tell", "finish"),
    "phases.TrainPhase": ("after", "splitting", "elsewhere"),
}
CLASSES = ("Stepping", "Offer", "Sent", "Batches", "Items", "Relation", "Draws", "Judged", "Shelf", "Course")


@cache
def files(*suffixes: str) -> dict[str, str]:
    """The text of every file of the repository with one of these suffixes, by path."""
    folders = ("core", "plugins", "docs", "tests", ".github")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*")] + [*ROOT.glob("*.*")]
    skipped = re.compile(r"(^|/)(_build|__pycache__|\..*cache|[^/]*\.egg-info|CHANGELOG\.md|build)(/|$)")
    names = {path.relative_to(ROOT).as_posix(): path for path in paths if path.suffix in suffixes and path.is_file()}
    kept = {name: path for name, path in names.items() if not skipped.search(name) and name not in ALLOWED}
    return {name: path.read_text(encoding="utf-8") for name, path in kept.items()}


def modules() -> dict[str, str]:
    """Old and new names of modules, from the migration page."""
    table = (ROOT / MIGRATION).read_text(encoding="utf-8").partition("## Modules")[2]
    rows = re.findall(r"^\| (`.+`) \| `([\w.]+)` \|$", table, flags=re.MULTILINE)
    return {old: new for cell, new in rows for old in re.findall(r"`([\w.]+)`", cell)}


def source_of(module: str) -> Path:
    """Where the source of a module would be, without its suffix."""
    package = module.partition(".")[0]
    home = "core" if package == "anyaccel" else f"plugins/{package.removeprefix('anyaccel_')}"
    return ROOT / home / "src" / Path(*module.split("."))


def exists(module: str) -> bool:
    """Whether a module of this repository has a source."""
    path = source_of(module)
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


@pytest.mark.parametrize("word", WORDS)
def test_an_old_word_is_gone(word: str) -> None:
    pattern = re.compile(rf"\b{word}\b")
    assert not [name for name, text in files(".py", ".md", ".tmpl", ".toml").items() if pattern.search(text)]


@pytest.mark.parametrize("message", MESSAGES)
def test_an_old_form_of_messages_is_gone(message: str) -> None:
    assert not [name for name, text in files(".py", ".md", ".tmpl").items() if message in text]


@pytest.mark.parametrize("home", ATTRIBUTES)
def test_a_class_has_no_old_attribute(home: str) -> None:
    from importlib import import_module

    module, _, name = home.rpartition(".")
    cls = getattr(import_module(f"anyaccel.{module}"), name)
    created = getattr(cls.__init__, "__code__", None)
    known = {*dir(cls), *getattr(cls, "__annotations__", ()), *(created.co_varnames if created else ())}
    assert not set(ATTRIBUTES[home]) & known


@pytest.mark.parametrize("name", CLASSES)
def test_an_old_class_is_neither_defined_nor_imported(name: str) -> None:
    defined = re.compile(rf"^class {name}\b", re.MULTILINE)
    imported = re.compile(rf"^ *from anyaccel[\w.]* import (\([^)]*\b{name}\b|[^(\n]*\b{name}\b)", re.MULTILINE)
    sources = files(".py")
    assert not [file for file, text in sources.items() if "/src/" in file and defined.search(text)]
    assert not [file for file, text in sources.items() if imported.search(text)]


def test_old_modules_are_gone_and_named_nowhere() -> None:
    renamed = modules()
    gone = {old for old in renamed if not exists(old)} - {"anyaccel.data.digits"}  # that is a function now
    back = sorted(old for old in renamed if exists(old) and old not in renamed.values())
    assert back == [], "these were renamed, and exist"
    dotted = re.compile(r"\banyaccel(?:_[a-z]+)?(?:\.[a-z_]+)+")
    texts = files(".py", ".md", ".tmpl", ".toml")
    found = {name: sorted(set(dotted.findall(text)) & set(gone)) for name, text in texts.items()}
    assert {name: names for name, names in found.items() if names} == {}


def test_new_modules_of_the_page_exist() -> None:
    assert len(modules()) > 200
    assert sorted(new for new in modules().values() if not exists(new)) == []


def test_the_page_lists_what_is_checked_here() -> None:
    page = (ROOT / MIGRATION).read_text(encoding="utf-8")
    members = [name for names in (*MEMBERS.values(), *ATTRIBUTES.values()) for name in names]
    missing = [name for name in (*WORDS, *MESSAGES, *members, *CLASSES) if not re.search(rf"\b{name}", page)]
    assert missing == []


def test_every_changelog_leads_to_the_page() -> None:
    newer = {"mlflow", "optuna", "transformers", "wandb"}  # than the names of 0.1
    plugins = [path for path in ROOT.glob("plugins/*/CHANGELOG.md") if path.parent.name not in newer]
    without = [path for path in [ROOT / "core/CHANGELOG.md", *plugins] if "migrate-0.1.md" not in path.read_text()]
    assert without == []
