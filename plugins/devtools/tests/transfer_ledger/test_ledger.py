"""The ledger over simulated NumPy devices: what is counted, where, and what it costs when nobody asks."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.adapter import VjpResult
from anyaccel.adapter.transfer_observer import ObservesTransfers, TransferEvent
from anyaccel.errors import AnyaccelError, CapabilityError, ConfigError, FrameworkError, TransferError
from anyaccel.numpy_backend import NumpyBackend
from anyaccel.numpy_backend.module import Module
from anyaccel.numpy_backend.sim_array import SimArray
from anyaccel.numpy_backend.sim_device import SimDevice, Simulation, observers
from anyaccel.plugin_testing import TinyBackend, plugin_module
from anyaccel.registry import Registry, registry

X = np.ones((4, 3), "float32")
HERE = Path(__file__).name


@pytest.fixture
def sims() -> Iterator[Simulation]:
    with aa.simulate(2) as simulation:
        yield simulation


def line_of(text: str) -> str:
    lines = Path(__file__).read_text("utf-8").splitlines()
    (number,) = [i for i, each in enumerate(lines, 1) if each.strip().endswith(f"# {text}")]
    return f"{__file__}:{number}"


def test_transfers_and_waits_are_counted_with_their_lines(sims: Simulation) -> None:
    with aa.ledger() as moved:
        there = aa.move(X, "sim:0")  # up
        other = aa.move(there, "sim:1")  # across
        if other.sum() > 3:  # look
            back = aa.move(other, "cpu")  # down
    assert back.sum() == 12
    rows = [(each.kind, each.source, each.target, each.nbytes, each.waits, each.line) for each in moved.rows]
    assert rows == [
        ("host to device", "cpu:0", "sim:0", 48, 1, line_of("up")),
        ("device to device", "sim:0", "sim:1", 48, 0, line_of("across")),
        ("wait", "sim:1", "cpu:0", 0, 1, line_of("look")),
        ("device to host", "sim:1", "cpu:0", 48, 1, line_of("down")),
    ]
    assert (moved.transfers, moved.nbytes, moved.waits) == (3, 144, 3)


def test_equal_events_of_one_line_are_one_row(sims: Simulation) -> None:
    with aa.ledger() as moved:
        for _ in range(5):
            aa.move(X, "sim:0")
    (row,) = moved.rows
    assert (row.number, row.nbytes) == (5, 5 * X.nbytes)
    assert moved.by("line") == {row.line: moved.totals()}


def test_counts_are_those_of_the_devices_over_a_phase(sims: Simulation) -> None:
    """The simulated devices count by themselves, too; a trial that measures memory is no transfer."""
    data = aa.FeatureSet.from_dict("data", {"x": np.ones((32, 3), "f"), "y": np.ones((32, 1), "f")}, ["x"], ["y"])
    nodes = [
        aa.ModelNode("body", aa.SequentialMLP(output_shape=(4,)), data.reference(), accelerator="sim:0"),
        aa.ModelNode("head", aa.SequentialMLP(output_shape=(1,)), "body", accelerator="sim:1"),
    ]
    experiment = aa.Experiment("e", aa.ModelGraph(nodes, "adam"))
    phase = aa.TrainPhase("fit", data=data, losses=[aa.AppliedLoss("mse", on="head")], batch_size=8, epochs=2)
    for each in sims:
        each.clear()
    with aa.ledger() as moved:
        experiment.run(phase)
    assert moved.totals("host to device").nbytes == sum(each.transfers.into.nbytes for each in sims)
    assert moved.totals("host to device").transfers == sum(each.transfers.into.number for each in sims)
    assert moved.totals("device to host").nbytes == sum(each.transfers.out.nbytes for each in sims)
    assert 2 * moved.totals("device to device").transfers == sum(each.transfers.between.number for each in sims)
    reads = [each for each in moved.rows if each.kind in ("wait", "device to host")]
    assert sum(each.waits for each in reads) == sum(each.syncs for each in sims)
    steps = 2 * 4
    edges = {name: total.transfers for name, total in moved.by("edge").items() if name}
    assert edges == {"outputs of 'body'": steps, "gradients of 'body'": steps}
    assert moved.totals("device to device").nbytes == 2 * steps * 8 * 4 * 4
    assert set(moved.by("phase")) == {"fit"}
    assert all(name.startswith((__file__, "thread ")) for name in moved.by("line"))


def test_what_a_node_reads_is_told_with_the_node(sims: Simulation) -> None:
    class Looking(Module):
        def apply(self, values, inputs, *, train, key):  # type: ignore[no-untyped-def]
            (x,) = inputs
            if isinstance(x, SimArray):
                float(x.sum())  # peek
            return VjpResult((x * 2,), lambda cotangents: ({}, (cotangents[0] * 2,)))

    data = aa.FeatureSet.from_dict("data", {"x": X, "y": X}, ["x"], ["y"])
    graph = aa.ModelGraph([aa.ModelNode("looks", Looking(), data.reference())], "sgd")
    phase = aa.EvalPhase("look", data=data, losses=[aa.AppliedLoss("mse", on="looks")], accelerator="sim:0")
    with aa.ledger() as moved:
        aa.Experiment("e", graph).run(phase)
    looked = [each for each in moved.rows if each.operation == "float" and each.node]
    assert {(each.node, each.phase) for each in looked} == {("looks", "look")}
    assert {each.line for each in looked} == {line_of("peek")}


def test_other_threads_are_counted(sims: Simulation) -> None:
    with aa.ledger() as moved:
        thread = threading.Thread(target=lambda: aa.move(X, "sim:1"))
        thread.start()
        thread.join()
    assert (moved.transfers, moved.rows[0].target) == (1, "sim:1")


def test_ledgers_nest_and_leave_nothing(sims: Simulation) -> None:
    assert not observers
    with aa.ledger() as outer:
        aa.move(X, "sim:0")
        with aa.ledger() as inner:
            aa.move(X, "sim:0")
        aa.move(X, "sim:0")
    assert (outer.transfers, inner.transfers) == (3, 1)
    assert not observers
    aa.move(X, "sim:0")
    assert outer.transfers == 3


def test_a_ledger_that_an_error_ended_holds_what_came_before(sims: Simulation) -> None:
    with pytest.raises(ZeroDivisionError), aa.ledger() as moved:
        aa.move(X, "sim:0")
        raise ZeroDivisionError
    assert moved.transfers == 1 and not observers


def test_a_mask_waits(sims: Simulation) -> None:
    x = aa.move(X, "sim:0")
    with aa.ledger() as moved:
        x[x > 0]
    assert [(each.kind, each.operation) for each in moved.rows] == [("wait", "nonzero")]


PLANTED: dict[str, tuple[Callable[[SimArray], object], list[tuple[str, int, int]]]] = {
    "from memory of the host": (lambda x: aa.move(X, "sim:0"), [("host to device", 48, 1)]),
    "an explicit copy": (lambda x: aa.move(x, "sim:1"), [("device to device", 48, 0)]),
    "where it is": (lambda x: aa.move(x, "sim:0"), []),
    "to NumPy": (lambda x: aa.move(x, "cpu"), [("device to host", 48, 1)]),
    "item": (lambda x: x[0, 0].item(), [("wait", 0, 1)]),
    "print": (lambda x: print(x), [("wait", 0, 1)]),
    "a format": (lambda x: f"{x}", [("wait", 0, 1)]),
    "a list": (lambda x: x.tolist(), [("wait", 0, 1)]),
    "a mask": (lambda x: x[x > 0], [("wait", 0, 1)]),
    "where a mask is": (lambda x: np.nonzero(x), [("wait", 0, 1)]),
    "if tensor": (lambda x: bool(x.sum() > 0), [("wait", 0, 1)]),
    "equal": (lambda x: np.array_equal(x, x), [("wait", 0, 1)]),
    "zeros": (lambda x: np.zeros_like(x), []),
    "a number": (lambda x: x + 1, []),
    "an array without axes": (lambda x: x * np.float32(2), []),
    "a sum": (lambda x: x.sum(), []),
    "a slice": (lambda x: x[1:], []),
}


@pytest.mark.parametrize("case", PLANTED)
def test_planted_cases(case: str, sims: Simulation) -> None:
    function, expected = PLANTED[case]
    x = aa.move(X, "sim:0")
    with aa.ledger() as moved:
        function(x)
    assert [(each.kind, each.nbytes, each.waits) for each in moved.rows] == expected
    assert {each.line.rpartition(":")[0] for each in moved.rows} <= {__file__}
    if expected:
        with pytest.raises(TransferError), aa.no_transfers(["numpy"]):
            function(x)
    else:
        with aa.no_transfers(["numpy"]):
            function(x)


# -- no_transfers ----------------------------------------------------------------------------------------------------


def test_no_transfers_raises_at_the_first_before_it_happens(sims: Simulation) -> None:
    x = aa.move(X, "sim:0")
    sims[0].clear()
    with aa.no_transfers():
        y = x @ x.T
    with pytest.raises(TransferError) as caught, aa.no_transfers(["numpy"]):
        y = y * 2
        float(y.sum())  # planted
        raise AssertionError("the line above should have failed")
    text = str(caught.value)
    assert text.startswith("the host waits for sim:0 in numpy's float at ") and line_of("planted") in text
    assert "Hint: do not read values inside the block" in text
    assert isinstance(caught.value, AssertionError)


@pytest.mark.parametrize(
    ("move", "words"),
    [
        (lambda x: aa.move(X, "sim:0"), "48 bytes go from cpu:0 to sim:0 (host to device)"),
        (lambda x: aa.move(x, "sim:1"), "48 bytes go from sim:0 to sim:1 (device to device)"),
        (lambda x: aa.move(x, "cpu"), "48 bytes go from sim:0 to cpu:0 (device to host)"),
    ],
)
def test_no_transfers_names_what_moves(sims: Simulation, move, words: str) -> None:  # type: ignore[no-untyped-def]
    x = aa.move(X, "sim:0")
    with pytest.raises(TransferError) as caught, aa.no_transfers():
        move(x)
    assert words in str(caught.value)


def test_no_transfers_inside_a_phase_names_the_edge(sims: Simulation) -> None:
    data = aa.FeatureSet.from_dict("data", {"x": X, "y": X[:, :1]}, ["x"], ["y"])
    nodes = [
        aa.ModelNode("body", aa.SequentialMLP(output_shape=(4,)), data.reference(), accelerator="sim:0"),
        aa.ModelNode("head", aa.SequentialMLP(output_shape=(1,)), "body", accelerator="sim:1"),
    ]

    blocks = ExitStack()

    class Strict(aa.Callback):
        def step_end(self, run):  # type: ignore[no-untyped-def]
            blocks.enter_context(aa.no_transfers())

    losses = [aa.AppliedLoss("mse", on="head")]
    phase = aa.TrainPhase("fit", data=data, losses=losses, batch_size=2, callbacks=[Strict()])
    with pytest.raises(TransferError, match="in outputs of 'body' of node 'head' of phase 'fit'"), blocks:
        aa.Experiment("e", aa.ModelGraph(nodes, "adam")).run(phase)


def test_wrong_frameworks_are_refused() -> None:
    with (
        pytest.raises(ConfigError, match=r"no_transfers.frameworks='numpy'. is not a list of names"),
        aa.no_transfers("numpy"),
    ):
        pass
    with pytest.raises(FrameworkError, match="nympy"), aa.no_transfers(["nympy"]):
        pass


def test_a_backend_that_cannot_tell_is_not_covered() -> None:
    registry().register(plugin_module("deaf", backends=lambda: [TinyBackend("deaf")]), "deaf")
    root = registry().find("deaf").import_roots[0]
    sys.modules[root] = sys
    try:
        with aa.ledger() as moved:
            pass
        assert any(text.startswith("deaf on") and "does not report" in text for text in moved.not_covered)
        with pytest.raises(CapabilityError, match="cannot guarantee anything: deaf"), aa.no_transfers(["deaf"]):
            pass
        with aa.no_transfers(["numpy"]):
            pass
    finally:
        del sys.modules[root]


class SomeTransfers(ObservesTransfers):
    """Sees some transfers, or none."""

    def can_observe_transfers(self):  # type: ignore[no-untyped-def]
        return self.backend.sees

    @contextmanager
    def observe_transfers(self, record):  # type: ignore[no-untyped-def]
        self.backend.record = record
        yield

    def unobserved_transfers(self):  # type: ignore[no-untyped-def]
        return ["what it whispers"]


class HalfDeaf(TinyBackend):
    """Hears some transfers, or none."""

    sees = True
    capabilities = {ObservesTransfers: SomeTransfers}


def test_what_is_seen_in_part_is_checked_only_if_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = HalfDeaf("halfdeaf")
    monkeypatch.setattr("anyaccel.registry._registry", [Registry(NumpyBackend, entry_points=lambda: ())])
    registry().register(plugin_module("halfdeaf", backends=lambda: [backend]), "halfdeaf")
    monkeypatch.setitem(sys.modules, backend.import_roots[0], sys)
    with aa.ledger() as moved:
        pass
    assert "halfdeaf: what it whispers" in moved.not_covered
    with (
        pytest.raises(CapabilityError, match=r"halfdeaf: what it whispers.*no_transfers\(partial=True\)"),
        aa.no_transfers(["halfdeaf"]),
    ):
        pass
    event = TransferEvent(kind="wait", source=aa.Device("cpu"), target=aa.Device("cpu"), operation="look")
    with aa.no_transfers(["halfdeaf"], partial=True):
        pass
    with pytest.raises(TransferError, match="halfdeaf's look"), aa.no_transfers(["halfdeaf"], partial=True):
        backend.record(event)
    backend.sees = False  # nothing at all, so that nothing can be promised
    with (
        pytest.raises(CapabilityError, match="halfdeaf: what it whispers"),
        aa.no_transfers(["halfdeaf"], partial=True),
    ):
        pass


# -- the value -------------------------------------------------------------------------------------------------------


def test_totals_and_groups_refuse_what_there_is_not() -> None:
    with aa.ledger() as moved:
        pass
    with pytest.raises(ConfigError, match=r"'upload'. is not a kind"):
        moved.totals("upload")
    with pytest.raises(ConfigError, match=r"by.'colour'.: rows of a ledger have no such key"):
        moved.by("colour")  # type: ignore[arg-type]


def test_it_is_shown_as_table_page_and_json(sims: Simulation) -> None:
    with aa.ledger() as moved:
        aa.move(aa.move(X, "sim:0"), "sim:1")
    assert repr(moved) == "<Ledger: 2 transfers of 96 B, 1 wait>"
    text, page, data = str(moved), moved._repr_html_(), json.loads(moved.to_json())
    assert HERE in "".join(text.split()) and "device to device" in text  # long paths are wrapped
    assert "2 transfers of 96 B" in page and "device to device" in page
    assert data["totals"] == {"transfers": 2, "nbytes": 96, "waits": 1}
    assert [each["nbytes"] for each in data["rows"]] == [48, 48] and data["schema"] == 1


def test_labels_in_a_page_stay_text() -> None:
    from anyaccel_devtools.transfer_ledger import Ledger, LedgerRow

    words = dict.fromkeys(("kind", "framework", "source", "target", "operation", "line", "node", "edge"), "")
    row = LedgerRow(**words, phase="<script>alert(1)</script>", number=1, nbytes=1, waits=0)
    assert "<script>" not in Ledger(lambda: iter([row]), tuple)._repr_html_()


def test_measuring_devices_are_not_told() -> None:
    from anyaccel.numpy_backend.sim_device import counting

    device = SimDevice(0, None, True)
    with aa.ledger() as moved, counting([device]):
        device.uploaded(8)
    assert moved.transfers == 0 and device.transfers.into.number == 1


def test_a_ledger_imports_no_framework() -> None:
    code = """
import sys, anyaccel
with anyaccel.ledger() as moved:
    pass
print(moved.not_covered, sorted({"torch", "jax", "tensorflow"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "() []", done.stderr


def test_json_has_what_0_1_wrote() -> None:
    """Nothing here reads such a file, programs of others do."""
    written = json.loads(Path(__file__).with_name("ledger_0_1.json").read_text("utf-8"))
    with aa.ledger() as moved:
        aa.move(X, "cpu")
    now = moved.to_dict()
    assert now["schema"] == written["schema"] and now["rows"] == written["rows"] == []
    assert written.keys() <= now.keys() and written["totals"].keys() <= now["totals"].keys()


@pytest.mark.parametrize(
    "value",
    [None, 3, 2.5, "\x1b", b"x", ["a", 3], {"a": 1}, object(), np.ones(2)],
    ids=lambda value: type(value).__name__,
)
def test_a_wrong_argument_is_an_error_with_a_hint_or_valid(value: object) -> None:
    with aa.ledger() as moved:
        pass
    for call in (
        lambda: moved.by(value),  # type: ignore[arg-type]
        lambda: moved.totals(value),  # type: ignore[arg-type]
        lambda: aa.no_transfers(frameworks=value),  # type: ignore[arg-type]
        lambda: aa.no_transfers(["numpy"], partial=value),  # type: ignore[arg-type]
    ):
        try:
            call()
        except AnyaccelError as error:
            assert error.hint
        else:
            assert value is None
