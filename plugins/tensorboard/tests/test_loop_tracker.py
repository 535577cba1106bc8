"""What a loop of one's own logs is in an event file that TensorBoard reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from anyaccel_distributed.own_loop.loop import Tracking


def test_values_are_lines_of_json_and_events(tmp_path: Path) -> None:
    tracking = Tracking(tmp_path / "a", writes=True)
    for step in (1, 2):
        tracking.log({"loss": 0.5 * step, "rate": 0.1}, step)
    tracking.close()
    events = EventAccumulator(str(tmp_path / "a"))
    events.Reload()
    np.testing.assert_allclose([event.value for event in events.Scalars("loss")], [0.5, 1.0])
    assert [event.step for event in events.Scalars("rate")] == [1, 2]
    lines = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == tracking.history


def test_other_processes_write_nothing(tmp_path: Path) -> None:
    tracking = Tracking(tmp_path / "a", writes=False)
    tracking.log({"loss": 0.5}, 1)
    assert tracking.history == [{"step": 1, "loss": 0.5}] and not (tmp_path / "a").exists()
