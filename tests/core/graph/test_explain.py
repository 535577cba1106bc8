"""Explain: the level that decided in every combination of wishes, and what was asked for in vain."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import AppliedLoss, FeatureSet, ModelGraph, ModelNode, SequentialMLP
from anyaccel.errors import DeviceUnavailableError, FrameworkError
from anyaccel.plugin_testing import TinyBackend


def data():
    x = np.ones((32, 3), "float32")
    return FeatureSet.from_dict("d", {"x": x, "y": x[:, :1]}, ["x"], ["y"])


def train(**settings):
    return aa.TrainPhase("t", data="all", losses=[AppliedLoss("mse", on="net")], **settings)


def one_node():
    return ModelGraph([ModelNode("net", SequentialMLP(1), data().reference())], "sgd")


ASKED = {None: None, "here": "sim:0", "absent": "sim:7", "unserved": "gpu:0"}
TABLE = list(
    itertools.product(ASKED, ASKED, (None, "here", "absent", "unserved"), (False, True), ASKED)
)  # node, phase, policy, strict, environment


def expected(node, phase, policy, strict, environment):
    """Who decides, or the error; written from the documented rule alone."""
    if phase in ("absent",):
        return "error"  # a device of the phase that is not here is an error, whoever decides
    level, asked = next(
        (level, asked)
        for level, asked in (
            ("node", node),
            ("policy", policy),
            ("phase", phase),
            ("environment", environment),
            ("default", "here"),
        )
        if asked is not None
    )
    if asked == "absent":
        return "error"
    if asked == "unserved":
        return "fallback" if level in ("phase", "environment") and not strict else "error"
    return level


def test_explain_names_the_deciding_level_in_every_case(serve, sims, monkeypatch):
    serve(
        TinyBackend("tiny", ("gpu:0",)),
        policies={name: (lambda nodes, d=ASKED[name]: {n.label: d for n in nodes}) for name in ASKED if name},
    )
    sentences = {
        "node": "because its own accelerator is",
        "policy": "because the policy",
        "phase": "because the phase requests",
        "environment": "because neither the node nor the phase requests a device, and",
        "default": "because neither the node nor the phase requests a device.",
        "fallback": "but no installed plugin runs numpy",
    }
    rows = data()
    seen = set()
    for case in TABLE:
        node, phase, policy, strict, environment = case
        if environment:
            monkeypatch.setenv("ANYACCEL_DEVICE", ASKED[environment])
        else:
            monkeypatch.delenv("ANYACCEL_DEVICE", raising=False)
        own = ModelNode("net", SequentialMLP(1), rows.reference(), accelerator=ASKED[node])
        experiment = aa.Experiment("e", ModelGraph([own], "sgd"))
        request = train(accelerator=ASKED[phase], policy=policy, strict=strict)
        wanted = expected(*case)
        seen.add(wanted)
        if wanted == "error":
            with pytest.raises((DeviceUnavailableError, FrameworkError)):
                experiment.plan(request)
            continue
        plan = experiment.plan(request)
        assert plan["net"].reason == wanted, case
        text = plan.explain("net")
        assert sentences[wanted] in text, (case, text)
        asked = {"node": node, "policy": policy, "phase": phase, "environment": environment}
        order = [level for level, value in asked.items() if value is not None]
        rejected = [each.level for each in plan["net"].rejected]
        assert rejected == (order if wanted == "fallback" else order[1:]), (case, text)
        for each in plan["net"].rejected:
            assert each.why in text
    assert seen == {*sentences, "error"}
