"""Device assignment: the rule of precedence, policies, and what a plan says."""

from __future__ import annotations

import json

import numpy as np
import pytest

from anyaccel import Accelerator, AppliedLoss, ConcatNode, FeatureSet, ModelGraph, ModelNode, Optimizer
from anyaccel.device import Device
from anyaccel.errors import ConfigError, DeviceUnavailableError, FrameworkError, GraphError, PluginError
from anyaccel.graph import Plan, PolicyNode, Request, precedence, resolve
from anyaccel.plugin_testing import TinyBackend, plugin_module
from anyaccel.registry import registry

CPU, SIM0, SIM1 = Device("cpu"), Device("sim", 0), Device("sim", 1)


def plan(graph: ModelGraph, accelerator: object = None, **settings: object) -> Plan:
    """The plan of a phase that wants every tail of the graph."""
    where = None if accelerator is None else Accelerator.of(accelerator)
    return resolve(graph, Request("p", where, wants=graph.output_nodes, **settings)).plan


@pytest.fixture
def chain(table, mlp):
    """`chain("sim:0", None, ...)`: a -> b -> ... with these accelerators."""

    def make(*where):
        fs, nodes = table(), []
        for label, one in zip("abcdef", where, strict=False):
            nodes.append(ModelNode(label, mlp(3), nodes[-1] if nodes else fs.reference(), one))
        return ModelGraph(nodes)

    return make


# -- the rule ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [None, "cpu", "sim:1"])
@pytest.mark.parametrize("phase", [None, "cpu", "sim:0"])
def test_a_nodes_accelerator_wins_over_the_phases_and_that_over_the_cpu(own, phase, chain, sims):
    """A node's own accelerator is never overruled, whoever asks."""
    expected = (own, "node") if own else (phase, "phase") if phase else ("cpu", "default")
    one = plan(chain(own), phase)["a"]
    assert (one.device, one.reason, one.requested) == (Device.parse(expected[0]), expected[1], expected[0])
    found, reason = precedence(*(None if one is None else Accelerator(one) for one in (own, phase)))
    assert (found.device, reason) == (Device.parse(expected[0]), expected[1])


def test_options_come_from_the_accelerator_that_decided(chain, sims):
    graph = chain(Accelerator("sim:0", pin_memory=True), None)
    made = plan(graph, Accelerator("sim:1"))
    assert (made["a"].pinned, made["b"].pinned) == (True, False)
    assert [column.pinned for column in made.columns] == [True]
    assert plan(chain(None), Accelerator("cpu", pin_memory=True)).columns[0].pinned


def test_a_phase_on_a_kind_that_a_framework_lacks_falls_back_to_the_cpu(serve, chain):
    serve(TinyBackend("tiny", ("gpu:0",)))
    made = plan(chain(None, None), "cuda")
    assert [(one.device, one.reason, one.requested) for one in made.assignments] == [(CPU, "fallback", "cuda")] * 2
    assert made.notes == (
        "a: no installed plugin runs numpy on cuda, so it runs on cpu:0",
        "b: no installed plugin runs numpy on cuda, so it runs on cpu:0",
    )


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("gpuu", "did you mean 'gpu'?"),
        ("cudda:0", "did you mean 'cuda'?"),
        ("auto", "use anyaccel.best_device() for the best device of this machine."),
    ],
)
def test_a_misspelt_kind_is_told_with_the_one_that_was_meant(chain, asked, hint):
    kind = asked.partition(":")[0]
    with pytest.raises(DeviceUnavailableError) as caught:
        plan(chain(None), asked)
    assert f"(no installed plugin runs a framework on {kind!r})" in str(caught.value)
    assert str(caught.value).endswith(f"Hint: {hint}")
    with pytest.raises(FrameworkError) as caught:
        Accelerator(asked).check("numpy")
    assert str(caught.value).endswith(f"Hint: {hint}")


def test_a_kind_that_no_plugin_runs_on_gives_the_reason(chain):
    with pytest.raises(DeviceUnavailableError, match=r"no installed plugin runs a framework on 'gpu'.* Hint: use one"):
        plan(chain(None), "gpu:0")


def test_a_missing_device_is_told_with_the_reasons_of_the_frameworks_of_the_graph_only(serve, chain, monkeypatch):
    class Other(TinyBackend):
        def unavailable_reason(self, device):
            return "other is built without it"

    serve(Other("other", ("sim:9",)))
    with pytest.raises(DeviceUnavailableError, match=r"none exists; use anyaccel\.simulate") as caught:
        plan(chain(None), "sim:3")
    assert "other is built without it" not in str(caught.value)


def test_strict_forbids_the_fallback_and_names_the_node(serve, chain):
    serve(TinyBackend("tiny", ("gpu:0",)))
    with pytest.raises(FrameworkError) as caught:
        plan(chain(None), "gpu:0", strict=True)
    assert str(caught.value) == (
        "node 'a': no installed plugin runs numpy on 'gpu'. Available: numpy on cpu, sim. "
        "Hint: choose one of these, or install a plugin for it."
    )


def test_a_nodes_own_accelerator_is_strict_always(serve, chain):
    serve(TinyBackend("tiny", ("gpu:0",)))
    with pytest.raises(FrameworkError, match=r"node 'b': no installed plugin runs numpy on 'gpu'"):
        plan(chain(None, "gpu:0"))


def test_a_phase_on_a_missing_device_is_an_error_even_if_no_node_uses_it(chain, sims):
    with pytest.raises(DeviceUnavailableError) as caught:
        plan(chain("cpu"), "sim:7")
    message = str(caught.value)
    assert "'sim:7' is not on this machine (2 simulated devices were made; use anyaccel.simulate(8)" in message
    assert "Available: cpu:0, sim:0, sim:1. Hint: use one of these; `anyaccel devices` lists devices" in message


def test_a_kind_without_a_plugin_is_not_on_this_machine(chain):
    with pytest.raises(
        DeviceUnavailableError,
        match=r"'npu:3' is not on this machine \(no installed plugin runs a framework on .npu.\)\. .*Hint: use one",
    ):
        plan(chain(None), "npu:3")


def test_a_node_on_a_missing_device_is_named(chain, sims):
    with pytest.raises(DeviceUnavailableError) as caught:
        plan(chain(None, "sim:2"))
    message = str(caught.value)
    assert "node 'b': sim:2 is not on this machine for numpy (2 simulated devices were made" in message
    assert "Available: cpu:0, sim:0, sim:1. Hint: create simulated devices first: anyaccel.simulate(3)" in message


def test_a_device_of_another_framework_only_is_an_error_for_this_one(serve, twin, chain):
    """What one framework finds says nothing about another."""
    serve(twin(("cpu", "gpu:0")), TinyBackend("tiny", ("gpu:0", "gpu:1")))
    graph = chain(None)
    graph["a"].framework = "twin"
    with pytest.raises(
        DeviceUnavailableError, match=r"node 'a': gpu:1 is not on this machine for twin. Available: cpu:0, gpu:0"
    ):
        plan(graph, "gpu:1")


@pytest.mark.parametrize("where", ["node", "phase"])
def test_a_vendor_word_is_a_constraint(where, serve, twin, chain):
    serve(twin(("cpu", "gpu:0"), vendor="amd"))
    graph = chain("cuda:0" if where == "node" else None)
    graph["a"].framework = "twin"
    with pytest.raises(DeviceUnavailableError) as caught:
        plan(graph, "cuda:0" if where == "phase" else None)
    assert "node 'a': gpu:0 is a device of amd, not of nvidia" in str(caught.value)
    assert "write 'gpu:0' for a device of any vendor" in str(caught.value)
    graph["a"].accelerator = Accelerator("rocm")
    made = plan(graph)["a"]
    assert (made.device, made.requested, made.native_name) == (Device("gpu"), "rocm", "gpu:0")


# -- several nodes, one model ------------------------------------------------------------------------------------------


def test_nodes_that_share_a_model_may_not_be_on_two_devices(table, mlp, sims):
    fs, model = table(), mlp(4)
    graph = ModelGraph([ModelNode("a", model, fs.reference(), "sim:0"), ModelNode("b", model, "a", "sim:1")])
    with pytest.raises(GraphError) as caught:
        plan(graph)
    assert "nodes 'a' and 'b' share one model but request two devices, sim:0 and sim:1" in str(caught.value)
    assert "set the same accelerator on both" in str(caught.value)


@pytest.mark.parametrize("what", ["frozen", "modes", "optimizer"])
def test_nodes_that_share_a_model_are_trained_alike(what, table, mlp):
    fs, model = table(), mlp(4)
    graph = ModelGraph([ModelNode("a", model, fs.reference()), ModelNode("b", model, "a")], "sgd")
    if what == "frozen":
        graph.freeze("b")
    elif what == "modes":
        graph["b"].modes = "as_is"
    else:
        graph["b"].optimizer = Optimizer("adam")
    message = r"share one model but differ in frozen, its mode, modes or optimizer\. Hint: use the same mode"
    with pytest.raises(GraphError, match=message):
        plan(graph)


def test_nodes_that_share_a_model_may_have_equal_optimizers(table, mlp):
    fs, model = table(), mlp(4)
    nodes = [ModelNode("a", model, fs.reference()), ModelNode("b", model, "a")]
    for node in nodes:
        node.optimizer = Optimizer("adam", lr=0.1)
    assert [one.node for one in plan(ModelGraph(nodes)).assignments] == ["a", "b"]


def test_an_idle_node_does_not_conflict(table, mlp, sims):
    fs, model = table(), mlp(4)
    graph = ModelGraph([ModelNode("a", model, fs.reference(), "sim:0"), ModelNode("b", model, fs.reference(), "sim:1")])
    made = resolve(graph, Request("p", wants=("b",))).plan
    assert [(one.node, one.device) for one in made.assignments] == [("b", SIM1)]


# -- concatenation -----------------------------------------------------------------------------------------------------


def test_a_concat_goes_with_its_consumer(table, mlp, sims):
    fs = table()
    graph = ModelGraph(
        [
            ModelNode("a", mlp(2), fs.reference(), "sim:0"),
            ModelNode("b", mlp(3), fs.reference(), "sim:1"),
            ConcatNode("c", ["a", "b"]),
            ConcatNode("d", ["c", fs.reference()]),
            ModelNode("e", mlp(), "d"),
        ]
    )
    made = plan(graph)
    assert {one.node: one.device for one in made.assignments} == {"a": SIM0, "b": SIM1, "c": CPU, "d": CPU, "e": CPU}
    assert [(one.value, one.origin, one.destination) for one in made.crossings] == [("a", SIM0, CPU), ("b", SIM1, CPU)]
    assert made.explain("d") == "d runs on cpu:0 (numpy: cpu) because it goes with 'e'."
    assert made.explain("c") == "c runs on cpu:0 (numpy: cpu) because it goes with 'd'."


def test_a_concat_without_consumer_goes_with_its_first_source(table, mlp, sims):
    fs = table()
    nodes = [ModelNode("a", mlp(2), fs.reference(), "sim:0"), ModelNode("b", mlp(3), fs.reference(), "sim:1")]
    made = plan(ModelGraph([*nodes, ConcatNode("c", ["b", "a"])]))
    assert made.device("c") == SIM1


def test_a_concat_of_data_alone_goes_where_the_phase_says(table, sims):
    fs = table()
    graph = ModelGraph([ConcatNode("c", [fs.reference(), fs.reference()])])
    assert plan(graph, "sim:1").device("c") == SIM1
    assert plan(graph)["c"].reason == "default"


def test_a_concat_of_data_alone_falls_back_like_a_model(serve, table):
    serve(TinyBackend("tiny", ("gpu:0",)))
    fs = table()
    graph = ModelGraph([ConcatNode("c", [fs.reference(), fs.reference()])])
    assert plan(graph, "gpu:0").explain("c") == (
        "c runs on cpu:0 (numpy: cpu) because the phase requests 'gpu:0', but no installed plugin runs numpy there."
    )
    with pytest.raises(FrameworkError, match=r"node 'c': no installed plugin runs numpy on 'gpu'"):
        plan(graph, "gpu:0", strict=True)


def test_a_concat_between_two_frameworks_is_of_its_consumers(serve, twin, table, mlp):
    serve(twin())
    fs = table()
    nodes = [ModelNode("a", mlp(2), fs.reference()), ConcatNode("c", ["a", fs.reference()])]
    graph = ModelGraph([*nodes, ModelNode("d", mlp(), "c", framework="twin")])
    made = plan(graph)
    assert [(part.framework, part.nodes) for part in made.parts] == [("numpy", ("a",)), ("twin", ("c", "d"))]
    assert [(one.value, one.target, one.route) for one in made.crossings] == [("a", "c", "host")]


# -- policies ----------------------------------------------------------------------------------------------------------


def test_a_policy_chooses_for_nodes_without_an_accelerator_of_their_own(serve, chain, sims):
    asked = []

    def spread(nodes):
        asked.append(nodes)
        return {node.label: node.devices[-1 - i % 2] for i, node in enumerate(nodes) if node.label != "c"}

    serve(policies={"spread": spread})
    made = plan(chain("sim:0", None, None, None), "cpu", policy="spread")
    assert {one.node: (one.device, one.reason) for one in made.assignments} == {
        "a": (SIM0, "node"),
        "b": (SIM0, "policy"),
        "c": (CPU, "phase"),
        "d": (SIM0, "policy"),
    }
    assert made.explain("b") == (
        "b runs on sim:0 (numpy: sim:0) because the policy 'spread' chose it. "
        "The phase's 'cpu' was not taken: the placement policy comes first."
    )
    assert asked[0][0] == PolicyNode("a", "numpy", 60, (CPU, SIM0, SIM1))


def test_an_unknown_policy_is_an_error(chain):
    with pytest.raises(PluginError, match=r"no plugin has the placement policy 'spread'. Hint: install"):
        plan(chain(None), policy="spread")


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (
            {"zzz": "cpu"},
            PluginError,
            "policy 'odd' of plugin chooser .* places zzz, which is not a node of this phase. Available: a",
        ),
        (None, PluginError, "the policy 'odd' of plugin chooser .* must return devices by label, got NoneType"),
        (
            {"a": "gpu:0"},
            FrameworkError,
            "node 'a': no installed plugin runs numpy on 'gpu' .the policy 'odd' chose it",
        ),
        ({"a": "sim:0"}, DeviceUnavailableError, "node 'a': sim:0 is not on .* numpy .*the policy 'odd' chose it"),
        (
            {"a": 7},
            PluginError,
            "policy 'odd' of plugin chooser .* invalid device: 7 does .* Hint: update chooser",
        ),
    ],
)
def test_a_policy_with_a_wrong_answer_is_an_error(answer, error, message, serve, chain):
    serve(policies={"odd": lambda nodes: answer})
    with pytest.raises(error, match=message):
        plan(chain(None), policy="odd")


def test_an_exception_in_a_policy_names_the_plugin(serve, chain):
    def broken(nodes):
        raise LookupError("no rule")

    serve(policies={"broken": broken})
    with pytest.raises(LookupError, match="no rule") as caught:
        plan(chain(None), policy="broken")
    assert caught.value.__notes__ == ["raised in the policy 'broken' of plugin chooser (not a distribution)"]


def test_a_node_whose_native_device_fails_is_an_error_that_names_the_plugin(serve, twin, table, mlp):
    odd = twin()
    odd.native_device = lambda device: 1 / 0
    serve(odd)
    graph = ModelGraph([ModelNode("a", mlp(), table().reference(), framework="twin")])
    with pytest.raises(
        PluginError, match=r"native_device\(\) of the backend for twin raised ZeroDivisionError.*Hint: "
    ):
        plan(graph, "cpu")


def test_a_policy_may_give_devices_by_their_spelling(serve, chain, sims):
    serve(policies={"last": lambda nodes: {"a": "sim:1"}})
    assert plan(chain(None), policy="last").device("a") == SIM1


# -- the plan as a value -----------------------------------------------------------------------------------------------


@pytest.fixture
def whole(table, mlp, sims):
    """A graph with every kind of thing a plan can tell, and its plan."""
    fs = table(x=((4,), "float64"))
    nodes = [
        ModelNode("a", mlp(3), fs.reference(), "sim:0"),
        ModelNode("b", mlp(2), "a"),
        ConcatNode("c", ["a", "b"]),
        ModelNode("d", mlp(), "c"),
    ]
    return ModelGraph(nodes, label="whole").freeze("b")


def test_every_reason_is_explained(serve, chain, sims):
    serve(TinyBackend("tiny", ("gpu:0",)), policies={"first": lambda nodes: {"c": "sim:0"}})
    graph = chain("sim:1", None, None)
    made = plan(graph, "gpu:0", policy="first")
    assert made.explain("a") == (
        "a runs on sim:1 (numpy: sim:1) because its own accelerator is 'sim:1'. "
        "The phase's 'gpu:0' was not taken: the node's own accelerator comes first."
    )
    assert made.explain("b") == (
        "b runs on cpu:0 (numpy: cpu) because the phase requests 'gpu:0', but no installed plugin runs numpy there. "
        "The phase's 'gpu:0' was not taken: no installed plugin runs numpy on gpu."
    )
    assert made.explain("c").startswith("c runs on sim:0 (numpy: sim:0) because the policy 'first' chose it. The phase")
    made = plan(chain(None), "sim:0")
    assert (
        made.explain("a")
        == "a runs on sim:0 (numpy: sim:0) because the phase requests 'sim:0', and the node requests no device."
    )
    assert plan(chain(None)).explain("a") == (
        "a runs on cpu:0 (numpy: cpu) because neither the node nor the phase requests a device."
    )


def test_a_node_that_is_not_in_the_plan_is_an_error(whole):
    with pytest.raises(GraphError, match=r"the plan of 'p' has no node 'z'. Available: a, b, c, d"):
        plan(whole).device("z")


def test_crossings_name_value_ends_route_and_bytes_each_place_once(table, mlp, sims):
    fs = table()
    nodes = [
        ModelNode("a", mlp(3, 2), fs.reference(), "sim:0"),
        *(ModelNode(label, mlp(), "a", "sim:1") for label in "bc"),
        ModelNode("d", mlp(), ["a", "b", "c"], "sim:0"),
    ]
    made = plan(ModelGraph(nodes))
    assert [(one.value, one.source, one.target, one.nbytes, one.route) for one in made.crossings] == [
        ("a", "a", "b", 24, "move"),
        ("b", "b", "d", 4, "move"),
        ("c", "c", "d", 4, "move"),
    ]
    assert {(one.origin, one.destination) for one in made.crossings} == {(SIM0, SIM1), (SIM1, SIM0)}


@pytest.mark.parametrize("change", [{"segments": 1}, {"columns": [{"odd": 1}]}, {"assignments": [{"device": "?"}]}])
def test_a_malformed_plan_is_told(change, whole):
    with pytest.raises(ConfigError, match=r"is not a plan as plain data: .*Hint: pass the dict from plan"):
        Plan.from_dict({**plan(whole, "sim:1").to_dict(), **change})


def test_a_plan_is_plain_data(whole):
    made = plan(whole, "sim:1")
    told = json.loads(json.dumps(made.to_dict()))
    assert Plan.from_dict(told) == made and str(Plan.from_dict(told)) == str(made)
    assert told["phase"] == "p" and told["graph"] == "whole"
    assert told["assignments"][0] == {
        "node": "a",
        "framework": "numpy",
        "device": "sim:0",
        "native_name": "sim:0",
        "reason": "node",
        "requested": "sim:0",
        "pinned": False,
        "frozen": False,
        "parameters": 15,
        "nbytes": 60,
        "precision": "",
        "precision_reason": "",
        "recomputed": [],
        "rejected": [{"level": "phase", "wish": "sim:1", "why": "the node's own accelerator comes first"}],
    }
    assert [one["device"] for one in told["assignments"]] == ["sim:0", "sim:1", "sim:1", "sim:1"]
    assert [one["frozen"] for one in told["assignments"]] == [False, True, False, False]
    assert told["columns"][0]["spec"] == {"shape": [4], "dtype": "float32"}
    assert told["columns"][0]["stored"] == {"shape": [4], "dtype": "float64"}
    assert told["crossings"][0]["origin"] == "sim:0" and told["crossings"][0]["destination"] == "sim:1"
    assert told["segments"] == [{"label": "numpy:0", "framework": "numpy", "nodes": ["a", "b", "c", "d"]}]


def test_a_plan_is_shown_to_people(whole):
    assert str(plan(whole, "sim:1")).splitlines() == [
        "plan of 'p' on 'whole'",
        "node  device  native name  why        parameters",
        "a     sim:0   numpy sim:0  node       15",
        "b     sim:1   numpy sim:1  phase      8",
        "c     sim:1   numpy sim:1  neighbour  0",
        "d     sim:1   numpy sim:1  phase      6",
        "load  fs.x -> numpy sim:0: float32[4] (float64 to float32)",
        "cross a: numpy sim:0 -> numpy sim:1 by a move within the framework, 12 B per sample",
    ]


def test_a_plan_is_a_value(whole):
    assert plan(whole, "sim:1") == plan(whole, "sim:1") != plan(whole, "sim:0")


def test_the_repr_of_a_plan_is_short(whole, table, mlp):
    assert repr(plan(whole, "sim:1")) == "Plan('p' on 'whole': 4 nodes on sim:0, sim:1, 1 column, 1 crossing)"
    alone = ModelGraph([ModelNode("a", mlp(), table().reference())])
    assert repr(plan(alone)) == "Plan('p' on 'graph': 1 node on cpu:0, 1 column, 0 crossings)"


def test_of_many_columns_a_plan_shows_the_first_and_keeps_all(mlp):
    names = [f"c{i}" for i in range(60)]
    fs = FeatureSet.from_dict("fs", {name: np.ones(4, "float32") for name in names}, names)
    made = plan(ModelGraph([ModelNode("a", mlp(3), fs.reference()), ModelNode("b", mlp(3), fs.reference(names[:4]))]))
    assert "load  fs.c0+c1+c2 and 57 more -> numpy cpu:0: float32[60]" in str(made).splitlines()
    assert "load  fs.c0+c1+c2+c3 -> numpy cpu:0: float32[4]" in str(made).splitlines()
    assert made.columns[0].name == f"fs.{'+'.join(names)}" == made.to_dict()["columns"][0]["name"]


def test_text_in_a_plan_stays_on_its_line(mlp):
    fs = FeatureSet.from_dict("fs", {"a\nb": np.ones((4, 2), "float32")}, ["a\nb"])
    said = str(plan(ModelGraph([ModelNode("a", mlp(3), fs.reference())])))
    assert "load  fs.a b -> numpy cpu:0" in said and len(said.splitlines()) == 4


def test_planning_moves_nothing(table, mlp, sims):
    fs = table(x=((4,), "float64"))
    graph = ModelGraph([ModelNode("a", mlp(3), fs.reference()), ModelNode("b", mlp(), "a", "sim:1")]).build()
    before = {(label, name): array for label in "ab" for name, array in graph[label].model.parameters.items()}
    for device in sims:
        device.clear()
    plan(graph, "sim:0")
    assert all(graph[label].model.parameters[name] is array for (label, name), array in before.items())
    assert all(type(array) is np.ndarray for array in before.values())
    for device in sims:
        assert (device.used, device.syncs) == (0, 0)
        assert device.transfers.into.number == device.transfers.out.number == device.transfers.between.number == 0


def test_every_error_of_planning_comes_before_anything_has_moved(table, mlp, sims):
    graph = ModelGraph([ModelNode("a", mlp(3), table().reference(), "sim:0"), ModelNode("b", mlp(), "a", "sim:9")])
    with pytest.raises(DeviceUnavailableError):
        plan(graph)
    assert sims[0].used == sims[0].transfers.into.number == 0


# -- segments ----------------------------------------------------------------------------------------------------------


def test_two_frameworks_in_turn_are_three_segments(serve, twin, table, mlp):
    serve(twin())
    nodes = [
        ModelNode("a", mlp(3), table().reference()),
        ModelNode("b", mlp(3), "a", framework="twin"),
        ModelNode("c", mlp(), ["b", "a"]),
    ]
    made = plan(ModelGraph(nodes))
    assert [(part.label, part.nodes) for part in made.parts] == [
        ("numpy:0", ("a",)),
        ("twin:1", ("b",)),
        ("numpy:2", ("c",)),
    ]
    assert [(one.value, one.target) for one in made.crossings] == [("a", "b"), ("b", "c")]


def test_cotangents_are_wanted_of_what_was_trained_before_and_of_nothing_else(serve, twin, table, mlp):
    serve(twin())
    fs = table()
    nodes = [
        ModelNode("a", mlp(3), fs.reference()),
        ModelNode("b", mlp(3), fs.reference()),
        ModelNode("c", mlp(), ["a", "b", fs.reference()], framework="twin"),
    ]
    graph = ModelGraph(nodes, "sgd").freeze("a")
    request = Request("p", losses=(AppliedLoss("mse", on="c"),), training=True)
    first, second = resolve(graph, request).segments
    assert (first.outputs, first.needs_pullback) == (("a", "b"), ())
    assert (list(second.inputs), second.needs_pullback) == (["a", "b", "fs.x#2", "fs.y"], ("b",))


def test_several_devices_of_one_backend_are_one_segment(chain, sims):
    made = plan(chain("sim:0", "sim:1", "cpu", "sim:0"))
    assert [part.nodes for part in made.parts] == [("a", "b", "c", "d")]
    assert [(str(one.origin), str(one.destination)) for one in made.crossings] == [
        ("sim:0", "sim:1"),
        ("sim:1", "cpu:0"),
        ("cpu:0", "sim:0"),
    ]


def test_a_model_is_not_shared_between_two_segments(serve, twin, table, mlp):
    serve(twin())
    model = mlp(4)
    nodes = [
        ModelNode("a", model, table().reference()),
        ModelNode("b", mlp(4), "a", framework="twin"),
        ModelNode("c", model, "b"),
    ]
    with pytest.raises(
        GraphError, match=r"node 'c' shares its model with a node of another segment. Hint: use a separate model"
    ):
        plan(ModelGraph(nodes))


def test_an_unknown_node_in_a_phase_suggests_the_closest_label(chain):
    with pytest.raises(GraphError, match=r"phase 'p' names the node 'aa'. Available: a, b. Hint: did you mean 'a'"):
        resolve(chain(None, None), Request("p", wants=("aa",)))


def test_only_frameworks_that_are_needed_are_asked_for_their_devices(table, mlp) -> None:
    """To list devices a framework may have to be imported, which takes seconds."""
    asked: list[str] = []

    class Slow(TinyBackend):
        def devices(self):
            asked.append(self.framework)
            return super().devices()

    registry().register(plugin_module("slow", backends=lambda: [Slow("another", ("cpu",))]), "slow")
    graph = ModelGraph([ModelNode("n", mlp(), table().reference())])
    plan(graph, "cpu")
    assert asked == []
    with pytest.raises(DeviceUnavailableError, match=r"gpu:7.*is not on this machine"):
        plan(graph, "gpu:7")
    assert asked == ["another"]
