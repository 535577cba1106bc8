"""The pages for users of PyTorch, Lightning, Keras and scikit-learn.

Both scripts of a page run, and print the same; and all calls that its tables name are there, theirs and ours.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel as aa

from .named_calls import Unknown, check, code

DOCS = Path(__file__).parents[2] / "docs"
SCRIPTS = "examples/coming-from"
# By page: the beginning of the names of its scripts, what they need, and how many rows its tables have at least.
PAGES = {
    "coming-from-pytorch": ("pytorch", "torch anyaccel_torch", 20),
    "coming-from-lightning": ("lightning", "pytorch_lightning anyaccel_torch", 35),
    "coming-from-keras": ("keras", "keras tensorflow anyaccel_tensorflow", 35),
    "coming-from-scikit-learn": ("sklearn", "sklearn pandas anyaccel_sklearn", 20),
}
OUTPUT = re.compile(r"Both print:\n\n```text\n(.*?)```", re.DOTALL)
# No message of a library about itself is printed.
SETTINGS = {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUTF8": "1"}


@pytest.mark.parametrize("page", [*PAGES, "coming-from-accelerate"])
def test_both_scripts_print_what_the_page_says(page: str, tmp_path: Path) -> None:
    name, needs, _ = PAGES.get(page, ("accelerate", "accelerate anyaccel_torch", 0))
    for module in needs.split():
        pytest.importorskip(module)
    shown = OUTPUT.search((DOCS / f"how-to/{page}.md").read_text("utf-8"))
    assert shown
    for kind in ("theirs", "ours"):
        folder = tmp_path / kind
        folder.mkdir()
        command = [sys.executable, str(DOCS / SCRIPTS / f"{name}_{kind}.py")]
        environment = {**os.environ, **SETTINGS, "KERAS_BACKEND": "tensorflow"}
        answer = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        assert answer.stdout.endswith(shown[1]), f"{kind}: {answer.stdout}"


@pytest.mark.slow
@pytest.mark.whole
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_keras_on_another_backend(backend: str, tmp_path: Path) -> None:
    for module in ("keras", backend, f"anyaccel_{backend}"):
        pytest.importorskip(module)
    environment = {**os.environ, **SETTINGS, "KERAS_BACKEND": backend}
    printed = [
        subprocess.check_output(
            [sys.executable, str(DOCS / SCRIPTS / f"keras_{kind}.py")], cwd=tmp_path, env=environment, text=True
        )
        for kind in ("theirs", "ours")
    ]
    assert printed[0] == printed[1] and "accuracy" in printed[0]


def rows(page: str) -> list[list[str]]:
    """The cells of each row of the tables of calls."""
    found, is_of_calls = [], False
    for line in (DOCS / f"how-to/{page}.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        is_of_calls = bool(cells) and (is_of_calls or cells[1] == "anyaccel")
        if is_of_calls and cells[1] != "anyaccel" and not cells[0].startswith("---"):
            found.append(cells)
    return found


def ours(page: str) -> dict[str, Any]:
    """What the right columns stand on."""
    x = np.random.default_rng(0).normal(size=(40, 2))
    table = {"x": x, "y": (x[:, 0] > 0).astype("int64")}
    fit = aa.fit(aa.SequentialMLP(2), table, target="y", epochs=1, progress="none")
    features = aa.FeatureSet.from_dict("data", table, ["x"], ["y"])
    made = {"aa": aa, "fit": fit, "graph": fit.graph, "experiment": fit.experiment, "results": fit.results}
    return {**made, "features": features, **({"torch": import_module("torch")} if "pytorch" in page else {})}


def of_pytorch() -> dict[str, Any]:
    torch = import_module("torch")
    import_module("torch.distributed.fsdp")
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters())
    return {"torch": torch, "nn": torch.nn, "net": net, "optimizer": optimizer, "loss": net.weight.sum()}


def of_lightning() -> dict[str, Any]:
    pl = import_module("pytorch_lightning")
    import_module("pytorch_lightning.tuner")
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, barebones=True)
    return {"pl": pl, "model": pl.LightningModule(), "trainer": trainer}


def of_keras() -> dict[str, Any]:
    keras = import_module("keras")
    return {"keras": keras, "model": keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])}


def of_scikit_learn() -> dict[str, Any]:
    sklearn = import_module("sklearn")
    for name in ("compose", "impute", "metrics", "model_selection", "neural_network", "pipeline", "preprocessing"):
        import_module(f"sklearn.{name}")
    model = sklearn.neural_network.MLPClassifier(max_iter=1000).fit([[0.0], [1.0]], [0, 1])
    return {"sklearn": sklearn, "joblib": import_module("joblib"), "model": model}


THEIRS: dict[str, Callable[[], dict[str, Any]]] = {
    "coming-from-pytorch": of_pytorch,
    "coming-from-lightning": of_lightning,
    "coming-from-keras": of_keras,
    "coming-from-scikit-learn": of_scikit_learn,
}


@pytest.mark.filterwarnings("ignore")  # of the libraries about themselves
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("side", ["theirs", "ours"])
def test_every_call_of_the_tables_is_there(page: str, side: str) -> None:
    for module in PAGES[page][1].split():
        pytest.importorskip(module)
    names = THEIRS[page]() if side == "theirs" else ours(page)
    wrong, n_checked = [], 0
    for cells in rows(page):
        assert len(cells) == 3 and all(cells), cells
        assert len(cells[2].split()) <= 25, cells[2]
        for text in code(cells[0 if side == "theirs" else 1]):
            try:
                assert check(text, names), f"{text}: names nothing of {side}"
                n_checked += 1
            except Unknown as error:
                wrong.append(str(error))
    assert wrong == [] and n_checked >= PAGES[page][2]


def test_every_page_has_the_same_parts() -> None:
    for page in PAGES:
        text = (DOCS / f"how-to/{page}.md").read_text("utf-8")
        for heading in (", twice\n", "## What is different on purpose\n", "## Common problems\n"):
            assert text.count(heading) == 1, f"{page}: {heading}"
