"""Whatever is refused or fails: the files of the user are as they were, byte by byte, and none is added."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from anyaccel.errors import AnyaccelError
from anyaccel_offload.torch import (
    cpu_offload,
    disk_offload,
    dispatch_model,
    init_empty_weights,
    load_checkpoint_and_dispatch,
    load_checkpoint_in_model,
    remove_offload,
)
from anyaccel_offload.torch.model_blocks import find_blocks
from anyaccel_offload.torch.offload_folder import write_blocks

X = torch.linspace(-1, 1, 16).view(2, 8)


def net(width: int = 8) -> nn.Sequential:
    torch.manual_seed(width)
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(4)])


def empty(width: int = 8) -> nn.Sequential:
    with init_empty_weights():
        return net(width)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Path]:
    """Files of a user: a checkpoint in two shards, another model's offload folder, damaged ones, and notes."""
    state = net().state_dict()
    halves = ([n for n in state if n < "2"], [n for n in state if n >= "2"])
    index = {}
    for i, names in enumerate(halves):
        save_file({name: state[name] for name in names}, tmp_path / f"part-{i}.safetensors")
        index |= dict.fromkeys(names, f"part-{i}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    disk_offload(net(5), tmp_path / "other")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/model.safetensors").write_bytes((tmp_path / "part-0.safetensors").read_bytes()[:-7])
    (tmp_path / "hostile").mkdir()
    outside = {"weight_map": dict.fromkeys(index, "../part-0.safetensors")}
    (tmp_path / "hostile/model.safetensors.index.json").write_text(json.dumps(outside))
    (tmp_path / "gigabytes.safetensors").write_bytes((2**33).to_bytes(8, "little") + b"{}")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/mine.txt").write_text("mine")
    before = digests(tmp_path)
    yield tmp_path
    assert digests(tmp_path) == before


def digests(folder: Path) -> dict[str, tuple[str, int]]:
    """What the files of a folder hold, and when they were changed."""
    return {
        str(path.relative_to(folder)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def on_disk(folder: Path) -> nn.Module:
    return load_checkpoint_and_dispatch(empty(), folder, {"": "disk"})


def step(model: nn.Module) -> None:
    model(X).square().sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a folder of another model": (lambda it: disk_offload(net(), it / "other"), "is not an empty folder"),
    "a folder with notes": (
        lambda it: dispatch_model(net(), {"": "disk"}, offload_dir=it / "notes"),
        "not an empty folder",
    ),
    "a file for a folder": (lambda it: disk_offload(net(), it / "notes/mine.txt"), "is not an empty folder"),
    "a folder in a file": (lambda it: disk_offload(net(), it / "notes/mine.txt/new"), "cannot be written"),
    "truncated": (lambda it: on_disk(it / "damaged"), "cannot be read as safetensors"),
    "out of the folder": (lambda it: on_disk(it / "hostile"), "is not an index of shards"),
    "a header of gigabytes": (lambda it: on_disk(it / "gigabytes.safetensors"), "cannot be read as safetensors"),
    "another model's shapes": (
        lambda it: load_checkpoint_and_dispatch(empty(6), it, {"": "disk"}),
        r"0\.0\.weight",
    ),
    "a step": (lambda it: step(on_disk(it)), "files are never changed"),
    "a fill": (lambda it: nn.init.zeros_(on_disk(it)[0][0].weight), "files are never changed"),  # type: ignore[index]
    "another state": (lambda it: on_disk(it).load_state_dict(net().state_dict()), "files are never changed"),
    "a map that forgets": (lambda it: load_checkpoint_and_dispatch(empty(), it, {"0": "disk"}), "no device for"),
    "a map of other names": (
        lambda it: load_checkpoint_and_dispatch(empty(), it, {"": "disk", "9": "cpu"}),
        "which the model does not have",
    ),
    "an absent device": (
        lambda it: load_checkpoint_and_dispatch(empty(), it, {"0": "disk", "": "cuda:99"}),
        "load_checkpoint_and_dispatch: the device cuda:99 does not exist",
    ),
    "an absent device, to load only": (
        lambda it: load_checkpoint_in_model(empty(), it, {"": "cuda:99"}),
        "load_checkpoint_in_model: the device cuda:99 does not exist",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_changes_no_file(name: str, files: Path) -> None:
    call, says = REFUSED[name]
    with pytest.raises((AnyaccelError, RuntimeError), match=says) as raised:
        call(files)
    assert not isinstance(raised.value, AnyaccelError) or raised.value.hint


def test_a_model_run_from_files_and_made_ordinary_again_changes_none(files: Path) -> None:
    model = on_disk(files)
    with torch.no_grad():
        expected = model(X)
        assert torch.equal(remove_offload(model)(X), expected)
        assert torch.equal(cpu_offload(load_checkpoint_and_dispatch(empty(), files, {"": "cpu"}))(X), expected)


def test_a_file_that_comes_in_the_meantime_is_not_overwritten(tmp_path: Path) -> None:
    """Two models that find a folder empty at the same time: the second is refused, and the first keeps its files."""
    disk_offload(net(5), tmp_path)
    (tmp_path / "model-00001.safetensors").unlink()  # so that some are written before the clash
    before, model = digests(tmp_path), net()
    names = find_blocks(model)
    with pytest.raises(AnyaccelError, match=r"cannot be written.*exists"):
        write_blocks(model, names, names, tmp_path)
    assert digests(tmp_path) == before
    assert torch.equal(model(X), net()(X))


FULL = """
import resource, signal, sys
from pathlib import Path
import torch
from torch import nn
from anyaccel.errors import AnyaccelError
from anyaccel_offload.torch import disk_offload

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(200, 200))
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    disk_offload(model, sys.argv[1])
except AnyaccelError as error:
    print(error)
print(sorted(Path(sys.argv[1]).iterdir()), type(model[0].weight).__name__, type(model[1].weight).__name__)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs a limit for files")
def test_a_disk_that_fills_while_a_block_is_written_leaves_nothing_there(tmp_path: Path) -> None:
    """Really: the system takes no more bytes in the middle of the second file."""
    settings = {**os.environ, "ANYACCEL_PLUGINS": "torch"}
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "new")], capture_output=True, text=True, env=settings, check=False
    )
    assert done.returncode == 0, done.stderr
    said, left = done.stdout.strip().splitlines()
    assert "cannot be written" in said and "Hint: use a folder with more space" in said
    assert left == "[] Parameter Parameter"
