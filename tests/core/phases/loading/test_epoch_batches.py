"""Several samplers in one phase: zip and alternate, strict and cycle; what each step takes, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neighbours import Neighbours

from anyaccel import AppliedLoss, SimpleSampler
from anyaccel.adapter import ArrayProgram
from anyaccel.data import EpochOrders, FeatureSet, Rows, Sampler
from anyaccel.errors import PhaseError
from anyaccel.experiment import Experiment
from anyaccel.graph import ConcatNode, ModelGraph, ModelNode
from anyaccel.hookspecs import hookimpl
from anyaccel.metrics import Metric
from anyaccel.numpy_backend import Dense, NumpyBackend
from anyaccel.phases import Callback, EvalPhase, Phase, TrainPhase
from anyaccel.phases.loading.epoch_plan import SCHEDULES, SampledBatches
from anyaccel.registry import Registry
from anyaccel.specs import Optimizer


def numbered(label: str, n: int) -> FeatureSet:
    """Row numbers as features and as targets; splits `first` (all but the last two rows) and `last` (these two)."""
    x = np.arange(n, dtype="float64").reshape(n, 1)
    made = FeatureSet.from_dict(label, {"x": x, "y": x * 2, "k": np.arange(n) % 2}, ["x"], ["y"], ["k"])
    made.add_splits({"first": np.arange(n - 2), "last": np.arange(n - 2, n)})
    return made


def unit() -> Dense:
    return Dense(1, dtype="float64")


class Seen:
    """A custom NumPy loss that records its inputs; its gradient is zero."""

    __name__ = "seen"

    def __init__(self) -> None:
        self.calls: list[list[float]] = []

    def __call__(self, *given: Any) -> Any:
        self.calls.append(np.asarray(given[0]).reshape(-1).round(6).tolist())
        return np.zeros(()), len(given[0]), tuple(np.zeros_like(item) for item in given)


def refused(error: type[Exception], make: Callable[[], Any]) -> str:
    with pytest.raises(error) as caught:
        make()
    return str(caught.value)


def apart(a: int = 10, b: int = 6, **settings: Any) -> ModelGraph:
    """A node on each of two feature sets, `a` and `b`, with models of their own."""
    nodes = [ModelNode(f"n{name}", unit(), numbered(name, n).reference()) for name, n in (("a", a), ("b", b))]
    graph = ModelGraph(nodes, settings.pop("optimizer", Optimizer("sgd", lr=0.0001)))
    graph.build()
    return graph


def run(graph: ModelGraph, phase: Phase) -> Any:
    return Experiment("e", graph, progress="none").run_phase(phase)


class Watch:
    """Losses that record the rows of each step."""

    def __init__(self, *nodes: str) -> None:
        self.seen = {node: Seen() for node in nodes}
        self.losses = [
            AppliedLoss(seen, node, ["targets", "outputs"], label=f"seen.{node}") for node, seen in self.seen.items()
        ]
        self.losses += [AppliedLoss("mse", node) for node in nodes]

    def rows(self, node: str) -> list[list[int]]:
        """The rows of each step of a node."""
        return [[int(value / 2) for value in call] for call in self.seen[node].calls]


class Order(Callback):
    """Which losses each step had."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def step_end(self, run: Any) -> None:
        self.steps.append("".join(sorted(label[-1] for label in run.step_losses() if not label.startswith("seen"))))


def trained(schedule: str | None, samplers: dict[str, Any], *, a: int = 10, b: int = 6, epochs: int = 1) -> Any:
    watch, order = Watch("na", "nb"), Order()
    phase = TrainPhase(
        "t",
        data="all",
        losses=watch.losses,
        sampler=samplers,
        schedule=schedule,
        epochs=epochs,
        callbacks=[order],
    )
    results = run(apart(a, b), phase)
    return results, watch.rows("na"), watch.rows("nb"), order.steps


FOUR, TWO = SimpleSampler(4), SimpleSampler(2)


@pytest.mark.parametrize("schedule", [None, "zip_strict"])
def test_zip_takes_a_batch_of_each(schedule: str | None) -> None:
    results, a, b, steps = trained(schedule, {"a": FOUR, "b": TWO})
    assert a == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] and b == [[0, 1], [2, 3], [4, 5]]
    assert steps == ["ab", "ab", "ab"] and results.epochs[0].steps == 3


def test_zip_cycle_repeats_the_shorter_set_in_a_new_order() -> None:
    shuffled = SimpleSampler(4, shuffle=True, seed=5)
    results, a, b, _ = trained("zip_cycle", {"a": TWO, "b": shuffled}, epochs=2)
    assert a == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]] * 2 and results.epochs[0].steps == 5
    assert [len(rows) for rows in b] == [4, 2, 4, 2, 4] * 2
    orders = [shuffled.order(6, epoch).tolist() for epoch in range(6)]
    for epoch in (0, 1):
        mine = list(itertools.chain.from_iterable(b[5 * epoch : 5 * epoch + 5]))
        assert mine == [*orders[3 * epoch], *orders[3 * epoch + 1], *orders[3 * epoch + 2][:4]]


def test_cycles_leave_out_dropped_rows() -> None:
    sampler = SimpleSampler(4, shuffle=True, drop_last=True)
    _, _, b, _ = trained("zip_cycle", {"a": TWO, "b": sampler})
    assert b == [sampler.order(6, epoch)[:4].tolist() for epoch in range(5)]


def test_alternate_takes_batches_in_turn() -> None:
    results, a, b, steps = trained("alternate_strict", {"a": FOUR, "b": TWO})
    assert a == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] and b == [[0, 1], [2, 3], [4, 5]]
    assert steps == ["a", "b"] * 3 and results.epochs[0].steps == 6


def test_alternate_cycle_continues_until_the_longest_set_ends() -> None:
    _, a, b, steps = trained("alternate_cycle", {"b": FOUR, "a": TWO})
    assert steps == ["a", "b"] * 5 or steps == ["b", "a"] * 5
    assert a == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert b == [[0, 1, 2, 3], [4, 5], [0, 1, 2, 3], [4, 5], [0, 1, 2, 3]]


def test_alternating_steps_follow_the_order_of_the_samplers() -> None:
    assert trained("alternate_strict", {"b": TWO, "a": FOUR})[3] == ["b", "a"] * 3
    assert trained("alternate_strict", {"a": FOUR, "b": TWO})[3] == ["a", "b"] * 3


def test_mean_losses_are_weighted_by_the_rows_of_each_set() -> None:
    graph = apart()
    weights = {name: graph[f"n{name}"].model.parameters for name in "ab"}  # type: ignore[union-attr]
    expected = {}
    for name, n in (("a", 10), ("b", 6)):
        x = np.arange(n)
        y = x * weights[name]["weight"].item() + weights[name]["bias"].item()
        expected[name] = np.mean(np.square(y - 2 * x))
    for schedule in ("zip_strict", "alternate_strict"):
        losses = [AppliedLoss("mse", "na"), AppliedLoss("mse", "nb", weight=0.5)]
        again = apart()
        for name in "ab":
            again[f"n{name}"].model.parameters.update(weights[name])  # type: ignore[union-attr]
        still = Optimizer("sgd", lr=1e-12)
        again.optimizer = still
        phase = TrainPhase("t", data="all", losses=losses, sampler={"a": FOUR, "b": TWO}, schedule=schedule)
        results = run(again, phase)
        np.testing.assert_allclose(results.losses("na"), expected["a"], rtol=1e-6)
        np.testing.assert_allclose(results.losses("nb"), expected["b"], rtol=1e-6)
        np.testing.assert_allclose(results.loss, expected["a"] + 0.5 * expected["b"], rtol=1e-6)


def test_equal_batches_are_taken_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    before = ArrayProgram.train_steps

    def steps(self: Any, columns: Any, orders: Any, start: int, count: int, batch: int) -> Any:
        calls.append((count, batch))
        return before(self, columns, orders, start, count, batch)

    monkeypatch.setattr(ArrayProgram, "train_steps", steps)
    samplers = {"a": SimpleSampler(4, shuffle=True), "b": SimpleSampler(4, shuffle=True, seed=1)}
    losses = [AppliedLoss("mse", "na"), AppliedLoss("mse", "nb")]
    graph = apart(10, 10)
    one = run(graph, TrainPhase("t", data="all", losses=losses, sampler=samplers, epochs=3))
    assert sum(count for count, _ in calls) == 9 and {batch for _, batch in calls} == {4, 2}
    calls.clear()
    other = apart(10, 10)
    alternating = TrainPhase("t", data="all", losses=losses, sampler=samplers, epochs=3, schedule="alternate_strict")
    assert run(other, alternating).epochs[0].steps == 6 and not calls
    for name in ("na", "nb"):
        for key in ("weight", "bias"):
            one_of, other_of = (g[name].model.parameters[key] for g in (graph, other))  # type: ignore[union-attr]
            np.testing.assert_allclose(one_of, other_of, rtol=1e-12)
    assert one.epochs[0].steps == 3


def test_alternating_counts_steps_by_node() -> None:
    graph = apart(optimizer=Optimizer("adam", lr=0.01))
    losses = [AppliedLoss("mse", "na"), AppliedLoss("mse", "nb")]
    run(graph, TrainPhase("t", data="all", losses=losses, sampler={"a": FOUR, "b": TWO}, schedule="alternate_strict"))
    assert {name: state.step for name, state in graph.optimizer_states.items()} == {"na": 3, "nb": 3}


def test_a_shared_model_learns_from_both() -> None:
    a, b, model = numbered("a", 8), numbered("b", 4), unit()
    nodes = [ModelNode("na", model, a.reference()), ModelNode("nb", model, b.reference())]
    graph = ModelGraph(nodes, Optimizer("adam", lr=0.01))
    losses = [AppliedLoss("mse", "na"), AppliedLoss("mse", "nb")]
    phase = TrainPhase("t", data="all", losses=losses, sampler={"a": 4, "b": 2}, schedule="alternate_strict")
    run(graph, phase)
    assert sorted(state.step for state in graph.optimizer_states.values()) in ([4], [4, 4], [0, 4])


def test_pairs_in_turn_with_single_rows() -> None:
    a, b, model = numbered("a", 8), numbered("b", 4), unit()
    nodes = [ModelNode("na", model, a.reference()), ModelNode("twin", model, a.reference(stream="pair"))]
    graph = ModelGraph([*nodes, ModelNode("nb", model, b.reference())], Optimizer("sgd", lr=0.001))
    losses = [AppliedLoss("mse", "na", ["outputs", "twin"], label="pairs"), AppliedLoss("mse", "nb")]
    samplers = {"a": Neighbours(4, "k"), "b": SimpleSampler(1)}
    settings = {"data": "first", "losses": losses, "sampler": samplers}
    own = EvalPhase("v", data="last", metrics=[Metric("mse", "nb")])
    results = run(graph, TrainPhase("t", validation=own, schedule="alternate_strict", **settings))
    assert results.epochs[0].steps == 4  # six rows of `a` make two batches of pairs
    assert results.figure("val_loss.pairs")[-1] == 0.0 and results.figure("val_mse")[-1] > 0


@dataclass(frozen=True)
class Backwards(Sampler):
    """The rows from the last to the first, drawn once for all epochs."""

    batch_size: int = 2
    shuffle: bool = False
    drop_last: bool = False
    seed: int = 0

    def epoch_orders(self, rows: Mapping[str, Rows]) -> EpochOrders:
        order = np.arange(len(next(iter(rows.values()))), dtype=np.int64)[::-1].copy()
        return EpochOrders(len(order), lambda epoch: (order,), fixed=True)

    def get_config(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("sampler", "same"),
    [
        (SimpleSampler(2), True),
        (SimpleSampler(2, shuffle=True), False),
        (Neighbours(2, "k"), False),
        (Backwards(), True),
        (Backwards(shuffle=True), False),
    ],
)
def test_orders_are_drawn_once_only_if_they_are_the_same_in_every_epoch(sampler: Sampler, same: bool) -> None:
    rows = {"a": numbered("a", 30).split("all")}
    for samplers in (sampler, {"a": sampler}):
        batches = SampledBatches("t", samplers, "zip_strict", rows)
        first, second = batches.orders(0), batches.orders(1)
        assert (first is second) == same == all(np.array_equal(first[key], second[key]) for key in first)
        assert (batches.n_drawn == 0) == same


# -- several segments ------------------------------------------------------------------------------------------------


class Elsewhere(NumpyBackend):
    """NumPy under another name, so that a segment of its own computes it."""

    framework = "elsewhere"
    kinds = ("cpu",)
    import_roots = ("elsewhere",)

    def owns(self, obj: Any) -> bool:
        return False


@pytest.mark.parametrize("schedule", ["zip_strict", "alternate_strict"])
def test_missing_rows_are_none_in_other_segments(schedule: str, numpy_only: Registry) -> None:
    plugin = ModuleType("elsewhere")
    plugin.contract = 2  # type: ignore[attr-defined]
    plugin.backends = hookimpl(lambda: [Elsewhere()])  # type: ignore[attr-defined]
    numpy_only.register(plugin, "elsewhere")
    weights = []
    for framework in (None, "elsewhere"):
        a, b = numbered("a", 8), numbered("b", 4)
        nodes = [ModelNode("na", unit(), a.reference(target=[])), ModelNode("nb", unit(), b.reference(target=[]))]
        nodes += [ModelNode(f"top{name}", unit(), f"n{name}", framework=framework) for name in "ab"]
        graph = ModelGraph(nodes, Optimizer("adam", lr=0.01, clip_norm=0.5))
        losses = [AppliedLoss("mse", "topa", ["outputs", "a.y"]), AppliedLoss("mse", "topb", ["outputs", "b.y"])]
        sampler = {"a": SimpleSampler(4, shuffle=True), "b": SimpleSampler(2)}
        run(graph, TrainPhase("t", data="all", losses=losses, sampler=sampler, schedule=schedule, epochs=3))
        weights.append({key: value for key, value in graph.state().items() if "/parameters/" in key})
        steps = 6
        assert {state.step for state in graph.optimizer_states.values()} == {steps}
    for key, value in weights[0].items():
        np.testing.assert_allclose(weights[1][key], value, rtol=1e-10)


# -- evaluation ------------------------------------------------------------------------------------------------------


def test_sets_of_different_lengths_are_evaluated_by_their_own_rows() -> None:
    graph = apart(10, 6)
    for batch in (3, 100):
        phase = EvalPhase(
            "e", data="all", losses=[AppliedLoss("mse", "na"), AppliedLoss("mse", "nb")], batch_size=batch
        )
        results = run(graph, phase)
        assert len(results.prediction("na")) == 10 and len(results.prediction("nb")) == 6
        for node, n in (("na", 10), ("nb", 6)):
            wanted = np.mean(np.square(results.prediction(node).reshape(-1) - 2 * np.arange(n)))
            np.testing.assert_allclose(results.losses[node], wanted)


def test_a_validation_of_sets_of_different_lengths() -> None:
    graph = apart(10, 6)
    losses = [AppliedLoss("mse", "na"), AppliedLoss("mse", "nb")]
    phase = TrainPhase(
        "t",
        data={"a": "first", "b": "first"},
        losses=losses,
        sampler={"a": 4, "b": 2},
        validation=EvalPhase("v", data={"a": "last", "b": "first"}, metrics=["mse"], batch_size=3),
    )
    results = run(graph, phase)
    assert results.figures[-4:] == ("val_loss.na", "val_loss.nb", "val_na.mse", "val_nb.mse")
    np.testing.assert_allclose(results.figure("val_loss.na"), results.figure("val_na.mse"))
    np.testing.assert_allclose(results.figure("val_loss.nb"), results.figure("val_nb.mse"))


def test_an_evaluation_with_a_sampler_for_one_set() -> None:
    graph = apart(6, 4)
    results = run(graph, EvalPhase("e", data="all", sampler={"a": Neighbours(4, "k", rounds=2)}))
    assert len(results.prediction("na")) == 12 and len(results.prediction("nb")) == 4


# -- configuration ---------------------------------------------------------------------------------------------------


def test_batch_sizes_may_be_given_for_each_set() -> None:
    phase = TrainPhase("t", data="all", losses=[AppliedLoss("mse", "na")], sampler={"a": 4, "b": np.int64(2)})
    assert phase.sampler == {"a": SimpleSampler(4, shuffle=True), "b": SimpleSampler(2, shuffle=True)}


# -- bad input -------------------------------------------------------------------------------------------------------


def train(**settings: Any) -> TrainPhase:
    known = {"data": "all", "losses": [AppliedLoss("mse", "na"), AppliedLoss("mse", "nb")]}
    drawn = {} if "batch_size" in settings else {"sampler": {"a": 4, "b": 2}}
    return TrainPhase("t", **{**known, **drawn, **settings})


@pytest.mark.parametrize("schedule", ["zip_strict", "alternate_strict"])
def test_strict_schedules_need_equal_numbers_of_batches(schedule: str) -> None:
    message = refused(PhaseError, lambda: run(apart(), train(sampler={"a": 2, "b": 2}, schedule=schedule)))
    assert message == (
        f"phase 't' has schedule={schedule!r}, but its samplers draw different numbers of batches; a: 5, "
        f"b: 3. Hint: change batch sizes, or write schedule={schedule.replace('strict', 'cycle')!r}."
    )


def test_invalid_schedules_are_refused() -> None:
    message = refused(PhaseError, lambda: train(schedule="zip_cycles"))
    assert "schedule='zip_cycles'. Available: zip_strict, zip_cycle, alternate_strict, alternate_cycle" in message
    assert "did you mean 'zip_cycle'?" in message
    for sampler in (SimpleSampler(4), {"a": SimpleSampler(4)}):
        message = refused(PhaseError, lambda s=sampler: train(sampler=s, schedule="zip_strict"))
        assert (
            "phase 't' has schedule='zip_strict' but only one sampler. Hint: leave schedule out, or write sampler={"
            in message
        )
    assert "sampler must be a Sampler, or a mapping" in refused(
        PhaseError, lambda: train(sampler={"a": 4, "b": "many"})
    )
    assert "sampler must be a Sampler, or a mapping with one for each feature set, got {}" in refused(
        PhaseError, lambda: train(sampler={})
    )


def test_samplers_for_unknown_sets_are_refused() -> None:
    message = refused(PhaseError, lambda: run(apart(), train(sampler={"a": 4, "bb": 2})))
    assert message == (
        "phase 't' has a sampler for 'bb', which is not one of its feature sets. Available: a, b. Hint: did you "
        "mean 'b'?"
    )
    message = refused(PhaseError, lambda: run(apart(), train(sampler={"a": 4})))
    assert message == ("phase 't' has no sampler for b; it has samplers for a. Hint: add 'b' to sampler={...}.")
    evaluated = EvalPhase("e", data="all", sampler={"c": SimpleSampler(4)})
    assert "phase 'e' has a sampler for 'c'" in refused(PhaseError, lambda: run(apart(), evaluated))


def test_one_sampler_needs_as_many_rows() -> None:
    message = refused(PhaseError, lambda: run(apart(), train(batch_size=4)))
    assert "phase 't' has different numbers of rows; a: 10, b: 6" in message
    assert "use the same number of rows in each feature set, or a separate sampler for each" in message


def joined(a: int = 8, b: int = 8) -> ModelGraph:
    one, other = numbered("a", a), numbered("b", b)
    nodes = [ModelNode("na", unit(), one.reference()), ModelNode("nb", unit(), other.reference())]
    return ModelGraph([*nodes, ConcatNode("j", ["na", "nb"]), ModelNode("top", unit(), "j")], "sgd")


TOP = [AppliedLoss("mse", "top", ["outputs", "a.y"])]


def test_nodes_that_combine_sets_need_equal_batches() -> None:
    message = refused(PhaseError, lambda: run(joined(8, 4), train(losses=TOP, sampler={"a": 4, "b": 2})))
    assert message == (
        "phase 't': node 'j' combines a and b, but a step has different numbers of rows of them; a: 4, b: 2. "
        "Hint: use the same batch size (and drop_last=True) for their samplers, and the same number of rows in the "
        "data."
    )
    message = refused(
        PhaseError, lambda: run(joined(), train(losses=TOP, sampler={"a": 4, "b": 4}, schedule="alternate_strict"))
    )
    assert "; a: 4, b: none. Hint: combine them by schedule='zip_strict'" in message
    message = refused(PhaseError, lambda: run(joined(8, 7), train(losses=TOP, sampler={"a": 4, "b": 4})))
    assert "; a: 4, b: 3" in message
    assert run(joined(8, 7), train(losses=TOP, sampler={
        name: SimpleSampler(3, drop_last=True) for name in "ab"
    })).epochs[0].steps == 2  # fmt: skip


def test_losses_and_metrics_that_combine_sets_need_equal_batches() -> None:
    losses = [AppliedLoss("mse", "na", ["outputs", "b.y"], label="across"), AppliedLoss("mse", "nb")]
    message = refused(PhaseError, lambda: run(apart(), train(losses=losses)))
    assert "the loss 'across' combines a and b" in message
    compared = [AppliedLoss("mse", "na", ["outputs", "nb"])]
    assert "the loss 'na' combines a and b" in refused(PhaseError, lambda: run(apart(), train(losses=compared)))
    metrics = EvalPhase("e", data="all", metrics=[Metric("mse", "na", "b.y", label="odd")])
    assert "the metric 'odd' combines a and b" in refused(PhaseError, lambda: run(apart(), metrics))
    whole = EvalPhase("e", data="all", outputs=["top"])
    message = refused(PhaseError, lambda: run(joined(8, 6), whole))
    assert "node 'j' combines a and b, but a step has different numbers of rows of them; a: 8, b: 6" in message
    assert "Hint: use the same number of rows in all of them" in message


def test_cycles_of_equal_batches_are_taken_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    before = ArrayProgram.train_steps

    def steps(self: Any, columns: Any, orders: Any, start: int, count: int, batch: int) -> Any:
        calls.append((count, [np.asarray(order).tolist() for order in orders]))
        return before(self, columns, orders, start, count, batch)

    monkeypatch.setattr(ArrayProgram, "train_steps", steps)
    shuffled = SimpleSampler(4, shuffle=True, seed=2)
    losses = [AppliedLoss("mse", "na"), AppliedLoss("mse", "nb")]
    phase = TrainPhase("t", data="all", losses=losses, sampler={"a": FOUR, "b": shuffled}, schedule="zip_cycle")
    assert run(apart(12, 4), phase).epochs[0].steps == sum(count for count, _ in calls) == 3
    again = [row for epoch in range(3) for row in shuffled.order(4, epoch).tolist()]
    assert list(range(12)) in calls[0][1] and again in calls[0][1]


def batches_of(sampler: SimpleSampler, n: int, epoch: int) -> list[np.ndarray]:
    """The batches of an epoch, as a sampler alone gives them."""
    full, last = sampler.batches(n)
    order, stop = sampler.order(n, epoch), full * sampler.batch_size + last
    return [order[start : min(start + sampler.batch_size, stop)] for start in range(0, stop, sampler.batch_size)]


def descended(
    source: FeatureSet, model: Dense, sampler: SimpleSampler, most: int, weight: float
) -> tuple[list[float], Any]:
    """Mean losses of two epochs of `most` batches, begun again where there are fewer, and the slope: by hand."""
    slope, shift = (np.array(model.parameters[name]).item() for name in ("weight", "bias"))
    x, y = source.array("x")[:, 0], source.array("y")[:, 0]
    times, losses = -(-most // sampler.steps(len(x))), []
    for epoch in (0, 1):
        several = [batches_of(sampler, len(x), epoch * times + i) for i in range(times)]
        total, count = 0.0, 0
        for rows in list(itertools.chain.from_iterable(several))[:most]:
            error = x[rows] * slope + shift - y[rows]
            total, count = total + float(np.sum(error**2)), count + len(rows)
            slope, shift = (
                slope - 0.0001 * weight * np.mean(2 * error * x[rows]),
                shift - 0.0001 * weight * np.mean(2 * error),
            )
        losses.append(total / count)
    return losses, slope


SAMPLERS = st.builds(
    SimpleSampler, st.integers(1, 6), shuffle=st.booleans(), drop_last=st.booleans(), seed=st.integers(0, 9)
)


@settings(deadline=None)
@given(
    counts=st.tuples(st.integers(6, 15), st.integers(6, 15)),
    samplers=st.tuples(SAMPLERS, SAMPLERS),
    schedule=st.sampled_from(SCHEDULES),
)
def test_any_schedule_trains_as_by_hand(
    counts: tuple[int, int], samplers: tuple[SimpleSampler, SimpleSampler], schedule: str
) -> None:
    named = dict(zip("ab", samplers, strict=True))
    steps = [sampler.steps(n) for sampler, n in zip(samplers, counts, strict=True)]
    graph = apart(*counts)
    losses = [AppliedLoss("mse", "na"), AppliedLoss("mse", "nb", weight=0.5)]
    phase = TrainPhase("t", data="all", losses=losses, sampler=named, schedule=schedule, epochs=2)
    if schedule.endswith("strict") and steps[0] != steps[1]:
        assert "different numbers of batches" in refused(PhaseError, lambda: run(graph, phase))
        return
    expected = {}
    for name, weight in (("a", 1.0), ("b", 0.5)):
        node = graph[f"n{name}"]
        assert isinstance(node, ModelNode)
        source = node.upstreams[0].feature_set  # type: ignore[union-attr]
        expected[name] = descended(source, node.model, named[name], max(steps), weight)
    results = run(graph, phase)
    assert results.epochs[0].steps == max(steps) * (2 if schedule.startswith("alternate") else 1)
    for name, (means, slope) in expected.items():
        np.testing.assert_allclose(results.losses(f"n{name}"), means, rtol=1e-9)
        np.testing.assert_allclose(graph.state()[f"n{name}/parameters/weight"].item(), slope, rtol=1e-9)
