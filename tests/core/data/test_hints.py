"""Hints of errors that show code: running that code succeeds."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anyaccel.data import FeatureSet, SimpleSampler, joined_spec
from anyaccel.errors import AnyaccelError


def example() -> FeatureSet:
    data = {
        "x": np.arange(12.0).reshape(6, 2),
        "big": np.arange(6, dtype="uint64"),
        "small": np.arange(6, dtype="int64"),
        "kind": list("aabbcc"),
    }
    data_set = FeatureSet.from_dict("fs", data, ["x", "big", "small"], (), "kind")
    data_set.split_random({"train": 0.5, "test": 0.5})
    return data_set


def hint_of(call: Callable[[], object]) -> str:
    with pytest.raises(AnyaccelError) as caught:
        call()
    return caught.value.hint


def code_in(hint: str, pattern: str) -> str:
    match = re.search(pattern, hint)
    assert match, hint
    return match.group()


def run(code: str, **names: Any) -> Any:
    return eval(code, names)  # noqa: S307 - the code of our own hints


def test_the_hint_of_cast_names_a_column() -> None:
    fs = example()
    code = code_in(hint_of(lambda: fs.cast("float32")), r"cast\(.*\)")  # type: ignore[arg-type]
    assert run(f"fs.{code}", fs=fs).spec("x").dtype == "float32"


def test_the_hint_for_integers_without_a_common_dtype_makes_them_join() -> None:
    fs = example()
    code = code_in(hint_of(lambda: joined_spec(fs, ["big", "small"])), r"cast\(.*?\), or").removesuffix(", or")
    done = run(f"fs.{code}", fs=fs)
    assert joined_spec(done, ["big", "small"]).dtype == "int64" and list(done.splits) == ["train", "test"]


def test_the_hint_for_a_pattern_gives_the_files(tmp_path: pathlib.Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(example().to_arrow(), tmp_path / "a.parquet")
    hint = hint_of(lambda: FeatureSet.from_parquet("fs", tmp_path / "*.parquet", "x"))
    files = run(code_in(hint, r"sorted\(.*\)\)"), pathlib=pathlib)
    assert len(FeatureSet.from_parquet("fs", files, "x")) == 6


def test_the_hint_for_a_mask_takes_its_rows() -> None:
    fs, mask = example(), np.array([True, False, True, False, False, False])
    code = code_in(hint_of(lambda: fs.filter({"small": mask})), r"take\(.*?\)\)")
    assert run(f"fs.{code}", fs=fs, np=np, mask=mask).rows.tolist() == [0, 2]


def test_the_hint_for_samples_with_a_shape_is_a_condition() -> None:
    fs = example()
    code = code_in(hint_of(lambda: fs.filter({"x": 1.0})), r"lambda x: .*\)")
    assert len(fs.filter({"x": run(code)})) == 5


def test_the_hint_of_drop_last_leaves_a_batch() -> None:
    hint = hint_of(lambda: SimpleSampler(32, drop_last=True).batches(6))
    size = int(code_in(hint, r"\d+"))
    assert SimpleSampler(size, drop_last=True).batches(6) == (1, 0)
    assert SimpleSampler(32, drop_last=False).batches(6) == (0, 6)


def test_the_hint_for_an_unknown_split_is_the_closest() -> None:
    fs = example()
    assert fs[code_in(hint_of(lambda: fs["trian"]), r"'\w+'").strip("'")].name == "train"


def test_the_hint_without_splits_makes_them() -> None:
    fs = FeatureSet("fs", example().to_arrow())
    code = code_in(hint_of(lambda: fs["train"]), r"split_random\(.*\)").replace(", ...", ", 'test': 0.2")
    assert list(run(f"fs.{code}", fs=fs)) == ["train", "test"]
