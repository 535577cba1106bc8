"""MapSource: rows by number, one by one or by threads, in the requested order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from anyaccel.data import FeatureSet, MapSource, SimpleSampler
from anyaccel.errors import SourceError

X = np.arange(40, dtype=np.float32).reshape(10, 4)
Y = np.arange(10) * 10
Held = Callable[[], tuple[list[str], int]]


@dataclass
class Sample:
    x: Any
    y: Any


class Rows:
    """A map-style data set; `item` makes a row."""

    def __init__(self, item: Callable[[int], Any], n: int = 10) -> None:
        self.item, self.n = item, n
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        assert type(index) is int
        self.asked.append(index)
        return self.item(index)


class Together(Rows):
    def __getitems__(self, indices: list[int]) -> Any:
        return [self.item(index) for index in indices]

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("asked one by one")


def items(dataset: Any, **settings: Any) -> MapSource:
    return MapSource("s", dataset, **{"features": "x", "target": "y", **settings})


FORMS: dict[str, Callable[[int], Any]] = {
    "tuple": lambda i: (X[i], Y[i]),
    "list": lambda i: [X[i], int(Y[i])],
    "mapping": lambda i: {"y": Y[i], "x": X[i].copy(), "other": "left out"},
    "data class": lambda i: Sample(X[i], Y[i]),
}


@pytest.mark.parametrize("workers", [0, 1, 3, 30])
@pytest.mark.parametrize("kind", [Rows, Together])
@pytest.mark.parametrize("form", FORMS)
def test_rows_come_as_asked(form: str, kind: type[Rows], workers: int) -> None:
    made = items(kind(FORMS[form]), workers=workers)
    assert (made.rows, made.steps, made.repeats) == (10, None, True)
    for order in ([3, 1, 1, 9], np.array([0]), range(10)):
        columns = made.gather(order)
        assert list(columns) == ["x", "y"]
        assert np.array_equal(columns["x"], X[list(order)]) and columns["x"].dtype == np.float32
        assert np.array_equal(columns["y"], Y[list(order)]) and columns["y"].dtype == np.int64


def test_one_column_numbers_and_tags() -> None:
    alone = MapSource("s", Rows(lambda i: X[i]), features="x")
    assert np.array_equal(alone.gather([2, 0])["x"], X[[2, 0]])
    scalars = MapSource("s", [(0.5, True, "a"), (1.5, False, "b")], features=["x", "flag"], tags="t")
    columns = scalars.gather([1, 0])
    values = {name: column.tolist() for name, column in columns.items()}
    assert values == {"x": [1.5, 0.5], "flag": [False, True], "t": ["b", "a"]}
    assert (columns["x"].dtype, columns["flag"].dtype) == (np.float64, np.bool_)
    lists = MapSource("s", [{"x": [1, 2]}, {"x": [3, 4]}], features="x")
    assert lists.gather([1])["x"].tolist() == [[3, 4]]


def test_a_sampler_gives_the_order_of_a_feature_set() -> None:
    made = items(Rows(FORMS["tuple"]))
    same = FeatureSet.from_dict("s", {"x": X, "y": Y}, "x", "y")
    order = SimpleSampler(4, shuffle=True, seed=3).order(made.rows, 1)
    assert np.array_equal(made.gather(order)["y"], same.array("y")[order])


def test_the_example_reads_a_few_rows() -> None:
    dataset = Rows(FORMS["tuple"])
    made = items(dataset)
    assert len(made.example) == 4 and dataset.asked == [0, 1, 2, 3]
    assert str(made.spec("x")) == "float32[4]" and made.reference().targets == ("y",)
    assert repr(made) == "MapSource('s', 10 rows; columns: x, y)"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (X, r"the ndarray of source 's' is not a map-style data set.*FeatureSet\.from_dict"),
        ({0: (X, Y)}, "the dict of source 's' is not a map-style data set"),
        (iter([]), "the list_iterator of source 's' is not a map-style data set.*write IterableSource"),
        (None, "the NoneType of source 's' is not a map-style data set"),
        ([], "source 's' has no rows"),
    ],
)
def test_objects_that_are_not_map_style_data_sets(given: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        items(given)


def test_an_error_of_len_is_reported() -> None:
    class Broken(Rows):
        def __len__(self) -> int:
            raise OSError("the index is gone")

    with pytest.raises(SourceError, match=r"the length of source 's' cannot be read: OSError: the index is gone"):
        items(Broken(FORMS["tuple"]))


@pytest.mark.parametrize("workers", [-1, True, 1.5, "2"])
def test_workers_must_be_an_integer_of_0_or_more(workers: Any) -> None:
    with pytest.raises(SourceError, match=r"is not a number of threads"):
        items(Rows(FORMS["tuple"]), workers=workers)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([], r"k > 0, got float64\[0\]"),
        ([[1]], r"k > 0, got int64\[1, 1\]"),
        ([True], "k > 0, got bool"),
        ([10], "has no row 10. Available: rows 0 to 9"),
        ([-1, 2], "has no row -1"),
    ],
)
def test_invalid_row_numbers_are_refused(indices: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        items(Rows(FORMS["tuple"])).gather(indices)


def unlike(i: int) -> Any:
    return (X[i] if i != 7 else X[i, :2], Y[i])


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (unlike, r"column 'x' of row 7 of source 's' is float32\[2\].*float32\[4\]"),
        (lambda i: (X[i] if i != 7 else X[i].astype("float64"), Y[i]), r"column 'x' of row 7 .* is float64\[4\]"),
        (lambda i: (X[i], int(i) if i != 7 else 0.5), r"column 'y' of rows 6, 7 .* is float64\[\].*int64\[\]"),
        (lambda i: (X[i], Y[i]) if i != 7 else (X[i],), "row 7 of source 's' has 1 part for 2 columns"),
        (lambda i: {"x": X[i], "y": i} if i != 7 else {"x": X[i]}, "row 7 of source 's' has no column 'y'"),
        (lambda i: (X[i], i if i != 7 else None), "rows 6, 7 of source 's': column 'y' has NaN or null"),
        (lambda i: (X[i], i if i != 7 else "a"), "rows 6, 7 of source 's': column 'y' cannot be read"),
        (
            lambda i: (X[i], 1 / (i - 7)),
            "row 7 of source 's' could not be read: ZeroDivisionError: .*raised by the source",
        ),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_an_invalid_item_is_named(item: Callable[[int], Any], message: str, workers: int) -> None:
    made = items(Rows(item), workers=workers)
    made.gather([0, 1])
    with pytest.raises(SourceError, match=message):
        made.gather([6, 7])


def test_getitems_that_fails_or_gives_too_few() -> None:
    with pytest.raises(SourceError, match=r"rows 1, 2 of source 's' could not be read: ZeroDivisionError"):
        items(Together(lambda i: 1 // 0)).gather([1, 2])

    class Few(Together):
        def __getitems__(self, indices: list[int]) -> Any:
            return [(X[0], 1)]

    with pytest.raises(SourceError, match=r"rows 1, 2 of source 's': __getitems__ returned 1 items for 2 numbers"):
        items(Few(FORMS["tuple"])).gather([1, 2])


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, ZeroDivisionError])
@pytest.mark.parametrize("workers", [0, 3])
def test_threads_end_with_what_stops_them(interrupt: type[BaseException], workers: int, held: Held) -> None:
    begun: list[int] = []

    def stopped(i: int) -> Any:
        begun.append(i)
        if i == 1:
            raise interrupt
        return X[i], Y[i]

    made = items(Rows(stopped, 10), workers=workers)
    with pytest.raises((KeyboardInterrupt, SourceError)) as caught:
        made.gather(range(10))
    assert caught.type is (KeyboardInterrupt if interrupt is KeyboardInterrupt else SourceError)
    assert held()[1] == 0
    assert np.array_equal(made.gather([0, 2])["y"], Y[[0, 2]]), "it can be asked again"


def test_interrupt_of_the_loop_stops_the_threads(monkeypatch: pytest.MonkeyPatch, held: Held) -> None:
    """Ctrl-C reaches the waiting thread while the others read: they finish their item and begin no other."""
    import anyaccel.data.streaming.map_source as module

    begun, go = [], threading.Event()

    def slow(i: int) -> Any:
        begun.append(i)
        go.wait(60)
        return X[i], Y[i]

    class Pool(module.ThreadPoolExecutor):  # type: ignore[name-defined,misc]
        def submit(self, *given: Any, **settings: Any) -> Any:
            future = super().submit(*given, **settings)

            def interrupted(*_: Any) -> Any:
                while len(begun) < 2:
                    pass
                threading.Timer(0.05, go.set).start()
                raise KeyboardInterrupt

            future.result = interrupted
            return future

    monkeypatch.setattr(module, "ThreadPoolExecutor", Pool)
    with pytest.raises(KeyboardInterrupt):
        items(Rows(slow), workers=2).gather(range(10))
    assert len(begun) == 2 and held()[1] == 0


def test_a_data_set_is_read_by_one_thread_at_a_time() -> None:
    inside: list[int] = []
    most: list[int] = []

    def watched(i: int) -> Any:
        inside.append(i)
        most.append(len(inside))
        threading.Event().wait(0.001)
        inside.remove(i)
        return X[i], Y[i]

    made = items(Rows(watched))
    threads = [threading.Thread(target=made.gather, args=([i, i + 5],)) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 10 and max(most) == 1


def test_a_refused_batch_does_not_set_the_shape_of_others() -> None:
    rows = [{"x": np.zeros(2)}, {"x": np.zeros(3)}, {"x": np.ones(3)}]
    source = MapSource("s", rows, features=["x"])
    with pytest.raises(SourceError, match="row 1 of source 's'"):
        source.gather([0, 1])
    assert source.gather([1, 2])["x"].shape == (2, 3)
