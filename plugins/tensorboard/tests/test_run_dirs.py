"""Names of run folders: safe on every file system, and never used twice."""

from __future__ import annotations

import os
import threading
from pathlib import Path, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyaccel_tensorboard.run_dirs import create_run_dir, safe_name


@given(st.text() | st.sampled_from(["..", ".", "../../etc", "a/b", "a\\b", "C:", "NUL", "com1", "", " ", "-", "~"]))
def test_a_label_becomes_one_folder(label):
    name = safe_name(label)
    assert name and len(name.encode()) <= 101
    assert PureWindowsPath("C:/root", name).parent == PureWindowsPath("C:/root")
    assert os.path.normpath(f"root/{name}") == os.path.normpath("root") + os.sep + name
    assert PureWindowsPath(name).stem.upper() not in ("CON", "PRN", "AUX", "NUL", "COM1", "LPT9")
    assert safe_name(name) == name


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("train", "train"),
        ("lr=3e-4, seed+1", "lr=3e-4,_seed+1"),
        ("größe 日本", "größe_日本"),
        ("../up", "___up"),
        ("..", "__"),
        ("Con", "_Con"),
        ("com¹", "_com¹"),
        ("x" * 200, "x" * 100),
        ("é" * 60, "é" * 50),
        ("", "_"),
        ("\ud800", "_"),
        ("a\nb:c*?", "a_b_c__"),
    ],
)
def test_names_resemble_their_labels(label, name):
    assert safe_name(label) == name


def test_numbers_continue_after_the_last(tmp_path):
    parent = tmp_path / "demo"
    for existing in ("train-7", "train-x", "train-", "train", "trains-9", "train-9-1", "12", "train-" + "9" * 30):
        (parent / existing).mkdir(parents=True)
    (parent / "train-8").write_text("a file")
    assert create_run_dir(tmp_path, "demo", "train") == parent / "train-9"
    assert create_run_dir(tmp_path, "demo", "other") == parent / "other-1"
    assert create_run_dir(tmp_path, "demo", "train") == parent / "train-10"


def test_labels_with_the_same_safe_name_get_different_folders(tmp_path):
    assert [create_run_dir(tmp_path, "a/b", "c:d").name, create_run_dir(tmp_path, "a:b", "c/d").name] == [
        "c_d-1",
        "c_d-2",
    ]


def test_a_folder_that_another_process_makes_first_is_skipped(tmp_path, monkeypatch):
    made = Path.mkdir
    others = ["train-1", "train-2"]

    def mkdir(self, *args, **kwargs):
        if self.name in others:  # between the look and the making
            others.remove(self.name)
            made(self)
        made(self, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    assert create_run_dir(tmp_path, "demo", "train").name == "train-3"


def test_concurrent_runs_get_different_folders(tmp_path):
    numbers, ready = [], threading.Barrier(8)

    def work():
        ready.wait(20)
        numbers.extend(create_run_dir(tmp_path, "demo", "train") for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(path.name.partition("-")[2]) for path in numbers) == list(range(1, 81))
