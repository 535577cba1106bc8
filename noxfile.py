"""Every check of the repository. A plain `nox` runs those that a change must pass; `nox -l` lists them all."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nox

ROOT = Path(__file__).resolve().parent
PLUGINS = sorted(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml"))
FRAMEWORKS = (
    *("torch", "tensorflow", "keras", "jax", "jaxlib", "flax", "optax", "equinox", "mlx", "cupy"),
    *("tensorboard", "wandb"),
)
# The distributions of features: they work with any framework, and are tested with NumPy and those of TESTED_WITH.
FEATURES = [name for name in ("devtools", "distributed", "offload", "resources", "sklearn") if name in PLUGINS]
CORE = ("--editable", "core")
GROUPS = nox.project.load_toml("pyproject.toml")
SUPPORTED = nox.project.python_versions(nox.project.load_toml("core/pyproject.toml"))

# Settings of pip, and the variables by which uv takes the same.
OF_PIP = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT",
    "cert": "SSL_CERT_FILE",
    "default-timeout": "UV_HTTP_TIMEOUT",
}


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


def show_pip_settings() -> None:
    """Let uv take packages from where pip is set up to take them; it does not read pip's settings itself."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    ).stdout
    settings = dict(re.findall(r"^(?:global|user|site|:env:)\.([\w-]+)='(.*)'$", listed, flags=re.MULTILINE))
    settings["find-links"] = ",".join(settings.get("find-links", "").split())
    for name, variable in OF_PIP.items():
        if settings.get(name):
            os.environ.setdefault(variable, settings[name])
    os.environ.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")  # as pip: the newest of all indexes


show_pyenv()
UV = ROOT / ".nox/.uv"  # what `check` installs where there is no uv
os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], str(UV / "bin"), str(UV / "Scripts")])
if shutil.which("uv") or find_spec("uv"):
    show_pip_settings()
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
FOUND = [version for version in SUPPORTED if version == RUNNING or is_found(version)] or [RUNNING]
# Small networks crawl where the threads of several processes share a core.
# And each process in which torch compiles would start another for each core, that imports torch.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
# XLA takes most of the time of JAX's tests, and a third of TensorFlow's compiled ones, to make programs fast that run
# for milliseconds. `backend` omits this; `whole`, `kits` and `models` compile as users do.
# Flags of the user stand last, and win.
COMPILED_FAST = {
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    f"--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 {os.environ.get('XLA_FLAGS', '')}"
}
AWAY = {"PYTHONPATH": None, "PYTHONSAFEPATH": "1"}  # nothing is imported from the folder that a test runs in
WITHOUT_CACHES = shutil.ignore_patterns("__pycache__")
OF_KIT = ("tests/packaging", "tests/contract", "tests/hints", "--ignore=tests/packaging/test_wheels.py")
OF_WHEELS = [
    f"tests/packaging/test_{name}.py"
    for name in ("available", "import", "install_hints", "metadata", "new_plugin", "wheels")
]
# What depends on the versions of what core is installed with: of the rest of its tests, `lowest` takes one in 16.
OF_DEPENDENCIES = [f"tests/core/{name}" for name in ("data/readers", "numpy_backend", "registry", "saved_folder")]
# Of the kit, what is run from wheels; the rest of it is run by a plugin's own tests, and all of it from the wheel of a
# new plugin in tests/packaging.
PLACEMENT = ("--capability", "backend", "--capability", "exchange", "--capability", "memory")
# Integration tests that use NumPy alone run once, in `features`, and not beside each framework.
OF_FRAMEWORKS = ("-m", "not without_framework")
# Other plugins that the tests of one use: of a framework that it has not itself, and features.
TESTED_WITH = {
    **dict.fromkeys(("torch", "jax", "tensorflow", "mps"), tuple(FEATURES)),
    "ray": ("torch", *FEATURES),
    "offload": ("torch", "jax", *FEATURES),
    "tensorboard": ("distributed", "sklearn"),
    "transformers": ("torch", *FEATURES),
}
OF_NO_FRAMEWORK = (
    *("tests/integration/test_interrupts.py", "tests/integration/test_kills.py"),
    "tests/integration/test_out_of_memory.py",
    *("-m", "without_framework"),
)
MAIN = FOUND[0]  # the oldest found: sessions that run once run where the least is promised

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "uv|virtualenv"  # uv unpacks a wheel once, and links it into each session
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = True
# What a change must pass, the longest first, so that the last lane has little left to do alone. Core's tests run on the
# newest Python found, and a part of them with the oldest dependencies on the oldest Python, for which alone these have
# wheels; `nox -s unit` takes every Python.
OLDEST = ["lowest"] if SUPPORTED[0] in FOUND else []
BACKENDS = [f"backend({name})" for name in PLUGINS if name not in FEATURES or TESTED_WITH.get(name)]
LONG = [name for name in ("backend(torch)", "backend(jax)", "backend(tensorflow)") if name in BACKENDS]
CHECKS = ["lint", "docs", *LONG, "features", f"unit-{FOUND[-1]}", "mixed", "wheel", "types", "thirdparty"]
CHECKS += [*OLDEST, *(name for name in BACKENDS if name not in LONG)]
nox.options.sessions = ["check"]
OF_LONG = 16
"""Into how many parts the long tests are divided, of which each check runs one."""
CORES = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def group(*names: str) -> tuple[str, ...]:
    """The requirements of dependency groups of the root's pyproject.toml; a feature without a framework has none."""
    return nox.project.dependency_groups(GROUPS, *(name for name in names if name not in FEATURES))


def published(plugin: str) -> dict[str, Any]:
    """What a plugin publishes: the table `[project]`."""
    with (ROOT / f"plugins/{plugin}/pyproject.toml").open("rb") as file:
        project: dict[str, Any] = tomllib.load(file)["project"]
    return project


def has_backend(plugin: str) -> bool:
    """Whether a plugin has a backend, and so publishes a Subject for the kit; the others are of hooks alone."""
    return "anyaccel.conformance" in published(plugin).get("entry-points", {}) and plugin not in FEATURES


def with_siblings(*plugins: str) -> list[str]:
    """Plugins, and before each those of this tree that it stands on."""
    found: dict[str, None] = {}
    for name in plugins:
        needs = " ".join(published(name)["dependencies"])
        found.update(dict.fromkeys(other for other in PLUGINS if re.search(rf"\banyaccel-{other}\b", needs)))
        found[name] = None
    return list(found)


def editable(*plugins: str) -> list[str]:
    """The arguments by which pip installs core and plugins from this tree."""
    return [*CORE, *(part for name in with_siblings(*plugins) for part in ("--editable", f"plugins/{name}"))]


def python_files(folder: str) -> list[str]:
    """The Python files right in a folder, as arguments."""
    return [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob(f"{folder}/*.py"))]


def kept(session: nox.Session) -> Path:
    """The folder that all sessions share. nox names it relative to the repository, and tests change their folder."""
    return session.cache_dir.absolute()


def install(session: nox.Session, *arguments: str) -> None:
    """Install without compiling every module to bytecode, and without an environment for each build of this tree.

    Python compiles what is imported; of a framework that is a small part. What is compiled is kept for all processes of
    all sessions, also where containers switch that off: of the start of a short process it is the larger half.
    """
    session.env["PYTHONDONTWRITEBYTECODE"] = ""
    session.env["PYTHONPYCACHEPREFIX"] = str(share_bytecode(session))
    if "--editable" in arguments:
        session.install("--no-compile", *group("editable"))
        arguments = ("--no-build-isolation", *arguments)
    session.install("--no-compile", *arguments)


def share_bytecode(session: nox.Session) -> Path:
    """The folder of bytecode, in which all environments of sessions are one.

    uv links the same files into each of them; of files that differ, Python compares the time and the size.
    """
    bytecode = kept(session) / "bytecode"
    environment = Path(session.bin).absolute().parent
    place = bytecode / environment.relative_to(environment.anchor)
    if not place.exists():
        (bytecode / "environments").mkdir(parents=True, exist_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # Windows allows links to some users only
            place.symlink_to(bytecode / "environments", target_is_directory=True)
    return bytecode


def hints_with(*modules: str) -> list[str]:
    """The tests of hints of which some need one of these modules; `features` runs them all, without a framework."""
    return files_with("tests/hints", rf'importorskip\("({"|".join(modules)})\b')


def files_with(folder: str, pattern: str) -> list[str]:
    """The Python files right in a folder that have a text, as arguments."""
    return [path for path in python_files(folder) if re.search(pattern, (ROOT / path).read_text("utf-8"))]


def import_once(session: nox.Session) -> None:
    """Import the frameworks, so that child processes, which have a minute to list devices, find their bytecode."""
    session.run("python", "-c", "import torch, jax, tensorflow", silent=True)


def spread(by: str = "worksteal") -> tuple[str, ...]:
    """Arguments by which pytest deals tests out to several processes, by file where those of one share costly work.

    One process deals to none: it would import the frameworks a second time.
    """
    workers = int(os.environ.get("ANYACCEL_TEST_WORKERS", min(CORES, 4)))
    return ("-n", str(workers if workers > 1 else 0), "--dist", by)


def compiled_once(session: nox.Session) -> dict[str, str]:
    """Settings by which JAX keeps what it has compiled, for all tests of a run: most of them compile the same."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(kept(session) / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def succeeds(command: list[str]) -> bool:
    """Whether a command ends without an error; what it prints is not shown."""
    return not subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode


@nox.session(python=False)
def check(session: nox.Session) -> None:
    """What a change must pass: the sessions of CHECKS, several at a time, each told of when it has ended.

    Of the long tests, one part of OF_LONG is run, each commit its own; `full` runs all.
    """
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    run_together(session, CHECKS, ANYACCEL_TEST_PART=f"{int(commit[:8] or '0', 16) % OF_LONG}/{OF_LONG}")


@nox.session(python=False)
def full(session: nox.Session) -> None:
    """The sessions of `check`, with all long tests."""
    run_together(session, CHECKS)


@nox.session(python=False)
def changed(session: nox.Session) -> None:
    """The sessions of CHECKS that a branch can make fail: by the files in which it differs from `main`."""
    commands = (
        ["diff", "--name-only", "main..."],
        ["diff", "--name-only", "HEAD"],
        ["ls-files", "-o", "--exclude-standard"],
    )
    answers = [subprocess.run(["git", *it], cwd=ROOT, capture_output=True, text=True, check=True) for it in commands]
    names = sessions_of({line for answer in answers for line in answer.stdout.splitlines()})
    session.log(f"sessions: {', '.join(names)}")
    run_together(session, names)


def sessions_of(files: set[str]) -> list[str]:
    """The sessions of CHECKS that files of the repository can make fail, in their order."""
    needed: set[str] = {"lint", "types"} if any(file.endswith(".py") for file in files) else set()
    for file in files:
        folder, _, rest = file.partition("/")
        name = rest.partition("/")[0]
        if folder == "docs" or file.endswith(".md"):
            needed |= {"docs", "thirdparty"} if "anyaccel-mlx" in file else {"docs"}
        elif folder == "plugins" and name in PLUGINS:
            users = {other for other in PLUGINS if name == other or name in with_siblings(other)}
            needed |= {f"backend({other})" for other in users} | {"features", "wheel", "mixed"}
        elif folder == "tests" and name in _TESTED_BY:
            needed |= _TESTED_BY[name]
        else:  # core, the settings of all tests, the tools
            return CHECKS
    needed |= {f"unit-{FOUND[-1]}"} if "unit" in needed else set()
    return [session for session in CHECKS if session in needed]


_TESTED_BY = {
    "core": {"unit", "lowest"},
    "integration": {*BACKENDS, "features", "mixed"},
    "contract": {*BACKENDS, "features"},
    "hints": {*BACKENDS, "features"},
    "packaging": {"features", "wheel"},
    "docs": {"docs"},
    "benchmarks": {"features"},
    "mutants": {"features"},
}
"""By folder of `tests/`, the sessions that run what is in it."""


def run_together(session: nox.Session, names: list[str], **variables: str) -> None:
    """Run sessions with these variables of the environment, several at a time.

    Installing, building and type checking use one core, so that sessions side by side fill what they leave free.
    """
    lanes = min(CORES, 2 if CORES < 8 else 4)
    command = [sys.executable, "-m", "nox", "--non-interactive", "--envdir", str(kept(session).parent)]
    env = {**os.environ, "ANYACCEL_TEST_WORKERS": str(min(CORES // lanes, 4)), **variables}
    # uv installs in a tenth of the time; where it cannot be had, or does not reach what pip reaches, sessions use pip.
    if not (shutil.which("uv") or find_spec("uv")):
        succeeds([sys.executable, "-m", "pip", "install", "--target", str(UV), "uv"])
    if not succeeds([*command, "--session", "lint", "--install-only"]):
        command += ["--default-venv-backend", "virtualenv"]
        shutil.rmtree(UV, ignore_errors=True)

    def run(name: str) -> tuple[str, subprocess.CompletedProcess[str], float]:
        began = time.monotonic()
        arguments = [*command, "--session", name, *(("--", *session.posargs) if session.posargs else ())]
        ended = subprocess.run(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, check=False
        )
        return name, ended, time.monotonic() - began

    failed = []
    with ThreadPoolExecutor(lanes) as pool:
        for future in as_completed([pool.submit(run, name) for name in names]):
            name, ended, seconds = future.result()
            print(ended.stdout, flush=True)
            session.log(f"{name}: {'failed' if ended.returncode else 'passed'} after {seconds:.0f} s")
            failed += [name] if ended.returncode else []
    if failed:
        session.error(f"failed: {', '.join(failed)}")


@nox.session(python=MAIN)
def lint(session: nox.Session) -> None:
    """Ruff: rules and format."""
    install(session, *group("lint"))
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session(python=MAIN)
def types(session: nox.Session) -> None:
    """Mypy, strict, over core, every plugin and this file, with the real frameworks."""
    install(session, *editable(*PLUGINS), *group("types", *PLUGINS))
    session.run("mypy", "core/src", *(f"plugins/{name}/src" for name in PLUGINS), "noxfile.py")


@nox.session(python=FOUND)
def unit(session: nox.Session) -> None:
    """Core by its wheel, where neither a framework nor another distribution of anyaccel is installed."""
    with built_wheels(session, "core") as wheels:
        install(session, *map(str, wheels.glob("*.whl")), *group("test", "guests", "lint", "types"))
        check_no_framework(session)
        run_away(session, wheels, "tests/core", *session.posargs)


@nox.session(python=MAIN)
def features(session: nox.Session) -> None:
    """The features over NumPy, the kit over wrong backends, how the repository is built; without a framework.

    So do those integration tests that use none. Then each feature is taken away, and a sample of other tests runs.
    """
    install(session, *editable(*FEATURES), *group("test", "guests", "lint", "types"))
    check_no_framework(session)
    session.run("pytest", *of_features(), *spread(), *session.posargs)
    session.run("pytest", *OF_KIT, *spread(), *session.posargs)
    session.run("pytest", *OF_NO_FRAMEWORK, *spread(), *session.posargs, env=ONE_THREAD)
    if not session.posargs:
        take_away(session, sample=40)


@nox.session(python=MAIN)
def schedulers(session: nox.Session) -> None:
    """Exports of requests beside the packages of the systems that read them, and the schema of Kubernetes."""
    install(session, *editable("resources", "devtools"), *group("test", "schedulers"))
    session.run("pytest", *(f"plugins/resources/tests/test_{name}.py" for name in ("exports", "exports_elsewhere")))


@nox.session(python=MAIN)
def apart(session: nox.Session) -> None:
    """Each feature is taken away in turn, and all tests of core and of the others run; `features` runs a sample."""
    install(session, *editable(*FEATURES), *group("test", "guests", "lint", "types"))
    take_away(session, sample=1)


def of_features() -> list[str]:
    """The tests of the features that are tested with NumPy alone."""
    return [f"plugins/{name}/tests" for name in FEATURES if name not in TESTED_WITH]


def take_away(session: nox.Session, sample: int) -> None:
    """Uninstall each feature in turn, and run one in `sample` of core's tests and of the others', each time others.

    Each part of the long tests takes one feature away.
    """
    part = os.environ.get("ANYACCEL_TEST_PART")
    for name in [FEATURES[int(part.partition("/")[0]) % len(FEATURES)]] if part else FEATURES:
        session.run("python", "-m", "pip", "uninstall", "--yes", "--quiet", f"anyaccel-{name}")
        others = [path for path in of_features() if path != f"plugins/{name}/tests"]
        env = {"ANYACCEL_TEST_SAMPLE": str(sample), "ANYACCEL_TEST_DRAW": name}
        session.run("pytest", "tests/core", *others, *spread(), env=env)
        install(session, "--no-deps", "--editable", f"plugins/{name}")


@nox.session(python=MAIN)
def coverage(session: nox.Session) -> None:
    """The tests of `unit` and `features` with coverage, which must not fall; takes half as long again."""
    install(session, *editable(*FEATURES), *group("test", "guests", "lint", "types"))
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", "tests/core", *OF_KIT, *spread("loadfile"), *session.posargs)
    session.run("coverage", "combine", "--quiet")
    session.run("coverage", "report")


def check_no_framework(session: nox.Session) -> None:
    """Fail if a framework is installed in the session's environment."""
    session.run(
        "python",
        "-c",
        "import importlib.util as u, sys\n"
        f"found = [name for name in {FRAMEWORKS!r} if u.find_spec(name)]\n"
        "sys.exit(f'a framework is installed here: {found}' if found else 0)",
    )


@nox.session(python=SUPPORTED[0])
def lowest(session: nox.Session) -> None:
    """Core with the oldest dependencies it promises to work with: what depends on them, and a sample of the rest."""
    with (ROOT / "core/pyproject.toml").open("rb") as file:
        floors = tomllib.load(file)["project"]["dependencies"]
    install(session, *CORE, *(floor.replace(">=", "==") for floor in floors), *group("test"))
    if session.posargs:
        session.run("pytest", *spread(), *session.posargs)
        return
    session.run("pytest", *OF_DEPENDENCIES, "-m", "not slow", *spread())
    left = [f"--ignore={path}" for path in OF_DEPENDENCIES]
    sample = {"ANYACCEL_TEST_SAMPLE": "16"}
    session.run("pytest", "tests/core", *left, "-m", "not slow", *spread(), env=sample)


def floors_of(plugin: str) -> dict[str, str]:
    """The requirements of a plugin's oldest framework and libraries by name, extras too.

    Of NumPy, the newest that these work with is installed: `lowest` has the oldest, which other libraries refuse.
    """
    project = published(plugin)
    extras = project.get("optional-dependencies", {})
    extras = {"cpu": extras["cpu"]} if "cpu" in extras else extras  # of builds that exclude each other
    needs = sorted({need for needs in (project["dependencies"], *extras.values()) for need in needs})
    pairs = [need.split(">=") for need in needs if not need.startswith(("anyaccel", "numpy"))]
    return {name: f"{name}=={version}.*" for name, version in pairs}


@nox.session(python=SUPPORTED[0])
@nox.parametrize("plugin", [nox.param(name, id=name) for name in PLUGINS if floors_of(name)])
def oldest(session: nox.Session, plugin: str) -> None:
    """A plugin's own tests with the oldest framework and libraries that it publishes as supported, extras too.

    Warnings of what has since been deprecated are theirs. Old torch is a build for CUDA, of several gigabytes.
    """
    floors = floors_of(plugin)
    others = [need for need in group(plugin) if re.split(r"[^\w-]", need)[0] not in floors]  # that only tests need
    used = editable(plugin, *TESTED_WITH.get(plugin, FEATURES if plugin in FEATURES else ()))
    install(session, *used, *floors.values(), *others, *group("test", "guests"))
    theirs = ("DeprecationWarning", "FutureWarning", "ResourceWarning", "pytest.PytestUnraisableExceptionWarning")
    ignored = [part for kind in theirs for part in ("-W", f"ignore::{kind}")]
    env = {"ANYACCEL_TEST_SHARED": "1", **ONE_THREAD, **compiled_once(session)}
    session.run("pytest", f"plugins/{plugin}/tests", *ignored, *spread(), *session.posargs, env=env)


@nox.session(python=MAIN)
@nox.parametrize("plugin", [nox.param(name, id=name) for name in PLUGINS])
def backend(session: nox.Session, plugin: str) -> None:
    """One plugin with its framework and no other: its own tests (the kit among them), and graphs over it.

    One without a backend, or with another plugin's framework, is tested by its own tests alone: the graphs would be
    the same.
    """
    fast = COMPILED_FAST if plugin in ("jax", "tensorflow") else {}
    run_tests_of(session, plugin, {"ANYACCEL_TEST_SHARED": "1", **fast})


@nox.session(python=MAIN)
@nox.parametrize("plugin", [nox.param(name, id=name) for name in ("core", *PLUGINS)])
def whole(session: nox.Session, plugin: str) -> None:
    """All tests of which `backend` takes a sample, the kit over every kind of model among them; of core, `unit`'s."""
    if plugin != "core":
        run_tests_of(session, plugin, {"ANYACCEL_TEST_FULL": "1"})
        return
    install(session, *editable(*FEATURES), *group("test", "guests", "lint", "types"))
    env = {"ANYACCEL_TEST_FULL": "1", **ONE_THREAD}
    session.run("pytest", "tests/core", *of_features(), *OF_KIT, *spread(), *session.posargs, env=env)
    session.run("pytest", *OF_NO_FRAMEWORK, *spread(), *session.posargs, env=env)


def run_tests_of(session: nox.Session, plugin: str, part: dict[str, str]) -> None:
    """Install a plugin, and run its tests, those of hints that need it, and the integration tests over it."""
    libraries = {"torch": ("models-sample", "tables-sample", "peers"), "offload": ("models-sample",)}.get(plugin, ())
    used = (plugin, *TESTED_WITH.get(plugin, ()))
    install(session, *editable(*used), *group("test", "guests", *used, *libraries))
    # Two processes: the integration tests need all 64 bits, which is a setting of a whole process in JAX.
    env = {**part, **ONE_THREAD, **compiled_once(session)}
    session.run("pytest", f"plugins/{plugin}/tests", *spread(), *session.posargs, env=env)
    if followed := hints_with(plugin, f"anyaccel_{plugin}"):
        session.run("pytest", *followed, *spread(), *session.posargs, env=env)
    if has_backend(plugin) and with_siblings(plugin) == [plugin]:
        session.run("pytest", "tests/integration", *OF_FRAMEWORKS, *spread(), *session.posargs, env=env)


@nox.session(python=MAIN)
def kits(session: nox.Session) -> None:
    """The whole kit over every kind of model of the plugins; `backend` takes a sample of all but one kind of each."""
    plugins = [name for name in PLUGINS if has_backend(name)]
    install(session, *editable(*plugins), *group("test", "guests", *plugins))
    env = {"ANYACCEL_TEST_FULL": "1", **ONE_THREAD, **compiled_once(session)}
    for name in plugins:
        found = sorted(
            str(path.relative_to(ROOT)) for path in ROOT.glob(f"plugins/{name}/tests/**/test_*conformance.py")
        )
        session.run("pytest", *found, *spread(), *session.posargs, env=env)


@nox.session(python=MAIN)
def mixed(session: nox.Session) -> None:
    """All frameworks in one process, and one graph over several of them: integration tests that `backend` skips."""
    frameworks = ("torch", "jax", "tensorflow")
    install(session, *editable(*frameworks, *FEATURES), *group("test", "guests", "sources", *frameworks))
    folders = ("tests/integration", "tests/integration/saved_0_1", "tests/hints")
    tests = [path for folder in folders for path in files_with(folder, r'mark\.across\b|\bthree: |"three"\)\n')]
    env = {"ANYACCEL_TEST_MIXED": "1", **ONE_THREAD, **compiled_once(session)}
    session.run("pytest", *tests, "-m", "across", *spread(), *session.posargs, env=env)


@nox.session(python=MAIN)
@nox.parametrize("name", [nox.param(name, id=name) for name in ("torchrun", "openmpi", "mpich", "ray")])
def launchers(session: nox.Session, name: str) -> None:
    """One script of each framework by a launcher: torchrun and a stand-in for srun, mpirun of Open MPI and MPICH, Ray.

    `backend` runs a sample. No Slurm is installed: its variables are set by the stand-in.
    """
    frameworks = ("torch", "jax", "tensorflow")
    plugins = (*frameworks, "ray") if name == "ray" else frameworks
    libraries = () if name == "torchrun" else (name,)
    install(session, *editable(*plugins), *group("test", "guests", *frameworks, *libraries))
    env = {"ANYACCEL_TEST_FULL": "1", **ONE_THREAD}
    tests = {"ray": ["plugins/ray/tests"], "torchrun": ["plugins/torch/tests/test_launchers.py"]}
    of_mpi = ["plugins/torch/tests/test_launchers.py", "-k", "mpirun"]
    session.run("pytest", *tests.get(name, of_mpi), "-n", "0", *session.posargs, env=env)


@nox.session(python=MAIN)
def kills(session: nox.Session) -> None:
    """A thousand processes that write checkpoints, killed at random instants, replicas of each framework, own loops.

    `features` and `backend` kill a sample.
    """
    install(session, *editable(*PLUGINS), *group("test", "guests", *PLUGINS))
    env = {"ANYACCEL_TEST_KILLS": "1000", **ONE_THREAD, **compiled_once(session)}
    session.run("pytest", "plugins/torch/tests/test_replica_restarts.py", *session.posargs, env=env)
    of_all = {"ANYACCEL_TEST_FULL": "1", **env}
    session.run("pytest", "plugins/torch/tests/test_own_loop_disturbed.py", *session.posargs, env=of_all)
    for name in ("jax", "tensorflow"):
        session.run("pytest", f"plugins/{name}/tests/test_replicas.py", "-k", "killed or number", env=of_all)
    session.run("pytest", "tests/integration/test_kills.py", "-rP", *spread(), *session.posargs, env=env)


@nox.session(python=MAIN)
def damage(session: nox.Session) -> None:
    """2,000 flipped bits and thousands of hostile manifests; `unit` takes a sample of both."""
    install(session, *editable("devtools"), *group("test"))
    env = {"ANYACCEL_TEST_FULL": "1", **ONE_THREAD}
    tests = [f"tests/core/saved_folder/test_{name}.py" for name in ("damage", "hostile")]
    tests.append("plugins/devtools/tests/commands/test_verify.py")
    session.run("pytest", *tests, *spread(), *session.posargs, env=env)


@nox.session(python=MAIN)
def models(session: nox.Session) -> None:
    """Every model of tests/integration/model_libraries beside a loop by hand; `backend` runs a sample of them."""
    frameworks = ("torch", "jax", "tensorflow")
    install(session, *editable(*frameworks), *group("test", "guests", "models", *frameworks))
    tests = ["tests/integration/model_libraries", *["tests/integration/model_libraries/test_keras_applications.py"] * 2]
    for framework, chosen in zip(frameworks, tests, strict=True):  # Keras computes with one of them in a process
        env = {"ANYACCEL_TEST_MODELS": "1", "KERAS_BACKEND": framework, **ONE_THREAD, **compiled_once(session)}
        session.run("pytest", chosen, *spread(), *session.posargs, env=env)


@nox.session(python=MAIN)
def tables(session: nox.Session) -> None:
    """Six real tables in five folds beside gradient boosting and a linear model; `backend` runs two of them."""
    install(session, *group("tables"))  # two are built from sources, in isolation
    install(session, *editable("torch", "sklearn"), *group("test", "guests", "torch"))
    env = {"ANYACCEL_TEST_FULL": "1", **ONE_THREAD}
    session.run("pytest", "tests/integration/test_real_tables.py", "-rP", *spread(), *session.posargs, env=env)


@nox.session(python=MAIN)
def thirdparty(session: nox.Session) -> None:
    """A stranger's plugin, from its own wheel and with core's: its tests, far from the sources."""
    project = "docs/examples/anyaccel-mlx"
    with built_wheels(session, "core", "plugins/devtools", project) as wheels, tempfile.TemporaryDirectory() as folder:
        install(session, *map(str, sorted(wheels.glob("*.whl"))), *group("test", "thirdparty"))
        shutil.copytree(ROOT / project / "tests", Path(folder, "tests"), ignore=WITHOUT_CACHES)
        shutil.copy(ROOT / project / "pyproject.toml", folder)
        with session.chdir(folder):
            session.run("pytest", "tests", *session.posargs, env=AWAY)
            session.run("anyaccel", "conform", "mlx", *PLACEMENT)


@nox.session(python=MAIN)
def wheel(session: nox.Session) -> None:
    """What a user gets: wheels built from source distributions, installed together and tried far from the sources.

    Core's own tests run over its wheel in `unit`.
    """
    sources = ("core", *(f"plugins/{name}" for name in PLUGINS))
    with built_wheels(session, *sources, isolated=False) as wheels:  # `thirdparty` and `unit` build in isolation
        install(session, *map(str, sorted(wheels.glob("*.whl"))), *group("test", "guests", *PLUGINS))
        import_once(session)
        run_away(session, wheels, *OF_WHEELS, *session.posargs)
        env = {**AWAY, **compiled_once(session)}
        without = next(name for name in PLUGINS if not has_backend(name))
        for name in (*filter(has_backend, PLUGINS), without):  # with the Subject that its own wheel carries
            codes = [0 if name != without else 2]  # which says that there is nothing to test
            session.run("anyaccel", "conform", name, *PLACEMENT, env=env, success_codes=codes)


@contextmanager
def built_wheels(session: nox.Session, *sources: str, isolated: bool = True) -> Iterator[Path]:
    """A folder with the wheels of distributions of this tree, each built from its source distribution.

    Args:
        session: where they are built.
        sources: folders with a pyproject.toml.
        isolated: whether each build gets an environment of its own, with what the distribution says it is built by.
    """
    options: tuple[str, ...] = ("--no-isolation",)
    if isolated:  # uv makes these environments in a tenth of the time
        options = ("--installer", "uv") if shutil.which("uv") else ()
    install(session, *group("wheel", *(() if isolated else ("editable",))))
    with tempfile.TemporaryDirectory() as wheels:
        for source in sources:
            session.run("python", "-m", "build", *options, "--outdir", wheels, source, silent=True)
        yield Path(wheels)


def run_away(session: nox.Session, wheels: Path, *arguments: str) -> None:
    """Run tests with pytest's settings in a folder that has no sources."""
    with tempfile.TemporaryDirectory() as away:
        shutil.copytree(ROOT / "tests", Path(away, "tests"), ignore=WITHOUT_CACHES)
        shutil.copy(ROOT / "pyproject.toml", away)
        env = {"ANYACCEL_TEST_WHEELS": str(wheels), **AWAY, **compiled_once(session)}
        with session.chdir(away):
            session.run("pytest", *arguments, *spread(), env=env)


def install_docs(session: nox.Session, *more: str) -> None:
    """What the documentation needs to be built: the notebook runs torch, and the reference reads JAX's plugin, too."""
    install(
        session,
        *editable("torch", "jax", *FEATURES),
        *more,
        *group("test", "guests", "sources", "docs", "torch", "jax"),
    )


def build_site(session: nox.Session, builder: str = "html") -> Path:
    """Build the site, warnings being errors: a link without a target, a name without a page, a notebook that fails."""
    built = ROOT / "docs/_build" / builder
    options = ("--fail-on-warning", "--keep-going", "--quiet", "--fresh-env")
    where = ("-d", "docs/_build/doctrees", "docs", str(built))
    session.run("sphinx-build", "-b", builder, *options, *where, env=ONE_THREAD)
    return built


@nox.session(python=MAIN)
def docs(session: nox.Session) -> None:
    """Build the site, read it in a browser, and run every example of READMEs and docs/, and the example projects."""
    projects = sorted(path.parent for path in ROOT.glob("docs/examples/*/pyproject.toml"))
    installs = [part for project in projects for part in ("--editable", str(project))]
    install_docs(session, *editable(*PLUGINS), *installs, *group("thirdparty", "peers", *PLUGINS))
    import_once(session)
    env = {"ANYACCEL_TEST_SITE": str(build_site(session)), **compiled_once(session), **ONE_THREAD}
    readmes = ["README.md", "core/README.md", *(f"plugins/{name}/README.md" for name in PLUGINS)]
    session.run("pytest", "tests/docs", "docs", *readmes, *spread("loadfile"), *session.posargs, env=env)


@nox.session(python=MAIN)
def site(session: nox.Session) -> None:
    """Build the site alone, into docs/_build/html."""
    install_docs(session)
    session.log(f"built: {build_site(session) / 'index.html'}")


@nox.session(python=False)
def develop(session: nox.Session) -> None:
    """Make the environment `.venv`: core, all features and the plugins after `--`, editable, and what tests need."""
    unknown = set(session.posargs) - set(PLUGINS)
    if unknown:
        session.error(f"no plugin {', '.join(sorted(unknown))}; there are {', '.join(PLUGINS)}")
    session.run(sys.executable, "-m", "venv", ".venv", external=True)
    pip = (str(ROOT / ".venv" / ("Scripts" if sys.platform == "win32" else "bin") / "python"), "-m", "pip", "install")
    session.run(*pip, *group("editable"), external=True)
    tools = group("test", "guests", "lint", "types", *session.posargs)
    plugins = editable(*FEATURES, *session.posargs)
    session.run(*pip, "--no-build-isolation", *plugins, *tools, external=True)


@nox.session(python=False)
def bump(session: nox.Session) -> None:
    """Give every distribution the version after `--`, and let each require it of the others."""
    number = (
        session.posargs[0] if session.posargs else nox.project.load_toml("core/pyproject.toml")["project"]["version"]
    )
    for file in (ROOT / "core/pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")):
        text = file.read_text("utf-8")
        text = re.sub(r'^version = ".+"$', f'version = "{number}"', text, flags=re.MULTILINE)
        file.write_text(re.sub(r'"(anyaccel[\w-]*)==[^"]+"', rf'"\1=={number}"', text), "utf-8")
    source = ROOT / "core/src/anyaccel/version.py"
    text = source.read_text("utf-8")
    source.write_text(re.sub(r'^__version__ = ".+"$', f'__version__ = "{number}"', text, flags=re.MULTILINE), "utf-8")


@nox.session(python=MAIN)
def linkcheck(session: nox.Session) -> None:
    """Ask for every link that leaves the site; needs the network, so that it is no part of a plain nox."""
    install_docs(session)
    build_site(session, "linkcheck")


@nox.session(python=MAIN)
def bench(session: nox.Session) -> None:
    """Run the benchmarks, or those whose files are named after `--`, into build/bench; `--quick` sees that they run.

    What else stands after `--` is handed to each of them. The pictures for docs/benchmarks are drawn, too.
    """
    session.install(*editable(*PLUGINS), *group("bench", "guests", *PLUGINS))
    named = [argument for argument in session.posargs if argument.endswith(".py")]
    options = [argument for argument in session.posargs if argument not in named]
    into = ROOT / "build/bench"
    into.mkdir(parents=True, exist_ok=True)
    for script in named or python_files("tests/benchmarks"):
        session.run("python", script, *options, "--json", str(into / f"{Path(script).stem}.json"), env=ONE_THREAD)
    session.run("python", "tests/benchmarks/harness/plots.py", str(into))


@nox.session(python=MAIN)
def mutants(session: nox.Session) -> None:
    """Change lines of the plugins and of core's loop, one at a time: tests must notice 95 % of them. Takes hours.

    After `--`: areas of tests/mutants/areas.toml, and options of tests/mutants/run.py.
    """
    install(session, *editable(*PLUGINS), *group("test", "guests", "mutants", *PLUGINS))
    session.run("pytest", "tests/packaging/test_mutants.py", "-q")
    session.run("python", "tests/mutants/run.py", *session.posargs, env={**ONE_THREAD, **compiled_once(session)})
