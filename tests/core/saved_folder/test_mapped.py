"""Mapped files: models that were loaded from them do not change with them, and nothing is copied without need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa
from anyaccel.graph import weight_files
from anyaccel.saved_folder import tensor_file
from anyaccel.saved_folder.storage import LocalStorage


def graph(seed: int = 1, optimizer: str = "adam") -> aa.ModelGraph:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype("float32")
    data = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, 0]}, "x", "y")
    return aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP(hidden_dim=5), data.reference())], optimizer, seed=seed)


def trained(folder: Path | None = None, **settings: Any) -> aa.ModelGraph:
    given = graph()
    checkpoint = None if folder is None else aa.Checkpoint(folder, **settings)
    phase = aa.TrainPhase(
        "t", data="all", losses=[aa.AppliedLoss("mse", on="net")], epochs=3, batch_size=8, checkpoint=checkpoint
    )
    aa.Experiment("e", given, progress="none").run_phase(phase)
    return given


def exact(state: Any) -> dict[str, Any]:
    return {name: (str(array.dtype), array.shape, array.tobytes()) for name, array in state.items()}


def overwrite(folder: Path) -> None:
    """Change every byte of every file in place, as no writer of this library does."""
    for file in folder.rglob("*.safetensors"):
        file.write_bytes(b"\xff" * file.stat().st_size)


def load_graph(folder: Path) -> aa.ModelGraph:
    trained().save(folder / "saved")
    return aa.ModelGraph.load(folder / "saved")


def load_weights(folder: Path) -> aa.ModelGraph:
    trained().save_weights(folder / "net.safetensors")
    other = graph(seed=2).build()
    other.load_weights(folder / "net.safetensors")
    return other


def resume(folder: Path) -> aa.ModelGraph:
    trained(folder / "run")
    return trained_again(folder / "run")


def trained_again(folder: Path) -> aa.ModelGraph:
    given = graph(seed=1)
    phase = aa.TrainPhase(
        "t",
        data="all",
        losses=[aa.AppliedLoss("mse", on="net")],
        epochs=3,
        batch_size=8,
        checkpoint=aa.Checkpoint(folder),
    )
    aa.Experiment("e", given, progress="none").run_phase(phase, resume="auto")
    return given


@pytest.mark.parametrize("load", [load_graph, load_weights, resume])
def test_a_loaded_model_has_its_own_memory(tmp_path: Path, load: Callable[[Path], aa.ModelGraph]) -> None:
    loaded = load(tmp_path)
    before = exact(loaded.state())
    parameters = {name: value for name, value in exact(trained().state()).items() if "/parameters/" in name}
    assert parameters.items() <= before.items()
    overwrite(tmp_path)
    assert exact(loaded.state()) == before


def test_fitted_transforms_have_their_own_memory(tmp_path: Path) -> None:
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    pytest.importorskip("anyaccel_sklearn")
    x = np.random.default_rng(0).normal(3.0, 2.0, size=(40, 3)).astype("float32")
    data = aa.FeatureSet.from_dict("data", {"x": x}, "x").fit_transform(
        preprocessing.StandardScaler(), "x", fit_on="all"
    )
    given = aa.ModelGraph([aa.ModelNode("net", aa.SequentialMLP([1]), data.reference())], seed=1).build()
    given.save(tmp_path)
    loaded = aa.ModelGraph.load(tmp_path)
    before = exact(loaded.state())
    assert before == exact(given.state())
    assert any(name.startswith("transforms/") for name in before)
    overwrite(tmp_path)
    assert exact(loaded.state()) == before


@pytest.mark.parametrize("is_checked", [True, False])
def test_mapped_arrays_are_those_that_are_read(tmp_path: Path, is_checked: bool) -> None:
    arrays = {
        "a": np.arange(12, dtype=np.float64).reshape(3, 4),
        "one": np.array(True),
        "none": np.empty((0, 3), np.int16),
        "odd": np.arange(3, dtype=np.uint8),
    }
    file = tmp_path / "a.safetensors"
    with file.open("wb") as stream:
        digests, size = tensor_file.write(stream, arrays)
    with file.open("rb", buffering=0) as stream:
        mapped = tensor_file.read(stream, size, digests if is_checked else None, mapped=True)
    with file.open("rb", buffering=0) as stream:
        copied = tensor_file.read(stream, size, digests if is_checked else None)
    assert exact(mapped) == exact(copied) == exact({name: arrays[name] for name in mapped})
    mapped["a"][:] = 0.0  # in private pages
    assert file.stat().st_size == size
    assert exact(weight_files.read(file)) == exact({name: arrays[name] for name in mapped})


def test_a_file_that_cannot_be_mapped_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise OSError(19, "No such device")

    weight_files.write(tmp_path / "a.safetensors", {"a": np.arange(3)})
    monkeypatch.setattr("mmap.mmap", refused)
    np.testing.assert_array_equal(weight_files.read(tmp_path / "a.safetensors")["a"], np.arange(3))


def test_a_state_without_copies_is_that_of_the_models() -> None:
    given = trained()
    views, copies = given.state(copy=False), given.state()
    assert exact(views) == exact(copies)
    name = "net/parameters/layers.0.weight"
    assert not views[name].flags.writeable and copies[name].flags.writeable
    array = given["net"].model.parameters["layers.0.weight"]
    assert np.shares_memory(views[name], array) and not np.shares_memory(copies[name], array)
    with pytest.raises(aa.errors.StateError, match="copy=1 is not"):
        given.state(copy=1)  # type: ignore[arg-type]


def test_a_run_that_waits_for_its_checkpoints_writes_the_same(tmp_path: Path) -> None:
    trained(tmp_path / "copied", every=3, keep=100)
    trained(tmp_path / "waited", every=3, keep=100, wait=True)
    names = sorted(path.name for path in (tmp_path / "copied").glob("epoch-*"))
    assert len(names) > 3
    from anyaccel.phases.checkpointing import run_folder

    for name in names:
        states = [exact(run_folder.read(tmp_path / which / name)[1]) for which in ("copied", "waited")]
        assert states[0] == states[1]


def test_a_file_is_complete_when_it_has_its_name(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), LocalStorage(tmp_path).create("state-0123456789abcdef.safetensors") as stream:
        stream.write(b"abc")
        assert [path.suffix for path in tmp_path.iterdir()] == [".tmp"]
        raise RuntimeError
    assert not list(tmp_path.iterdir())
