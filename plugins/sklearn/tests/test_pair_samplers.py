"""PairSampler, TripletSampler and the conditions between two rows."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anyaccel import Beyond, Different, FeatureSet, PairSampler, Same, TripletSampler, Where, Within
from anyaccel.data import Rows, sampler_from_config
from anyaccel.errors import ColumnError, ConfigError, SamplerError
from anyaccel_sklearn import pair_samplers


def rows(**columns: Any) -> dict[str, Rows]:
    """A feature set `data` with a feature, a target `label` and any tags."""
    n = len(next(iter(columns.values())))
    targets = [name for name in columns if name == "label"]
    tags = [name for name in columns if name != "label"]
    return {"data": FeatureSet.from_dict("data", {"x": np.zeros((n, 2)), **columns}, ["x"], targets, tags)}


def orders(sampler: PairSampler | TripletSampler, of: dict[str, Rows], epoch: int = 0) -> tuple[np.ndarray, ...]:
    return sampler.shuffled(sampler.epoch_orders(of), epoch)


LABELS = np.array([0, 0, 1, 1, 1, 2])
TEMPS = np.array([1.0, 2.0, 3.0, 9.0, 10.0, 30.0])


def test_partners_have_the_same_value_and_are_never_the_row_itself() -> None:
    anchors, pairs = orders(PairSampler(4, Same("label"), per_anchor=50, shuffle=False), rows(label=LABELS))
    assert anchors.tolist() == [row for row in range(5) for _ in range(50)]  # 5 is alone
    assert (LABELS[anchors] == LABELS[pairs]).all() and (anchors != pairs).all()
    assert {(2, 3), (2, 4), (3, 2), (3, 4), (4, 2), (4, 3)} <= set(zip(anchors.tolist(), pairs.tolist(), strict=True))


def test_every_partner_is_as_likely() -> None:
    sampler = PairSampler(1, Different("label"), per_anchor=3000)
    anchors, pairs = orders(sampler, rows(label=LABELS))
    counts = Counter(pairs[anchors == 0].tolist())
    assert set(counts) == {2, 3, 4, 5} and all(abs(count - 750) < 100 for count in counts.values())


def test_conditions_are_anded_on_columns_of_any_role() -> None:
    of = rows(label=LABELS, site=["a", "b", "a", "b", "a", "a"], temp=TEMPS)
    conditions = [Same("label"), Different("site"), Within("temp", 6)]
    anchors, pairs = orders(PairSampler(4, conditions, per_anchor=30), of)
    drawn = set(zip(anchors.tolist(), pairs.tolist(), strict=True))
    assert drawn == {(0, 1), (1, 0), (2, 3), (3, 2), (3, 4), (4, 3)}


def test_distances_count_their_ends() -> None:
    near, far = (
        orders(PairSampler(1, condition("temp", 1.0), per_anchor=99), rows(temp=TEMPS))
        for condition in (Within, Beyond)
    )
    assert set(np.abs(TEMPS[near[0]] - TEMPS[near[1]])) == {1.0}
    assert (np.abs(TEMPS[far[0]] - TEMPS[far[1]]) > 1.0).all() and set(far[0].tolist()) == set(range(6))
    assert set(near[0].tolist()) == {0, 1, 2, 3, 4}


def test_a_function_judges_values() -> None:
    seen = []

    def above(anchor: Any, candidates: np.ndarray) -> np.ndarray:
        seen.append(anchor)
        return np.asarray(candidates == f"{anchor}+")

    of = rows(grade=["a", "a+", "b", "b+", "a", "c"])
    anchors, pairs = orders(PairSampler(2, Where("grade", above), shuffle=False), of)
    assert list(zip(anchors.tolist(), pairs.tolist(), strict=True)) == [(0, 1), (2, 3), (4, 1)]
    assert set(seen) == {"a", "a+", "b", "b+", "c"}


def test_missing_values_have_no_partners() -> None:
    of = rows(name=["a", None, "a", None, "b"], temp=[1.0, 2.0, np.nan, 1.0, 1.5])
    assert set(orders(PairSampler(1, Same("name"), per_anchor=9), of)[1].tolist()) == {0, 2}
    assert set(orders(PairSampler(1, Different("name"), per_anchor=9), of)[1].tolist()) == {0, 2, 4}
    for condition in (Within("temp", 9), Beyond("temp", 0.1)):
        assert 2 not in np.concatenate(orders(PairSampler(1, condition, per_anchor=9), of))


def test_nan_and_nulls_have_no_partners() -> None:
    """NaN counts as missing beside nulls, too, and 0.0 equals -0.0."""
    of = rows(t=pa.array([1.0, None, float("nan"), float("nan"), 1.0, 0.0, -0.0]))
    assert orders(PairSampler(2, Same("t"), shuffle=False), of)[0].tolist() == [0, 4, 5, 6]
    anchors, pairs = orders(PairSampler(2, Different("t"), per_anchor=20), of)
    assert not {1, 2, 3} & {*anchors.tolist(), *pairs.tolist()}
    assert not {(5, 6), (6, 5)} & set(zip(anchors.tolist(), pairs.tolist(), strict=True))


def test_pairs_of_a_second_kind() -> None:
    sampler = PairSampler(4, Same("label"), Different("label"), per_anchor=2, unlike_per_anchor=3, shuffle=False)
    anchors, pairs = orders(sampler, rows(label=LABELS))
    assert anchors.tolist() == [row for row in range(5) for _ in range(5)] + [5] * 3
    same = LABELS[anchors] == LABELS[pairs]
    assert same.tolist() == [True, True, False, False, False] * 5 + [False] * 3


def test_triplets_have_both() -> None:
    sampler = TripletSampler(2, [Same("label")], [Different("label"), Within("temp", 8)], per_anchor=30)
    anchors, positives, negatives = orders(sampler, rows(label=LABELS, temp=TEMPS))
    assert set(Counter(anchors.tolist()).values()) == {30} and set(anchors.tolist()) == {0, 1, 2, 3, 4}
    assert (LABELS[anchors] == LABELS[positives]).all() and (anchors != positives).all()
    assert (LABELS[anchors] != LABELS[negatives]).all() and (np.abs(TEMPS[anchors] - TEMPS[negatives]) <= 8).all()


def test_drawn_pairs_are_pinned() -> None:
    anchors, pairs = orders(PairSampler(2, Same("label"), seed=3), rows(label=LABELS), epoch=1)
    assert (anchors.tolist(), pairs.tolist()) == PINNED
    assert anchors.dtype == pairs.dtype == np.int64


PINNED = ([0, 2, 4, 1, 3], [1, 3, 2, 0, 2])


def test_a_column_of_one_of_several_feature_sets() -> None:
    first, other = rows(label=LABELS)["data"], FeatureSet.from_dict("more", {"z": LABELS}, ["z"])
    both: dict[str, Rows] = {"data": first, "more": other}
    for name in ("label", "data.label", "z", "more.z"):
        anchors, pairs = orders(PairSampler(2, Same(name)), both)
        assert (LABELS[anchors] == LABELS[pairs]).all()
    twin: dict[str, Rows] = {"data": first, "more": FeatureSet.from_dict("more", {"label": LABELS}, ["label"])}
    with pytest.raises(SamplerError, match=r"several feature sets. Available: data, more. Hint: write 'data.label'"):
        PairSampler(2, Same("label")).epoch_orders(twin)


@pytest.mark.parametrize("kinds", [2048, 0], ids=["kinds", "masks"])
def test_every_partner_by_several_conditions_is_as_likely(kinds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_samplers, "_KINDS", kinds)
    of = rows(label=LABELS, site=list("abcabc"), temp=[0.0, 0, 0, 0, 0, 9])
    sampler = PairSampler(1, [Different("site"), Within("temp", 1)], per_anchor=3000)
    anchors, pairs = orders(sampler, of)
    for anchor, wanted in ((0, {1, 2, 4}), (1, {0, 2, 3}), (2, {0, 1, 3, 4})):
        counts = Counter(pairs[anchors == anchor].tolist())
        assert set(counts) == wanted and all(abs(count - 3000 / len(wanted)) < 150 for count in counts.values())


# -- properties ------------------------------------------------------------------------------------------------------

FUNCTIONS = [Where("a", lambda anchor, candidates: candidates > anchor)]
CONDITIONS = st.lists(
    st.sampled_from(
        [
            Same("a"),
            Same("b"),
            Different("a"),
            Different("b"),
            Within("t", 1.5),
            Beyond("t", 1.5),
            Within("t", 0.0),
            *FUNCTIONS,
        ]
    ),
    min_size=1,
    max_size=3,
)


def fits(condition: Any, values: dict[str, Any], i: int, j: int) -> bool:
    first, other = values[condition.column][i], values[condition.column][j]
    if isinstance(condition, Where):
        return bool(other > first)
    if first is None or other is None or first != first or other != other:
        return False
    if isinstance(condition, Same):
        return bool(first == other)
    if isinstance(condition, Different):
        return bool(first != other)
    return (abs(first - other) <= condition.distance) == isinstance(condition, Within)


@pytest.mark.parametrize("kinds", [2048, 0], ids=["kinds", "masks"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), conditions=CONDITIONS, seed=st.integers(0, 2**40), per_anchor=st.integers(1, 3))
def test_every_anchor_with_a_partner_comes_per_anchor_times(
    monkeypatch: pytest.MonkeyPatch, kinds: int, data: st.DataObject, conditions: list[Any], seed: int, per_anchor: int
) -> None:
    monkeypatch.setattr(pair_samplers, "_KINDS", kinds)
    n = data.draw(st.integers(1, 12))
    values = {
        "a": data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)),
        "b": data.draw(st.lists(st.sampled_from(["p", "q", None]), min_size=n, max_size=n)),
        "t": data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 2.5, np.nan]), min_size=n, max_size=n)),
    }
    of = rows(**values)
    valid = {(i, j) for i in range(n) for j in range(n) if i != j and all(fits(r, values, i, j) for r in conditions)}
    sampler = PairSampler(3, conditions, per_anchor=per_anchor, seed=seed)
    if not valid:
        with pytest.raises(SamplerError, match="has a partner by"):
            sampler.epoch_orders(of)
        return
    draws = sampler.epoch_orders(of)
    epochs = [sampler.shuffled(draws, epoch) for epoch in (0, 1)]
    for anchors, pairs in epochs:
        assert set(zip(anchors.tolist(), pairs.tolist(), strict=True)) <= valid
        assert Counter(anchors.tolist()) == dict.fromkeys({i for i, _ in valid}, per_anchor)
        assert len(anchors) == draws.n
    again = orders(PairSampler(7, conditions, per_anchor=per_anchor, seed=seed, drop_last=True), of, 1)
    assert all(np.array_equal(first, other) for first, other in zip(epochs[1], again, strict=True))


def test_epochs_and_seeds_draw_anew() -> None:
    of = rows(label=np.arange(60) % 3)
    drawn = {
        tuple(
            map(tuple, (o.tolist() for o in orders(PairSampler(4, Same("label"), shuffle=mixed, seed=seed), of, epoch)))
        )
        for mixed in (False, True)
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(drawn) == 8


# -- bad input -------------------------------------------------------------------------------------------------------


def message_of(error: type[Exception], make: Any) -> str:
    with pytest.raises(error) as caught:
        make()
    return str(caught.value)


def test_no_row_has_a_partner() -> None:
    of = rows(label=[0, 1, 2], temp=[0.0, 0.0, 5.0])
    message = message_of(SamplerError, lambda: PairSampler(2, [Same("label"), Within("temp", 2)]).epoch_orders(of))
    assert message == (
        "no row of 'data' has a partner by Same('label') and Within('temp', 2); 3 rows; rows with one by "
        "Same('label'): 0, Within('temp', 2): 2. Hint: relax a condition, or use other rows."
    )
    both = rows(label=[0, 0, 1, 2], temp=[1.0, 1.0, 1.0, 9.0])
    message = message_of(SamplerError, lambda: TripletSampler(2, Same("label"), Beyond("temp", 8)).epoch_orders(both))
    assert "no row of 'data' has a negative by Beyond('temp', 8)" in message
    far = TripletSampler(2, Same("label"), [Beyond("temp", 1), Where("temp", lambda a, c: np.full(len(c), a > 5))])
    message = message_of(SamplerError, lambda: far.epoch_orders(both))
    assert "no row of 'data' has both a positive and a negative; 4 rows; 2 have a positive, 1 a neg" in message


def test_columns_that_are_not_there_or_cannot_be_compared() -> None:
    of = rows(label=LABELS, name=list("abcdef"))
    assert "'data' has no column 'lable'" in message_of(
        ColumnError, lambda: PairSampler(2, Same("lable")).epoch_orders(of)
    )
    assert "did you mean 'label'?" in message_of(ColumnError, lambda: PairSampler(2, Same("lable")).epoch_orders(of))
    message = message_of(SamplerError, lambda: PairSampler(2, Within("name", 1)).epoch_orders(of))
    assert "Within('name', 1) compares numbers, but 'name' is " in message and "use Same('name')" in message
    message = message_of(SamplerError, lambda: PairSampler(2, Same("x")).epoch_orders(of))
    assert "'x' of 'data' has [2] numbers in a row; rows are compared by one value per row" in message


def test_functions_that_give_something_else_than_a_mask() -> None:
    sampler = PairSampler(2, Where("label", lambda anchor, candidates: candidates - anchor))
    message = message_of(SamplerError, lambda: sampler.epoch_orders(rows(label=LABELS)))
    assert "returned int64[3], not a mask of the candidates; there are 3 candidates; a mask must be bool[3]" in message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: PairSampler(2, "label"),
            "match='label' is not a condition between two rows. Available: Same, Different",
        ),
        (lambda: PairSampler(2, []), "match has no condition. Hint: write match=Same('COLUMN')"),
        (lambda: PairSampler(2, Same("a"), 3), "unlike=3 is not a condition between two rows"),
        (lambda: TripletSampler(2, Same("a"), None), "negative=None is not a condition"),
        (lambda: PairSampler(0, Same("a")), "batch_size=0 is below 1"),
        (lambda: PairSampler(2, Same("a"), per_anchor=0), "per_anchor=0 is below 1"),
        (lambda: PairSampler(2, Same("a"), unlike_per_anchor=1.5), "unlike_per_anchor=1.5 is not an integer"),
        (lambda: TripletSampler(2, Same("a"), Same("b"), shuffle=1), "shuffle=1 is not True or False"),
        (lambda: Same(3), "Same needs the name of a column, got 3"),
        (lambda: Within("t", -1), "Within('t'): distance=-1 is not a number of 0 or more. Hint: write distance=0.5"),
        (lambda: Beyond("t", "far"), "Beyond('t'): distance='far' is not a number of 0 or more"),
        (lambda: Where("t", 3), "Where('t', 3) has no function"),
    ],
)
def test_invalid_settings_are_refused(make: Any, message: str) -> None:
    assert message in message_of(SamplerError, make)


@pytest.mark.parametrize(
    "sampler",
    [
        PairSampler(4, [Same("label"), Within("temp", 2.5)], Different("label"), per_anchor=2, seed=9),
        PairSampler(4, Beyond("temp", 1)),
        TripletSampler(4, Same("label"), [Different("label")], shuffle=False, drop_last=True),
    ],
)
def test_config_there_and_back(sampler: Any) -> None:
    assert sampler_from_config(json.loads(json.dumps(sampler.get_config()))) == sampler


def test_invalid_configurations_are_refused() -> None:
    good = PairSampler(4, Same("a")).get_config()
    assert "a sampler has no type 'quad'" in message_of(ConfigError, lambda: sampler_from_config({"type": "quad"}))
    for config in ({**good, "more": 1}, {"type": "pair", "batch_size": 3}, {**good, "type": "triplet"}):
        assert "is not the configuration of a " in message_of(ConfigError, lambda c=config: sampler_from_config(c))
    assert "match of a pair sampler must be a list of conditions, got 'a'" in message_of(
        ConfigError, lambda: PairSampler.from_config({**good, "match": "a"})
    )
    for config in (
        {"condition": "near"},
        {"condition": "same"},
        5,
        {"condition": "same", "column": "a", "distance": 2},
    ):
        message = message_of(ConfigError, lambda c=config: PairSampler.from_config({**good, "match": [c]}))
        assert "is not the configuration of a condition. Available: same: column; different: column" in message
    function = PairSampler(2, Where("a", lambda a, c: c == a))
    assert "is a function and has no configuration" in message_of(ConfigError, function.get_config)


def test_samplers_and_conditions_are_values() -> None:
    first, other = (PairSampler(4, [Same("a")], seed=np.int64(2)) for _ in range(2))  # type: ignore[arg-type]
    assert first == other and hash(first) == hash(other) and first != PairSampler(4, Same("b"), seed=2)
    assert repr(Within("t", 2)) == "Within('t', 2)" and str(Different("a")) == "Different('a')"
    assert repr(Same("a\x1b]0;owned")) == r"Same('a\x1b]0;owned')"
    with pytest.raises(AttributeError):
        first.seed = 1  # type: ignore[misc]
