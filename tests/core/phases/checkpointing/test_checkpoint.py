"""Checkpoint: its settings, and those of a phase that name one."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from anyaccel.errors import PhaseError
from anyaccel.phases import Checkpoint


@pytest.mark.parametrize(
    ("every", "steps", "seconds"),
    [
        *(("epoch", None, None), (500, 500, None), ("30s", None, 30.0), ("10min", None, 600.0), ("2h", None, 7200.0)),
        *((" 1.5 min ", None, 90.0), (timedelta(minutes=2), None, 120.0)),
    ],
)
def test_intervals(every, steps, seconds):
    checkpoint = Checkpoint("runs/a", every=every)
    assert (checkpoint.every_n_steps, checkpoint.every_seconds) == (steps, seconds)
    assert checkpoint.folder == Path("runs/a")


@pytest.mark.parametrize(
    "every", ["", "10", "ten minutes", "10 days", "-3s", "0s", 0, -1, 1.5, True, None, timedelta(0)]
)
def test_what_is_no_interval(every):
    with pytest.raises(PhaseError, match=r"Checkpoint: every=.*"):
        Checkpoint("runs/a", every=every)


def test_other_settings_out_of_range():
    with pytest.raises(PhaseError, match=r"folder=None is not the name of a folder. Hint: write folder='runs/a'"):
        Checkpoint(None)
    with pytest.raises(PhaseError, match="keep=0 is not an int of at least 1"):
        Checkpoint("a", keep=0)
    with pytest.raises(PhaseError, match="keep_best=3 is not the name of a value of an epoch"):
        Checkpoint("a", keep_best=3)
    with pytest.raises(
        PhaseError, match=r"unknown on_failure='stopp'. Available: 'warn', 'stop'. Hint: did you mean 'stop'"
    ):
        Checkpoint("a", on_failure="stopp")
    with pytest.raises(PhaseError, match="wait='yes' is not True or False"):
        Checkpoint("a", wait="yes")
    with pytest.raises(
        PhaseError, match=r"names=3 is not a dict or a function. Hint: write names=\{'IN THE CHECKPOINT':"
    ):
        Checkpoint("a", names=3)
    with pytest.raises(PhaseError, match=r"change='T' is not a function. Hint: write change=lambda name, array: array"):
        Checkpoint("a", change="T")


def test_a_phase_takes_a_checkpoint_or_a_folder(train):
    assert train(checkpoint="runs/b").checkpoint.folder == Path("runs/b")
    own = Checkpoint("runs/c")
    assert train(checkpoint=own).checkpoint is own
    assert train().checkpoint is None
    with pytest.raises(PhaseError, match=r"checkpoint must be a Checkpoint or the name of a folder, got 3"):
        train(checkpoint=3)


def test_the_value_of_keep_best_must_exist(line, experiment, train, tmp_path):
    with pytest.raises(PhaseError, match=r"monitors 'val_loss', but the epochs of 'train' have no such value"):
        experiment(line()).run_phase(train(checkpoint=Checkpoint(tmp_path, keep_best="val_loss")))


def test_a_relative_folder_is_where_the_checkpoint_was_made(train, experiment, line, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    phase = train(epochs=2, checkpoint=Checkpoint("runs/a"))
    by_name = train(epochs=2, checkpoint="runs/b")
    monkeypatch.chdir(tmp_path / "elsewhere")
    experiment(line()).run_phase(phase)
    experiment(line()).run_phase(by_name)
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere", "runs"} and not list(Path().iterdir())
    for name in ("a", "b"):
        assert (tmp_path / "runs" / name / "latest").is_file()
    monkeypatch.chdir(tmp_path)  # the same text names the same folder, and the finished run is read
    again = experiment(line()).run_phase(train(epochs=2, checkpoint="runs/a"), resume="auto")
    monkeypatch.chdir(tmp_path / "elsewhere")
    finished = experiment(line()).run_phase(phase, resume="auto")
    assert list(again.loss) == list(finished.loss) and len(again.loss) == 2
    assert phase.checkpoint.get_config()["folder"] == str(Path("runs/a")), "saved as it was written"


def test_a_url_stays_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Checkpoint("memory://runs/a").location == Checkpoint("memory://runs/a").folder == "memory://runs/a"
    assert Checkpoint(tmp_path / "runs").location == tmp_path / "runs"
