"""Every check of the repository. A plain `nox` runs those that a change must pass; `nox -l` lists them all."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PLUGINS = sorted(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml"))
FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "jaxlib", "flax", "optax", "equinox", "mlx", "cupy")
CORE = ("--editable", "core")
GROUPS = nox.project.load_toml("pyproject.toml")
SUPPORTED = nox.project.python_versions(nox.project.load_toml("core/pyproject.toml"))


def show_pyenv() -> None:
    """Let the search for interpreters see all that pyenv has, not only the one that is switched on."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    versions = [path.parent.parent.name for path in root.glob("versions/3.*/bin/python")]
    versions = [version for version in versions if re.fullmatch(r"3\.\d+\.\d+", version)]
    if versions:
        os.environ.setdefault("PYENV_ROOT", str(root))
        os.environ.setdefault(
            "PYENV_VERSION", ":".join(sorted(versions, key=lambda text: [int(part) for part in text.split(".")]))
        )


def is_found(version: str) -> bool:
    """Whether an interpreter of this version answers on this machine."""
    command = ["py", f"-{version}", "-V"] if sys.platform == "win32" else [f"python{version}", "-V"]
    if shutil.which(command[0]) is None:
        return False
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.returncode == 0 and answer.stdout.startswith(f"Python {version}.")


show_pyenv()
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
FOUND = [version for version in SUPPORTED if version == RUNNING or is_found(version)] or [RUNNING]
MAIN = FOUND[0]  # the oldest found: sessions that run once run where the least is promised

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "virtualenv"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["lint", "types", "unit", "lowest", "backend", "mixed", "thirdparty", "wheel", "docs"]
if SUPPORTED[0] not in FOUND:
    nox.options.sessions.remove("lowest")  # the oldest dependencies have no wheels for newer interpreters


def group(*names: str) -> tuple[str, ...]:
    """The requirements of dependency groups of the root's pyproject.toml."""
    return nox.project.dependency_groups(GROUPS, *names)


def with_siblings(*plugins: str) -> list[str]:
    """Plugins, and before each those of this tree that it stands on."""
    found: dict[str, None] = {}
    for name in plugins:
        with (ROOT / f"plugins/{name}/pyproject.toml").open("rb") as file:
            needs = " ".join(tomllib.load(file)["project"]["dependencies"])
        found.update(dict.fromkeys(other for other in PLUGINS if re.search(rf"\banyaccel-{other}\b", needs)))
        found[name] = None
    return list(found)


def editable(*plugins: str) -> list[str]:
    """The arguments by which pip installs core and plugins from this tree."""
    return [*CORE, *(part for name in with_siblings(*plugins) for part in ("--editable", f"plugins/{name}"))]


def python_files(folder: str) -> list[str]:
    """The Python files right in a folder, as arguments."""
    return [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob(f"{folder}/*.py"))]


def compiled_once(session: nox.Session) -> dict[str, str]:
    """Settings by which JAX keeps what it has compiled, for all tests of a run: most of them compile the same."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(session.cache_dir / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


@nox.session(python=MAIN)
def lint(session: nox.Session) -> None:
    """Ruff: rules and format."""
    session.install(*group("lint"))
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session(python=MAIN)
def types(session: nox.Session) -> None:
    """Mypy, strict, over core, every plugin and this file, with the real frameworks."""
    session.install(*editable(*PLUGINS), *group("types", *PLUGINS))
    session.run("mypy", "core/src", *(f"plugins/{name}/src" for name in PLUGINS), "noxfile.py")


@nox.session(python=FOUND)
def unit(session: nox.Session) -> None:
    """Core where no framework is installed, on every interpreter found; on the first also the kit, and coverage."""
    session.install(*CORE, *group("test", "guests", "lint", "types"))
    session.run(
        "python",
        "-c",
        "import importlib.util as u, sys\n"
        f"found = [name for name in {FRAMEWORKS!r} if u.find_spec(name)]\n"
        "sys.exit(f'a framework is installed here: {found}' if found else 0)",
    )
    if session.python != MAIN:  # the kit over its wrong backends says nothing about an interpreter
        session.run("pytest", "tests/core", *session.posargs)
        return
    tests = ("tests/core", "tests/packaging", "tests/contract", "--ignore=tests/packaging/test_wheels.py")
    session.run("coverage", "run", "-m", "pytest", *tests, *session.posargs)
    session.run("coverage", "report")


@nox.session(python=SUPPORTED[0])
def lowest(session: nox.Session) -> None:
    """Core with the oldest dependencies it promises to work with."""
    with (ROOT / "core/pyproject.toml").open("rb") as file:
        floors = tomllib.load(file)["project"]["dependencies"]
    session.install(*CORE, *(floor.replace(">=", "==") for floor in floors), *group("test"))
    session.run("pytest", "tests/core", *session.posargs)


@nox.session(python=MAIN)
@nox.parametrize("plugin", [nox.param(name, id=name) for name in PLUGINS])
def backend(session: nox.Session, plugin: str) -> None:
    """One plugin with its framework and no other: its own tests (the kit among them), and graphs over it."""
    session.install(*editable(plugin), *group("test", "guests", plugin))
    # Two processes: the integration tests need all 64 bits, which is a setting of a whole process in JAX.
    for tests in (f"plugins/{plugin}/tests", "tests/integration"):
        session.run("pytest", tests, *session.posargs, env=compiled_once(session))


@nox.session(python=MAIN)
def mixed(session: nox.Session) -> None:
    """All frameworks in one process, and one graph over several of them."""
    session.install(*editable(*PLUGINS), *group("test", "guests", *PLUGINS))
    tests = [f"tests/integration/test_{name}.py" for name in ("three_frameworks", "graph_machine")]
    session.run("pytest", *tests, *session.posargs, env={"ANYACCEL_TEST_MIXED": "1", **compiled_once(session)})


@nox.session(python=MAIN)
def thirdparty(session: nox.Session) -> None:
    """A stranger's plugin, from its own wheel and with core's: its tests, far from the sources."""
    project = ROOT / "docs/examples/anyaccel-mlx"
    with tempfile.TemporaryDirectory() as folder:
        wheels, away = Path(folder, "wheels"), Path(folder, "away")
        session.install(*group("wheel"))
        for source in (ROOT / "core", project):
            session.run("python", "-m", "build", "--outdir", str(wheels), str(source), silent=True)
        session.install(*map(str, sorted(wheels.glob("*.whl"))), *group("test", "thirdparty"))
        shutil.copytree(project / "tests", away / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(project / "pyproject.toml", away)
        with session.chdir(away):
            session.run("pytest", "tests", *session.posargs, env={"PYTHONPATH": None, "PYTHONSAFEPATH": "1"})
            session.run("anyaccel", "conform", "mlx")


@nox.session(python=MAIN)
def wheel(session: nox.Session) -> None:
    """What a user gets: wheels built from source distributions, installed and tested far from the sources."""
    with tempfile.TemporaryDirectory() as folder:
        wheels, away = Path(folder, "wheels"), Path(folder, "away")
        session.install(*group("wheel"))
        for source in ("core", *(f"plugins/{name}" for name in PLUGINS)):
            session.run("python", "-m", "build", "--outdir", str(wheels), source, silent=True)
        session.install(*map(str, sorted(wheels.glob("*.whl"))), *group("test", "guests", *PLUGINS))
        copy_tests(away)
        env = {"ANYACCEL_TEST_WHEELS": str(wheels), "PYTHONPATH": None, "PYTHONSAFEPATH": "1", **compiled_once(session)}
        with session.chdir(away):
            session.run("pytest", "tests/core", "tests/packaging", *session.posargs, env=env)
            for name in PLUGINS:  # with the Subject that its own wheel carries
                session.run("anyaccel", "conform", name, env=env)


def copy_tests(away: Path) -> None:
    """Put the tests and pytest's settings into a folder that has no sources."""
    without_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tests", away / "tests", ignore=without_caches)
    shutil.copy(ROOT / "pyproject.toml", away)


@nox.session(python=MAIN)
def docs(session: nox.Session) -> None:
    """Run every Python example of the READMEs and docs/, and the example projects with their own tests."""
    projects = sorted(path.parent for path in ROOT.glob("docs/examples/*/pyproject.toml"))
    installs = [part for project in projects for part in ("--editable", str(project))]
    session.install(*editable(*PLUGINS), *installs, *group("test", "guests", "docs", "thirdparty", *PLUGINS))
    readmes = ["README.md", "core/README.md", *(f"plugins/{name}/README.md" for name in PLUGINS)]
    session.run("pytest", "docs", *readmes, *session.posargs, env=compiled_once(session))


@nox.session(python=MAIN)
def bench(session: nox.Session) -> None:
    """Run benchmarks: all of them, or those named after `--`."""
    session.install(*editable(*PLUGINS), *group("bench", "guests", *PLUGINS))
    for script in session.posargs or python_files("tests/benchmarks"):
        session.run("python", script)
