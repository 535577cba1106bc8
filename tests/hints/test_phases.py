"""Hints of the settings of phases."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import (
    AppliedLoss,
    ConcatNode,
    EarlyStopping,
    EvalPhase,
    Experiment,
    FitPhase,
    Loss,
    LossScale,
    ModelGraph,
    ModelNode,
    Optimizer,
    Schedule,
    SimpleSampler,
    TrainPhase,
)

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
MSE = AppliedLoss("mse", on="net")


def features(label: str = "data", **columns: Any) -> aa.FeatureSet:
    columns = columns or {"y": X[:, :1]}
    made = aa.FeatureSet.from_dict(label, {"x": X, **columns}, ["x"], list(columns))
    made.add_splits({"train": range(16), "val": range(16, 24)})
    return made


def graph(width: int = 1, data: aa.FeatureSet | None = None, optimizer: Any = "sgd") -> ModelGraph:
    return ModelGraph([ModelNode("net", aa.SequentialMLP(width), (data or features()).reference())], optimizer)


def classifier() -> ModelGraph:
    return graph(3, features(y=np.arange(24) % 3))


def run(phase: Any, on: ModelGraph | None = None) -> Any:
    return (on or graph()).run(phase, progress="none")


def train(**settings: Any) -> TrainPhase:
    return TrainPhase("train", **{"data": "train", "losses": [MSE], **settings})


def test_schedules_that_end_before_the_training(hint: Any) -> None:
    def trained(schedule: Schedule) -> ModelGraph:
        on = graph(optimizer=Optimizer("sgd", lr=0.1, schedule=schedule))
        run(train(batch_size=4, epochs=4), on)
        return on

    with hint("write Schedule({}, steps={}, ...), or final=0.01") as printed:
        with pytest.warns(UserWarning, match="ends at step 10, so the learning rate is 0 in 6 of 16 steps") as caught:
            trained(Schedule("cosine", steps=8, warmup=2))
        printed.text = str(caught[0].message)
    first = trained(Schedule("cosine", steps=14, warmup=2))  # a warning would be an error here
    trained(Schedule("cosine", steps=8, warmup=2, final=0.01))
    run(train(batch_size=4, epochs=1), first)  # goes on with an optimizer, whose steps are counted


def test_batches(hint: Any) -> None:
    with hint("write batch_size=16 for batches of 16 (shuffled), or sampler=SimpleSampler(16)"):
        train(batchsize=16)
    assert run(train(batch_size=16)).loss.size == run(train(sampler=SimpleSampler(16))).loss.size == 1
    with hint("write sampler=SimpleSampler(16, shuffle=True)"):
        train(shuffle=True)
    assert run(train(sampler=SimpleSampler(16, shuffle=True))).loss.size
    with hint("write ModelGraph(..., seed=1), or sampler=SimpleSampler(16, shuffle=True, seed=1)"):
        train(seed=1)
    seeded = ModelGraph([ModelNode("net", aa.SequentialMLP(1), features().reference())], "sgd", seed=1)
    assert run(train(sampler=SimpleSampler(16, shuffle=True, seed=1)), seeded).loss.size
    with hint("write batch_size=32, or sampler=SimpleSampler(32, shuffle=True)"):
        train(sampler="32")
    assert run(train(batch_size=32)).loss.size == run(train(sampler=SimpleSampler(32, shuffle=True))).loss.size == 1
    with hint("write batch_size={}"):
        train(sampler=4)
    assert run(train(batch_size=4)).loss.size == 1
    with hint("write epochs=10"):
        train(n_epochs=10)
    assert run(train(epochs=10)).loss.size == 10
    with hint("leave batch_size out: the sampler has one"):
        EvalPhase("test", data="val", batch_size=4, sampler=SimpleSampler(8))
    assert EvalPhase("test", data="val", sampler=SimpleSampler(8)).sampler == SimpleSampler(8)  # without batch_size
    with hint("write accumulate=4"):
        train(gradient_accumulation_steps=4)
    assert run(train(accumulate=4, batch_size=4)).loss.size
    with hint("leave schedule out, or write sampler={'FEATURE_SET': 32, 'OTHER': 32}"):
        train(schedule="zip_strict")
    assert run(train()).loss.size  # without schedule
    sets = [features("FEATURE_SET"), features("OTHER")]
    joined = ConcatNode("joined", [data.reference() for data in sets])
    net = ModelGraph([joined, ModelNode("net", aa.SequentialMLP(1), joined)], "sgd")
    loss = AppliedLoss("mse", on="net", inputs=("outputs", "OTHER.y"))
    drawn = train(schedule="zip_strict", sampler={"FEATURE_SET": 32, "OTHER": 32}, losses=[loss])
    assert run(drawn, net).loss.size


def test_optimizers_belong_to_graphs(hint: Any) -> None:
    with hint("the optimizer belongs to the graph: ModelGraph(nodes, Optimizer('adam', lr=1e-3))"):
        train(lr=1e-3)
    nodes = lambda: [ModelNode("net", aa.SequentialMLP(1), features().reference())]  # noqa: E731
    assert run(train(), ModelGraph(nodes(), Optimizer("adam", lr=1e-3))).loss.size
    with hint("the optimizer clips: ModelGraph(nodes, Optimizer('adam', clip_value=0.5))"):
        train(clip_value=0.5)
    assert run(train(), ModelGraph(nodes(), Optimizer("adam", clip_value=0.5))).loss.size
    with hint("the optimizer clips: ModelGraph(nodes, Optimizer('adam', clip_norm=1.0))"):
        train(max_grad_norm=1.0)
    assert run(train(), ModelGraph(nodes(), Optimizer("adam", clip_norm=1.0))).loss.size
    with hint("the optimizer has the schedule: Optimizer('adam', schedule=Schedule('cosine', steps=100))"):
        train(scheduler="cosine")
    scheduled = Optimizer("adam", schedule=Schedule("cosine", steps=100))
    assert run(train(), ModelGraph(nodes(), scheduled)).loss.size


def test_what_is_not_trained(hint: Any) -> None:
    with hint("the graph freezes nodes: graph.freeze('NODE')"):
        train(frozen=True)
    assert graph().freeze("net").frozen == ("net",)


def test_losses(hint: Any) -> None:
    with hint("write losses=[AppliedLoss('cross_entropy', on='NODE')]"):
        train(loss="cross_entropy")
    net = features(y=np.arange(24) % 3)
    named = ModelGraph([ModelNode("NODE", aa.SequentialMLP(3), net.reference())], "sgd")
    assert run(train(losses=[AppliedLoss("cross_entropy", on="NODE")]), named).loss.size
    with hint("class weights belong to the loss: Loss('cross_entropy', class_weights=[1.0, 2.0, 1.0])"):
        train(class_weight=[1.0, 2.0, 1.0])
    weighted = AppliedLoss(Loss("cross_entropy", class_weights=[1.0, 2.0, 1.0]), on="net")
    assert run(train(losses=[weighted]), classifier()).loss.size
    with hint("write losses=[AppliedLoss({}, on='NODE')]"):
        train(losses=["mse"])
    named = ModelGraph([ModelNode("NODE", aa.SequentialMLP(1), features().reference())], "sgd")
    assert run(train(losses=[AppliedLoss("mse", on="NODE")]), named).loss.size
    with hint("give each a unique label: AppliedLoss(..., label='NAME')"):
        train(losses=[MSE, MSE])
    assert run(train(losses=[MSE, AppliedLoss("mse", on="net", label="NAME")])).loss.size
    with hint("write {}=[{}]"):
        train(losses=3)
    assert run(train(losses=[AppliedLoss("mse", on="NODE")]), named).loss.size
    rows = features().reference()
    two = [ModelNode(label, aa.SequentialMLP(1), rows) for label in ("a", "b")]
    with hint("name one: AppliedLoss({}, on={})"):
        run(train(losses=[AppliedLoss("mse")]), ModelGraph(two, "sgd"))
    assert run(train(losses=[AppliedLoss("mse", on="a"), AppliedLoss("mse", on="b")]), ModelGraph(two, "sgd")).loss.size
    with hint("write loss_scale=LossScale(initial=1024.0)"):
        train(loss_scale="dynamic")
    assert train(loss_scale=LossScale(initial=1024.0)).loss_scale.initial == 1024
    with hint("leave losses out"):
        FitPhase("fit", data="train", losses=[MSE])
    assert FitPhase("fit", data="train").label == "fit"


def test_validation(hint: Any) -> None:
    with hint("write validation='val', a split"):
        train(validation_data="val")
    assert run(train(validation="val")).figure("val_loss").size
    with hint("split the data: data.split_random({'train': 0.8, 'val': 0.2}), and write validation='val'"):
        train(validation_split=0.2)
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    data.split_random({"train": 0.8, "val": 0.2})
    assert run(train(validation="val"), graph(1, data)).figure("val_loss").size
    with hint("metrics belong to the validation: validation=EvalPhase(..., metrics=[...])"):
        train(metrics=["mae"])
    assert run(train(validation=EvalPhase("val", data="val", metrics=["mae"]))).figure("val_mae").size
    with hint("run an EvalPhase(..., outputs=[...]) to keep outputs"):
        train(outputs=["net"])
    assert len(run(EvalPhase("test", data="val", outputs=["net"])).prediction("net")) == 8
    with hint("write validation='SPLIT', or validation=EvalPhase('LABEL', data='SPLIT')"):
        train(validation=3)
    data.add_splits({"SPLIT": range(4)})
    assert run(train(validation="SPLIT"), graph(1, data)).figure("val_loss").size
    assert run(train(validation=EvalPhase("LABEL", data="SPLIT")), graph(1, data)).loss.size
    with hint("leave losses out of the validation, and run a separate EvalPhase with this one after training"):
        other = AppliedLoss(lambda outputs, targets: (outputs - targets) ** 2, on="net")
        run(train(validation=EvalPhase("val", data="val", losses=[other])))
    net = graph()
    run(train(validation=EvalPhase("val", data="val")), net)
    assert run(EvalPhase("test", data="val", losses=[MSE]), net).loss >= 0
    with hint("leave accelerator out of the validation: it runs where the nodes are"):
        train(validation=EvalPhase("val", data="val", accelerator="gpu:0"))
    assert train(validation=EvalPhase("val", data="val")).validation.accelerator is None
    with hint("write metrics=['mse']"):
        EvalPhase("test", data="val", metrics=3)
    assert run(EvalPhase("test", data="val", metrics=["mse"])).metrics
    with hint("add a validation: TrainPhase(validation='SPLIT'), or an EvalPhase with metrics"):
        run(train(callbacks=[EarlyStopping("val_loss")]))
    stopping = TrainPhase("t", data="train", losses=[MSE], validation="SPLIT", callbacks=[EarlyStopping("val_loss")])
    assert run(stopping, graph(1, data)).loss.size


def test_where_and_how_phases_run(hint: Any) -> None:
    with hint("write precision='bf16-mixed'"):
        train(amp=True)
    assert train(precision="bf16-mixed").precision == "bf16-mixed"
    with hint("write precision='fp16-mixed', which scales losses"):
        train(fp16=True)
    assert train(precision="fp16-mixed").precision == "fp16-mixed"
    with hint("write matmul_precision='high'"):
        train(tf32=True)
    assert train(matmul_precision="high").matmul_precision == "high"
    with hint("write sharding='full'"):
        train(fsdp=True)
    assert train(sharding="full").sharding == "full"
    with hint("write sharding='full offload'"):
        train(cpu_offload=True)
    assert train(sharding="full offload").sharding == "full offload"
    with hint("write accelerator='gpu:0'"):
        train(device="cuda")
    assert str(train(accelerator="gpu:0").accelerator) == "gpu:0"
    with hint("write replicas=2, or accelerator='gpu:*'"):
        train(devices=2)
    assert str(train(accelerator="gpu:*").accelerator) == "gpu:*"
    with aa.simulate(2):
        net = ModelGraph([ModelNode("net", aa.SequentialMLP(1), features().reference())], "sgd")
        assert run(train(replicas=2, accelerator="sim:0"), net).loss.size
    with hint("write compile='off'"):
        train(compile=False)
    assert run(train(compile="off")).loss.size
    with hint("write compile='steps', or leave it out"):
        train(compile=True)
    assert run(train(compile="steps")).loss.size


def test_words_of_others(hint: Any) -> None:
    with hint("write callbacks=[EarlyStopping('loss', patience=5)]"):
        train(patience=5)
    assert run(train(callbacks=[EarlyStopping("loss", patience=5)])).loss.size
    with hint("it is a node's: ModelNode(..., remat='blocks')"):
        train(remat=True)
    assert ModelNode("net", aa.SequentialMLP(1), features().reference(), remat="blocks").remat == "blocks"
    with hint("the model is in the graph: ModelGraph([ModelNode('net', model, data.reference())], 'adam')"):
        train(model=aa.SequentialMLP(1))
    model, data = aa.SequentialMLP(1), features()
    assert run(train(), ModelGraph([ModelNode("net", model, data.reference())], "adam")).loss.size
    with hint("write validation='SPLIT', or leave it out"):
        train(validate_every=2)
    assert run(train(validate_every=2, validation="val")).figure("val_loss").size
    assert run(train()).loss.size
    with hint("write data='train'"):
        EvalPhase("test", split="train")
    with hint("write data='train'"):
        EvalPhase("test", dataset="train")
    assert run(EvalPhase("test", data="train")).prediction("net").size
    with hint("write split='train', or {}('LABEL', data=...)"):
        EvalPhase.from_split("LABEL", data="train")
    assert run(EvalPhase.from_split("LABEL", split="train")).prediction("net").size
    assert run(EvalPhase("LABEL", data="train")).prediction("net").size
    with hint("the name is the first argument: TrainPhase('train', ...)"):
        TrainPhase(name="train", data="train")
    assert TrainPhase("train", data="train", losses=[MSE]).label == "train"
    for setting in ({"progress": False}, {"verbose": 0}):
        with hint("write Experiment(..., progress='none')"):
            train(**setting)
    assert Experiment("test", graph(), progress="none").run_phase(train()).loss.size
    with hint("running gives results: results = graph.run(phase)"):
        _ = train().loss
    results = run(train())
    assert results.loss.size
    with hint("it is epochs"):
        _ = train().n_epochs
    assert train(epochs=3).epochs == 3
    with hint("write data={'LABEL': 'train'}"):
        train(data={3: "train"})
    labelled = graph(1, features("LABEL"))
    assert run(train(data={"LABEL": "train"}), labelled).loss.size
    with hint("derive it from anyaccel.Callback"):
        train(callbacks=[print])

    class Printing(aa.Callback):
        pass

    assert run(train(callbacks=[Printing()])).loss.size
    with hint("write ['encoder', 'head']"):
        EvalPhase("test", data="train", outputs=[3])
    assert EvalPhase("test", data="train", outputs=["encoder", "head"]).outputs == ("encoder", "head")


def test_progress(hint: Any) -> None:
    with hint("write progress='none'"):
        graph().run(train(), progress="loud")
    assert graph().run(train(), progress="none").loss.size
    with hint("progress='auto'"):
        graph().run(train(), progress="html")
    assert graph().run(train(), progress="auto").loss.size


def test_configurations(hint: Any) -> None:
    for broken in ({"type": "other"}, {**train().get_config(), "losses": 3}):
        with hint("pass a dict from get_config() of a phase"):
            TrainPhase.from_config(broken)
    assert TrainPhase.from_config(train().get_config()).label == "train"
    data = features()
    with hint("register a split and pass its name as data="):
        train(data=data["all"].take(range(4))).get_config()
    data.add_splits({"first": range(4)})
    assert TrainPhase("train", data="first", losses=[MSE]).get_config()["data"] == "first"


def test_phases_in_other_phases(hint: Any) -> None:
    net = graph()

    class Evaluating(aa.Callback):
        def epoch_end(self, run: Any) -> None:
            net.run(EvalPhase("test", data="val"), progress="none")

    with hint("evaluate with TrainPhase(validation=...), or after that phase has ended"):
        net.run(train(callbacks=[Evaluating()]), progress="none")
    assert net.run(TrainPhase("t", data="train", losses=[MSE], validation="val"), progress="none").loss.size
    assert net.run(EvalPhase("test", data="val"), progress="none").prediction("net").size

    class Early(aa.Callback):
        def phase_start(self, phase: Any, run: Any) -> None:
            run.snapshot()

    with hint("call this in a callback, after after_loading and before the last epoch_end"):
        net.run(train(callbacks=[Early()]), progress="none")

    class Later(aa.Callback):
        def epoch_end(self, run: Any) -> None:
            self.snapshot = run.snapshot()

        def after_loading(self, phase: Any, plan: Any, run: Any) -> None:
            run.snapshot()

    later = Later()
    net.run(train(callbacks=[later]), progress="none")
    assert later.snapshot


def test_models_that_another_thread_uses(hint: Any) -> None:
    model, data = aa.SequentialMLP(1), features()
    graphs = [ModelGraph([ModelNode("net", model, data.reference())], "sgd") for _ in range(2)]
    graphs[0].build()
    told: list[Exception] = []

    class Meanwhile(aa.Callback):
        def epoch_end(self, run: Any) -> None:
            def other() -> None:
                try:
                    graphs[1].run(train(), progress="none")
                except aa.errors.PhaseError as error:
                    told.append(error)

            thread = threading.Thread(target=other)
            thread.start()
            thread.join()

    with hint("wait until that phase has ended, or give each graph a copy of the model: copy.deepcopy(model)"):
        run(train(callbacks=[Meanwhile()]), graphs[0])
        raise told.pop()
    assert run(train(), graphs[1]).loss.size
    graphs[1] = ModelGraph([ModelNode("net", copy.deepcopy(model), data.reference())], "sgd")
    assert run(train(callbacks=[Meanwhile()]), graphs[0]).loss.size and not told


def test_hints_whose_code_is_filled_in(hint: Any, tmp_path: Path) -> None:
    with hint("create an instance: {}()"):
        train(callbacks=[aa.WeightAveraging])
    assert run(train(callbacks=[aa.WeightAveraging()])).loss.size

    class ReduceLROnPlateau:
        """As that of torch and Keras."""

    class EarlyStopping:
        """As that of Keras."""

    with hint("write anyaccel.EarlyStopping()"):
        train(validation="val", callbacks=[EarlyStopping()])
    assert run(train(validation="val", callbacks=[aa.EarlyStopping()])).loss.size
    with hint("pass it to the optimizer: Optimizer('adam', schedule=anyaccel.ReduceLROnPlateau())"):
        train(validation="val", callbacks=[ReduceLROnPlateau()])
    scheduled = graph()
    scheduled.optimizer = aa.Optimizer("adam", schedule=aa.ReduceLROnPlateau())
    assert run(train(validation="val"), scheduled).loss.size
    others = {
        name: type(name, (), {})
        for name in ("LearningRateScheduler", "TerminateOnNaN", "BackupAndRestore", "CSVLogger")
    }
    with hint("pass a function of the step to the optimizer: Optimizer('adam', schedule=function)"):
        train(callbacks=[others["LearningRateScheduler"]()])
    scheduled.optimizer = aa.Optimizer("adam", schedule=lambda step: 1 / (1 + step))
    assert run(train(), scheduled).loss.size
    with hint("write on_nan='stop'"):
        train(callbacks=[others["TerminateOnNaN"]()])
    assert run(train(on_nan="stop")).loss.size
    with hint("write checkpoint='runs/a', and run the phase with resume='auto'"):
        train(callbacks=[others["BackupAndRestore"]()])
    assert graph().run(train(checkpoint=str(tmp_path)), resume="auto", progress="none").loss.size
    with hint("the results have all values: results.to_pandas()"):
        train(callbacks=[others["CSVLogger"]()])
    results = run(train())
    assert callable(results.to_pandas)
    with hint("leave {} out of the validation: it follows the training"):
        train(validation=EvalPhase("val", data="val", precision="float64"))
    assert run(train(validation=EvalPhase("val", data="val"))).loss.size
    with hint("write {}"):
        aa.FrameworkSettings({})
    assert aa.FrameworkSettings({"FRAMEWORK.SETTING": True}).values
    with hint("use a named metric: {}"):
        EvalPhase("test", data="val", metrics=[lambda outputs, targets: 1.0]).get_config()
    assert EvalPhase("test", data="val", metrics=["mse"]).get_config()["metrics"]
    with hint("create one: {}()"):
        EvalPhase("test", data="val", metrics=[Largest])
    assert run(EvalPhase("test", data="val", metrics=[Largest()])).metrics["Largest"] > 0


class Largest:
    """The largest error."""

    def __call__(self, outputs: Any, targets: Any) -> float:
        return float(abs(outputs - targets).max())
