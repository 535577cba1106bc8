"""What replicas share, and what is divided among them, in real processes joined by gloo: with the numbers of one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyaccel as aa
from anyaccel.errors import PhaseError

if torch.distributed.is_available():
    from anyaccel_torch.sharded_module import autocast_layers, blocks_of, lacking_reason

    LACKING = lacking_reason()
else:
    LACKING = "this torch has no torch.distributed"

pytestmark = pytest.mark.skipif(bool(LACKING), reason=LACKING)

SCRIPTS = Path(__file__).with_name("sharing_scripts.py")
SAME = "weighted,sources,ragged,evaluated,sharded,nodes,normalized,parallelized"
WEIGHTED = [f"weighted-{name}-{n}" for name in ("ignore_index", "class_weights", "two", "double") for n in (1, 2)]
SHARDED = [f"sharded-{name}" for name in ("plain", "clipped", "accumulated", "weighted", "unused")]
if os.environ.get("ANYACCEL_TEST_FULL"):
    SHARDED += ["sharded-clipped by value", "sharded-class"]
WHOLE = 3 * 4 * (20 * 256 + 256 + 4 * (2 * 256 + 256 * 256 + 256) + 3 * 256 + 3 + 3)
"""Bytes of parameters and Adam's two slots of the model that `memory` counts."""
NORMALIZED = ["normalized-replicated", "normalized-divided"]
IS_FULL = bool(os.environ.get("ANYACCEL_TEST_FULL"))
NODES = ["all at once"]
if IS_FULL:
    NODES += ["clipped", "accumulated", "weighted", "class", "own loss"]
SOURCES = [f"source-{name}" for name in ("map", "generator", "loader", "workers", "parquet")]
RAGGED = [f"ragged-{name}" for name in ("rows", "map", "collated")]


def run(names: str, folder: Path, size: int) -> subprocess.CompletedProcess[str]:
    """Run functions of the scripts in so many processes, or in this many without a launcher if that is one."""
    launcher = [] if size == 1 else ["-m", "anyaccel", "run", "--replicas", str(size)]
    command = [sys.executable, *launcher, str(SCRIPTS), names, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def succeeded(names: str, folder: Path, size: int) -> Path:
    """The folder in which they told what they found."""
    answer = run(names, folder, size)
    assert answer.returncode == 0, answer.stderr
    return folder


def told(folder: Path, name: str, size: int) -> list[Any]:
    """What each replica told."""
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(size)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process tells."""
    return succeeded(f"{SAME},begin,undisturbed", tmp_path_factory.mktemp("alone"), 1)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, alone: Path) -> Path:
    """What two replicas tell, whose shares of most batches differ by a row, until one fails."""
    folder = tmp_path_factory.mktemp("two")
    shutil.copytree(alone / "checkpoints", folder / "from_one")
    more = ",nodes_mixed" if IS_FULL else ""
    apart = "reads_alone,refused,no_mean,memory,by_hand,nodes_by_hand,nodes_memory,mixed"
    answer = run(f"{SAME}{more},{apart},begin,go_on_from_one,lose", folder, 2)
    assert "ValueError: a fault of one replica" in answer.stderr, answer.stderr
    return folder


@pytest.mark.slow
def test_a_loss_that_is_no_mean_is_told_by_the_first(two: Path) -> None:
    first, second = told(two, "no_mean", 2)
    (message,) = first["messages"]
    assert "shares batches among replicas, and the loss 'net' is not a mean over rows" in message
    assert second["messages"] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WEIGHTED, *SOURCES, *RAGGED, *NORMALIZED])
def test_losses_and_weights_are_those_of_one_process(alone: Path, two: Path, name: str) -> None:
    expected = told(alone, name, 1)[0]
    rtol, atol = (1e-12, 1e-12) if "double" in name else (1e-6, 2e-5)
    for each in told(two, name, 2):
        assert each.get("steps") == expected.get("steps")
        np.testing.assert_allclose(each["epochs"], expected["epochs"], rtol=rtol)
        for own, other in zip(each["weights"], expected["weights"], strict=True):
            np.testing.assert_allclose(own, other, atol=atol)


@pytest.mark.slow
def test_evaluations_are_shared_by_batches_and_are_those_of_one_process(alone: Path, two: Path) -> None:
    expected, shared = told(alone, "evaluated", 1)[0], told(two, "evaluated", 2)
    n_rows = len(expected["found"][0][-1])
    assert expected["counted"] == [n_rows] * 3
    assert [each["counted"] for each in shared] == [[100, n_rows, n_rows], [n_rows - 100, n_rows, n_rows]]
    for each in shared:
        np.testing.assert_allclose(each["epochs"], expected["epochs"], rtol=1e-6)
        for own, other in zip(each["found"], expected["found"], strict=True):
            np.testing.assert_allclose(own[:-1], other[:-1], rtol=1e-5)
            np.testing.assert_allclose(own[-1], other[-1], atol=1e-6)
        assert each["found"][0] == each["found"][2]  # to the last bit: the same batches by the same values


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_shares", "epoch 0, step 0: the source 'data' returns other batches in replica 1 than in replica 0"),
        ("own_shares", "use no DistributedSampler"),
        ("shorter", "epoch 0, step 2: the source 'data' has ended only in replica 1"),
        ("small_batch", "the source 'data' returned a batch of 1 rows for 2 replicas"),
    ],
)
def test_what_cannot_be_shared_is_refused_in_all_replicas(two: Path, name: str, message: str) -> None:
    for each in told(two, name, 2):
        assert message in each["message"]


@pytest.mark.slow
def test_a_divided_model_that_one_replica_reads_alone_is_named_in_all(two: Path) -> None:
    expected = "replica 0 reads models with sharded parameters, but the others do not"
    for each in told(two, "reads_alone", 2):
        assert f"phase 'train', epoch 0, step 3: {expected}" in each["message"]
        assert "Hint: call run.model and run.snapshot in all replicas" in each["message"]


def check_close(own: Any, expected: Any) -> None:
    np.testing.assert_allclose(own["epochs"], expected["epochs"], rtol=1e-6)
    for weights, others in zip(own["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(weights, others, atol=1e-6)
    assert own["slots"].keys() == expected["slots"].keys() and expected["slots"]
    for name, slot in expected["slots"].items():
        np.testing.assert_allclose(own["slots"][name], slot, atol=1e-6, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARDED)
def test_losses_weights_and_optimizer_states_are_those_of_one_process(alone: Path, two: Path, name: str) -> None:
    expected = told(alone, name, 1)[0]
    for each in told(two, name, 2):
        check_close(each, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", NODES)
def test_a_divided_node_beside_a_whole_one_has_the_numbers_of_one_process(alone: Path, two: Path, name: str) -> None:
    """Losses, values and optimizer states, over two phases; the buffer of a replica counts its own calls."""
    expected = told(alone, f"nodes-{name}", 1)[0]
    for each in told(two, f"nodes-{name}", 2):
        np.testing.assert_allclose(each["epochs"], expected["epochs"], rtol=1e-6)
        assert each["values"].keys() == expected["values"].keys()
        for key, value in expected["values"].items():
            if not key.endswith("/seen"):
                np.testing.assert_allclose(each["values"][key], value, atol=1e-6, rtol=1e-4)
        assert "of 'blocks' are sharded over 2 replicas and gathered by block (blocks.0" in each["notes"][0]
        assert each["notes"][1] == "parameters of 'head' are whole in each replica"


@pytest.mark.slow
def test_values_are_those_of_fully_shard_beside_ddp_by_hand(two: Path) -> None:
    """Clipped by the norm of all gradients."""
    assert all(each["apart"] < 1e-6 for each in told(two, "nodes_by_hand", 2))


@pytest.mark.slow
@pytest.mark.skipif(not IS_FULL, reason="ANYACCEL_TEST_FULL is not set")
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_mixed_precision_of_a_divided_node_beside_a_whole_one(two: Path, name: str) -> None:
    for each in told(two, f"nodes_mixed-{name}", 2):
        np.testing.assert_allclose(each["one"]["epochs"], each["whole"]["epochs"], rtol=1e-5)
        assert each["one"]["scale"] == each["whole"]["scale"]
        for own, expected in zip(each["one"]["weights"], each["whole"]["weights"], strict=True):
            np.testing.assert_allclose(own, expected, atol=1e-3)  # Adam enlarges gradients of about zero


@pytest.mark.slow
def test_a_replica_keeps_half_of_one_node_and_all_of_another(two: Path) -> None:
    for each in told(two, "nodes_memory", 2):
        divided, whole = each["whole"]
        assert 0.45 * divided + whole < each["nbytes"] <= 0.55 * divided + whole


@pytest.mark.slow
def test_weights_are_those_of_fully_shard_by_hand(two: Path) -> None:
    for each in told(two, "by_hand", 2):
        assert each["apart"] < 1e-6
        assert "of 'net' are sharded over 2 replicas and gathered by block (blocks.0, blocks.1," in each["notes"]


MIXED = ["bf16 recomputed"]
if os.environ.get("ANYACCEL_TEST_FULL"):
    MIXED += ["bf16", "fp16", "recomputed", "recomputed encoder"]


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXED)
def test_mixed_precision_and_recomputed_blocks_of_divided_parameters(two: Path, name: str) -> None:
    """Losses and values are those of replicas with whole parameters; masters are of float32."""
    for each in told(two, f"mixed-{name}", 2):
        whole, divided = each["None"], each["full"]
        np.testing.assert_allclose(divided["epochs"], whole["epochs"], rtol=1e-6)
        for own, expected in zip(divided["weights"], whole["weights"], strict=True):
            np.testing.assert_allclose(own, expected, atol=1e-3)  # Adam enlarges gradients of about zero
        assert divided["dtypes"] == ["torch.float32"]
        assert divided["scale"] == whole["scale"]


@pytest.mark.slow
def test_steps_of_divided_parameters_are_skipped_by_all(two: Path) -> None:
    """Of a scale that is too large, and recovers; the losses that are added are half as large, so is the scale."""
    every = [each["full"] for each in told(two, "mixed-fp16 skipping", 2)]
    assert every[0] == every[1]
    n_steps = 12 * len(every[0]["epochs"])
    assert 1 <= every[0]["scale"][1] < n_steps / 2
    assert every[0]["epochs"][-1][0] < every[0]["epochs"][0][0] < 1


@pytest.mark.slow
def test_a_model_that_its_user_has_parallelized_trains_as_in_one_process(alone: Path, two: Path) -> None:
    """Tensor parallel, by torch's `parallelize_module` and a plan of the model; the state is gathered."""
    expected = told(alone, "parallelized", 1)[0]
    for each in told(two, "parallelized", 2):
        np.testing.assert_allclose(each["epochs"], expected["epochs"], rtol=1e-6)
        for name, value in expected["values"].items():
            np.testing.assert_allclose(each["values"][name], value, atol=1e-5, rtol=1e-4)
        assert each["parts"]["up.weight"] == expected["parts"]["up.weight"] / 2
        assert each["parts"]["down.weight"] == expected["parts"]["down.weight"] / 2
        assert each["parts"]["last.weight"] == expected["parts"]["last.weight"]
        assert "node 'net' has DTensors as parameters" in each["message"]
        assert "set replicas=1" in each["message"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["norm", "norm of accumulated", "value", "scaled"])
def test_gradients_of_a_parallelized_model_are_clipped_as_in_one_process(alone: Path, two: Path, name: str) -> None:
    """By the norm of all parts; and where one is not finite, the step is skipped by all."""
    expected = told(alone, "parallelized", 1)[0]["limited"][name]
    tolerance = 1e-2 if name == "scaled" else 1e-5
    for each in told(two, "parallelized", 2):
        actual = each["limited"][name]
        np.testing.assert_allclose(actual["losses"], expected["losses"], rtol=tolerance)
        np.testing.assert_allclose(actual["values"], expected["values"], rtol=tolerance, atol=tolerance)
        assert (actual["steps"], actual["scale"]) == (expected["steps"], expected["scale"])
    if name == "scaled":
        assert expected["steps"] == 14 and expected["scale"][1] == 2
        assert "parameters are sharded over processes" in actual["told"][0]


@pytest.mark.slow
def test_a_parallelized_model_has_the_same_bits_in_all_its_processes(two: Path) -> None:
    first, second = (each["limited"]["fixed order"] for each in told(two, "parallelized", 2))
    assert first["losses"] == second["losses"] and first["values"] == second["values"]


@pytest.mark.usefixtures("second_of_two")
def test_a_node_that_is_cast_as_a_whole_is_not_divided() -> None:
    with pytest.raises(PhaseError, match=r"has sharding, but node 'net' is cast to bfloat16 as a whole"):
        plan(node(torch.nn.Linear(3, 1)), precision="bf16")
    assert plan(node(torch.nn.Linear(3, 1)), precision="bf16-mixed")["net"].precision


def test_layers_that_autocast_casts_and_nobody_else_reads() -> None:
    encoder = torch.nn.TransformerEncoderLayer(4, 1, 8)
    tied = torch.nn.Linear(4, 4)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), encoder, tied, torch.nn.Linear(4, 4))
    model[4].weight = tied.weight
    model.append(torch.nn.Linear(4, 4).double()).append(torch.nn.Embedding(3, 4))
    assert autocast_layers(model) == [model[0]]


@pytest.mark.slow
def test_each_of_two_replicas_keeps_about_half(two: Path) -> None:
    for each in told(two, "memory", 2):
        assert 0.45 * WHOLE < each["nbytes"] <= 0.55 * WHOLE


@pytest.mark.skipif(sys.platform != "linux", reason="threads are read from /proc")
@pytest.mark.parametrize("what", [pytest.param("end", marks=pytest.mark.whole), "reads_alone"])
def test_no_thread_of_the_group_is_left_when_python_ends(what: str, tmp_path: Path) -> None:
    """A process that ends with one running is aborted now and then, after all that it did, or after an error."""
    for each in told(succeeded(f"watch_end,{what}", tmp_path, 2), "ended", 2):
        assert each["threads"] and not any("gloo" in name for name in each["threads"])


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_checkpoints_are_read_by_another_number_of_replicas(alone: Path, two: Path, tmp_path: Path, size: int) -> None:
    """Those of two by one, and those of one by two; with averages of weights."""
    folder = two
    if size == 1:
        shutil.copytree(two / "checkpoints", tmp_path / "checkpoints")
        folder = succeeded("go_on", tmp_path, 1)
    expected = told(alone, "gone_on", 1)[0]
    for each in told(folder, "gone_on", size):
        check_close(each, expected)
        assert each["averages"].keys() == expected["averages"].keys()
        for name, average in expected["averages"].items():
            np.testing.assert_allclose(each["averages"][name], average, atol=1e-6)


@pytest.mark.slow
def test_what_cannot_be_gathered_after_an_error_is_nan(two: Path) -> None:
    lost = json.loads((two / "lose-1.json").read_text())
    assert all(lost["lost"].values())
    assert lost["shapes"][1] == [48, 20]
    assert "this replica does not gather them after an error" in lost["notes"]


def rows() -> aa.FeatureSet:
    x = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
    return aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1]}, "x", "y")


ROWS = rows()


@pytest.fixture
def second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a process whose peer is never asked: what cannot be divided is refused before."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)


def plan(*nodes: aa.ModelNode, losses: list[aa.AppliedLoss] | None = None, **settings: Any) -> aa.Plan:
    graph = aa.ModelGraph(list(nodes), aa.Optimizer("sgd", lr=0.1))
    losses = losses or [aa.AppliedLoss("mse", on=nodes[-1].label)]
    settings = {"sharding": "full", **settings}
    return aa.Experiment(graph).plan(aa.TrainPhase("train", data=ROWS, losses=losses, batch_size=4, **settings))


def node(model: Any, label: str = "net") -> aa.ModelNode:
    return aa.ModelNode(label, model, ROWS.reference())


@pytest.mark.usefixtures("second_of_two")
def test_what_cannot_be_divided_is_refused() -> None:
    linear = torch.nn.Linear(3, 1)
    both = [aa.AppliedLoss("mse", on=label) for label in ("a", "net")]
    with pytest.raises(PhaseError, match=r"has sharding, but the nodes to offload are on the CPU.*leave sharding out"):
        plan(node(linear), sharding="full offload")
    with pytest.raises(PhaseError, match=r"has sharding, but compile='steps'"):
        plan(node(linear), compile="steps")
    scaled = torch.nn.Linear(3, 1)
    scaled.scale = torch.nn.Parameter(torch.ones(()))
    with pytest.raises(PhaseError, match=r"node 'net' has the parameter 'scale' without axes, .* only shape \[1\]"):
        plan(node(scaled))
    with pytest.raises(PhaseError, match=r"nodes 'a' and 'net' share a parameter"):
        plan(node(torch.nn.Sequential(linear), "a"), node(linear), losses=both)


@pytest.mark.usefixtures("second_of_two")
def test_a_torch_that_cannot_divide_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.fsdp import FSDPModule

    monkeypatch.delattr(FSDPModule, "set_reduce_scatter_unused_params")
    with pytest.raises(PhaseError, match=r"has sharding, but torch \d.* cannot sum gradients of sharded parameters"):
        plan(node(torch.nn.Linear(3, 1)))


@pytest.mark.usefixtures("second_of_two")
def test_what_cannot_be_divided_may_stay_whole() -> None:
    """Layers of an embedding with sparse gradients, and a node that is cast as a whole; not a shared parameter."""

    def two(first: Any, last: Any, **settings: Any) -> aa.Plan:
        nodes = [
            aa.ModelNode("first", first, ROWS.reference(), sharding="none", **settings),
            aa.ModelNode("net", last, "first"),
        ]
        return plan(*nodes)

    linear = torch.nn.Linear(3, 3)
    with pytest.raises(PhaseError, match=r"nodes 'first' and 'net' share a parameter"):
        two(linear, torch.nn.Sequential(linear, torch.nn.Linear(3, 1)))
    narrow = two(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1), precision="bf16")
    assert narrow["first"].sharding == "none" and narrow["net"].sharding == "full"
    frozen = aa.ModelNode("first", torch.nn.Linear(3, 3), ROWS.reference(), sharding="full")
    graph = aa.ModelGraph([frozen, aa.ModelNode("net", torch.nn.Linear(3, 1), "first", sharding="full")], "sgd")
    graph.freeze("first")
    made = aa.Experiment(graph).plan(aa.TrainPhase("train", data=ROWS, losses=[aa.AppliedLoss("mse", on="net")]))
    assert made.notes[0] == "node 'first' is frozen: its parameters are whole in each replica"


class OwnNorm(torch.nn.BatchNorm1d):
    """A normalization with a forward pass of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


@pytest.mark.usefixtures("second_of_two")
def test_normalizations_that_cannot_be_synchronized_are_refused() -> None:
    def train(norm: torch.nn.Module, **settings: Any) -> None:
        graph = aa.ModelGraph([node(torch.nn.Sequential(norm, torch.nn.Linear(3, 1)))], aa.Optimizer("sgd", lr=0.1))
        losses = [aa.AppliedLoss("mse", on="net")]
        aa.Experiment(graph).run_phase(aa.TrainPhase("train", data=ROWS, losses=losses, batch_size=4, **settings))

    with pytest.raises(PhaseError, match=r"BatchNorm1d in node 'net' mixes the rows.*set sync_batchnorm=True"):
        train(torch.nn.BatchNorm1d(3))
    with pytest.raises(PhaseError, match=r"OwnNorm in node 'net' mixes the rows.*Hint: set replicas=1"):
        train(OwnNorm(3), sync_batchnorm=True)
    with pytest.raises(PhaseError, match=r"it accumulates batches and normalizes over each"):
        train(torch.nn.BatchNorm1d(3), sync_batchnorm=True, accumulate=2)


def test_one_process_divides_nothing_and_says_so() -> None:
    notes = plan(node(torch.nn.Linear(3, 1))).notes
    assert "sharding='full' has no effect: this process trains alone" in notes


def test_an_unknown_sharding_is_refused() -> None:
    with pytest.raises(PhaseError, match=r"sharding.*'tensor'.*full offload"):
        aa.TrainPhase("train", data="train", sharding="tensor")


def test_blocks_are_the_outermost_children_of_lists_and_sequences() -> None:
    def inner() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())

    model = torch.nn.ModuleDict({"first": torch.nn.Linear(2, 2), "layers": torch.nn.ModuleList([inner(), inner()])})
    assert list(blocks_of(model)) == ["layers.0", "layers.1"]
    model["layers"][1][0].weight = model["first"].weight  # a tied parameter is gathered with the rest
    assert list(blocks_of(model)) == ["layers.0"]
    assert blocks_of(torch.nn.Linear(2, 2)) == {}
