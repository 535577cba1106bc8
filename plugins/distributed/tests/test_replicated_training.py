"""Phases in processes of a launcher: what cannot be shared is refused before anything is joined."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.backend import ComputingBackend, Program
from anyaccel.errors import CapabilityError, ConfigError, FrameworkError, OutOfMemoryError, PhaseError
from anyaccel.graph.resolve import resolve
from anyaccel.phases.loading.epoch_plan import ZIP_STRICT, SampledBatches, TrainingEpochs
from anyaccel.phases.prepare import plan_request
from anyaccel.registry import registry
from anyaccel_distributed import Launched, ReplicaGroup
from anyaccel_distributed.phase_groups import check_apart, check_shareable
from anyaccel_distributed.replicated_training import ReplicatedTraining
from anyaccel_distributed.row_shares import ReplicaEpochs


class OneOf(ReplicaGroup):
    """A replica whose peers give what they are told to give."""

    def __init__(self, *others: Any) -> None:
        self.rank, self.size, self.others = 0, 1 + len(others), others

    def average_gradients(self, programs: Any, weight: float) -> None:
        """Not used here."""

    def gather(self, value: Any) -> list[Any]:
        return [value, *self.others]


OF_REQUESTS = pytest.mark.skipif(not find_spec("anyaccel_resources"), reason="sim:* and lists are requests")


def give_numpy_replicas(monkeypatch: pytest.MonkeyPatch, group: OneOf) -> None:
    """NumPy as a framework with replicas, which can do the least."""
    monkeypatch.setattr("anyaccel_distributed.phase_groups.Replicate", object)
    backend = type(registry().find("numpy", "cpu"))
    monkeypatch.setattr(backend, "replica_group", lambda *_: group, raising=False)
    monkeypatch.setattr(backend, "computes_together", False, raising=False)
    monkeypatch.setattr(backend, "unshareable_reason", lambda *_: "", raising=False)


class Second(OneOf):
    """Another replica that draws the same rows, and asks to stop for a reason."""

    def gather(self, value: Any) -> list[Any]:
        return [value, [self.others[0], value[1]]]


@pytest.fixture
def second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)


def data() -> aa.FeatureSet:
    x = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    return aa.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1], "w": x[:, :1] ** 2}, "x", "y", "w")


def graph_of(rows: aa.FeatureSet) -> aa.ModelGraph:
    model = aa.SequentialMLP(output_shape=(1,))
    return aa.ModelGraph([aa.ModelNode("net", model, rows.reference())], aa.Optimizer("sgd", lr=0.1))


def train(rows: aa.FeatureSet, **settings: Any) -> aa.TrainPhase:
    losses = [] if "step" in settings else [aa.AppliedLoss("mse", on="net")]
    return aa.TrainPhase("train", data=rows, losses=losses, batch_size=4, **settings)


@pytest.mark.usefixtures("second_of_two")
def test_a_framework_without_replicas_is_refused() -> None:
    rows = data()
    with pytest.raises(
        CapabilityError,
        match=r"trained by 2 replicas, but numpy does not support replicas "
        r"here.*replicas=1",
    ):
        aa.Experiment(graph_of(rows)).run_phase(train(rows))


@pytest.mark.usefixtures("second_of_two")
def test_sharding_is_refused_by_a_framework_without_it() -> None:
    rows = data()
    with pytest.raises(CapabilityError, match=r"numpy cannot shard parameters over replicas.*leave sharding out"):
        aa.Experiment(graph_of(rows)).plan(train(rows, sharding="full"))


@pytest.mark.usefixtures("second_of_two")
def test_with_one_replica_each_process_trains_on_its_own() -> None:
    rows = data()
    results = aa.Experiment(graph_of(rows)).run_phase(train(rows, replicas=1))
    assert results.epochs[0].steps == 4


@pytest.mark.usefixtures("second_of_two")
def test_weighted_losses_are_refused_where_their_weights_cannot_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = data()
    graph = graph_of(rows)
    give_numpy_replicas(monkeypatch, OneOf({}))
    phase = aa.TrainPhase("train", data=rows, losses=[aa.AppliedLoss("mse", on="net", sample_weight="d.w")])
    with pytest.raises(
        CapabilityError, match=r"the loss 'net' weights rows or positions, but replicas of numpy cannot"
    ):
        aa.Experiment(graph).run_phase(phase)


@pytest.mark.usefixtures("second_of_two")
def test_a_number_of_replicas_that_was_not_started_is_refused() -> None:
    rows = data()
    with pytest.raises(PhaseError, match=r"has replicas=3, but this is one of 2 processes.*anyaccel run --replicas 3"):
        aa.Experiment(graph_of(rows)).run_phase(train(rows, replicas=3))


def test_more_replicas_than_devices_without_a_launcher_are_refused() -> None:
    rows = data()
    with pytest.raises(PhaseError, match=r"replicas=2, but this process has fewer devices .* cpu:0.*--replicas 2"):
        aa.Experiment(graph_of(rows)).run_phase(train(rows, replicas=2))


# -- devices of processes ----------------------------------------------------------------------------------------------


def planned(accelerator: Any, **settings: Any) -> str:
    """The device of the node in a plan of this process."""
    rows = data()
    return str(aa.Experiment(graph_of(rows)).plan(train(rows, accelerator=accelerator, **settings)).device("net"))


@OF_REQUESTS
@pytest.mark.usefixtures("second_of_two")
def test_a_kind_is_a_device_of_its_own_for_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its place on its machine where the launcher says it; on the first of two machines, that is not the rank."""
    with aa.simulate(3):
        assert planned("sim") == planned(["sim:0", "sim:1"]) == "sim:1"
        assert planned("sim", replicas=1) == planned("sim:0") == "sim:0"
        assert planned("cpu") == planned(None) == "cpu:0"
        monkeypatch.setenv("ANYACCEL_DEVICE", "sim")
        assert planned(None) == "sim:1"
        monkeypatch.setenv("LOCAL_RANK", "0")
        assert planned("sim") == planned(None) == "sim:0"
        judged = aa.EvalPhase("e", data=data(), losses=[aa.AppliedLoss("mse", on="net")], accelerator="sim")
        for name, value in {"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "2"}.items():
            monkeypatch.setenv(name, value)
        assert str(aa.Experiment(graph_of(data())).plan(judged).device("net")) == "sim:2"


@pytest.mark.usefixtures("second_of_two")
def test_more_processes_on_a_machine_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "2"}.items():
        monkeypatch.setenv(name, value)
    expected = r"requests 'sim', but this is process 2 on .*Available: sim:0, sim:1, one for each.*start 2 proc"
    with aa.simulate(2), pytest.raises(PhaseError, match=expected):
        planned("sim")


@OF_REQUESTS
@pytest.mark.usefixtures("second_of_two")
def test_all_devices_of_a_machine_are_for_the_processes_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four processes on two machines with two devices each."""
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with aa.simulate(2):
        assert planned("sim:*") == "sim:1"
    with (
        aa.simulate(3),
        pytest.raises(ConfigError, match=r"'sim:\*' is for 3 devices, one for each replica, but .* of 2 "),
    ):
        planned("sim:*")


def apart(nodes: Mapping[str, str | None], other: Any, **settings: Any) -> None:
    """Check the devices of these nodes beside those of another replica."""
    rows = data()
    models = [aa.ModelNode(n, aa.SequentialMLP((1,)), rows.reference(), accelerator=on) for n, on in nodes.items()]
    losses = [aa.AppliedLoss("mse", on=name) for name in nodes]
    graph = aa.ModelGraph(models, aa.Optimizer("sgd", lr=0.1))
    with aa.simulate(2):
        plan = aa.Experiment(graph).plan(aa.TrainPhase("train", data=rows, losses=losses, **settings))
    check_apart("train", plan, lambda own: [own, own if other is None else other])


def test_a_node_on_a_device_of_its_own_beside_replicas_is_refused() -> None:
    expected = (
        r"they would train on one device: node 'b' on sim:1 in replica 0, node 'b' on sim:1 in replica 1; "
        r"accelerator='sim' on the phase assigns .*Hint: leave the accelerator of the node out"
    )
    with pytest.raises(PhaseError, match=expected):
        apart({"a": "cpu", "b": "sim:1"}, None)
    apart({"a": "cpu", "b": "cpu"}, None)


def test_replicas_on_one_device_are_refused_by_its_identity_or_machine() -> None:
    with pytest.raises(PhaseError, match=r"node 'a' on sim:0 .* Hint: request the kind without a number"):
        apart({"a": None}, None, accelerator="sim")
    apart({"a": None}, [["another machine sim:0", "sim:0", "a", False]], accelerator="sim")


def test_orders_are_told_before_the_first_step() -> None:
    rows = data()
    seen: list[Any] = []
    batches = SampledBatches("train", aa.SimpleSampler(4, shuffle=True), ZIP_STRICT, {"d": rows})
    epochs = ReplicaEpochs("train", TrainingEpochs("train", batches, 1), 0, 2, seen.append)
    assert len(seen) == 1
    epochs.epoch(1)
    assert len(seen) == 2 and sorted(seen[1]["d", ""]) == list(range(16))


def test_whether_to_synchronize_is_checked() -> None:
    with pytest.raises(PhaseError, match=r"sync_batchnorm='yes' is not True or False"):
        train(data(), sync_batchnorm="yes")


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_a_number_of_replicas_is_checked(count: Any) -> None:
    with pytest.raises(PhaseError, match=r"replicas=.* is not an int of at least 1"):
        train(data(), replicas=count)


class Full(OneOf):
    """A replica whose peer gives what this one gives, and in which the second exchange finds no room."""

    averaged = 0

    def gather(self, value: Any) -> list[Any]:
        return [value, value]

    def average_gradients(self, programs: Any, weight: float) -> None:
        self.averaged += 1
        if self.averaged == 2:
            raise OutOfMemoryError("no room")


@pytest.mark.usefixtures("second_of_two")
def test_no_step_is_tried_where_memory_runs_out_as_others_would_take_its_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, group = data(), Full(None)
    graph = graph_of(rows)
    give_numpy_replicas(monkeypatch, group)
    with pytest.raises(OutOfMemoryError, match="not enough memory to train 2 rows at once"):
        aa.Experiment(graph).run_phase(train(rows))
    assert group.averaged == 2


def test_losses_are_added_over_the_replicas() -> None:
    group = OneOf({"mse": [3.0, 2.0]}, {"mse": [1.0, 1.0], "mae": [4.0, 8.0]})
    replicas = ReplicatedTraining("train", Launched(0, 3), {"numpy": group})
    assert replicas.total({"mse": (2.0, 1.0)}) == {"mse": (6.0, 4.0), "mae": (4.0, 8.0)}


def test_one_replica_that_is_asked_to_stop_stops_all() -> None:
    replicas = ReplicatedTraining("train", Launched(0, 2), {"numpy": Second("enough")})
    assert replicas.end_epoch("") == "enough"
    replicas = ReplicatedTraining("train", Launched(0, 2), {"numpy": Second("")})
    assert replicas.end_epoch("") == "" and replicas.end_epoch("mine") == "mine"


def test_replicas_that_draw_other_rows_are_refused_at_the_end_of_the_epoch() -> None:
    replicas = ReplicatedTraining("train", Launched(0, 2), {"numpy": OneOf(["", "others"])})
    replicas.see_orders({("d", ""): np.arange(4)})
    expected = "the samplers of the replicas drew different rows: replica 1 differs from replica 0"
    with pytest.raises(PhaseError, match=expected):
        replicas.end_epoch("")


def test_the_digest_of_orders_tells_them_apart() -> None:
    told = []

    class Listener(OneOf):
        def gather(self, value: Any) -> list[Any]:
            told.append(value[1])
            return [value]

    for order in ([0, 1, 2], [0, 2, 1], [0, 1, 2]):
        replicas = ReplicatedTraining("train", Launched(0, 1), {"numpy": Listener()})
        replicas.see_orders({("d", ""): np.array(order)})
        replicas.end_epoch("")
    assert told[0] == told[2] != told[1]


def test_replicas_that_disagree_are_named() -> None:
    graph = graph_of(data())
    other = ReplicatedTraining("train", Launched(0, 1), {"numpy": OneOf()})
    other.check_begin(train(data()), graph, {"x": np.ones(3)})

    class Recorder(OneOf):
        def gather(self, value: Any) -> list[Any]:
            changed = {**value, "the data of 'x'": "others", "the seed": "1"}
            return [value, value, changed if "the seed" in value else value]

    group = Recorder(None, None)
    replicas = ReplicatedTraining("train", Launched(0, 3), {"numpy": group})
    expected = "the replicas disagree before the first step: the seed, and 1 more differ in replica 2 (counted from 0)"
    with pytest.raises(PhaseError, match=re.escape(expected)):
        replicas.check_begin(train(data()), graph, {"x": np.ones(3)})


def test_gradients_go_to_the_group_of_their_framework() -> None:
    seen: list[tuple[str, list[Program], float]] = []

    class Named(OneOf):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def average_gradients(self, programs: Any, weight: float) -> None:
            seen.append((self.name, list(programs), weight))

    class Stage:
        def __init__(self, framework: str, program: Any) -> None:
            self.backend: ComputingBackend = type("Backend", (), {"framework": framework})()  # type: ignore[assignment]
            self.program = program

    groups = {"a": Named("a"), "b": Named("b")}
    stages: Any = [Stage("a", 1), Stage("b", 2), Stage("a", 3)]
    ReplicatedTraining("train", Launched(0, 2), groups).average(stages, 5.0)
    assert seen == [("a", [1, 3], 5.0), ("b", [2], 5.0)]


def test_batches_are_compared_before_gradients_are_exchanged_within_the_last_part() -> None:
    calls: list[Any] = []

    class Overlapping(OneOf):
        def sums(self, values: Any) -> list[float]:
            calls.append("compared")
            return [2.0 * value for value in values]

        def overlap_gradients(self, programs: Any, weight: float, part: float) -> Any:
            calls.append((list(programs), weight, part))
            return programs[1:]

        def average_gradients(self, programs: Any, weight: float) -> None:
            calls.append(list(programs))

    class Stage:
        def __init__(self, framework: str, program: Any) -> None:
            self.backend: Any = type("Backend", (), {"framework": framework})()
            self.program = program

    stages: Any = [Stage("a", "first"), Stage("b", "second"), Stage("a", "third")]
    replicas = ReplicatedTraining("train", Launched(0, 2), {"a": Overlapping(None), "b": OneOf(None)})
    batches_of(replicas, 1, 2)
    for _ in range(2):
        assert replicas.begin_last_part(stages, 8.0, 4.0) == {id(stages[2])}
        replicas.average(stages, 8.0)
    assert calls == ["compared", (["first", "third"], 8.0, 4.0), ["first", "third"]] * 2


def test_replicas_that_go_on_from_different_checkpoints_are_named() -> None:
    key = "the checkpoint to resume from"
    replicas = ReplicatedTraining("train", Launched(0, 2), {"numpy": OneOf({key: "none"})})
    with pytest.raises(PhaseError, match=r"disagree before the first step: the checkpoint .* in replica 1.*all see"):
        replicas.check_same({key: "epoch-1"}, when="before the first step", hint="a folder that all see")
    assert replicas.check_same({key: "none"}, when="before the first step", hint="") is None


class Lost(OneOf):
    """A replica whose peer has ended."""

    def gather(self, value: Any) -> list[Any]:
        raise FrameworkError("replica 0 of 2 could not gather values", available="the logs", hint="start again")


def test_the_error_of_a_lost_replica_says_where() -> None:
    replicas = ReplicatedTraining("train", Launched(0, 2), {"numpy": Lost({})})
    with pytest.raises(FrameworkError, match=r"^replica 0 of 2 could not gather values\. Available: the logs"):
        replicas.first(1)
    replicas.begin_epoch(3, 7)
    replicas.average([], 4)
    replicas.end_step()
    expected = r"^phase 'train', epoch 3, step 8: replica 0 of 2 could not .*Available: the logs.*Hint: start again"
    with pytest.raises(FrameworkError, match=expected):
        replicas.total({})


def test_arrays_of_all_replicas_come_by_rank() -> None:
    own = [{"a": np.array([[1, 2]], "uint8"), "n": np.array(3)}]
    other = [{"a": ["|u1", [1, 2], b"\x04\x05"], "n": ["<i8", [], (6).to_bytes(8, "little")]}]
    both = ReplicatedTraining("train", Launched(0, 2), {"numpy": OneOf(other)}).arrays_of_all(own)
    assert both is not None
    np.testing.assert_equal(both, [*own, {"a": np.array([[4, 5]], "uint8"), "n": np.array(6)}])
    assert both[1]["a"].dtype == np.uint8
    assert ReplicatedTraining("train", Launched(0, 2), {"numpy": OneOf(None)}).arrays_of_all(own) is None


def batches_of(replicas: ReplicatedTraining, *fingerprints: int) -> None:
    """Let a replica have read batches, of which two make a step."""
    batches = [{"x": np.full((4, 1), value)} for value in fingerprints]
    assert len(list(replicas.share_batches("s")(enumerate(batches)))) == len(batches)


def test_batches_of_a_source_are_compared_in_every_step() -> None:
    class Same(OneOf):
        def sums(self, values: Any) -> list[float]:
            return [2.0 * each for each in values]

    class Other(Same):
        def sums(self, values: Any) -> list[float]:
            return [values[0] + 3.0, values[1] + 9.0, 0.0]

    replicas = ReplicatedTraining("train", Launched(0, 2), {"numpy": Same()}, accumulate=2)
    batches_of(replicas, 1, 2, 3)
    replicas.begin_last_part([], 4, 4)
    replicas.begin_last_part([], 4, 4)  # the last step of an epoch has one batch
    replicas.end_steps()
    replicas = ReplicatedTraining("train", Launched(0, 2), {"numpy": Other([3, False])}, accumulate=2)
    batches_of(replicas, 1)
    with pytest.raises(PhaseError, match=r"the source 's' returns other batches in replica 1 than in replica 0"):
        replicas.begin_last_part([], 4, 4)


def test_the_sums_of_a_group_are_those_of_what_it_gathers() -> None:
    assert OneOf([1.0, 2.5], [3.0, 4.0]).sums([0.5, 0.25]) == [4.5, 6.75]


# -- sums in a fixed order ---------------------------------------------------------------------------------------------


@pytest.fixture
def numpy_group(monkeypatch: pytest.MonkeyPatch) -> OneOf:
    """NumPy as a framework with replicas, whose group cannot gather tensors."""
    group = OneOf({})
    give_numpy_replicas(monkeypatch, group)
    return group


@pytest.mark.usefixtures("second_of_two", "numpy_group")
def test_a_fixed_order_is_refused_where_tensors_cannot_be_gathered() -> None:
    rows = data()
    with pytest.raises(CapabilityError, match=r"replicas of numpy sum gradients in a different order.*leave det"):
        aa.Experiment(graph_of(rows)).run_phase(train(rows, deterministic=True))


def test_a_fixed_order_is_refused_where_parameters_are_divided() -> None:
    rows = data()
    phase = train(rows, deterministic=True, sharding="full")
    resolution = resolve(graph_of(rows), plan_request(phase, graph_of(rows)))
    with pytest.raises(PhaseError, match=r"deterministic=True sums whole gradients, but sharding splits them"):
        check_shareable(phase, resolution, [])


@pytest.mark.usefixtures("second_of_two", "numpy_group")
def test_a_fixed_order_is_refused_with_more_replicas_than_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "9")
    rows = data()
    with pytest.raises(PhaseError, match=r"is trained by 9 replicas.*split into 8 shards.*Hint: start 8 processes"):
        aa.Experiment(graph_of(rows)).run_phase(train(rows, deterministic=True))


@pytest.mark.parametrize(("size", "accumulate", "fits"), [(2, 1, True), (3, 1, False), (2, 4, True), (4, 4, False)])
def test_batches_that_replicas_cut_themselves_have_a_row_for_each(size: int, accumulate: int, fits: bool) -> None:
    rows = data().take(range(14))  # batches of 4, 4, 4 and 2
    batches = SampledBatches("train", aa.SimpleSampler(4), ZIP_STRICT, {"d": rows})
    epochs = TrainingEpochs("train", batches, accumulate)
    replicas = ReplicatedTraining("train", Launched(1, size), {"numpy": OneOf({})}, fixed_order=True)
    if not fits:
        with pytest.raises(PhaseError, match=rf"has a batch of 2 rows for {size} replicas.*drop_last=True"):
            replicas.share_epochs(epochs)
        return
    taken = replicas.share_epochs(epochs).epoch(0)
    assert taken.steps == epochs.epoch(0).steps  # all rows of all steps
    ((_, batch),) = replicas.share_batches("s")([(0, {"x": np.ones((4, 1))})])
    assert batch["x"].shape == (4, 1)


def test_in_a_fixed_order_all_have_the_losses_of_all_and_draw_alike() -> None:
    replicas = ReplicatedTraining("train", Launched(1, 2), {"numpy": OneOf({"mse": [3.0, 2.0]})}, fixed_order=True)
    assert replicas.total({"mse": (2.0, 1.0)}) == {"mse": (2.0, 1.0)} and replicas.random_key == ()
    assert ReplicatedTraining("train", Launched(1, 2), {"numpy": OneOf({})}).random_key == ("replica 1",)
