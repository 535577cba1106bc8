"""References: their columns, streams and configurations."""

from __future__ import annotations

import numpy as np
import pytest

from anyaccel.data import FeatureSet, Reference
from anyaccel.errors import ColumnError, ConfigError


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
    ref = fs.reference(features=["b", "a"], target=(), tags="who")
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
    with pytest.raises(ColumnError, match=r"'fs' has no feature 'who', it is a tag. Available: features: a,"):
        fs.reference("who")
    assert fs.reference("y").features == ("y",)  # for models that compute their loss
    with pytest.raises(ColumnError, match=r"'fs' has no tag 'qqq'. Available: tags: who. Hint: use one of these names"):
        fs.reference(tags="qqq")


def test_roles_without_columns() -> None:
    bare = FeatureSet.from_dict("bare", {"x": [1]}, "x")
    assert bare.reference().targets == ()
    with pytest.raises(
        ColumnError, match=r"'bare' has no target 'y'. Available: targets: nothing. Hint: name it in target"
    ):
        bare.reference(target="y")


def test_names_once(fs: FeatureSet) -> None:
    with pytest.raises(ColumnError, match=r"feature 'a' of 'fs' is named twice. Hint: name it once"):
        fs.reference(["a", "b", "a"])


def test_config_there_and_back(fs: FeatureSet) -> None:
    ref = fs.reference(["b"], (), None)
    config = ref.get_config()
    assert config == {"feature_set": "fs", "features": ["b"], "targets": [], "tags": ["who"]}
    assert Reference.from_config(config, {"fs": fs}) == ref
    assert Reference.from_config({"feature_set": "fs"}, {"fs": fs}) == fs.reference()


@pytest.mark.parametrize("config", [[], {"features": ["a"]}, {"feature_set": "fs", "strange": 1}])
def test_invalid_configurations_are_refused(fs: FeatureSet, config: dict[str, object]) -> None:
    with pytest.raises(
        ConfigError, match=r"is not the configuration of a reference. Available: keys: feature_set, features"
    ):
        Reference.from_config(config, {"fs": fs})


def test_configurations_of_other_feature_sets(fs: FeatureSet) -> None:
    with pytest.raises(
        ConfigError,
        match=r"names the feature set 'f', which is not in feature_sets. Available: fs. Hint: did you "
        r"mean 'fs'",
    ):
        Reference.from_config({"feature_set": "f"}, {"fs": fs})
    with pytest.raises(ConfigError, match=r"which is not in feature_sets\. Hint: add it to feature_sets"):
        Reference.from_config({"feature_set": "f"}, {})
    with pytest.raises(ColumnError, match=r"no feature 'zz'"):
        Reference.from_config({"feature_set": "fs", "features": ["zz"]}, {"fs": fs})
