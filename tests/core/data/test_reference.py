"""References, and columns read together as one tensor."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel.data import FeatureSet, Reference, joined_array, joined_changes, joined_spec
from anyaccel.errors import ColumnError, ConfigError
from anyaccel.segment import TensorSpec


@pytest.fixture
def fs() -> FeatureSet:
    data = {
        "a": np.arange(3, dtype=np.float32),
        "b": np.ones((3, 2), np.float32),
        "wide": np.ones((3, 4, 2), np.float32),
        "wider": np.ones((3, 4, 3), np.float32),
        "n": np.arange(3),
        "y": np.arange(3),
        "who": ["x", "y", "z"],
    }
    return FeatureSet.from_dict("fs", data, ["a", "b", "wide", "wider", "n"], ["y"], ["who"])


def test_none_is_all_of_a_role(fs: FeatureSet) -> None:
    ref = fs.reference()
    assert (ref.feature_set, ref.features, ref.targets, ref.tags) == (fs, fs.features, ("y",), ("who",))


def test_chosen_columns_keep_their_order(fs: FeatureSet) -> None:
    ref = fs.reference(features=["b", "a"], targets=(), tags="who")
    assert (ref.features, ref.targets, ref.tags) == (("b", "a"), (), ("who",))


def test_references_are_values(fs: FeatureSet) -> None:
    assert fs.reference("a") == fs.reference(["a"]) != fs.reference("b")
    assert len({fs.reference("a"), fs.reference(("a",)), fs.reference("b")}) == 2
    with pytest.raises(AttributeError):
        fs.reference().features = ()  # type: ignore[misc]


def test_unknown_names(fs: FeatureSet) -> None:
    message = "'fs' has no feature 'wid'. Available: features: a, b, wide, wider, n. Hint: did you mean 'wide'"
    with pytest.raises(ColumnError, match=message):
        fs.reference("wid")
    with pytest.raises(ColumnError, match=r"'fs' has no feature 'y', it is a target. Available: features: a,"):
        fs.reference("y")
    with pytest.raises(ColumnError, match=r"'fs' has no tag 'qqq'. Available: tags: who. Hint: use one of these names"):
        fs.reference(tags="qqq")


def test_roles_that_nobody_has() -> None:
    bare = FeatureSet.from_dict("bare", {"x": [1]}, "x")
    assert bare.reference().targets == ()
    with pytest.raises(
        ColumnError, match=r"'bare' has no target 'y'. Available: targets: nothing. Hint: name it in target_keys"
    ):
        bare.reference(targets="y")


def test_names_once(fs: FeatureSet) -> None:
    with pytest.raises(ColumnError, match=r"feature 'a' of 'fs' was named twice. Hint: name it once"):
        fs.reference(["a", "b", "a"])


def test_config_there_and_back(fs: FeatureSet) -> None:
    ref = fs.reference(["b"], (), None)
    config = ref.get_config()
    assert config == {"feature_set": "fs", "features": ["b"], "targets": [], "tags": ["who"]}
    assert Reference.from_config(config, {"fs": fs}) == ref
    assert Reference.from_config({"feature_set": "fs"}, {"fs": fs}) == fs.reference()


@pytest.mark.parametrize("config", [[], {"features": ["a"]}, {"feature_set": "fs", "strange": 1}])
def test_configurations_that_are_none(fs: FeatureSet, config: dict[str, object]) -> None:
    with pytest.raises(
        ConfigError, match=r"is not the configuration of a reference. Available: keys: feature_set, features"
    ):
        Reference.from_config(config, {"fs": fs})


def test_configurations_of_other_feature_sets(fs: FeatureSet) -> None:
    with pytest.raises(
        ConfigError, match=r"names the feature set 'f', which was not given. Available: fs. Hint: did you mean 'fs'"
    ):
        Reference.from_config({"feature_set": "f"}, {"fs": fs})
    with pytest.raises(ConfigError, match=r"Available: nothing. Hint: give it in feature_sets"):
        Reference.from_config({"feature_set": "f"}, {})
    with pytest.raises(ColumnError, match=r"no feature 'zz'"):
        Reference.from_config({"feature_set": "fs", "features": ["zz"]}, {"fs": fs})


def test_one_column_is_as_it_is(fs: FeatureSet) -> None:
    assert joined_spec(fs, ["a"]) == TensorSpec((), "float32")
    assert joined_array(fs, ["a"]) is fs.array("a")
    assert joined_array(fs, ("wide",)).shape == (3, 4, 2)


def test_several_columns_are_joined_along_the_last_axis(fs: FeatureSet) -> None:
    assert joined_spec(fs, ["a", "b", "a"]) == TensorSpec((4,), "float32")
    assert joined_array(fs, ["a", "b", "a"]).tolist() == [[i, 1, 1, i] for i in range(3)]
    assert joined_spec(fs, ["wide", "wider"]) == TensorSpec((4, 5), "float32")
    assert joined_array(fs, ["wide", "wider"]).shape == (3, 4, 5)
    assert not joined_array(fs, ["a", "b"]).flags.writeable


def test_views_are_joined_too(fs: FeatureSet) -> None:
    view = fs.add_split("s", [2, 0])
    assert joined_spec(view, ["a", "b"]) == TensorSpec((3,), "float32")
    assert joined_array(view, ["a", "b"]).tolist() == [[2, 1, 1], [0, 1, 1]]


@pytest.mark.parametrize(
    ("names", "first", "second"),
    [
        (["n", "wide"], r"'n' \(int64\[\]\)", r"'wide' \(float32\[4, 2\]\)"),
        (["a", "b", "wide"], r"'a' \(float32\[\]\)", r"'wide' \(float32\[4, 2\]\)"),
    ],
)
def test_columns_that_do_not_fit(fs: FeatureSet, names: list[str], first: str, second: str) -> None:
    for join in (joined_spec, joined_array):
        with pytest.raises(
            ColumnError, match=rf"columns {first} and {second} of 'fs' cannot be joined.*separate references as"
        ):
            join(fs, names)


def test_columns_to_join_are_there(fs: FeatureSet) -> None:
    with pytest.raises(ColumnError, match=r"no columns of 'fs' were named. Available: a, b, .*name at least one"):
        joined_spec(fs, [])
    with pytest.raises(ColumnError, match=r"no column 'z'"):
        joined_array(fs, ["a", "z"])
    with pytest.raises(ColumnError, match=r"'who' cannot be read as numbers"):
        joined_spec(fs, ["who"])


def mixed() -> FeatureSet:
    data = {
        "flag": np.array([True, False]),
        "half": np.array([0.5, 1.5], "float16"),
        "single": np.array([0.1, 0.2], "float32"),
        "double": np.array([0.1, 0.2]),
        "small": np.array([-3, 3], "int16"),
        "large": np.array([2**24 + 1, -1], "int32"),
        "huge": np.array([1, 2**53 + 1], "int64"),
        "unsigned": np.array([1, 2**63], "uint64"),
    }
    return FeatureSet.from_dict("fs", data, list(data))


@pytest.mark.parametrize(
    ("names", "dtype", "changes"),
    [
        (["large", "double"], "float64", ("large int32 as float64",)),
        (["single", "double"], "float64", ("single float32 as float64",)),
        (["flag", "single"], "float32", ("flag bool as float32",)),
        (["small", "flag", "single"], "float32", ("small int16 as float32", "flag bool as float32")),
        (["small", "huge"], "int64", ("small int16 as int64",)),
        (["flag", "small"], "int16", ("flag bool as int16",)),
        (["flag", "flag"], "bool", ()),
        (["large"], "int32", ()),
    ],
)
def test_columns_of_several_dtypes_are_promoted(names: list[str], dtype: str, changes: tuple[str, ...]) -> None:
    fs = mixed()
    joined = joined_array(fs, names)
    assert joined_spec(fs, names).dtype == dtype == joined.dtype
    assert joined_changes(fs, names) == changes
    for index, name in enumerate(names if len(names) > 1 else ()):
        np.testing.assert_array_equal(joined[:, index], fs.array(name))


@pytest.mark.parametrize(
    ("names", "later", "told"),
    [
        (
            ["double", "huge"],
            None,
            r"'huge' of 'fs' is joined with floats as float64: row 1 holds 9007199254740993.*53",
        ),
        (["single", "unsigned"], None, r"'unsigned' .* float64: row 1 holds 9223372036854775808"),
        (
            ["double", "large"],
            "float32",
            r"'large' .* float32: row 0 holds 16777217.*2\*\*24 exactly.*take 'large' out",
        ),
    ],
)
def test_integers_that_floats_cannot_hold_are_not_rounded(names: list[str], later: str | None, told: str) -> None:
    with pytest.raises(ColumnError, match=told):
        joined_array(mixed(), names, later)


def test_integers_without_a_common_dtype_are_not_made_floats() -> None:
    for join in (joined_spec, joined_array):
        with pytest.raises(
            ColumnError,
            match=r"'small' \(int16\S*\) and 'unsigned' .*cannot be joined. Available: no integer dtype holds both. "
            r"Hint: cast\(\{'unsigned': 'int64'\}, keep_splits=True\)",
        ):
            join(mixed(), ["flag", "small", "unsigned"])
