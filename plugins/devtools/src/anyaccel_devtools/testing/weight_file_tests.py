"""Tests of a framework's own weight names and weight files: `WeightFiles`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyaccel.adapter.weight_files import WeightFiles
from anyaccel.errors import StateError
from anyaccel_devtools.testing.harness import Array, Harness, assert_equal
from anyaccel_devtools.testing.subject import Subject

Make = Callable[[], Any]
MODELS = ("model", "buffered_model", "tied_model")
DTYPES = ("float32", "float64", "float16", "int64", "int32", "uint8", "bool")
ARRAYS: dict[str, Array] = {
    **{f"layer.{i}.{name}": np.arange(6).reshape(2, 3).astype(name) for i, name in enumerate(DTYPES)},
    "no.axes": np.full((), 1.5, np.float32),
    "no.rows": np.ones((0, 3), np.float32),
    "by.columns": np.asfortranarray(np.arange(12.0, dtype=np.float32).reshape(3, 4)),
    "every.second": np.arange(20.0, dtype=np.float32)[::2],
}
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "cut": lambda whole: whole[: len(whole) // 2],
    "without its end": lambda whole: whole[:-1],
    "text": lambda whole: b"no weights",
}


class WeightFileTests(Subject):
    """Names of weights, and files of them."""

    @pytest.mark.parametrize("name", MODELS)
    def test_every_value_of_a_model_has_a_weight_name(
        self, harness: Harness, request: pytest.FixtureRequest, name: str
    ) -> None:
        """One or more, and no name is of anything else."""
        files = weight_files(harness)
        prepared = harness.prepare_model(request.getfixturevalue(name))
        names = files.weight_names(prepared)
        assert all(isinstance(name, str) and name for name in names)
        assert set(names.values()) == set(harness.compute.state(prepared))

    def test_a_model_comes_back_from_a_file_of_its_weights(self, harness: Harness, model: Make, tmp_path: Path) -> None:
        """It is restored by its names for them, from each kind of file."""
        files, prepared = weight_files(harness), harness.prepare_model(model)
        names, state = files.weight_names(prepared), harness.compute.state(prepared)
        for path in paths(files, tmp_path):
            files.write_weights(path, {name: state[key] for name, key in names.items()})
            read, clone = files.read_weights(path), harness.prepare_model(model, seed=8)
            harness.compute.load_state(clone, {names[name]: array for name, array in read.items()})
            assert_equal(harness.compute.state(clone), state)

    def test_weight_suffixes_are_endings_of_names_of_files(self, harness: Harness) -> None:
        """They begin with a dot; files of safetensors belong to core."""
        suffixes = weight_files(harness).weight_suffixes
        assert isinstance(suffixes, tuple)
        assert all(Path(f"weights{suffix}").suffix == suffix != ".safetensors" for suffix in suffixes)

    def test_arrays_come_back_from_a_file(self, harness: Harness, tmp_path: Path) -> None:
        """Name, dtype, shape and every bit are restored, from a file with exactly the given name."""
        files = weight_files(harness)
        for path in paths(files, tmp_path):
            files.write_weights(path, ARRAYS)
            assert [entry.name for entry in path.parent.iterdir()] == [path.name]
            read = files.read_weights(path)
            assert {name: (array.dtype, array.shape) for name, array in read.items()} == {
                name: (array.dtype, array.shape) for name, array in ARRAYS.items()
            }
            assert_equal(read, ARRAYS)

    def test_arrays_stay_when_their_file_is_written_over(self, harness: Harness, tmp_path: Path) -> None:
        """They are in separate memory, even if the file is changed in place."""
        files = weight_files(harness)
        for path in paths(files, tmp_path):
            files.write_weights(path, ARRAYS)
            read, size = files.read_weights(path), path.stat().st_size
            with path.open("r+b") as stream:
                stream.write(b"\xff" * size)
            assert_equal(read, ARRAYS)

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_a_damaged_file_is_a_state_error(self, harness: Harness, tmp_path: Path, damage: str) -> None:
        """It names the file, and has a hint."""
        files = weight_files(harness)
        for path in paths(files, tmp_path):
            files.write_weights(path, ARRAYS)
            path.write_bytes(DAMAGES[damage](path.read_bytes()))
            with pytest.raises(StateError) as caught:
                files.read_weights(path)
            assert path.name in caught.value.problem
            assert caught.value.hint

    def test_no_code_of_a_file_is_run(self, harness: Harness, tmp_path: Path) -> None:
        """A pickle that creates a folder when it is read is refused."""
        files, made = weight_files(harness), tmp_path / "made"
        for path in paths(files, tmp_path):
            path.write_bytes(f"cos\nmkdir\n(V{made}\ntR.".encode())  # os.mkdir(made), as a pickle
            with pytest.raises(StateError):
                files.read_weights(path)
            assert not made.exists()


def weight_files(harness: Harness) -> WeightFiles:
    """Return the names and files of weights of the backend; a skip without the capability."""
    return harness.declared(WeightFiles, "WeightFiles")


def paths(files: WeightFiles, folder: Path) -> list[Path]:
    """Return a path for each ending, and one with another, as core writes a file under another name first."""
    found = [folder / str(i) / f"weights{suffix}" for i, suffix in enumerate((*files.weight_suffixes, ".tmp"))]
    for path in found:
        path.parent.mkdir()
    return found if files.weight_suffixes else []
