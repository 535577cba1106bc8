"""A graph runs phases whatever was imported, also phases of a kind that anyaccel does not have."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from anyaccel import EvalPhase, FeatureSet, ModelGraph, ModelNode, TrainPhase
from anyaccel.data import Rows
from anyaccel.errors import PhaseError
from anyaccel.numpy_backend import Dense
from anyaccel.phases import Run
from anyaccel.phases.loading.epoch_plan import EpochPlan, EvaluationEpochs, EvaluationRows
from anyaccel.phases.runner import Phase, PhasePrograms
from anyaccel.results import PhaseResults
from anyaccel.results.records import EvaluationValues

TWO_IMPORTS = """
from anyaccel.graph import AppliedLoss, ModelGraph, ModelNode
from anyaccel.phases import TrainPhase
import sys
assert "anyaccel.experiment" not in sys.modules
import numpy as np
from anyaccel.data import FeatureSet
from anyaccel.numpy_backend import Dense
rows = {"x": np.ones((8, 2), np.float32), "y": np.ones((8, 1), np.float32)}
data = FeatureSet.from_dict("d", rows, features=["x"], target=["y"])
graph = ModelGraph([ModelNode("net", Dense(1), data.reference())], "sgd")
phase = TrainPhase(data="all", losses=AppliedLoss("mse", on="net"), epochs=2)
assert [assignment.node for assignment in phase.plan(graph).assignments] == ["net"]
results = graph.run(phase, progress="none")
assert len(results.epochs) == 2 and results.number == 0
assert [each.number for each in graph.run(phase, phase, progress="none")] == [0, 1]
assert "anyaccel.experiment" not in sys.modules
"""


def test_two_imports_are_enough_to_plan_and_run() -> None:
    done = subprocess.run([sys.executable, "-c", TWO_IMPORTS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def graph() -> ModelGraph:
    data = FeatureSet.from_dict("d", {"x": np.arange(12, dtype=np.float32).reshape(6, 2)}, features=["x"])
    return ModelGraph([ModelNode("net", Dense(1), data.reference())])


class LargestOutput(Phase):
    """Looks for the largest output of a graph."""

    kind = "test.largest"

    def kept_nodes(self, graph: ModelGraph, done: object) -> Sequence[str]:
        return graph.output_nodes

    def draw(self, rows: Mapping[str, Rows], combinations: object) -> tuple[EvaluationRows, EpochPlan]:
        return EvaluationRows(rows), EvaluationEpochs(EvaluationRows(rows), 4)

    def compute(self, programs: PhasePrograms) -> EvaluationValues:
        return programs.evaluations[0].run()

    def results_of(self, run: Run, values: EvaluationValues | None, record: Mapping[str, Any]) -> PhaseResults:
        self.largest = None if values is None else max(array.max() for array in values.outputs.values())
        return PhaseResults(**record)


del Phase.kinds["test.largest"]  # other tests count the kinds


def test_a_kind_of_phase_of_ones_own_runs(graph: ModelGraph) -> None:
    outputs = graph.run(EvalPhase(data="all"), progress="none").prediction("net")
    phase = LargestOutput("largest", data="all")
    results = graph.run(phase, progress="none")
    assert phase.largest == outputs.max()
    assert (results.label, results.error, len(results.plan.assignments)) == ("largest", None, 1)


def test_a_kind_of_phase_that_does_not_say_what_it_computes_names_itself(graph: ModelGraph) -> None:
    class Silent(LargestOutput):
        compute = Phase.compute

    with pytest.raises(NotImplementedError, match="Silent does not define what it computes"):
        graph.run(Silent("s", data="all"), progress="none")
    assert not graph.live_values.in_use


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ([], r"received no phases.*graph\.run\(TrainPhase"),
        (["train"], "pass the phase itself, not its label"),
        ([TrainPhase], r"create one: TrainPhase\('name'"),
        ([[TrainPhase("t", data="all", losses=[])], 3], "pass phases one by one"),
        ([3], "pass a TrainPhase, EvalPhase or FitPhase"),
    ],
)
def test_what_is_no_phase_is_refused(graph: ModelGraph, given: list[Any], hint: str) -> None:
    with pytest.raises(PhaseError, match=hint):
        graph.run(*given)
