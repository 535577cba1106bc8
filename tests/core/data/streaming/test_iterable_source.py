"""IterableSource: batches by name or position, opened anew for every epoch."""

from __future__ import annotations

import gc
import itertools
from collections import UserDict, deque, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anyaccel.data import FeatureSet, IterableSource
from anyaccel.errors import ColumnError, DataError, SourceError

X = np.arange(12, dtype=np.float32).reshape(3, 4)
Y = np.array([0, 1, 2])
TABLE = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), 4), "y": Y})
Pair = namedtuple("Pair", "x y")


@dataclass
class Sample:
    y: Any
    x: Any
    note: str = "not asked for"


def source(given: Any, **settings: Any) -> IterableSource:
    return IterableSource("s", given, **{"features": "x", "target": "y", **settings})


def pairs(count: int = 3) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for number in range(count):
        yield X + number, Y + number


def taken(given: IterableSource, epoch: int = 0) -> list[dict[str, np.ndarray]]:
    return [dict(batch) for batch in given.batches(epoch)]


FORMS = {
    "tuple": (X, Y),
    "list": [X, Y],
    "mapping": {"y": Y, "x": X, "z": "left out"},
    "user's mapping": UserDict(x=X, y=Y),
    "data class": Sample(Y, X),
    "named tuple": Pair(X, Y),
    "named tuple of other names": namedtuple("Other", "a b")(X, Y),
    "table": TABLE,
    "record batch": TABLE.to_batches()[0],
    "mapping in a tuple": ({"x": X}, Y),
    "mappings in a tuple": ({"x": X}, {"y": Y}),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_a_batch(form: str) -> None:
    made = source([FORMS[form]] * 2)
    assert (made.steps, made.rows) == (2, None)
    batches = taken(made)
    assert len(batches) == 2
    for batch in batches:
        assert list(batch) == ["x", "y"]
        assert np.array_equal(batch["x"], X) and batch["x"].dtype == np.float32
        assert np.array_equal(batch["y"], Y) and batch["y"].dtype == np.int64


def test_parts_within_parts() -> None:
    nested = IterableSource("s", [((X, X + 1), Y)], features=["a", "b"], target="y")
    assert np.array_equal(taken(nested)[0]["b"], X + 1)
    listed = IterableSource("s", [[[X, X + 1], Y]], features=["a", "b"], target="y")
    assert np.array_equal(taken(listed)[0]["b"], X + 1)


@pytest.mark.parametrize("batch", [X, [X], (X,), X.tolist(), {"x": X}, [np.float32(1), np.float32(2)]])
def test_a_batch_of_one_column(batch: Any) -> None:
    result = taken(IterableSource("s", [batch], features="x"))[0]["x"]
    assert result.shape[1:] in ((4,), ())
    assert len(result) == (3 if result.ndim == 2 else len(batch))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (Y.astype("int8"), "int8"),
        ([1, 2, 3], "int64"),
        ([0.5, 1, 2], "float64"),
        ([True, False, True], "bool"),
        (pa.array([1, 2, 3], "uint8"), "uint8"),
        (pa.chunked_array([[1.0], [2.0, 3.0]], "float"), "float32"),
        (Y.astype(">i4"), "int32"),
        (np.ma.masked_array(Y, mask=False), "int64"),
        ([np.array([1.5], "float16"), np.array([2.5], "float16"), np.array([2.5], "float16")], "float16"),
    ],
)
def test_values_keep_their_dtype(value: Any, dtype: str) -> None:
    made = source([(X, value)])
    result = taken(made)[0]["y"]
    assert str(result.dtype) == dtype and result.dtype.isnative
    assert made.spec("y").dtype == dtype


def test_tags_that_no_column_holds() -> None:
    with pytest.raises(SourceError, match=r"batch 0 .*: column 't' cannot be read"):
        source([(X, Y, [1, "a", b"b"])], tags="t").example  # noqa: B018


def test_arrays_are_not_copied() -> None:
    assert np.shares_memory(taken(source([(X, Y)]))[0]["x"], X)


def test_frames_and_series_of_pandas() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"x": X[:, 0], "y": pd.Series(Y, dtype="Int16")})
    (result,) = taken(source([frame]))
    assert np.array_equal(result["x"], X[:, 0]) and result["y"].dtype == np.int16
    (alone,) = taken(IterableSource("s", [frame["x"]], features="x"))
    assert np.array_equal(alone["x"], X[:, 0])
    with pytest.raises(SourceError, match=r"the DataFrame given as source 's' is data.*from_pandas"):
        source(frame)


class Foreign:
    """An array of an unknown library, with NumPy's protocol or DLPack."""

    def __init__(self, array: np.ndarray, protocol: str, error: Exception | None = None) -> None:
        def given(*_: Any, **__: Any) -> Any:
            if error is not None:
                raise error
            return array.__dlpack__() if protocol == "dlpack" else array

        self.given = given
        self.array = array


class ByNumPy(Foreign):
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.given()


class ByDLPack(Foreign):
    def __dlpack__(self, **_: Any) -> Any:
        return self.given()

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_values_by_protocol() -> None:
    assert np.array_equal(taken(source([(ByNumPy(X, "array"), Y)]))[0]["x"], X)
    assert np.array_equal(taken(source([(ByDLPack(X.copy(), "dlpack"), Y)]))[0]["x"], X)
    with pytest.raises(
        SourceError, match=r"column 'x' is a .*ByNumPy that NumPy cannot read: on a card.*the plugin of"
    ):
        taken(source([(ByNumPy(X, "array", TypeError("on a card")), Y)]))


def test_tags_are_anything() -> None:
    made = source([(X, Y, ["a", "b", None]), (X, Y, np.array(["c", "d", "e"]))], tags="t")
    first, second = taken(made)
    assert first["t"].tolist() == ["a", "b", None] and second["t"].tolist() == ["c", "d", "e"]
    assert made.tags == ("t",) and made.example.column("t").to_pylist() == ["a", "b", None]
    numbers = source([(X, Y, Y)], tags="t")
    assert taken(numbers)[0]["t"].dtype == np.int64


def test_example_wires_a_graph_before_anything_runs() -> None:
    made = source(pairs)
    assert made.example.label == made.label == "s"
    assert (made.columns, made.features, made.targets, made.tags) == (("x", "y"), ("x",), ("y",), ())
    assert str(made.spec("x")) == "float32[4]"
    assert made.example is made.example and len(made.example) == 3
    reference = made.reference(["x"], ())
    assert isinstance(reference.feature_set, FeatureSet) and reference.features == ("x",)
    assert repr(made) == "IterableSource('s', columns: x, y)"
    assert repr(source([(X, Y)])) == "IterableSource('s', 1 batches; columns: x, y)"


def test_the_example_costs_no_second_reading() -> None:
    opened: list[int] = []

    def counted() -> Iterator[Any]:
        opened.append(len(opened))
        yield from pairs()

    made = source(counted)
    assert str(made.spec("y")) == "int64[]"
    assert len(taken(made, 0)) == 3 and opened == [0]
    assert len(taken(made, 1)) == 3 and opened == [0, 1]
    assert not made.repeats


def test_an_example_is_made_of_what_ran() -> None:
    made = source(pairs())
    assert len(taken(made)) == 3
    assert np.array_equal(made.example.array("y"), Y)


@pytest.mark.parametrize("given", [pairs, [(X, Y)] * 3, deque([(X, Y)] * 3), lambda: iter(list(pairs()))])
def test_every_epoch_opens_anew(given: Any) -> None:
    made = source(given)
    assert [len(taken(made, epoch)) for epoch in range(3)] == [3, 3, 3]


def test_functions_are_given_the_epoch() -> None:
    made = source(lambda epoch: [(X, Y + epoch)])
    assert [taken(made, epoch)[0]["y"][0] for epoch in (0, 1, 5)] == [0, 1, 5]
    keyword = source(lambda *, epoch=None, other=3: [(X, Y + epoch)])
    assert taken(keyword, 4)[0]["y"][0] == 4
    held = source(lambda epoch: [(X, Y + epoch)])
    assert held.example.array("y")[0] == 0
    assert taken(held, 2)[0]["y"][0] == 2, "what was opened for the example is that of epoch 0"


class Told:
    """Gives a batch that holds the number of the epoch last given to `set_epoch`."""

    def __init__(self, part: str = "") -> None:
        self.epoch = -1
        if part:
            setattr(self, part, Told())

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        yield X, Y + getattr(self, "sampler", self).epoch


@pytest.mark.parametrize("part", ["", "sampler"])
def test_set_epoch_is_called(part: str) -> None:
    made = source(Told(part))
    assert [taken(made, epoch)[0]["y"][0] for epoch in (0, 3)] == [0, 3]


# -- lengths ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("endless", [itertools.count(), itertools.cycle([(X, Y)]), itertools.repeat((X, Y))])
def test_a_source_that_is_known_to_never_end(endless: Any) -> None:
    with pytest.raises(SourceError, match=rf"a {type(endless).__name__}, never ends.*steps=1000"):
        source(endless)


class Infinite:
    def __iter__(self) -> Iterator[Any]:
        while True:
            yield X, Y

    def __len__(self) -> int:
        raise TypeError("it has no end")

    def cardinality(self) -> int:
        return -1


def test_a_data_set_that_says_it_never_ends() -> None:
    with pytest.raises(SourceError, match=r"never ends"):
        source(Infinite())
    assert len(taken(source(Infinite(), steps=4))) == 4


def test_other_meanings_of_cardinality_are_ignored() -> None:
    class Other(Infinite):
        def __iter__(self) -> Iterator[Any]:
            return pairs()

        def cardinality(self, of: str) -> int:
            raise AssertionError("not asked")

    assert len(taken(source(Other()))) == 3


def test_steps_cut_what_never_ends() -> None:
    numbers = itertools.count()
    made = source(((X, Y + number) for number in numbers), steps=2)
    assert made.steps == 2
    assert [[int(batch["y"][0]) for batch in taken(made, epoch)] for epoch in (0, 1, 2)] == [[0, 1], [2, 3], [4, 5]]
    finite = source(itertools.repeat((X, Y), 3))
    assert len(taken(finite)) == 3


def test_a_source_with_fewer_batches_than_steps() -> None:
    with pytest.raises(SourceError, match=r"returned 3 of the 5 batches promised by steps, in epoch 0"):
        taken(source(pairs, steps=5))


class Lies(list):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 2


@pytest.mark.parametrize(("count", "gave"), [(1, "1 of the 2"), (3, "more than the 2")])
def test_a_wrong_length_is_an_error(count: int, gave: str) -> None:
    with pytest.raises(SourceError, match=f"returned {gave} batches promised by its len...*lambda: loader"):
        taken(source(Lies([(X, Y)] * count)))


@pytest.mark.parametrize("steps", [0, -1, True, 1.5, "3"])
def test_steps_must_be_a_positive_integer(steps: Any) -> None:
    with pytest.raises(SourceError, match=r"is not a number of batches.*write steps=1000"):
        source(pairs, steps=steps)


# -- what cannot be taken --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", [[], list, iter(())])
def test_empty_sources_are_refused(empty: Any) -> None:
    with pytest.raises(SourceError, match=r"source 's' has no rows"):
        taken(source(empty))
    with pytest.raises(SourceError, match=r"source 's' has no rows"):
        source(empty).example  # noqa: B018


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ((X[:2], Y), r"the columns of batch 1 of source 's' in epoch 0 .* differ in length; x: 2, y: 3"),
        ((X[:0], Y[:0]), r"batch 1 of source 's' in epoch 0 .* has no rows.*leave empty batches out"),
        ((X.astype("float64"), Y), r"column 'x' of batch 1 of source 's' .* is float64\[4\].*it is float32\[4\]"),
        ((X[:, :2], Y), r"column 'x' of batch 1 .* is float32\[2\].*float32\[4\]"),
        ((X, Y[:, None]), r"column 'y' of batch 1 .* is int64\[1\].*int64\[\]"),
        ((X,), r"batch 1 .* has 1 part for 2 columns.*columns: x, y; parts: ndarray"),
        ((X, Y, Y), r"batch 1 .* has 3 parts for 2 columns.*name one column for each part"),
        ({"x": X}, r"batch 1 .* has no column 'y'\. Available: x"),
        ({"x": X, "y": Y, "z": 1}, r"batch 1 .* has a new column 'x'.*its columns by position"),
        (None, r"batch 1 .* has 1 part for 2 columns.*parts: NoneType"),
        ((X, 3), r"column 'y' of batch 1 .* is a single int.*source\.batch\(32\)"),
        ((X, Y[0]), r"column 'y' of batch 1 .* is a single int64"),
        ((X, ["a", "b", "c"]), r"batch 1 .*: column 'y' cannot be read as numbers: it is of type <U1"),
        ((X, [1, None, 2]), r"batch 1 .*: column 'y' has NaN or null among integers in 1 of 3 rows"),
        ((X, [[1], [2, 3], [4]]), r"batch 1 .*: column 'y' is ragged"),
        ((np.empty((3, 0), "float32"), Y), r"batch 1 .*: column 'x' has samples of shape \[0\]"),
        ((X.astype("complex64"), Y), r"batch 1 .*: column 'x' cannot be read as numbers: it is of type complex64"),
        (([Foreign, Foreign], Y), r"batch 1 .*: column 'x' cannot be read as numbers"),
    ],
)
def test_an_invalid_batch_is_named(second: Any, message: str) -> None:
    made = source([(X, Y), second])
    run = made.batches(0)
    next(run)
    with pytest.raises(SourceError, match=message):
        next(run)


def test_a_new_column_by_name() -> None:
    with pytest.raises(SourceError, match=r"batch 1 .* has a new column 'w'; the first batch has x, y, z"):
        taken(source([{"x": X, "y": Y, "z": 1}, {"x": X, "y": Y, "z": 1, "w": 2}]))


def test_tensors_of_different_shapes_in_a_list() -> None:
    tensors = [ByNumPyTensor(X[0]), ByNumPyTensor(X[0][:2])]
    with pytest.raises(SourceError, match=r"column 'x' is ragged"):
        taken(source([(tensors, [1, 2])]))


def test_tensors_of_a_library_without_a_plugin_in_a_list() -> None:
    result = taken(source([([ByNumPyTensor(row) for row in X], Y)]))[0]["x"]
    assert np.array_equal(result, X)


class ByNumPyTensor(ByNumPy):
    def __init__(self, array: np.ndarray) -> None:
        super().__init__(array, "array")
        self.shape, self.dtype = array.shape, "a dtype of its own"


def test_an_iterator_is_read_once() -> None:
    made = source(pairs())
    assert len(taken(made)) == 3
    with pytest.raises(SourceError, match=r"is an iterator \(generator\) and was read before.*without calling it"):
        made.batches(1)


def test_a_function_that_gives_the_same_iterator_again() -> None:
    once = pairs()
    made = source(lambda: once)
    assert len(taken(made)) == 3
    with pytest.raises(SourceError, match=r"returned no batch in epoch 1, although it did in earlier.*a new iterator"):
        taken(made, 1)


def test_an_error_of_the_source_names_its_batch() -> None:
    def broken() -> Iterator[Any]:
        yield X, Y
        raise ValueError("a file of mine\nis gone")

    run = source(broken).batches(2)
    next(run)
    with pytest.raises(
        SourceError, match=r"batch 1 of source 's' in epoch 2 .*could not be read: ValueError: is gone"
    ) as result:
        next(run)
    assert isinstance(result.value.__cause__, ValueError)


def test_errors_without_text_and_with_many_lines() -> None:
    def broken(error: Exception) -> Iterator[Any]:
        raise error
        yield

    with pytest.raises(SourceError, match=r"could not be read: KeyError\. Hint"):
        taken(source(lambda: broken(KeyError())))
    with pytest.raises(SourceError, match=r"ValueError: a{300}\.\.\. "):
        taken(source(lambda: broken(ValueError("a" * 400))))


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_interrupts_are_not_wrapped(interrupt: type[BaseException]) -> None:
    closed: list[bool] = []

    def stopped() -> Iterator[Any]:
        try:
            yield X, Y
            raise interrupt
        finally:
            closed.append(True)

    made = source(stopped)
    with pytest.raises(interrupt):
        taken(made)
    assert closed == [True]
    with pytest.raises(interrupt):
        taken(made, 1)


def test_a_function_that_fails_or_gives_no_iterable() -> None:
    def failing() -> Any:
        raise OSError("no such disk")

    with pytest.raises(SourceError, match=r"source 's' cannot be opened for epoch 0: OSError: no such disk"):
        taken(source(failing))
    for wrong in (dict, lambda: None, lambda: X, lambda: {"x": X}, lambda: 3):
        with pytest.raises(SourceError, match=r"the function of source 's' returned a .*yield batches"):
            taken(source(wrong))


def test_a_function_with_arguments() -> None:
    with pytest.raises(
        SourceError, match=r"the function of source 's' needs path, size.*lambda: make_batches\(\.\.\.\)"
    ):
        source(lambda path, size, epoch: [])
    assert len(taken(source(lambda *more, **settings: pairs()))) == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("train.parquet", "the str given as source 's' is data.*ParquetStream"),
        ({"x": X}, r"the dict given as source 's' is data.*FeatureSet\.from_dict"),
        (X, r"the ndarray given as source 's' is data.*FeatureSet\.from_dict"),
        (pa.table({"x": [1]}), r"the Table given .*from_arrow"),
        (FeatureSet.from_dict("f", {"x": X}, "x"), "the FeatureSet given .*pass it to the phase directly"),
        (3, "a int is not a source of batches for 's'.*a function that yields batches"),
        (None, "a NoneType is not a source of batches"),
    ],
)
def test_objects_that_are_not_sources_of_batches(given: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        source(given)


def test_rows_by_number_are_items() -> None:
    class Rows:
        def __getitem__(self, index: int) -> Any:
            return X[index], Y[index]

    with pytest.raises(SourceError, match=r"the Rows of source 's' returns rows by number.*write MapSource"):
        source(Rows())


def test_invalid_labels_and_roles() -> None:
    with pytest.raises(DataError, match=r"'a.b' is not a label"):
        IterableSource("a.b", pairs, features="x")
    with pytest.raises(ColumnError, match=r"'s' has no feature"):
        IterableSource("s", pairs, features=(), target="y")
    with pytest.raises(ColumnError, match=r"column 'x' of 's' cannot be a target"):
        IterableSource("s", pairs, features="x", target="x")


# -- nothing is left open --------------------------------------------------------------------------------------------


class Opened:
    """Iterables that count how many of them are open."""

    def __init__(self) -> None:
        self.open = 0

    def __call__(self) -> Iterator[Any]:
        self.open += 1
        try:
            yield from pairs()
        finally:
            self.open -= 1


def test_an_epoch_that_is_left_is_closed() -> None:
    opened = Opened()
    made = source(opened)
    run = made.batches(0)
    next(run)
    assert opened.open == 1
    run.close()
    assert opened.open == 0
    assert len(taken(made, 1)) == 3 and opened.open == 0


def test_close_closes_the_iterator_of_the_example() -> None:
    opened = Opened()
    with source(opened) as made:
        assert len(made.example) == 3 and opened.open == 1
    assert opened.open == 0
    assert len(taken(made, 0)) == 3 and opened.open == 0
    other = source(opened)
    assert len(other.example) == 3 and opened.open == 1
    assert len(taken(other, 3)) == 3 and opened.open == 0, "another epoch opens anew, and closes what was held"
    third = source(opened)
    assert len(third.example) == 3
    run = third.batches(0)
    next(run)
    run.close()
    assert opened.open == 0
    fourth = source(opened)
    assert len(fourth.example) == 3
    unused = fourth.batches(0)
    del unused, fourth
    gc.collect()
    assert opened.open == 0


def test_close_keeps_the_batch_that_was_taken_of_a_users_iterator() -> None:
    made = source(pairs())
    assert len(made.example) == 3
    made.close()
    assert len(taken(made, 0)) == 3, "an iterator cannot give it again"


def test_an_error_closes_what_was_opened() -> None:
    class Loader(list):  # type: ignore[type-arg]
        closed = 0

        def __iter__(self) -> Any:
            loader = self

            class Each:
                def __iter__(self) -> Any:
                    return self

                def __next__(self) -> Any:
                    raise ValueError("no more")

                def close(self) -> None:
                    loader.closed += 1

            return Each()

    loader = Loader([1])
    with pytest.raises(SourceError, match=r"no more"):
        taken(source(loader))
    assert loader.closed == 1


def test_a_users_iterator_stays_open() -> None:
    mine = pairs()
    run = source(mine).batches(0)
    next(run)
    run.close()
    assert len(list(mine)) == 2, "it is the user's own"


def test_columns_are_found_in_nested_mappings() -> None:
    nested = [{"inputs": {"x": X, "extra": X}, "labels": {"y": Y}}]
    batch = next(IterableSource("s", nested, features="x", target="y").batches(0))
    assert np.array_equal(batch["x"], X) and np.array_equal(batch["y"], Y)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"a": {"x": X}, "b": {"x": X}}, r"has 2 columns 'x' in nested mappings.*Hint: give each a different name"),
        ({"a": {"xs": X}}, r"has no column 'x'. Available: a, xs. Hint: did you mean 'xs'|has no column 'x'.*xs"),
    ],
)
def test_names_in_nested_mappings_are_told(batch: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        next(IterableSource("s", [batch], features="x").batches(0))
