"""Estimates of compile time learn from compilations and from plain steps."""

from __future__ import annotations

import pytest

from anyaccel.adapter.traced_program import CompileEstimator


def test_estimates_learn_from_compilations_and_from_plain_steps():
    class Kind:
        pass

    estimator = CompileEstimator(Kind, 10)
    first = estimator.estimate(100)
    assert first.compile_seconds > 0.0 and first.step_ratio == 0.01, "no plain step has been timed yet"
    estimator.record_compile(3.0 * first.compile_seconds)
    assert CompileEstimator(Kind, 10).estimate(100).compile_seconds == pytest.approx(3.0 * first.compile_seconds)
    larger = CompileEstimator(Kind, 20).estimate(100)
    assert larger.compile_seconds > CompileEstimator(Kind, 10).estimate(100).compile_seconds
    estimator.record_step(0.5)
    slow = estimator.estimate(100).step_ratio
    estimator.record_step(0.005)
    estimator.record_step(0.5)
    assert 0.9 < slow < 1.0, "a step that computes for long gains little"
    assert estimator.estimate(1).step_ratio > estimator.estimate(100).step_ratio, "each call costs"
    assert estimator.estimate(100).step_ratio < 0.5
