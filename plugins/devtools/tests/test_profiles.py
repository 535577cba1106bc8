"""Profile: which steps are recorded, what the trace says, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import distributions
from anyaccel import registry as registry_module
from anyaccel.adapter.step_profiler import ProfilesSteps, read_trace, trace_name
from anyaccel.errors import MissingDistributionError, PhaseError
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.numpy_backend.capabilities import NumpyProfiler
from anyaccel.plugin_testing import TinyBackend, write_distribution
from anyaccel.registry import Registry
from anyaccel_devtools.profiles import RECORDING

X = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
ROWS = aa.FeatureSet.from_dict("d", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
LOSSES = [aa.AppliedLoss("mse", on="head")]


def graph():
    nodes = [
        aa.ModelNode('an "encoder"', aa.SequentialMLP(4), ROWS.reference()),
        aa.ModelNode("head", aa.SequentialMLP(1), 'an "encoder"'),
    ]
    return aa.ModelGraph(nodes, "adam")


def run(profile, model=None, **settings):
    settings = {"epochs": 4, "batch_size": 8, **settings}
    phase = aa.TrainPhase("my phase", data="all", losses=LOSSES, callbacks=[profile], **settings)
    return aa.Experiment(model or graph(), progress="none").run_phase(phase)


def spans(profile):
    (path,) = profile.files
    return [event for event in read_trace(path) if event["ph"] == "X"]


def told(results):
    return [event.message for event in results.events if event.kind == "profile"]


@pytest.mark.parametrize(
    ("steps", "settings"),
    [
        ((0, 3), {}),
        ((10, 20), {}),  # over the ends of epochs of 8 steps
        ((5, 6), {"validation": "all"}),
        ((3, 9), {"accumulate": 2, "epochs": 8}),
        ((2, 5), {"batch_size": 24, "epochs": 2}),  # a last, smaller batch
    ],
)
def test_exactly_the_steps_of_the_range_are_recorded(tmp_path, steps, settings):
    profile = aa.Profile(steps=steps, folder=str(tmp_path / "new" / "folder"))
    results = run(profile, **settings)
    names = [span["name"] for span in spans(profile)]
    parts = settings.get("accumulate", 1)
    for node in ("an _encoder_", "head"):
        # A validation within the range is recorded, too: it is one more forward pass.
        assert names.count(f"{node} backward") == (steps[1] - steps[0]) * parts
    marks = [name for name in names if name.startswith("my phase: step")]
    numbers = [[int(word) for word in name.split() if word.isdigit()] for name in marks]
    assert numbers[0][0] == steps[0] and numbers[-1][-1] == steps[1] - 1
    assert told(results) == [f"steps {steps[0]} to {steps[1] - 1} are in {profile.files[0]}"]
    assert profile.files[0].name == "my_phase-numpy.trace.json.gz"


def test_a_node_lies_within_its_call_in_the_order_of_time(tmp_path):
    profile = aa.Profile(steps=(1, 2), folder=str(tmp_path))
    run(profile)
    recorded = {span["name"]: span for span in spans(profile)}
    order = ["an _encoder_", "head", "head backward", "an _encoder_ backward"]
    starts = [recorded[name]["ts"] for name in order]
    assert starts == sorted(starts)
    mark = recorded["my phase: step 1"]
    for name in order:
        assert mark["ts"] <= recorded[name]["ts"]
        assert recorded[name]["ts"] + recorded[name]["dur"] <= mark["ts"] + mark["dur"]


def test_a_profile_changes_no_value(tmp_path):
    profiled, plain = run(aa.Profile(steps=(3, 7), folder=str(tmp_path))), run(aa.Callback())
    assert [epoch.loss for epoch in profiled.epochs] == [epoch.loss for epoch in plain.epochs]


def test_what_does_not_come_to_its_steps_says_so(tmp_path):
    profile = aa.Profile(steps=(100, 110), folder=str(tmp_path))
    assert told(run(profile)) == ["none of steps 100 to 109 was profiled: the run had 32"]
    assert profile.files == [] and not RECORDING.locked()


def test_a_run_that_ends_within_the_range_keeps_what_there_is(tmp_path):
    profile = aa.Profile(steps=(30, 50), folder=str(tmp_path))
    assert told(run(profile)) == [f"steps 30 to 31 are in {profile.files[0]}"]
    assert [span["name"] for span in spans(profile)].count("head backward") == 2


def test_an_error_within_the_range_keeps_the_trace_and_ends_the_recording(tmp_path):
    class Failing(aa.Callback):
        def step_end(self, run):
            if run.step == 4:
                raise ZeroDivisionError

    profile = aa.Profile(steps=(2, 9), folder=str(tmp_path))
    phase = aa.TrainPhase("t", data="all", losses=LOSSES, batch_size=8, callbacks=[profile, Failing()])
    with pytest.raises(ZeroDivisionError):
        aa.Experiment(graph(), progress="none").run_phase(phase)
    assert [span["name"] for span in spans(profile)].count("head backward") == 3
    assert not RECORDING.locked()
    assert told(run(profile)) != []


def test_a_trace_that_cannot_be_written_does_not_end_the_run(tmp_path):
    class Removing(aa.Callback):
        def epoch_start(self, run):
            if run.epoch == 1:
                (tmp_path / "gone").rmdir()

    profile = aa.Profile(steps=(4, 10), folder=str(tmp_path / "gone"))
    phase = aa.TrainPhase("t", data="all", losses=LOSSES, batch_size=8, epochs=3, callbacks=[profile, Removing()])
    results = aa.Experiment(graph(), progress="none").run_phase(phase)
    assert len(results.epochs) == 3
    assert "could not be written" in told(results)[0]


def test_only_one_phase_of_a_process_is_recorded(tmp_path):
    profile = aa.Profile(steps=(0, 2), folder=str(tmp_path))
    with RECORDING, pytest.raises(PhaseError, match="another phase of this process is being profiled"):
        run(profile)
    assert not RECORDING.locked()


def test_a_profiler_that_does_not_start_says_so_and_the_next_one_does(tmp_path, monkeypatch):
    def running(*given):
        raise OSError("another is running\nand more")

    with monkeypatch.context() as patched:
        patched.setattr(NumpyProfiler, "profile_steps", running)
        message = r"the profiler of numpy does not start: another is running\. Hint: stop the profiler that is running"
        with pytest.raises(PhaseError, match=message):
            run(aa.Profile(steps=(1, 3), folder=str(tmp_path)))
    profile = aa.Profile(steps=(1, 3), folder=str(tmp_path))
    run(profile)
    assert spans(profile)


def test_wrong_uses_are_refused_before_anything_moves(tmp_path):
    folder = str(tmp_path)
    for steps in (5, (1,), (1, 2, 3), (3, 3), (-1, 4), (1.5, 4), "ab", (True, 4)):
        with pytest.raises(
            PhaseError, match=r"Profile: steps is .* Hint: write callbacks=\[Profile\(steps=\(10, 20\)\)\]"
        ):
            aa.Profile(steps=steps)
    with pytest.raises(PhaseError, match="no training steps"):
        aa.Experiment(graph()).run_phase(aa.EvalPhase("v", data="all", callbacks=[aa.Profile(folder=folder)]))
    with pytest.raises(PhaseError, match="has 2 Profile callbacks"):
        phase = aa.TrainPhase("t", data="all", losses=LOSSES, callbacks=[aa.Profile(folder=folder)] * 2)
        aa.Experiment(graph(), progress="none").run_phase(phase)
    (tmp_path / "file").write_text("")
    with pytest.raises(PhaseError, match="cannot be created"):
        run(aa.Profile(folder=str(tmp_path / "file" / "below")))


def test_a_long_label_makes_a_file_too(tmp_path):
    profile = aa.Profile(steps=(0, 1), folder=str(tmp_path))
    phase = aa.TrainPhase("é" * 300, data="all", losses=LOSSES, callbacks=[profile])
    aa.Experiment(graph(), progress="none").run_phase(phase)
    assert profile.files[0].exists()


def test_a_profile_of_an_experiment_leaves_its_evaluations_alone(tmp_path):
    profile = aa.Profile(steps=(1, 2), folder=str(tmp_path))
    experiment = aa.Experiment("e", graph(), callbacks=[profile], progress="none")
    experiment.run_phase(aa.TrainPhase("t", data="all", losses=LOSSES, batch_size=8))
    experiment.run_phase(aa.EvalPhase("v", data="all", losses=LOSSES))
    assert len(profile.files) == 1


def test_a_framework_without_a_profiler_is_refused():
    assert not issubclass(TinyBackend, ProfilesSteps)
    profile, phase = aa.Profile(), aa.TrainPhase("t", data="all", losses=LOSSES)
    assignment = type("Assignment", (), {"framework": "tiny", "backend": TinyBackend("tiny", ("cpu:0",))})()
    plan = type("Plan", (), {"assignments": (assignment,)})()
    with pytest.raises(PhaseError, match="the plugin of tiny has no profiler"):
        profile.before_placement(phase, plan, None)


def test_it_is_saved_with_an_experiment(tmp_path):
    config = aa.Profile(steps=(3, 5), folder="f").get_config()
    assert config == {"steps": [3, 5], "folder": "f"} and aa.Profile(**config).get_config() == config


def test_a_saved_experiment_has_its_profile_and_names_what_it_needs(tmp_path, monkeypatch):
    profile, saved = aa.Profile(steps=(3, 5), folder="f"), str(tmp_path / "saved")
    phase = aa.TrainPhase("t", data="all", losses=LOSSES, callbacks=[profile])
    aa.Experiment("e", graph().build(), [phase], callbacks=[profile], progress="none").save(saved)
    given = {"feature_sets": [ROWS], "progress": "none"}
    read = aa.Experiment.load(saved, **given)
    for (callback,) in (read.callbacks, read.phases[0].callbacks):
        assert type(callback) is aa.Profile and callback.get_config() == profile.get_config()
    monkeypatch.setattr(distributions, "entry_points", lambda group: ())
    with pytest.raises(MissingDistributionError, match=r"the saved callback\.Profile needs anyaccel-devtools"):
        aa.Experiment.load(saved, **given)
    assert aa.Experiment.load(saved, phases=[], callbacks=[], **given).callbacks == ()


def test_names_have_no_character_that_profilers_write_as_it_is():
    assert trace_name('a"b\\c#d\ne') == "a_b_c_d_e"


def test_a_relative_folder_is_where_the_profile_was_made(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    profile = aa.Profile(steps=(0, 2), folder="profiles")
    monkeypatch.chdir(tmp_path / "elsewhere")
    run(profile)
    assert [path.parent for path in profile.files] == [tmp_path / "profiles"] and profile.files[0].is_file()
    assert not list((tmp_path / "elsewhere").iterdir())
    assert profile.get_config() == {"steps": [0, 2], "folder": "profiles"}, "saved as it was written"


_STRANGER = """
from contextlib import contextmanager

from anyaccel.adapter.step_profiler import ProfilesSteps, SpanRecorder, write_trace


class Profiler(ProfilesSteps):
    @contextmanager
    def profile_steps(self, path, nodes, devices):
        recorder = SpanRecorder()
        with recorder.span(f"the stranger profiles {self.backend.framework}"):
            yield recorder.span
        write_trace(path, recorder.events)
"""


def test_numpy_is_profiled_by_the_installed_plugin_of_a_stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WithoutProfiler(NumpyBackend):
        capabilities = {k: make for k, make in NumpyBackend.capabilities.items() if k is not ProfilesSteps}

    write_distribution(
        tmp_path / "site",
        "stranger",
        entry_points={"numpy.anyaccel.ProfilesSteps": "stranger_plugin:Profiler"},
        modules={"stranger_plugin": _STRANGER},
        group="anyaccel.capabilities",
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(registry_module, "_registry", [Registry(WithoutProfiler)])
    data = aa.FeatureSet.from_dict("data", {"x": [[0.0], [1.0]] * 8, "y": [[0.0], [1.0]] * 8}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(), data.reference())], optimizer=aa.Optimizer("sgd"))
    profile = aa.Profile((2, 4), folder=str(tmp_path / "traces"))
    train = aa.TrainPhase("t", data="all", losses=[aa.AppliedLoss("mse", on="net")], epochs=8, callbacks=[profile])
    aa.Experiment("e", graph).run_phase(train)
    (file,) = profile.files
    assert "the stranger profiles numpy" in [event["name"] for event in read_trace(Path(file))]
