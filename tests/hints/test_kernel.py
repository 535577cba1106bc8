"""Hints of the kernel, the planner, precision and saved folders."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.errors import ConfigError, SpecError
from anyaccel.precision import LossScale
from anyaccel_offload.planner import Block, DeviceSpec, Edge, memory_size, plan_blocks

X = np.arange(12, dtype="float32").reshape(4, 3)
DATA = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, 0]}, ["x"], ["y"])
LOSS = aa.AppliedLoss("mse", on="net")


def graph(optimizer: Any = "sgd", **settings: Any) -> aa.ModelGraph:
    return aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(1), DATA.reference())], optimizer, **settings)


def phase(**settings: Any) -> aa.TrainPhase:
    return aa.TrainPhase("train", data="all", losses=[LOSS], **settings)


def test_names_of_other_libraries_for_training(hint: Any, tmp_path: Path) -> None:
    model, x, y = aa.SequentialMLP(1), X, X[:, :1]
    with hint("write fit(model, (x, y), loss='mse')"):
        _ = aa.Trainer
    fitted = aa.fit(model, (x, y), loss="mse", progress="none")
    with hint("fit returns a model with evaluate(data), predict(data) and save('FOLDER')"):
        _ = aa.predict
    fitted.save(tmp_path / "FOLDER")
    assert fitted.evaluate((x, y)).loss < 1e9 and fitted.predict(x).shape == y.shape
    with hint("write fit(..., seed=0), or ModelGraph(..., seed=0)"):
        _ = aa.seed_everything
    assert aa.fit(aa.SequentialMLP(1), (x, y), loss="mse", epochs=1, seed=0, progress="none").graph.seed == 0
    assert aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(1), DATA.reference())], seed=0).seed == 0
    with hint("write EarlyStopping('val_loss'); every callback is a name of this package"):
        _ = aa.callbacks
    with hint("write Checkpoint('runs/a', keep_best='val_loss'), as checkpoint= of fit or TrainPhase"):
        _ = aa.ModelCheckpoint
    stops, kept = aa.EarlyStopping("val_loss"), aa.Checkpoint(tmp_path / "runs/a", keep_best="val_loss")
    settings: dict[str, Any] = {"validation": 0.25, "epochs": 2, "progress": "none"}
    aa.fit(aa.SequentialMLP(1), (x, y), loss="mse", callbacks=stops, checkpoint=kept, **settings)
    assert (tmp_path / "runs/a").is_dir() and aa.TrainPhase(
        data="all", losses=LOSS, validation="all", checkpoint=kept
    ).checkpoint


def test_names_of_other_libraries_for_optimizers(hint: Any) -> None:
    with hint("write Optimizer('adam', lr=1e-3)"):
        _ = aa.Adam
    assert aa.Optimizer("adam", lr=1e-3).lr == 1e-3
    with hint("write Optimizer('adam', lr=1e-3, schedule=Schedule('cosine', steps=1000))"):
        _ = aa.CosineDecay
    with pytest.raises(SpecError, match=r"no setting step_size.* Hint: it is called 'every'"):
        aa.Schedule("step", step_size=30, rate=0.1)
    assert aa.Optimizer("adam", lr=1e-3, schedule=aa.Schedule("cosine", steps=1000)).schedule.factor(1000) == 0
    with hint("write Loss('cross_entropy')"):
        _ = aa.losses
    assert aa.Loss("cross_entropy").name == "cross_entropy"


@pytest.mark.parametrize(("name", "meant"), [("EarlyStoping", "EarlyStopping"), ("devcies", "devices")])
def test_misspelled_names_of_the_package(name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'. Hint: did you mean '{meant}'"):
        getattr(aa, name)
    assert not hasattr(aa, name) and hasattr(aa, meant)


def test_imports_of_names_that_do_not_exist() -> None:
    with pytest.raises(
        ImportError, match=r"cannot import name 'devcies' from 'anyaccel'\. Hint: did you mean 'devices'"
    ):
        from anyaccel import devcies  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(ImportError, match=r"cannot import name 'Trainer' from 'anyaccel'\. Hint: write fit\(model, "):
        from anyaccel import Trainer  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(ImportError, match=r"^cannot import name 'xyzzy' from 'anyaccel' \("):  # Python's own message
        from anyaccel import xyzzy  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'anyaccel.xyzzy'$"):
        import anyaccel.xyzzy  # type: ignore[import-not-found]  # noqa: F401
    assert importlib.util.find_spec("anyaccel.xyzzy") is None


@pytest.mark.parametrize("plugin", ["offload", "sklearn"])
def test_plugins_as_modules_of_the_package(hint: Any, plugin: str) -> None:
    with hint("{} loads itself when it is needed: import anyaccel only, or its public names from {}"):
        importlib.import_module(f"anyaccel.{plugin}")
    with pytest.raises(AttributeError, match=f"its public names from anyaccel_{plugin}"):
        getattr(aa, plugin)
    assert importlib.import_module(f"anyaccel_{plugin}").__name__ == f"anyaccel_{plugin}"


def test_names_of_other_libraries_for_graphs(hint: Any) -> None:
    with hint("write ModelNode('net', model, data.reference())"):
        _ = aa.Node
    with hint("write FeatureSet.from_dict('data', {'x': x, 'y': y}, ['x'], ['y'])"):
        _ = aa.Dataset
    with hint("write ModelGraph([ModelNode('net', model, data.reference())], 'adam')"):
        _ = aa.Model
    with hint("a phase draws batches: TrainPhase(..., batch_size=32)"):
        _ = aa.DataLoader
    with hint("write find_learning_rate(graph, phase)"):
        _ = aa.LRFinder
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, 0]}, ["x"], ["y"])
    net = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(1), data.reference())], "adam", seed=0)
    train = aa.TrainPhase("train", data="all", losses=[LOSS], batch_size=32)
    assert len(aa.find_learning_rate(net, train, n_steps=12).rates)
    assert net.run(train, progress="none").loss.size == 1


def test_names_of_other_libraries_for_devices(hint: Any) -> None:
    with hint("write devices('gpu') to list the GPUs"):
        _ = aa.cuda
    with hint("write len(devices('gpu'))"):
        _ = aa.device_count
    assert len(aa.devices("gpu")) >= 0


def test_sequential_networks(hint: Any) -> None:
    with hint("build the model in its framework, or use SequentialMLP"):
        _ = aa.Sequential
    with hint("build models in their frameworks, or use SequentialMLP and SequentialCNN"):
        _ = aa.nn
    assert aa.SequentialMLP(1) and aa.SequentialCNN(1)


def test_accelerators(hint: Any, cli: Any) -> None:
    with hint("write pin_memory=True"):
        aa.Accelerator("cpu", pin_memory="yes")  # type: ignore[arg-type]
    assert aa.Accelerator("cpu", pin_memory=True).pin_memory
    with hint("Accelerator.from_config({'device': 'gpu:0', 'pin_memory': False})"):
        aa.Accelerator.from_config({"where": "gpu"})
    assert aa.Accelerator.from_config({"device": "gpu:0", "pin_memory": False}) == aa.Accelerator("gpu:0")
    with hint("run `anyaccel devices` to list the devices of this machine"):
        aa.Device.parse("my gpu!")
    assert "cpu:0" in cli("devices").output  # anyaccel devices


class Pair:
    def __init__(self, first: Any, second: Any) -> None:
        self.first, self.second = first, second


class Boxes(list):  # type: ignore[type-arg]
    def __init__(self, first: Any, second: Any) -> None:
        super().__init__([first, second])


class MovableBoxes(Boxes):
    def __anyaccel_move__(self, move: Any) -> MovableBoxes:
        return MovableBoxes(*map(move, self))


def test_containers_say_how_they_are_rebuilt(hint: Any) -> None:
    aa.simulate(2)
    with hint("define __anyaccel_move__(self, move) in its class"):
        aa.move(Boxes(X, X), "sim:1")
    moved = aa.move(MovableBoxes(X, X), "sim:1")
    assert callable(MovableBoxes.__anyaccel_move__) and aa.device_of(list(moved)) == aa.Device("sim", 1)


def test_tensors_on_several_devices(hint: Any) -> None:
    aa.simulate(2)
    with hint("move them to one with anyaccel.move(obj, device)"):
        aa.device_of([aa.move(X, "sim:0"), aa.move(X, "sim:1")])
    both = aa.move([aa.move(X, "sim:0"), aa.move(X, "sim:1")], "sim:1")
    assert aa.device_of(both) == aa.Device("sim", 1)


def test_numbers_of_settings(hint: Any) -> None:
    with hint("write {}={}") as _:
        aa.SimpleSampler(16, shuffle="yes")  # type: ignore[arg-type]
    assert aa.SimpleSampler(16, shuffle=True).shuffle
    with hint("write Schedule({}, {}={})"):
        aa.Schedule("cosine")
    assert aa.Schedule("cosine", steps=10).factor(10) == 0


def test_names_of_devices_and_moves(hint: Any) -> None:
    with hint("write devices()"):
        _ = aa.list_devices
    with hint("write best_device(), or device_of(tensor)"):
        _ = aa.default_device
    assert aa.best_device() in aa.devices() and aa.device_of(X) == aa.Device("cpu")
    with hint("write 'gpu:{}', or 'cpu'"):
        aa.Device.parse(0)
    assert [str(aa.Device.parse(text)) for text in ("gpu:0", "cpu")] == ["gpu:0", "cpu:0"]
    with hint("write Device.parse({})"):
        aa.Device("cpu:0")
    assert aa.Device.parse("cpu:0") == aa.Device("cpu")
    with hint("write devices_or_cpu({})[0]"):
        aa.best_device("cuda")  # type: ignore[arg-type]
    assert aa.devices_or_cpu("sim")[0] == aa.Device("cpu")
    aa.simulate(1)
    with hint("write move(tensors, 'gpu:0'), or place(model, 'gpu:0')"):
        _ = aa.to_device
    model = aa.SequentialMLP(1)
    assert aa.device_of(aa.move({"x": X}, "sim:0")) == aa.Device("sim") and aa.place(model, "sim:0") is model
    accelerator = aa.Accelerator("sim:0")
    with hint("write place(model) for models, and move(batch) for tensors"):
        accelerator.to(model)  # type: ignore[attr-defined]
    assert accelerator.place(model) is model and aa.device_of(accelerator.move(X)) == aa.Device("sim")
    with hint("write anyaccel.devices('gpu')"):
        _ = accelerator.device_count  # type: ignore[attr-defined]
    assert aa.devices("sim") == [aa.Device("sim")]


def test_devices_of_others(hint: Any) -> None:
    with hint("use anyaccel.best_device() for the best device of this machine"):
        aa.place(aa.SequentialMLP(1), aa.Device("best"))
    assert aa.best_device() in aa.devices()
    with hint("use one of these, such as '{}'"):
        aa.place(aa.SequentialMLP(1), "cpu:7")
    aa.place(aa.SequentialMLP(1), "cpu:0")


def test_sizes_of_memory(hint: Any) -> None:
    def room(memory: Any) -> int:
        return memory_size(ConfigError, "", "memory", memory)

    with hint("write bytes, or '20GiB' or '500MB'"):
        room("much")
    assert [room(2**30), room("20GiB"), room("500MB")] == [2**30, 20 * 2**30, 500 * 10**6]


def test_plans_of_blocks(hint: Any) -> None:
    blocks = [
        Block(name="a", parameter_bytes=10, activation_bytes=10),
        Block(name="b", parameter_bytes=10, activation_bytes=10),
    ]
    devices = [DeviceSpec(name="cpu:0", memory=2**30)]
    with hint("name a block of blocks="):
        plan_blocks(blocks, devices, edges=[Edge("a", "c", 1)])
    assert plan_blocks(blocks=blocks, devices=devices, edges=[Edge("a", "b", 1)])
    with hint("use different names for different tensors of one block: Edge(source, target, nbytes, tensor='b')"):
        plan_blocks(
            [*blocks, Block(name="c", parameter_bytes=1, activation_bytes=1)],
            devices,
            edges=[Edge("a", "b", 1), Edge("a", "c", 2)],
        )
    assert plan_blocks(
        [*blocks, Block(name="c", parameter_bytes=1, activation_bytes=1)],
        devices,
        edges=[Edge("a", "b", 1), Edge("a", "c", 2, tensor="b")],
    )
    large = [Block(name=name, parameter_bytes=2**20) for name in "abcd"]
    small = [DeviceSpec(name="cpu:0", memory=2**21 + 2**16)]
    with hint("write offload='cpu' to store weights in host memory, or use more or larger devices"):
        plan_blocks(large, small)
    assert plan_blocks(large, small, offload="cpu")
    assert plan_blocks(large, [*small, DeviceSpec(name="cpu:1", memory=2**22)])


def test_precision_by_the_words_of_others(hint: Any) -> None:
    with hint("write precision={}"):
        phase(precision="amp")
    with pytest.raises(aa.errors.PhaseError, match="Hint: write precision='fp16-mixed'"):
        phase(precision=np.dtype("float16"))
    with pytest.raises(aa.errors.PhaseError, match="Hint: write precision='float64'"):
        phase(precision=np.float64)
    assert phase(precision="bf16-mixed").precision == "bf16-mixed"
    with hint("pass the dict from get_config()"):
        LossScale.from_config({"much": 3})
    assert LossScale.from_config(LossScale().get_config()) == LossScale()


def test_specs(hint: Any) -> None:
    with hint("pass the dict from get_config() of {}"):
        aa.Optimizer.from_config([])
    assert aa.Optimizer.from_config(aa.Optimizer("adam").get_config()) == aa.Optimizer("adam")
    with hint("leave loss_kwargs out"):
        aa.Loss("mse", loss_kwargs={"reduction": 1})
    assert aa.Loss("mse").name == "mse"  # without loss_kwargs
    with hint("use a named {}, or leave it out of the configuration and pass it in code"):
        aa.Loss(lambda outputs, targets: outputs).get_config()
    assert aa.Loss("mse").get_config() == {"loss": "mse"}
    with hint("leave it out"):
        aa.Loss("mse", zzzz=1)
    with hint("leave it out: {}"):
        aa.Optimizer("adam", lr=0.1, factory=1)
    aa.Optimizer("adam", lr=0.1)
    with hint("write 'cross_entropy', which takes logits"):
        aa.Loss("categorical_crossentropy")
    assert aa.Loss("cross_entropy").name == "cross_entropy"


def test_saved_folders(hint: Any, tmp_path: Path) -> None:
    with hint("pass the folder that save() wrote"):
        aa.ModelGraph.load(tmp_path)
    with hint("write save('FOLDER')"):
        graph().save(None)  # type: ignore[arg-type]
    made = graph()
    made.run(phase(), progress="none")
    made.save(str(tmp_path / "FOLDER"))
    with hint("load all of it with ModelGraph.load({}), or load the matching parts with strict=False"):
        made.load_weights(tmp_path / "FOLDER")
    assert aa.ModelGraph.load(tmp_path / "FOLDER").state().keys() == made.state().keys()
    assert aa.ModelGraph.load(tmp_path / "FOLDER", strict=False)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weights": {}}))
    with hint("pass an index with weight_map={'NAME': 'FILE IN ITS FOLDER'}"):
        made.load_weights(index)
    made.save_weights(tmp_path / "all.safetensors")
    names = made.save_weights(tmp_path / "model-1.safetensors")
    index.write_text(json.dumps(dict(weight_map=dict.fromkeys(names, "model-1.safetensors"))))  # noqa: C408
    assert made.load_weights(index)
