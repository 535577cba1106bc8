"""The sessions of nox hand over folders that hold wherever a test is, and the README's command is what CI runs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

RELATIVE = "folder-of-nox"


class RecordingSession:
    """A session of nox that runs nothing, and records the texts that it hands to processes.

    Its folder is relative, as nox gives it where no `--envdir` is named.
    """

    posargs: tuple[str, ...] = ()

    def __init__(self, python: str) -> None:
        self.python, self.env, self.texts = python, dict[str, str](), list[str]()
        self.cache_dir, self.bin = Path(RELATIVE, ".cache"), str(Path(RELATIVE, "bin"))

    def install(self, *arguments: str) -> None:
        self.texts += [*arguments, *self.env.values()]

    def run(self, *arguments: str, env: Any = None, **settings: Any) -> None:
        self.texts += [*arguments, *self.env.values(), *filter(None, (env or {}).values())]

    def log(self, text: str) -> None:
        self.texts.append(text)

    @contextlib.contextmanager
    def chdir(self, folder: str) -> Iterator[None]:
        before = Path.cwd()
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


class RunsOfPytest(RecordingSession):
    """A session that records what each process of pytest finds in its environment."""

    def __init__(self, python: str) -> None:
        super().__init__(python)
        self.environments: list[dict[str, str]] = []

    def run(self, *arguments: str, env: Any = None, **settings: Any) -> None:
        if arguments[0] == "pytest":
            self.environments.append(env or {})


@pytest.fixture
def noxfile(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The repository's noxfile, from whose sessions no folder is made; what it sets in the environment is set back."""
    monkeypatch.setattr(pytest.importorskip("nox.registry"), "_REGISTRY", OrderedDict())
    before = dict(os.environ)
    monkeypatch.chdir(root)  # as nox does
    monkeypatch.setattr(Path, "mkdir", lambda *arguments, **settings: None)
    spec = importlib.util.spec_from_file_location("noxfile_of_the_repository", root / "noxfile.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    os.environ.clear()
    os.environ.update(before)


def sessions(noxfile: ModuleType) -> list[tuple[str, Any, dict[str, str]]]:
    """Name, function and arguments of every session."""
    import nox.registry

    found = []
    for name, function in nox.registry.get().items():
        calls = [call.call_spec for call in function.parametrize] if getattr(function, "parametrize", None) else [{}]
        found += [(name, function, dict(arguments)) for arguments in calls]
    return found


def test_no_session_hands_over_a_relative_folder(noxfile: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests change their folder: a relative one would be made anew, or missed, wherever they are."""
    commands: list[str] = []

    def record(command: Any, **settings: Any) -> subprocess.CompletedProcess[str]:
        commands.extend(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(noxfile, "subprocess", type("Recorded", (), {**vars(subprocess), "run": staticmethod(record)}))
    handed = dict[str, list[str]]()
    for name, function, arguments in sessions(noxfile):
        session = RecordingSession(noxfile.FOUND[-1])
        function(session, **arguments)
        handed[name] = [*session.texts, *commands]
        commands.clear()
    with_folder = {name: [text for text in texts if RELATIVE in text] for name, texts in handed.items()}
    assert with_folder["check"] and with_folder["unit"] and with_folder["backend"]  # or this test sees nothing
    assert not [text for texts in with_folder.values() for text in texts if not Path(text).is_absolute()]


@pytest.mark.skipif(sys.platform == "win32", reason="links are for some users only; others keep bytecode apart")
def test_environments_share_the_bytecode_of_equal_files(
    noxfile: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()  # here folders are made
    session = RecordingSession(noxfile.FOUND[-1])
    session.cache_dir = tmp_path / ".cache"
    values = []
    for name, text in {"first": "value = 1", "second": None, "third": "value = 30"}.items():
        source = tmp_path / name / "lib/shared_module.py"
        source.parent.mkdir(parents=True)
        if text:
            source.write_text(text, encoding="utf-8")
        else:  # as uv puts one file into several environments
            os.link(tmp_path / "first/lib/shared_module.py", source)
        session.bin = str(tmp_path / name / "bin")
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPATH": str(source.parent)}
        env["PYTHONPYCACHEPREFIX"] = str(noxfile.share_bytecode(session))
        program = "import shared_module as it; print(it.value, it.__file__, it.__cached__)"
        answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)
        value, file, cached = answer.stdout.split()
        assert file == str(source)
        written = Path(cached).resolve()
        values.append((value, written, written.stat().st_ino))
    assert [value for value, _, _ in values] == ["1", "1", "30"]
    assert values[0] == values[1] and values[1][1] == values[2][1] and values[1][2] != values[2][2]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"docs/how-to/weights.md", "README.md"}, {"docs"}),
        ({"tests/core/graph/test_graph.py"}, {"lint", "types", "unit", "lowest"}),
        ({"plugins/tensorboard/README.md"}, {"docs"}),
        ({"plugins/tensorboard/pyproject.toml"}, {"backend(tensorboard)", "features", "wheel", "mixed"}),
        (
            {"plugins/torch/pyproject.toml"},
            {"backend(torch)", "backend(mps)", "backend(transformers)", "features", "wheel", "mixed"},
        ),
    ],
)
def test_a_branch_runs_the_sessions_of_what_it_touches(
    noxfile: ModuleType, files: set[str], expected: set[str]
) -> None:
    names = {name.partition("-")[0] for name in noxfile.sessions_of(files)}
    assert names == expected & {name.partition("-")[0] for name in noxfile.CHECKS}


@pytest.mark.parametrize("file", ["core/src/anyaccel/device.py", "noxfile.py", "tests/conftest.py", "pyproject.toml"])
def test_what_all_sessions_use_runs_all_of_them(noxfile: ModuleType, file: str) -> None:
    assert noxfile.sessions_of({file}) == noxfile.CHECKS


def test_the_ci_runs_the_command_of_the_readme(root: Path) -> None:
    lines = [line for line in (root / "README.md").read_text(encoding="utf-8").splitlines() if line.endswith("&& nox")]
    assert lines == ["python -m pip install nox && nox"]
    assert f"grep --max-count=1 '{lines[0][-7:]}$' README.md" in (root / ".ci/run").read_text(encoding="utf-8")


def test_each_part_takes_one_feature_away_and_together_all(
    noxfile: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    for part in range(noxfile.OF_LONG):
        monkeypatch.setenv("ANYACCEL_TEST_PART", f"{part}/{noxfile.OF_LONG}")
        session = RecordingSession(noxfile.FOUND[-1])
        noxfile.take_away(session, sample=40)
        taken.append([text for text in session.texts if text.startswith("anyaccel-")])
    assert all(len(names) == 1 for names in taken)
    assert {name for names in taken for name in names} == {f"anyaccel-{name}" for name in noxfile.FEATURES}


def test_whole_runs_all_of_what_the_check_runs_a_part(noxfile: ModuleType) -> None:
    """Core and every plugin has such a session; no process of it leaves a test out, or compiles with other flags."""
    wholes = [(function, arguments) for name, function, arguments in sessions(noxfile) if name == "whole"]
    assert {arguments["plugin"] for _, arguments in wholes} == {"core", *noxfile.PLUGINS}
    for function, arguments in wholes:
        session = RunsOfPytest(noxfile.FOUND[-1])
        function(session, **arguments)
        assert session.environments
        assert all(
            env["ANYACCEL_TEST_FULL"] == "1" and not {"ANYACCEL_TEST_SHARED", "XLA_FLAGS"} & env.keys()
            for env in session.environments
        )
