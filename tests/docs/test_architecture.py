"""The page of the architecture names files that exist, and the picture shows the floors as the floors test has them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pictures import floors

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core/src/anyaccel"
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w./-]+(?:\.py|/))`", PAGE)))


def exists(name: str) -> bool:
    """Whether a file or folder is there: below the repository, below core, or in every plugin with a backend."""
    if name in ("compute.py",):
        return all((ROOT / f"plugins/{plugin}/src/anyaccel_{plugin}" / name).exists() for plugin in ("torch", "jax"))
    return (ROOT / name).exists() or (CORE / name).exists()


def test_it_names_many_files() -> None:
    assert len(NAMED) > 40


@pytest.mark.parametrize("name", NAMED)
def test_a_named_file_exists(name: str) -> None:
    assert exists(name), f"docs/architecture.md names {name}"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("metrics/named.py", "METRICS"),
        ("specs.py", "LOSSES"),
        ("specs.py", "OPTIMIZERS"),
        ("phases/settings.py", "RESIDENCIES"),
        ("phases/loading/residency.py", "make_loaders"),
        ("phases/loading/loader_factory.py", "free_memory"),
        ("graph/device_assignment.py", "precedence"),
    ],
)
def test_a_name_is_defined_where_the_page_says(file: str, name: str) -> None:
    assert f"`{name}`" in PAGE and f"`{file}`" in PAGE
    assert re.search(rf"^(def {name}\b|{name}\b.*=)", (CORE / file).read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_every_package_and_kernel_module_is_on_the_page() -> None:
    packages = {f"{path.parent.name}/" for path in CORE.glob("*/__init__.py")}
    assert packages - {name for name in NAMED if name in packages} == set()


def test_the_picture_shows_the_packages() -> None:
    picture = (ROOT / "docs/_static/floors.svg").read_text(encoding="utf-8")
    assert picture == floors()
    for path in [*CORE.glob("*/__init__.py")]:
        assert path.parent.name in (*re.findall(r">(\w+)</text>", picture),)
