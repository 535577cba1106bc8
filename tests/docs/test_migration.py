"""The page for users of ModularML: each row of its tables is run, and no row is without such a check."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import errors
from anyaccel.numpy_backend import NumpyBackend, simulate
from anyaccel.registry import Registry

PAGE = Path(__file__).parents[2] / "docs/how-to/migrate-from-modularml.md"

# By the start of a row, what shows that its right side is true. Names: `aa`, `np`, `errors`, and those of `namespace`.
ACCELERATOR = {
    "`Accelerator(device=": """
        assert aa.Accelerator("gpu:1", pin_memory=True).pin_memory and aa.Accelerator(device="npu").device.kind == "npu"
        made = aa.Accelerator.cpu(), aa.Accelerator.cuda(1), aa.Accelerator.mps(), aa.Accelerator.gpu(1)
        assert list(map(str, made)) == ["cpu:0", "gpu:1", "mps:0", "gpu:1"]""",
    "`is_available()`": """
        assert aa.Accelerator("cpu").is_available() and aa.Accelerator("cpu").is_available("numpy")""",
    "`torch_device_str`": """
        assert aa.Accelerator("cpu").device_string("numpy") == "cpu"
        refused(lambda: aa.Accelerator("mps").device_string("numpy"), errors.FrameworkError, "numpy on 'mps'")""",
    "`setup_torch_model(": """
        assert aa.place(encoder.model, "cpu") is encoder.model and aa.place({"a": encoder.model}, "cpu")""",
    "`move_torch_tensor(": """
        assert aa.Accelerator("cpu").move([{"a": np.ones(2)}])[0]["a"].sum() == 2""",
    "`tf_device_scope()`": """
        with aa.Accelerator("cpu").scope("numpy"): pass
        refused(lambda: aa.Accelerator("mps").scope("numpy"), errors.FrameworkError, "numpy on 'mps'")""",
    "`get_config()`, `from_config()`": """
        kept = aa.Accelerator.from_config(aa.Accelerator("cuda:1", pin_memory=True).get_config())
        assert (kept.spec, kept.pin_memory) == ("cuda:1", True)""",
}
FEATURE_SET = {
    "`from_dict(": """
        assert aa.FeatureSet.from_dict(label="d", data={"x": [1.0], "n": ["a"]}, features=["x"], tags=["n"])""",
    "`from_pandas(": """
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame({"x": [1.0], "y": [1.0]})
        assert aa.FeatureSet.from_pandas("d", frame, features=["x"], target=["y"], tags=[])""",
    "`from_df`": "assert lacks(aa.FeatureSet, 'from_df')",
    "`from_pyarrow_table(": """
        assert aa.FeatureSet.from_arrow("d", cells.to_arrow(), ["voltage"], ["soh"], []).features == ("voltage",)
        assert aa.FeatureSet.from_parquet""",
    "columns `domain.key.representation`": "assert cells.role('voltage')",
    "`split(splitter)`": "assert cells.view().feature_set.add_split('first_rows', range(5))",
    "`split_random(": """
        made = fresh()
        made.split_random({"a": 0.5, "b": 0.5}, seed=3, group_by="group")
        fresh().split_random({"a": 0.5, "b": 0.5}, stratify_by="group")""",
    "`split_by_condition(": """
        assert len(fresh().split_by_condition({"low": {"group": [0]}}, group_by=None)["low"].indices) == 10""",
    "`add_split`": """
        made = fresh()
        made.add_split("a", [0, 1])
        made.add_splits({"b": [2, 3]}, group_by=None)
        assert list(made.splits) == ["a", "b"]""",
    "`get_split(name)`": "assert len(cells.split('train').indices) == len(cells['train'].indices) == 16",
    "`splits` |": "assert set(cells.splits) >= {'train', 'test'}",
    "`available_splits`": "assert list(cells.splits) and not cells.cast({}, keep_splits=False).splits",
    "`take`, `filter`": """
        low, high = cells.take([0, 1, 2]), cells.take([2, 3])
        assert [len(low.intersection(high).indices), len(low.difference(high).indices)] == [1, 2]
        assert len(cells.filter({"group": [0]}).indices) == 10 and lacks(aa.FeatureSet, "take_sample_uuids")""",
    "`select`": "assert cells.select(features=['voltage'], target=[], tags=[]).targets == ()",
    "`to_view()`": "assert isinstance(cells.view(), aa.FeatureSetView)",
    "`copy(...)`": "assert lacks(aa.FeatureSet, 'copy')",
    "`FeatureSetView`": "assert aa.FeatureSetView",
    "`get_features/targets/tags/data(": """
        assert cells.array("voltage").shape == (20, 5) and len(cells.column("soh")) == 20 and cells.to_arrow().num_rows
        assert aa.move(cells.array("voltage"), "cpu", framework="numpy").shape == (20, 5)""",
    "`to_pandas()`": "pytest.importorskip('pandas'); assert len(cells.to_pandas()) == 20",
    "`to_arrow()`": "assert cells.to_arrow().num_rows == 20",
    "`get_*_keys`": """
        assert (cells.features, cells.targets, cells.tags) == (("voltage",), ("soh",), ("group",))
        assert str(cells.spec("voltage").dtype) == "float64\"""",
    "`fit_transform`": """
        scaling = pytest.importorskip("sklearn.preprocessing").StandardScaler()
        scaled = cells.fit_transform(scaling, ["voltage"], fit_on="train")
        back = scaled.undo_transform(), scaled.undo_transforms()
        assert all(np.allclose(other.array("voltage"), cells.array("voltage")) for other in back)
        assert scaled.inverse and aa.EvalResults.prediction""",
    "`reference(features=": "assert cells.reference(features=['voltage'], target=['soh'], tags=[])",
    "`column_reference(": "aa.AppliedLoss('mse', on='head', inputs=['outputs', 'cells.soh'])",
    "`visualize(...)` | `ModelGraph.visualize()` draws": "assert 'cells' in graph.visualize()",
    "`save`, `load` | `pyarrow": """
        import pyarrow.parquet
        pyarrow.parquet.write_table(cells.to_arrow(), tmp_path / "cells.parquet")
        assert aa.FeatureSet.from_parquet("cells", tmp_path / "cells.parquet").targets == ("soh",)""",
}
NODES = {
    "`ModelNode(label, model, upstream_ref": """
        node = aa.ModelNode("n", aa.SequentialMLP((1,)), upstream_ref=["encoder", head], optimizer="adam")
        assert node.optimizer and len(node.upstreams) == 2""",
    "`encoder.reference()`": """
        assert aa.ModelNode("n", aa.SequentialMLP((1,)), encoder.reference()).upstreams == ("encoder",)""",
    "`build_model()`": "assert graph.build().is_built",
    "`forward`, `train_step`": "assert lacks(aa.ModelNode, 'forward') and lacks(aa.ModelGraph, 'train_step')",
    "`freeze`, `unfreeze`, `is_frozen` of a node": """
        graph.freeze("encoder")
        assert encoder.frozen and not graph.unfreeze("encoder").frozen""",
    "`reset_weights()`": "assert lacks(aa.ModelNode, 'reset_weights') and graph.seed is not None",
    "`input_shape`": "assert graph.shapes.outputs and str(graph.summary())",
    "`backend` of a node": "assert experiment.plan(train())['encoder'].framework == 'numpy'",
    "`accelerator` of a node": "assert str(head.accelerator) == 'cpu:0'",
    "`wrap_model`": "assert lacks(aa, 'wrap_model')",
    "`SequentialMLP`": "assert aa.SequentialMLP((1,)) and aa.SequentialMLP((1, 1))",
    "`SequentialCNN`": "assert aa.SequentialCNN",
    "`ConcatNode(label": "assert aa.ConcatNode('both', ['encoder', 'head'], concat_axis=0).axis == 0",
    "`concat_axis_targets`": "assert lacks(aa, 'MergeStrategy')",
    "`pad_inputs`": "refused(lambda: aa.ConcatNode('both', ['a', 'b'], pad_inputs=True), TypeError, 'pad_inputs')",
    "`MergeNode`": "assert aa.ConcatNode and lacks(aa, 'MergeNode')",
    "`ModelGraph(nodes": "assert aa.ModelGraph([encoder], optimizer='adam', label='g', seed=3).seed == 3",
    "a graph without an optimizer": """
        bare = aa.ModelGraph([encoder, head], label="bare")
        refused(lambda: aa.Experiment("e", bare).plan(train()), errors.AnyaccelError, "optimizer")""",
    "`build(force)`": """
        other = aa.ModelNode("head", aa.SequentialMLP((1,)), encoder)
        assert graph.build(force=True).is_built and graph.nodes and graph.replace_node(head, other)["head"] is other
        graph.replace_node("head", head).add_node(aa.ModelNode("more", aa.SequentialMLP((1,)), encoder))
        assert list(graph.remove_node("more").nodes) == ["encoder", "head"]""",
    "`insert_node_between": "assert lacks(aa.ModelGraph, 'insert_node_between')",
    "`freeze(nodes)`": "assert graph.freeze('encoder', 'head').frozen and not graph.unfreeze('encoder', 'head').frozen",
    "`head_nodes`": """
        assert (graph.input_nodes, graph.output_nodes) == (("encoder",), ("head",))
        assert list(graph.nodes) == ["encoder", "head"] and graph.frozen == ()""",
    "`pre_place_nodes(": "assert lacks(aa.ModelGraph, 'pre_place_nodes')",
    "`save`, `load`, `save_checkpoint`, `restore_checkpoint` | `graph.save": """
        state = graph.state()
        assert all(isinstance(array, np.ndarray) for array in state.values())
        graph.load_state(state)""",
    "`to_yaml`, `from_yaml` |": """
        again = aa.ModelGraph.from_config(graph.get_config(), feature_sets=[cells])
        assert list(again.nodes) == list(graph.nodes)""",
    "`visualize(...)` | `visualize()` gives": "assert graph.visualize() and graph.visualize('svg') and graph.summary()",
}
SPECS = {
    "`Optimizer(opt": """
        assert aa.Optimizer("adam", opt_kwargs={"lr": 0.1}) == aa.Optimizer("adam", lr=0.1)
        assert aa.Optimizer("adam", schedule="constant", clip_norm=1.0).clip_norm == 1.0""",
    "`factory=`, `backend=`": """
        for key in ("factory", "backend"):
            refused(lambda: aa.Optimizer("adam", **{key: "torch"}), errors.SpecError, "leave it out")""",
    "`build`, `step`, `zero_grad` of an optimizer": "assert lacks(aa.Optimizer, 'step')",
    "`get_state`, `set_state`": "trained(); assert any('optimizer' in name for name in graph.state())",
    "`save`, `load` of an optimizer": """
        spec = aa.Optimizer("adamw", lr=0.1)
        assert aa.Optimizer.from_config(spec.get_config()) == spec""",
    "`Loss(loss": """
        assert aa.Loss("mse") and aa.Loss(max) and aa.Loss(dict, loss_kwargs={"a": 1}).kwargs == {"a": 1}
        for key in ("backend", "factory", "reduction"):
            refused(lambda: aa.Loss("mse", **{key: "sum"}), errors.SpecError, "leave it out")""",
    "`AppliedLoss(loss": """
        for given in ("outputs", "outputs.mean", "targets", "cells.soh", "cells.soh@pair"):
            assert aa.AppliedLoss("mse", "head", ["outputs", given], weight=2.0, label="l").inputs[1] == given""",
    "weights and masks per sample": "assert aa.AppliedLoss('mse', 'head', mask='cells.mask').mask == 'cells.mask'",
    "`SimpleSampler(": """
        assert aa.SimpleSampler(batch_size=4, shuffle=True, drop_last=True, seed=1).drop_last
        for key in ("group_by", "stratify_by", "show_progress"):
            refused(lambda: aa.SimpleSampler(4, **{key: True}), TypeError, key)""",
    "`PairedSampler`": "assert aa.PairSampler and aa.TripletSampler and lacks(aa, 'PairedSampler')",
    "`SimilarityCondition`": "assert aa.Same and aa.Different and aa.Within and aa.Beyond and aa.Where",
    "`NSampler`": "assert isinstance(aa.Sampler, type) and lacks(aa, 'NSampler')",
    "`BatchView`": "assert cells.reference(stream='pair').stream == 'pair'",
    "`InputBinding.for_training`": "trained(data={'cells': cells['train']}, sampler={'cells': aa.SimpleSampler(4)})",
}
PHASES = {
    "`TrainPhase(label, losses=": """
        assert trained() and aa.FitPhase("f", data="train", callbacks=[], accelerator="cpu")
        aa.EvalPhase.from_split("v", split="test", losses=[LOSS], batch_size=4, callbacks=[], accelerator="cpu")""",
    "`input_sources=`": "trained(data='train', batch_size=4)",
    "`active_nodes=`": "refused(lambda: train(active_nodes=['head']), errors.PhaseError, 'active_nodes')",
    "`batch_schedule=`": """
        for name in ("zip_strict", "zip_cycle", "alternate_strict", "alternate_cycle"):
            assert train(schedule=name, sampler={"cells": 4, "others": 4})""",
    "`checkpointing=`": "refused(lambda: train(checkpointing=1), errors.PhaseError, 'checkpointing')",
    "`result_recording=`": """
        assert len(trained(epochs=2).loss) == 2 and evaluated().prediction("head").shape == (4, 1)""",
    "`freeze_after_fit=`": """
        refused(lambda: aa.FitPhase("f", data="train", freeze_after_fit=1), errors.PhaseError, "freeze_after_fit")""",
    "`PhaseGroup`": """
        assert lacks(aa, "PhaseGroup") and lacks(aa.Experiment, "add_phase")
        assert len(aa.Experiment("e", graph, phases=[train()], progress="none").run()) == 1""",
    "`Experiment(label": "assert aa.Experiment('e', graph, [train()], callbacks=[], progress='none').graph is graph",
    "`registration_policy`": """
        refused(aa.Experiment.from_active_context, errors.ConfigError, "Experiment(label, graph)")
        assert lacks(aa, "ExperimentContext")""",
    "`results_config`": "assert trained().to_arrow() and trained().to_dict() and aa.TrainResults.to_pandas",
    "`run_phase`, `run`": "assert trained() is experiment.last_run is experiment.history[-1] and experiment.run",
    "`preview_phase`": "assert experiment.plan(train())['head'] and not experiment.history",
    "`execution_plan`": "assert experiment.phases == ()",
    "`save_checkpoint`, `restore_checkpoint`, `available_checkpoints`": """
        again = aa.Experiment.from_config(experiment.get_config(), feature_sets=[cells])
        assert graph.state() and again.label == "experiment\"""",
    "`on_phase_start`": """
        moments = {"phase_start", "phase_end", "epoch_start", "epoch_end", "step_end"}
        assert moments <= vars(aa.Callback).keys()""",
    "`on_batch_start`": "assert lacks(aa.Callback, 'step_start')",
    "`on_exception`": """
        import inspect
        assert {"phase", "plan", "run", "error"} <= inspect.signature(aa.Callback.phase_end).parameters.keys()""",
    "`ExperimentCallback`": "assert aa.Experiment('e', graph, callbacks=[aa.EarlyStopping('loss')]).callbacks",
    "`EarlyStopping(": """
        aa.EarlyStopping(monitor="val_loss", mode="min", patience=2, min_delta=0.1, restore_best=True)
        refused(lambda: aa.EarlyStopping(reducer=min), TypeError, "reducer")""",
    "`Evaluation(eval_phase": "assert 'val_loss' in trained(validation='test', validate_every=1).figures",
    "`EvalLossMetric`": "assert {'val_loss', 'val_loss.head'} <= set(trained(validation='test').figures)",
    "`ArtifactResult`": "assert lacks(aa, 'ArtifactResult')",
    "`TrainResults`, `EvalResults`": "assert isinstance(trained(), aa.TrainResults)",
    "`FitResults`": "assert aa.FitResults and lacks(aa, 'PhaseGroupResults'); trained(); assert experiment.compare()",
    "`metrics()`, `losses(node)`": """
        results = evaluated(metrics=["mae"])
        assert results.metrics and trained().figure("loss") and len(trained().losses("head")) == 1 and results.loss""",
    "`tensors(...)`": "assert evaluated().prediction('head', undo=False).shape == (4, 1)",
    "`batches`, `artifacts`": "assert lacks(aa.TrainResults, 'batches') and lacks(aa.EvalResults, 'artifacts')",
    "`source_view`": "assert evaluated().rows",
    "`CrossValidation`": "assert lacks(aa, 'CrossValidation')",
    "progress styles": """
        for style in ("auto", "rich", "html", "lines", "none"):
            aa.Experiment("e", graph, progress=style)""",
    "`Visualizer`": "assert graph.visualize() and graph.summary() and str(experiment.plan(train()))",
}
FAULTS = {
    "B1:": """
        with simulate(2):
            two = over_two_devices()
            assert aa.device_of(two.optimizer_states["encoder"].slots["layers.0.weight"]) == aa.Device("sim", 0)""",
    "B2:": "trained(); assert isinstance(graph.optimizer_states['head'].step, int)",
    "B3:": """
        with simulate(2):
            two = over_two_devices()
            crossings = aa.Experiment("e", two).plan(train()).crossings
            assert [(c.value, str(c.origin)) for c in crossings if not c.gradient] == [("encoder", "sim:0")]""",
    "B4:": """
        orders = [aa.SimpleSampler(4, shuffle=True, seed=1).order(100, epoch=epoch).tolist() for epoch in (0, 1)]
        assert orders[0] != orders[1]""",
    "B5:": "assert aa.Estimator",
    "B6:": "assert trained(accelerator=aa.Accelerator('cpu', pin_memory=True))",
    "B7:": "assert aa.Accelerator('cuda') == aa.Accelerator('cuda:0'); assert str(aa.Accelerator('cuda')) == 'gpu:0'",
    "B8:": "assert aa.Accelerator('mps:0') == aa.Accelerator.mps(); assert trained(accelerator=None)",
    "B9:": """
        with simulate(2):
            two = over_two_devices(validation="test")
            assert str(aa.device_of(two["head"].model)) == "sim:1\"""",
    "B10:": """
        with simulate(1):
            plan = experiment.plan(train(accelerator="cpu"))
            assert (plan["head"].reason, plan["encoder"].reason) == ("node", "phase")
        assert experiment.plan(train(accelerator=None))["encoder"].reason == "default\"""",
    "B11:": "assert aa.Accelerator('cpu').is_available('numpy') and not aa.Accelerator('mps').is_available('numpy')",
    "B12:": """
        head.accelerator = aa.Accelerator("sim:7")
        refused(lambda: experiment.plan(train()), errors.DeviceUnavailableError, "Available: cpu")""",
    "B13:": "assert aa.Accelerator('npu:1').device.kind == 'npu'",
    "B14:": """
        with simulate(1) as (device,):
            trained(accelerator="sim:0", data=cells["train"])
            head.accelerator = None
            assert device.used < 10_000""",
    "B15:": "assert trained().losses('head')",
    "B16:": "assert all(column.device.kind == 'cpu' for column in trained().plan.columns)",
    "B17:": """
        columns = {column.name: column for column in trained().plan.columns}
        column = columns["cells.voltage"]
        assert (column.stored.dtype, column.spec.dtype) == ("float64", "float32")""",
    "B18:": """
        with simulate(1) as (device,):
            head.accelerator = None
            syncs = []
            for n_steps in (4, 8):
                before = device.syncs
                trained(accelerator="sim:0", data=cells.take(range(n_steps * 2)).view(), batch_size=2)
                syncs.append(device.syncs - before)
            assert syncs[1] - syncs[0] <= 2  # one for a call of several steps at most""",
    "B19:": "assert aa.Accelerator.from_config(aa.Accelerator('cpu', pin_memory=True).get_config()).pin_memory",
    "B20:": """
        with simulate(2):
            two = over_two_devices()
            assert str(aa.device_of(two["head"].model)) == "sim:1"
            two = over_two_devices(final_device="cpu")
            assert str(aa.device_of(two["head"].model)) == "cpu:0\"""",
    "B21:": """
        import subprocess, sys
        code = "import sys, anyaccel; sys.exit(any(name in sys.modules for name in ('torch', 'tensorflow', 'jax')))"
        subprocess.run([sys.executable, "-c", code], check=True)""",
}
CHECKS = ACCELERATOR | FEATURE_SET | NODES | SPECS | PHASES | FAULTS
LOSS = aa.AppliedLoss("mse", on="head")


def rows() -> list[str]:
    """The rows of all tables, without their first `| `."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    return [line[2:] for line in lines if not re.match(r"\| (---|ModularML \||in ModularML \|)", line)]


def test_every_row_has_one_check_and_every_check_one_row() -> None:
    starts = {row: [start for start in CHECKS if row.startswith(start)] for row in rows()}
    assert {row: matching for row, matching in starts.items() if len(matching) != 1} == {}
    assert set(CHECKS) == {start for matching in starts.values() for start in matching}


def refused(act: Callable[[], Any], error: type[Exception], words: str) -> None:
    """Make sure that an error is raised, and that its message has these words."""
    with pytest.raises(error, match=re.escape(words)):
        act()


def lacks(owner: Any, name: str) -> bool:
    """Whether a name that the page says is left out, or planned, is not there."""
    return not hasattr(owner, name)


def features() -> aa.FeatureSet:
    rng = np.random.default_rng(0)
    columns = {"voltage": rng.normal(size=(20, 5)), "soh": rng.normal(size=20), "group": np.repeat([0, 1], 10)}
    return aa.FeatureSet.from_dict("cells", columns, ["voltage"], ["soh"], ["group"])


@pytest.fixture
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the checks use. NumPy alone computes, whatever is installed."""
    monkeypatch.setattr("anyaccel.registry._registry", [Registry(NumpyBackend, lambda: ())])
    cells = features()
    cells.split_random({"train": 0.8, "test": 0.2})

    def nodes(*places: str | None) -> list[aa.ModelNode]:
        encoder = aa.ModelNode("encoder", aa.SequentialMLP((4,)), cells.reference(target=["soh"]), places[0])
        return [encoder, aa.ModelNode("head", aa.SequentialMLP((1,)), encoder, places[1])]

    def train(**settings: Any) -> aa.TrainPhase:
        drawn = {} if "sampler" in settings else {"batch_size": 8}
        given = {"data": "train", "losses": [LOSS], "epochs": 1, "accelerator": "cpu", **drawn, **settings}
        return aa.TrainPhase("train", **given)

    def evaluated(**settings: Any) -> aa.EvalResults:
        return experiment.run_phase(aa.EvalPhase("test", data="test", losses=[LOSS], **settings))

    def over_two_devices(**settings: Any) -> aa.ModelGraph:
        two = aa.ModelGraph(nodes("sim:0", "sim:1"), "adam")
        aa.Experiment("two", two, progress="none").run_phase(train(**settings))
        return two

    encoder, head = nodes(None, "cpu")
    graph = aa.ModelGraph([encoder, head], optimizer=aa.Optimizer("adam"), label="graph")
    experiment = aa.Experiment("experiment", graph, progress="none")
    names = {"cells": cells, "encoder": encoder, "head": head, "graph": graph, "experiment": experiment, "train": train}
    tools = {"aa": aa, "np": np, "pytest": pytest, "errors": errors, "simulate": simulate, "tmp_path": tmp_path}
    helpers = {"refused": refused, "lacks": lacks, "fresh": features, "LOSS": LOSS, "evaluated": evaluated}
    runs = {"trained": lambda **given: experiment.run_phase(train(**given)), "over_two_devices": over_two_devices}
    return {**names, **tools, **helpers, **runs}


@pytest.mark.parametrize("start", CHECKS)
def test_a_row_is_true(start: str, namespace: dict[str, Any]) -> None:
    code = "\n".join(line.removeprefix("        ") for line in CHECKS[start].strip("\n").splitlines())
    exec(compile(code, f"<the check of {start}>", "exec"), namespace)  # noqa: S102
