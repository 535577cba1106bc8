"""The plugin: turning logging on and off, what it imports, and that it does not listen to steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import anyaccel as aa
import anyaccel_tensorboard
from anyaccel.errors import PluginError
from anyaccel.phases.hooks import HookCaller
from anyaccel.phases.run import Run
from anyaccel_tensorboard import TensorBoard, log_to
from anyaccel_tensorboard.tracking import switch

SCRIPT = """
import sys
import numpy as np
import anyaccel as aa

x = np.ones((8, 2))
data = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, 0]}, ["x"], ["y"])
graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(), data.reference())], "sgd")
phase = aa.TrainPhase("train", data=data, losses=[aa.AppliedLoss("mse", on="net")])
aa.Experiment("demo", graph, progress="none").run_phase(phase)
print("tensorboard" in sys.modules, "tensorflow" in sys.modules)
"""


def process(code, folder, **environment):
    """What a process prints that finds the installed plugins."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ANYACCEL_")}
    answer = subprocess.run(
        [sys.executable, "-W", "error", *code],
        cwd=folder,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


# -- in this process ---------------------------------------------------------------------------------------------------


def test_logging_is_off_by_default(tmp_path, monkeypatch, experiment, train, evaluate):
    monkeypatch.chdir(tmp_path)
    experiment().run(train(), evaluate())
    assert list(tmp_path.iterdir()) == []


def test_log_to_holds_until_the_next_call(runs, tmp_path, folders, experiment, train):
    ours = experiment()
    assert repr(log_to(runs)) == f"log_to({str(runs)!r})"
    ours.run(train(), train())
    log_to(tmp_path / "others")
    ours.run_phase(train())
    assert repr(log_to(None)) == "log_to(None)"
    ours.run_phase(train())
    assert folders(runs) == ["demo/train-1", "demo/train-2"]
    assert folders(tmp_path / "others") == ["demo/train-1"]


def test_a_block_returns_to_the_setting_before(runs, tmp_path, folders, experiment, train, oops):
    ours = experiment()
    with log_to(runs) as logging:
        assert logging.target == runs
        with log_to(tmp_path / "inner"):
            ours.run_phase(train("inner"))
        with log_to(None):
            ours.run_phase(train("nowhere"))
        ours.run_phase(train("outer"))
        with pytest.raises(oops), log_to(tmp_path / "inner"):
            raise oops
        ours.run_phase(train("outer"))
    ours.run_phase(train("after"))
    assert folders(runs) == ["demo/outer-1", "demo/outer-2"]
    assert folders(tmp_path / "inner") == ["demo/inner-1"]


def test_a_phase_that_has_begun_is_logged_to_its_end(runs, read, experiment, train, on):
    with log_to(runs) as logging:
        off = on("epoch_start", lambda run: logging.__exit__(None, None, None))
        experiment().run_phase(train(callbacks=[off]))
    assert read(runs / "demo/train-1").scalars["train/loss"][0] == [0, 1, 2]


def test_a_relative_folder_is_resolved_at_the_call(tmp_path, monkeypatch, folders, experiment, train):
    monkeypatch.chdir(tmp_path)
    log_to("runs")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    experiment().run_phase(train())
    assert folders(tmp_path / "runs") == ["demo/train-1"]


def test_the_environment_turns_logging_on(runs, monkeypatch, folders, experiment, train):
    ours = experiment()
    monkeypatch.setenv("ANYACCEL_TENSORBOARD", str(runs))
    ours.run_phase(train())
    with log_to(None):
        ours.run_phase(train("off"))
    monkeypatch.chdir(runs)
    for empty in ("", " "):
        monkeypatch.setenv("ANYACCEL_TENSORBOARD", empty)
        ours.run_phase(train("empty"))
    assert folders(runs) == ["demo/train-1"] and [path.name for path in runs.iterdir()] == ["demo"]


def test_the_home_folder_may_be_written_as_a_tilde(tmp_path, monkeypatch, folders, experiment, train):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("ANYACCEL_TENSORBOARD", str(Path("~", "runs")))
    experiment().run_phase(train())
    assert folders(tmp_path / "runs") == ["demo/train-1"]


def test_a_call_without_the_plugin_is_an_error(monkeypatch, runs):
    from anyaccel.numpy_backend import NumpyBackend
    from anyaccel.registry import Registry

    monkeypatch.setattr("anyaccel.registry._registry", [Registry(NumpyBackend, list)])
    with pytest.raises(PluginError) as caught:
        log_to(runs)
    assert str(caught.value).startswith(
        "log_to() has no effect: the plugin 'tensorboard' is not loaded. Available: numpy"
    )
    assert "add to phases the callback TensorBoard(folder)" in str(caught.value)
    assert log_to(None).target is None


def test_an_entry_point_with_another_module_than_the_switch_is_an_error(monkeypatch, runs):
    from anyaccel.numpy_backend import NumpyBackend
    from anyaccel.plugin_testing import entry, plugin_module
    from anyaccel.registry import Registry

    another = [entry("tensorboard", plugin_module("another", phase_start=lambda: None))]
    monkeypatch.setattr("anyaccel.registry._registry", [Registry(NumpyBackend, lambda: another)])
    with pytest.raises(PluginError, match=r"'tensorboard' names another module than .* 'anyaccel_tensorboard'\. Hint"):
        log_to(runs)


def test_the_callback_logs_without_the_plugin(monkeypatch, runs, folders, experiment, train):
    from anyaccel.numpy_backend import NumpyBackend
    from anyaccel.registry import Registry

    monkeypatch.setattr("anyaccel.registry._registry", [Registry(NumpyBackend, list)])
    experiment().run_phase(train(callbacks=[TensorBoard(runs)]))
    assert folders(runs) == ["demo/train-1"]


def test_plugin_and_callback_do_not_share_a_file(logged, read, folders, experiment, train):
    experiment().run_phase(train(callbacks=[TensorBoard(logged)]))
    assert folders(logged) == ["demo/train-1", "demo/train-2"]
    first, second = (read(logged / f"demo/train-{number}") for number in (1, 2))
    assert first.scalars["train/loss"] == second.scalars["train/loss"] and first.texts == second.texts


# -- as a callback -----------------------------------------------------------------------------------------------------


def test_a_callback_logs_only_its_phase(runs, folders, experiment, train):
    callback = TensorBoard(runs / "first")
    experiment().run(train("one", callbacks=[callback]), train("two"))
    assert folders(runs) == ["first/demo/one-1"]
    assert repr(callback) == f"TensorBoard({str(runs / 'first')!r})"


def test_a_callback_of_an_experiment_logs_all_phases(runs, folders, experiment, train, evaluate):
    experiment(callbacks=[TensorBoard(runs)]).run(train(), evaluate(), train())
    assert folders(runs) == ["demo/eval-1", "demo/train-1", "demo/train-2"]


def test_steps_are_written_with_every_n_steps(runs, read, experiment, train, on):
    losses = []
    watch = on("step_end", lambda run: losses.append(run.step_losses()))
    callback = TensorBoard(runs, every_n_steps=2)
    experiment().run_phase(train(callbacks=[watch, callback]))
    written = read(runs / "demo/train-1")
    assert written.under("step/") == ["loss.one", "loss.two"]
    steps, values = written.scalars["step/loss.one"]
    assert steps == [1, 3, 5, 7, 9, 11] and len(losses) == 12
    means = [(losses[step - 1]["one"] + losses[step]["one"]) / 2 for step in steps]  # whoever else listens
    assert values == pytest.approx(means, rel=1e-5)
    assert written.scalars["train/loss"][0] == [0, 1, 2]
    assert repr(callback) == f"TensorBoard({str(runs)!r}, every_n_steps=2)"


def test_steps_between_two_that_are_written_are_averaged(runs, read, experiment, train, on):
    losses = []
    experiment().run_phase(train(callbacks=[on("step_end", lambda run: losses.append(run.step_losses()))]))
    experiment().run_phase(train(callbacks=[TensorBoard(runs, every_n_steps=2)]))
    steps, values = read(runs / "demo/train-1").scalars["step/loss.one"]
    assert steps == [1, 3, 5, 7, 9, 11]
    means = [(losses[step - 1]["one"] + losses[step]["one"]) / 2 for step in steps]
    assert values == pytest.approx(means, rel=1e-5)


def test_steps_are_not_listened_to_without_every_n_steps(registry, runs):
    assert anyaccel_tensorboard in registry.hooks.get_plugins()
    assert registry.hooks.hook.step_end.get_hookimpls() == []
    assert registry.hooks.hook.steps_done.get_hookimpls() == []
    with log_to(runs):
        assert not HookCaller(registry.hooks, [TensorBoard(runs)]).has_steps_done_listeners
    caller = HookCaller(registry.hooks, [TensorBoard(runs, every_n_steps=1)])
    assert caller.has_steps_done_listeners and caller.step_listeners == ()


@pytest.mark.parametrize("every", [None, 1])
def test_several_steps_remain_one_call_while_logging(every, logged, runs, experiment, train, monkeypatch):
    from anyaccel.phases.executor.pipeline import ChunkRunner

    calls = []
    call = ChunkRunner.train_steps

    def counted(self, start, count, *more):
        calls.append(count)
        return call(self, start, count, *more)

    monkeypatch.setattr(ChunkRunner, "train_steps", counted)
    experiment().run_phase(train(epochs=20, callbacks=[] if every is None else [TensorBoard(runs, every_n_steps=1)]))
    assert max(calls) == 4


# -- as it is installed ------------------------------------------------------------------------------------------------


def test_the_command_line_lists_its_hooks():
    written = json.loads(process(["-m", "anyaccel", "plugins", "--json"], ".", ANYACCEL_PLUGINS="tensorboard"))
    (plugin,) = [entry for entry in written["plugins"] if entry["name"] == "tensorboard"]
    assert (plugin["distribution"], plugin["status"], plugin["backends"]) == ("anyaccel-tensorboard", "ok", [])
    assert plugin["hooks"] == ["phase_start", "before_placement", "epoch_end", "phase_end"]


def test_the_import_is_light(tmp_path):
    code = "import sys, anyaccel_tensorboard; anyaccel_tensorboard.log_to; print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in process(["-c", code], tmp_path).split()}
    assert "anyaccel_tensorboard" in loaded
    assert not loaded & {"tensorboard", "tensorflow", "numpy", "pyarrow", "google", "absl", "pynvml"}


@pytest.mark.parametrize(
    ("environment", "heavy"),
    [
        ({"ANYACCEL_PLUGINS": "tensorboard"}, False),
        ({"ANYACCEL_PLUGINS": "tensorboard", "ANYACCEL_TENSORBOARD": "runs"}, True),
        ({"ANYACCEL_PLUGINS": "", "ANYACCEL_TENSORBOARD": "runs"}, False),
    ],
)
def test_tensorboard_is_imported_when_the_first_logged_phase_begins(environment, heavy, tmp_path, folders):
    """A TensorFlow that cannot be imported stands in the way of whoever would try."""
    (tmp_path / "tensorflow.py").write_text("raise AssertionError('TensorFlow was imported')")
    written = process(["-c", SCRIPT], tmp_path, PYTHONPATH=str(tmp_path), **environment)
    assert written.split() == [str(heavy), "False"]
    assert (folders(tmp_path / "runs") if (tmp_path / "runs").exists() else []) == ["demo/train-1"] * heavy


def test_log_to_is_an_error_where_the_plugin_is_excluded(tmp_path):
    code = (
        "from anyaccel_tensorboard import log_to\nfrom anyaccel.errors import PluginError\n"
        "try:\n    log_to('runs')\nexcept PluginError as error:\n    print(error)"
    )
    written = process(["-c", code], tmp_path, ANYACCEL_PLUGINS="")
    assert "the plugin 'tensorboard' is not loaded" in written and "add it to ANYACCEL_PLUGINS" in written


def test_all_public_names_exist():
    assert set(dir(anyaccel_tensorboard)) == set(anyaccel_tensorboard.__all__)
    assert all(hasattr(anyaccel_tensorboard, name) for name in dir(anyaccel_tensorboard))
    assert anyaccel_tensorboard.TensorBoard is TensorBoard and issubclass(TensorBoard, aa.Callback)
    with pytest.raises(AttributeError, match="module 'anyaccel_tensorboard' has no attribute 'tensorboard_'"):
        anyaccel_tensorboard.tensorboard_  # noqa: B018
    assert (Path(anyaccel_tensorboard.__file__).parent / "py.typed").is_file()


def test_of_several_replicas_the_first_alone_writes(tmp_path: Path) -> None:
    run = Run(aa.TrainPhase("train", data="train", losses=[aa.AppliedLoss("mse", on="net")]), None)  # type: ignore[arg-type]
    run.is_main_process = False
    switch.start(run, tmp_path)
    switch.plan(run)
    switch.call(run, lambda logger: logger.write_steps(None, 1))
    switch.end(run, None)
    assert not list(tmp_path.iterdir())
