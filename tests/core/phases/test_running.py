"""A graph, and a model, is used by one phase at a time."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest

from anyaccel.errors import PhaseError
from anyaccel.numpy_backend import Dense


@pytest.fixture
def meanwhile(experiment, train, at):
    """`meanwhile(graph, function)` calls a function while a phase runs on a graph in another thread; its error."""

    def run(graph, function):
        started, ended, results = threading.Event(), threading.Event(), []

        def wait(run):
            started.set()
            assert ended.wait(10)

        phase = train(callbacks=[at("epoch_end", wait)])
        thread = threading.Thread(target=lambda: results.append(experiment(graph).run_phase(phase)))
        thread.start()
        try:
            assert started.wait(10)
            function()
        finally:
            ended.set()
            thread.join(60)
        assert len(results) == 1 and results[0].error is None, "the first phase is not disturbed"

    return run


def test_a_model_in_two_graphs_is_trained_by_one_thread_at_a_time(line, experiment, train, meanwhile):
    model = Dense(1)
    first, second = line(model).build(), line(model)
    second.label = "other"
    shared = second["net"].model = first["net"].model
    before = {name: array.copy() for name, array in shared.parameters.items()}

    def refused():
        with pytest.raises(
            PhaseError,
            match=re.escape(
                "phase 'train' cannot start: the model of its node 'net' (graph 'other') is being used by phase "
                "'train' (node 'net', graph 'graph') in another thread. Hint: wait until that phase has "
                "ended, or give each graph a copy"
            ),
        ):
            experiment(second).run_phase(train())

    meanwhile(first, refused)
    assert any((before[name] != array).any() for name, array in first["net"].model.parameters.items())
    assert len(experiment(second).run_phase(train()).epochs) == 1, "when the first has ended"


def test_the_claim_of_a_refused_phase_is_released(line, experiment, train, meanwhile):
    model = Dense(1)
    first, second, third = line(model), line(model), line(Dense(1))

    def refused():
        with pytest.raises(PhaseError, match="in another thread"):
            experiment(second).run_phase(train())
        with pytest.raises(PhaseError, match="in another thread"):
            experiment(second).run_phase(train())
        assert len(experiment(third).run_phase(train()).epochs) == 1

    meanwhile(first, refused)


def test_a_callback_may_use_the_models_of_its_own_phase_in_another_graph(line, experiment, train, at):
    model = Dense(1)
    first, second, losses = line(model), line(model), []

    def look(run):
        losses.append(experiment(second).run_phase(train()).epochs[-1].loss)

    experiment(first).run_phase(train(callbacks=[at("epoch_end", look)]))
    experiment(second).run_phase(train())
    assert len(losses) == 1 and np.isfinite(losses).all()
