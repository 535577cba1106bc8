"""Hints of steps that are functions of the user's."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel import AppliedLoss, EvalPhase, ModelGraph, ModelNode, TrainPhase

torch = pytest.importorskip("torch")

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
MSE = AppliedLoss("mse", on="net")


def data() -> aa.FeatureSet:
    made = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    made.add_splits({"train": range(16), "val": range(16, 24)})
    return made


def step(models: Any, batch: Any, optimizers: Any) -> Any:
    """Trains nothing."""
    return {"loss": 0.0}


def run(phase: Any, model: Any = None, rows: Any = None, optimizer: Any = "sgd") -> Any:
    node = ModelNode("net", model or torch.nn.Linear(3, 1), (rows or data()).reference())
    return ModelGraph([node], optimizer).run(phase, progress="none")


class TwoInputs(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = torch.nn.Linear(1, 1), torch.nn.Linear(2, 1)

    def forward(self, left: Any, right: Any) -> Any:
        return self.left(left) + self.right(right)


class OfScalars(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = torch.nn.Linear(1, 1), torch.nn.Embedding(2, 1)

    def forward(self, left: Any, right: Any) -> Any:
        return self.left(left[:, None]) + self.right(right)


def test_losses_of_users(hint: Any) -> None:
    with hint("write def loss({}), or name its arguments in inputs=[...]"):
        run(TrainPhase("train", data="train", losses=[AppliedLoss(lambda outputs: outputs.mean(), on="net")]))

    for triplets in (torch.nn.TripletMarginLoss(), torch.nn.TripletMarginLoss):
        with hint("write def loss({}), or name its arguments in inputs=[...]"):
            run(TrainPhase("train", data="train", losses=[AppliedLoss(triplets, on="net")]))
        named = AppliedLoss(triplets, on="net", inputs=["outputs", "targets", "data.y"])
        assert run(TrainPhase("train", data="train", losses=[named])).loss.size

    class Two(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(x), x

    with pytest.raises(aa.errors.SpecError, match=r"def loss\(output_0, output_1, targets\), or name its arguments"):
        aa.fit(Two(3, 3), {"x": X, "y": X}, target="y", loss=lambda outputs, targets: targets, progress="none")

    def loss(output_0: Any, output_1: Any, targets: Any) -> Any:
        return ((output_0 - targets) ** 2).mean() + 0 * output_1.mean()

    assert aa.fit(Two(3, 3), {"x": X, "y": X}, target="y", loss=loss, epochs=1, progress="none").results.loss.size

    def loss(outputs: Any, targets: Any) -> Any:
        return ((outputs - targets) ** 2).mean()

    assert run(TrainPhase("train", data="train", losses=[AppliedLoss(loss, on="net")])).loss.size
    alone = AppliedLoss(lambda outputs: outputs.square().mean(), on="net", inputs=["outputs"])
    assert run(TrainPhase("train", data="train", losses=[alone])).loss.size


def test_single_rows_of_an_iterable_data_set(hint: Any) -> None:
    class Rows(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(zip(X, X[:, :1], strict=True))

    source = Rows()
    with hint(
        "return one entry per row in every column; of single rows, batch them (source.batch(32), DataLoader(...))"
    ):
        aa.fit(torch.nn.Linear(3, 1), source, loss="mse", epochs=1, progress="none")
    batches = torch.utils.data.DataLoader(source, batch_size=32)  # data sets of datasets: source.batch(32)
    assert aa.fit(torch.nn.Linear(3, 1), batches, loss="mse", epochs=1, progress="none").results.loss.size


def test_losses_of_models(hint: Any) -> None:
    class Model(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            outputs = super().forward(x)
            return {"error": outputs.square().mean(), "logits": outputs}

    phase = TrainPhase("train", data="train", losses=[AppliedLoss.from_output("net")])
    with hint(
        "name an output, or return {'loss': loss, 'logits': outputs} from the model; if it computes a loss only with "
        "targets, pass them as an input"
    ):
        run(phase, Model(3, 1))

    class Named(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            outputs = super().forward(x)
            loss = outputs.square().mean()
            return {"loss": loss, "logits": outputs}

    assert run(phase, Named(3, 1)).loss.size


def test_steps_of_users(hint: Any) -> None:
    with hint("write step=FUNCTION"):
        TrainPhase("train", data="train", step="step")
    assert run(TrainPhase("train", data="train", step=step)).loss.size
    with hint("leave losses out; pass losses of the validation to it: validation=EvalPhase(..., losses=[...])"):
        TrainPhase("train", data="train", step=step, losses=[MSE])
    validation = EvalPhase("val", data="val", losses=[MSE])
    assert run(TrainPhase("train", data="train", step=step, validation=validation)).figure("val_loss").size
    with hint("leave precision out, and cast in the step, for example with the framework's autocast"):
        TrainPhase("train", data="train", step=step, precision="bf16-mixed")
    with hint("leave accumulate out, and add up gradients in the step"):
        TrainPhase("train", data="train", step=step, accumulate=2)
    with hint("leave compile out, and compile parts of the step with your framework's compiler"):
        TrainPhase("train", data="train", step=step, compile="steps")
    # without precision, accumulate and compile
    with hint("name it {}, and validate with TrainPhase(validation=...)"):
        run(TrainPhase("train", data="train", step=lambda *_: {"val_loss": 1.0}))
    given = TrainPhase("train", data="train", step=lambda *_: {"loss": 1.0}, validation=validation)
    assert run(given).figure("val_loss").size
    with hint("return a mean over the batch, as in {'loss': loss}"):
        run(TrainPhase("train", data="train", step=lambda *_: {"loss": X}))
    loss = X.mean()
    assert run(TrainPhase("train", data="train", step=lambda *_: {"loss": loss})).loss[0] == pytest.approx(float(loss))


def test_targets_of_losses_of_torch(hint: Any) -> None:
    def rows(y: Any) -> aa.FeatureSet:
        return aa.FeatureSet.from_dict("data", {"x": X, "y": y}, ["x"], ["y"])

    def trained(loss: Any, y: Any, width: int = 1, **settings: Any) -> Any:
        phase = TrainPhase("train", data="all", losses=[AppliedLoss(loss, on="net")], **settings)
        return run(phase, torch.nn.Linear(3, width), rows(y))

    with hint("correct the column, or use 'mse' for numbers of any size"):
        trained(torch.nn.PoissonNLLLoss(), X[:, :1])
    assert trained(torch.nn.PoissonNLLLoss(), abs(X[:, :1])).loss.size and trained("mse", X[:, :1]).loss.size
    column = np.arange(24).reshape(24, 1) % 2
    with hint("use -1 for no and 1 for yes: 2 * column - 1 converts 0 and 1"):
        trained(torch.nn.SoftMarginLoss(), column.astype("float32"))
    assert trained(torch.nn.SoftMarginLoss(), (2 * column - 1).astype("float32")).loss.size
    classes = np.where(np.arange(24) % 4 == 3, -100, np.arange(24) % 4)
    with hint("leave accumulate out, or write replicas=1; or name the loss: Loss('cross_entropy', ignore_index=...)"):
        trained(torch.nn.CrossEntropyLoss(), classes, 3, accumulate=2, batch_size=6)
    assert trained(torch.nn.CrossEntropyLoss(), classes, 3, replicas=1, batch_size=12).loss.size  # without accumulate
    named = aa.Loss("cross_entropy", ignore_index=-100)
    assert trained(named, classes, 3, accumulate=2, batch_size=6).loss.size


def test_batches_of_one_row(hint: Any) -> None:
    def model() -> Any:
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))

    with hint(", or leave that one out: sampler=SimpleSampler({}, {}drop_last=True)"):
        run(TrainPhase("train", data="train", losses=[MSE], batch_size=5), model())  # 16 rows
    for sampler in (aa.SimpleSampler(4, shuffle=True), aa.SimpleSampler(5, shuffle=True, drop_last=True)):
        assert run(TrainPhase("train", data="train", losses=[MSE], sampler=sampler), model()).loss.size


def test_contexts_around_phases(hint: Any) -> None:
    context = torch.autocast("cpu", torch.bfloat16)

    def step(models: Any, batch: Any, optimizers: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return models["net"](batch["x"]).float().mean().detach()

    with hint("run the phase outside this context, and set {}(..., precision={})"), context:
        run(TrainPhase("train", data="train", losses=[MSE]))
    assert run(TrainPhase("train", data="train", losses=[MSE], precision="bf16-mixed")).loss.size
    with hint("run the phase outside this context, and enter it in the step: `with {}:`"), context:
        run(TrainPhase("train", data="train", step=step))
    assert run(TrainPhase("train", data="train", step=step)).loss.size


def test_gradients_that_are_not_finite_in_float16(hint: Any) -> None:
    def rows(scale: float) -> aa.FeatureSet:
        return aa.FeatureSet.from_dict("data", {"x": scale * X, "y": 10 * scale * X[:, :1]}, ["x"], ["y"])

    def trained(scale: float, **settings: Any) -> Any:
        settings = {"precision": "fp16-mixed", "batch_size": 24, "losses": [MSE], **settings}
        return run(TrainPhase("train", data="all", **settings), None, rows(scale), "adam")

    for scale in (200, 1e6):
        with hint(
            "Hint: train for more steps, because each skipped step halves the scale, or set a smaller loss_scale=; if "
            "values exceed 65504, scale the data, or use precision='bf16-mixed', which has the range of float32"
        ) as printed:
            with pytest.warns(aa.errors.NaNWarning) as caught:
                trained(scale, epochs=2)
            printed.text = str(caught[-1].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error", aa.errors.NaNWarning)
        trained(200, epochs=30)
        trained(200, loss_scale=0.001)
        trained(0.2, epochs=2)
        trained(1e6, precision="bf16-mixed")


START = """
import json, os, sys, torch, numpy as np
from anyaccel import *
from anyaccel.errors import AnyaccelError
import anyaccel as aa

X = np.random.default_rng(0).standard_normal((24, 3)).astype("float32")
DATA = FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
ITEMS = [{"x": row, "y": row[:1]} for row in X]
RANK = int(os.environ["RANK"])
told = {}

def run(name, data="all", model=None, **settings):
    settings.setdefault("losses", [AppliedLoss("mse", on="net")])
    torch.manual_seed(0)
    node = ModelNode("net", model() if model else torch.nn.Linear(3, 1), DATA.reference())
    try:
        phase = TrainPhase("train", data=data, **settings)
        told[name] = float(ModelGraph([node], "sgd").run(phase, progress="none").loss[-1])
    except AnyaccelError as error:
        told[name] = str(error)

def loader(**settings):
    made = torch.utils.data.DataLoader(ITEMS, **settings)
    return IterableSource("data", lambda: made, features=["x"], target=["y"])

def norm():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))

class Reads(aa.Callback):
    def __init__(self, in_all):
        self.in_all = in_all

    def epoch_end(self, run):
        if self.in_all or run.is_main_process:
            run.model("net") if callable(run.model) else run.model
            run.snapshot()
"""

END = """
if RANK == 0:
    with open(sys.argv[1], "w") as file:
        json.dump(told, file)
"""


def in_two(script: str, folder: Path, *options: str) -> dict[str, Any]:
    """What a script found in the first of the processes that `anyaccel run` starts."""
    (folder / "script.py").write_text(START + textwrap.dedent(script) + END)
    command = [sys.executable, "-m", "anyaccel", "run", *options, str(folder / "script.py"), str(folder / "told")]
    completed = subprocess.run(command, timeout=240, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout[-4000:] + completed.stderr[-8000:]
    told: dict[str, Any] = json.loads((folder / "told").read_text())
    return told


@pytest.mark.slow
def test_two_processes(hint: Any, tmp_path: Path) -> None:
    wrong = in_two(
        """
        run("three", replicas=3)
        sampler = torch.utils.data.DistributedSampler(ITEMS, num_replicas=2, rank=RANK)
        run("own rows", data=loader(batch_size=6, sampler=sampler))
        run("one row", data=loader(batch_size=23))
        run("batch norm", model=norm)
        run("reads alone", sharding="full", callbacks=[Reads(in_all=False)])
        """,
        tmp_path,
        "--replicas",
        "2",
    )
    with hint("start the script as anyaccel run --replicas 2 SCRIPT"):
        TrainPhase("train", data="train", strategy="ddp")
    with hint("start the script as anyaccel run --replicas {} SCRIPT, or leave replicas out") as printed:
        printed.text = wrong["three"]
    with hint("start as many processes, anyaccel run --replicas {} SCRIPT, or write replicas=1"):
        run(TrainPhase("train", data="train", losses=[MSE], replicas=2))
    with hint(
        "return the same batches in every process: use no DistributedSampler, and seed random draws; or set replicas=1"
    ) as printed:
        printed.text = wrong["own rows"]
    with hint("use larger batches, or drop the last one: DataLoader(..., drop_last=True)") as printed:
        printed.text = wrong["one row"]
    with hint(
        "set sync_batchnorm=True to normalize over the rows of all replicas, or replicas=1 to train the whole model "
        "separately in each process"
    ) as printed:
        printed.text = wrong["batch norm"]
    with hint(
        "call run.model and run.snapshot in all replicas, before any `if run.is_main_process:`; or set checkpoint=, "
        "which gathers them automatically"
    ) as printed:
        printed.text = wrong["reads alone"]
    right = in_two(
        f"""
        run("without replicas")
        run("two", replicas=2)
        run("same rows", data=loader(batch_size=6))  # a DataLoader without DistributedSampler
        sampler = torch.utils.data.DistributedSampler(ITEMS, num_replicas=2, rank=RANK)
        run("own rows", data=loader(batch_size=6, sampler=sampler), replicas=1)
        run("larger", data=loader(batch_size=12))
        run("without the last", data=loader(batch_size=23, drop_last=True))
        run("synchronized", model=norm, sync_batchnorm=True)
        run("alone", model=norm, replicas=1)
        run("all read", sharding="full", callbacks=[Reads(in_all=True)])
        run("gathers", sharding="full", checkpoint={str(tmp_path / "runs")!r})
        """,
        tmp_path,
        "--replicas",
        "2",
    )
    assert len(right) == 10 and all(isinstance(loss, float) for loss in right.values()), right


def test_precisions_and_parts_that_run(hint: Any) -> None:
    """What test_phases.py can only construct, as NumPy has none of it."""
    with hint("write precision='bf16-mixed'"):
        TrainPhase("train", data="train", mixed_precision=True)
    assert run(TrainPhase("train", data="train", losses=[MSE], precision="bf16-mixed")).loss.size
    with hint("write matmul_precision='high'"):
        TrainPhase("train", data="train", tf32=True)
    before = torch.get_float32_matmul_precision()
    assert run(TrainPhase("train", data="train", losses=[MSE], matmul_precision="high")).loss.size
    assert torch.get_float32_matmul_precision() == before
    with hint("it is a node's: ModelNode(..., remat='blocks')"):
        TrainPhase("train", data="train", gradient_checkpointing=True)
    layers = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()) for _ in range(3)))
    model = torch.nn.Sequential(layers, torch.nn.Linear(3, 1))
    node = ModelNode("net", model, data().reference(), remat="blocks")
    phase = TrainPhase("train", data="train", losses=[MSE], compile="off")
    assert ModelGraph([node], "sgd").run(phase, progress="none").loss.size


class Two(torch.nn.Module):
    """Two inputs and two outputs without names."""

    def __init__(self) -> None:
        super().__init__()
        self.price, self.kind = torch.nn.Linear(2, 1), torch.nn.Linear(2, 3)

    def forward(self, u: Any, v: Any) -> Any:
        x = torch.stack([u.reshape(-1), v.reshape(-1)], 1)
        return self.price(x), self.kind(x)


def smooth(outputs: Any, targets: Any) -> Any:
    return torch.nn.functional.smooth_l1_loss(outputs.reshape(-1), targets.reshape(-1))


def test_text_for_a_model_of_several_inputs(hint: Any) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("anyaccel_sklearn")
    table = pandas.DataFrame({"left": X[:, 0], "right": ["a", "b"] * 12, "y": X[:, 1]})
    settings: dict[str, Any] = {"target": "y", "loss": "mse", "epochs": 1, "progress": "none"}
    with hint(
        "convert its columns to numbers first (pandas: table['COLUMN'].astype('category').cat.codes.astype('int32')), "
        "or pass a function that builds a model of one input: def build(n_features, n_outputs)"
    ):
        aa.fit(OfScalars(), table, **settings)

    def build(n_features: int, n_outputs: int) -> Any:
        return torch.nn.Linear(n_features, n_outputs)

    assert aa.fit(build, table, **settings).predict(table).shape == (24,)
    table["right"] = table["right"].astype("category").cat.codes.astype("int32")
    assert aa.fit(OfScalars(), table, **settings).predict(table).shape == (24,)


def test_several_inputs_and_losses_of_fit(hint: Any, tmp_path: Path) -> None:
    table = {"a": X[:, 0], "b": X[:, 1], "price": X[:, 2], "kind": np.arange(24) % 3}
    settings: dict[str, Any] = {"epochs": 1, "progress": "none"}
    for wrong in ({}, ["mse", "mse"]):
        with hint("write loss={'COLUMN': 'mse', 'OTHER': 'cross_entropy'}"):
            aa.fit(Two(), table, loss=wrong, target="price", **settings)
    settings["loss"] = {"price": "mse", "kind": "cross_entropy"}
    left, right = X[:, :1], X[:, 1:]
    with hint("pass a column for each input: fit(model, {{}, 'y': y}, target='y')"):
        aa.fit(TwoInputs(), (X, left), loss="mse", epochs=1, progress="none")
    columns = {"left": left, "right": right, "y": left}
    fitted = aa.fit(TwoInputs(), columns, target="y", loss="mse", epochs=1, progress="none")
    assert fitted.predict(columns).shape
    for inputs in ([left, right], (left, right)):
        with hint("pass them by the names of the model's inputs: ({'COLUMN': array, 'OTHER': array}, y)"):
            aa.fit(TwoInputs(), (inputs, left), loss="mse", epochs=1, progress="none")
    by_name = ({"left": left, "right": right}, left)
    assert aa.fit(TwoInputs(), by_name, loss="mse", epochs=1, progress="none").predict(by_name).shape
    with hint("assign the columns: features={{}}"):
        aa.fit(Two(), table, **settings)
    settings["features"] = {"u": "a", "v": "b"}
    with hint("return a dict with these keys from the model, or name its outputs in order: outputs={}"):
        aa.fit(Two(), table, **settings)
    model = aa.fit(Two(), table, outputs=["price", "kind"], **settings)
    assert set(model.predict(table)) == {"price", "kind"}
    settings["loss"] = {"price": smooth, "kind": "cross_entropy"}
    aa.fit(Two(), table, outputs=["price", "kind"], **settings).save(tmp_path)
    loaded = aa.load(tmp_path, models={"model": Two()})
    rows = aa.FeatureSet.from_dict("data", table, ["a", "b"], ["price", "kind"])
    with hint("pass the loss: AppliedLoss(LOSS, on='model')"):
        loaded.graph.run(TrainPhase("more", data={"data": rows}, losses=loaded.losses), progress="none")
    losses = [AppliedLoss(smooth, on="model", inputs=["outputs.price", "data.price"])]
    assert loaded.graph.run(TrainPhase("more", data={"data": rows}, losses=losses), progress="none").loss.size
