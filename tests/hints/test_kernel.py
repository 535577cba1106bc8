"""Hints of the kernel, the planner, precision and saved folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import anyaccel as aa
from anyaccel.errors import ConfigError
from anyaccel.precision import LossScale
from anyaccel_offload.planner import Block, DeviceSpec, Edge, memory_size, plan_blocks

X = np.arange(12, dtype="float32").reshape(4, 3)
DATA = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, 0]}, ["x"], ["y"])
LOSS = aa.AppliedLoss("mse", on="net")


def graph(optimizer: Any = "sgd", **settings: Any) -> aa.ModelGraph:
    return aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(1), DATA.reference())], optimizer, **settings)


def phase(**settings: Any) -> aa.TrainPhase:
    return aa.TrainPhase("train", data="all", losses=[LOSS], **settings)


def test_names_of_other_libraries_for_training(hint: Any) -> None:
    with hint("write Experiment('name', graph).run(TrainPhase('train', data='train', losses=[...]))"):
        _ = aa.Trainer
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, 0]}, ["x"], ["y"])
    data.add_splits({"train": range(4)})
    net = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(1), data.reference())], "sgd")
    experiment = aa.Experiment("name", net, progress="none")
    assert experiment.run(aa.TrainPhase("train", data="train", losses=[LOSS]))[0].loss.size == 1


def test_names_of_other_libraries_for_graphs(hint: Any) -> None:
    with hint("write ModelNode('net', model, data.reference())"):
        _ = aa.Node
    with hint("write FeatureSet.from_dict('data', {'x': x, 'y': y}, ['x'], ['y'])"):
        _ = aa.Dataset
    with hint("write ModelGraph([ModelNode('net', model, data.reference())], 'adam')"):
        _ = aa.Model
    with hint("write ModelGraph(nodes, optimizer, seed=0)"):
        _ = aa.manual_seed
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
    with hint("give {}=..."):
        aa.Schedule("cosine")
    assert aa.Schedule("cosine", steps=10).factor(10) == 0


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
