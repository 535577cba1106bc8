"""The wine job in twelve lines: train, validate, stop early, F1, plot, save, and predict in a new process."""

from __future__ import annotations

import contextlib
import io
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import anyaccel as aa
from anyaccel.errors import ConfigError

pandas = pytest.importorskip("pandas")
datasets = pytest.importorskip("sklearn.datasets")
preprocessing = pytest.importorskip("sklearn.preprocessing")
pytest.importorskip("matplotlib")

TRAIN = """
import anyaccel as aa, anyaccel_torch as torch
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler
wine = load_wine(as_frame=True).frame
options = {"validation": 0.2, "metrics": "f1_macro", "epochs": 100, "early_stopping": 8, "scaler": StandardScaler()}
fit = aa.fit(torch.SequentialMLP(3), wine, target="target", loss="cross_entropy", **options)
print("F1", fit.results.figure("val_f1_macro")[-1])
fit.plot().figure.savefig("losses.png")
fit.save("wine")
"""
PREDICT = """
import anyaccel as aa
from sklearn.datasets import load_wine
print(*aa.load("wine").predict(load_wine(as_frame=True).frame))
"""


OWN_TRAIN = """
import anyaccel as aa
from torch import nn
net = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3))
options = {"validation": 0.2, "metrics": "f1_macro", "epochs": 100, "early_stopping": 8, "scaler": "standard"}
fit = aa.fit(net, "wine.csv", target="cultivar", loss="cross_entropy", **options)
print("F1", fit.results.figure("val_f1_macro")[-1])
fit.plot().figure.savefig("losses.png")
fit.save("wine")
"""
OWN_PREDICT = """
import anyaccel as aa
from torch import nn
net = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3))
print(*aa.load("wine", models={"model": net}).predict("new.csv"))
"""


def lines(*scripts: str) -> list[str]:
    return [line for script in scripts for line in script.strip().split("\n")]


def train_here(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> float:
    """Run the script that trains, in this process, and check what it leaves; gives the F1 that it prints."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    monkeypatch.chdir(folder)
    script, printed = folder / "train.py", io.StringIO()
    script.write_text(code)
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(script))
    pyplot.close("all")
    assert (folder / "losses.png").stat().st_size > 1000
    name, figure = printed.getvalue().strip().rsplit("\n", 1)[-1].split()
    assert name == "F1"
    return float(figure)


def run(code: str, folder: Path) -> str:
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wine_job_takes_twelve_lines(tmp_path, monkeypatch):
    assert len(lines(TRAIN, PREDICT)) <= 12
    assert train_here(TRAIN, tmp_path, monkeypatch) > 0.9
    predicted = np.array(run(PREDICT, tmp_path).split(), dtype=int)
    assert np.mean(predicted == datasets.load_wine().target) > 0.95


def test_with_a_module_of_ones_own_and_a_file_it_takes_twelve_lines_too(tmp_path, monkeypatch):
    """In both processes together; each line is one statement, of the length that this project allows."""
    written = lines(OWN_TRAIN, OWN_PREDICT)
    assert len(written) <= 12 and max(map(len, written)) <= 120 and not any(";" in line for line in written)
    wine().to_csv(tmp_path / "wine.csv", index=False)
    wine().drop(columns="cultivar").to_csv(tmp_path / "new.csv", index=False)
    assert train_here(OWN_TRAIN, tmp_path, monkeypatch) > 0.9
    predicted = np.array(run(OWN_PREDICT, tmp_path).split())
    assert np.mean(predicted == wine()["cultivar"].to_numpy()) > 0.95


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3))


def wine():
    """The table with the names of the cultivars."""
    bunch = datasets.load_wine(as_frame=True)
    return bunch.data.assign(cultivar=bunch.target_names[bunch.target])


def fit(data=None, **settings):
    given = {"target": "cultivar", "loss": "cross_entropy", "epochs": 5, "progress": "none", **settings}
    return aa.fit(network(), wine() if data is None else data, **given)


def test_a_module_of_ones_own_is_given_again_when_it_is_loaded(tmp_path):
    fitted = fit(scaler=preprocessing.StandardScaler(), epochs=30)
    fitted.save(tmp_path)
    with pytest.raises(ConfigError, match=r"does not have the model of node 'model'\. Hint: pass it: models={'model'"):
        aa.load(tmp_path)
    again = aa.load(tmp_path, models={"model": network()})
    names = again.predict(wine().drop(columns="cultivar"))
    assert names.tolist() == fitted.predict(wine()).tolist() and set(names) == {"class_0", "class_1", "class_2"}
    assert np.mean(names == wine()["cultivar"]) > 0.95


def test_it_equals_a_loop_by_hand():
    """With one batch an epoch, so that there is no order of rows."""
    data = wine()
    fitted = fit(batch_size=len(data), scaler=preprocessing.StandardScaler(), optimizer=aa.Optimizer("adam", lr=1e-2))
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    columns = data.drop(columns="cultivar")
    x = torch.tensor(preprocessing.StandardScaler().fit_transform(columns.to_numpy()), dtype=torch.float32)
    y = torch.tensor(data["cultivar"].str[-1].astype(int).to_numpy())
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    np.testing.assert_allclose(fitted.results.loss, losses, rtol=1e-5)
    np.testing.assert_allclose(fitted.predict(columns, outputs=True), net(x).detach().numpy(), atol=1e-5)


def test_a_loader_and_a_data_set_are_streamed():
    x, y = torch.randn(64, 13), torch.randint(0, 3, (64,))
    dataset = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(dataset, batch_size=16)
    fitted = fit(loader, target=None, validation=loader, metrics=["accuracy"])
    assert np.isfinite(fitted.results.figure("val_loss")).all() and fitted.predict(x[:4].numpy()).shape == (4,)
    assert np.isfinite(fit(dataset, target=None).results.loss).all()


def test_a_csv_file_and_a_loss_of_the_framework(tmp_path):
    wine().to_csv(tmp_path / "wine.csv", index=False)
    fitted = fit(tmp_path / "wine.csv", loss=nn.CrossEntropyLoss(), epochs=2)
    assert fitted.loss is None and fitted.predict(tmp_path / "wine.csv", outputs=True).shape == (178, 3)


def test_a_frameworks_own_optimizer_is_given_again(tmp_path):
    fitted = fit(optimizer=aa.Optimizer(torch.optim.NAdam, lr=1e-3))
    fitted.save(tmp_path)
    outputs = fitted.predict(wine(), outputs=True)
    np.testing.assert_array_equal(aa.load(tmp_path, models={"model": network()}).predict(wine(), outputs=True), outputs)
    again = aa.load(tmp_path, models={"model": network()}, optimizer=torch.optim.NAdam)
    np.testing.assert_array_equal(again.predict(wine(), outputs=True), outputs)


class Mean(nn.Module):
    """Embeds tokens, of any number, and takes their mean."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.head = nn.Embedding(20, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.tokens(x).mean(1))


def test_a_graph_on_rows_of_different_length_is_saved(tmp_path):
    rng = np.random.default_rng(0)
    ids = [rng.integers(1, 20, size=length) for length in rng.integers(2, 8, size=40)]
    data = aa.FeatureSet.from_dict("d", {"ids": ids, "y": rng.normal(size=40)}, ["ids"], ["y"], pad={"ids": 0})
    graph = aa.ModelGraph([aa.ModelNode(Mean(), data)], "adam")
    train = aa.TrainPhase(data="all", losses=aa.AppliedLoss("mse"))
    aa.Experiment(graph, progress="none").run_phase(train)
    graph.save(tmp_path)
    again = aa.ModelGraph.load(tmp_path, models={"model": Mean()})
    first, second = (
        aa.Experiment(each, progress="none").run_phase(aa.EvalPhase(data=data)).prediction("model")
        for each in (graph, again)
    )
    np.testing.assert_array_equal(first, second)


def test_frames_and_data_sets_of_other_libraries():
    polars, hugging_face = pytest.importorskip("polars"), pytest.importorskip("datasets")
    columns = {"a": np.linspace(-1, 1, 30), "b": np.arange(30), "kind": ["u", "v", "w"] * 10}
    settings = {"target": "kind", "loss": "cross_entropy", "epochs": 2, "progress": "none"}
    predictions = []
    for table in (polars.DataFrame(columns), hugging_face.Dataset.from_dict(columns), columns):
        torch.manual_seed(0)
        predictions.append(aa.fit(nn.Linear(2, 3), table, **settings).predict(table).tolist())
    assert predictions[0] == predictions[1] == predictions[2] and set(predictions[0]) <= set("uvw")


class Pair(nn.Module):
    """A model that returns its outputs and its loss without names, as minGPT does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.head = nn.Embedding(9, 8), nn.Linear(8, 9)

    def forward(self, idx, targets=None):
        logits = self.head(self.tokens(idx))
        loss = None if targets is None else nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def test_a_model_that_returns_its_outputs_and_its_loss_is_a_loop_by_hand(tmp_path):
    rows = [{"idx": (torch.arange(6) + i) % 9, "targets": (torch.arange(6) + i + 1) % 9} for i in range(20)]
    loader, net, losses = torch.utils.data.DataLoader(rows, 8), Pair(), []
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(2):
        total = 0.0
        for batch in loader:
            optimizer.zero_grad()
            loss = net(**batch)[1]
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch["idx"])
        losses.append(total / 20)
    model = Pair()
    own = torch.optim.Adam(model.parameters(), 1e-2)
    fitted = aa.fit(model, loader, optimizer=own, epochs=2, accelerator="cpu", progress="none")
    np.testing.assert_allclose(fitted.results.loss, losses, rtol=1e-6)
    assert torch.equal(model.head.weight, net.head.weight)
    new = {"idx": torch.arange(6)[None]}
    np.testing.assert_allclose(fitted.predict(new), net(new["idx"])[0].detach(), rtol=1e-6)
    fitted.save(tmp_path / "pair")
    loaded = aa.load(tmp_path / "pair", models={"model": Pair()})
    assert loaded.evaluate(loader).loss == fitted.evaluate(loader).loss < losses[-1]
