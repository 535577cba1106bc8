"""Functions for the replicas of test_replicas.py; arguments are their names, and the folder for what they tell."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import anyaccel as aa
from anyaccel.errors import AnyaccelError
from anyaccel_distributed import launched
from anyaccel_torch.program import TorchProgram

PLACE = launched()
RANK = 0 if PLACE is None else PLACE.rank
OUT = Path(sys.argv[2]) if len(sys.argv) > 2 else Path()


def data(n: int = 1010) -> aa.FeatureSet:
    """Rows of which the last batch of 96 has 50."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 20)).astype(np.float32)
    y = (np.tanh(x[:, :3]) + 0.1 * rng.normal(size=(n, 3))).astype(np.float32)
    w = np.abs(x[:, 0]) * (x[:, 1] > 0)
    rows = aa.FeatureSet.from_dict("data", {"x": x, "y": y, "w": w}, ["x"], ["y"], ["w"])
    rows.split_random({"train": 0.8, "val": 0.2}, seed=1)
    return rows


def model_of(seed: int = 0) -> torch.nn.Module:
    """A model whose second layer has no bias, and whose first is shared by no other."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3, bias=False))


def graph_of(rows: aa.FeatureSet, model: torch.nn.Module, optimizer: aa.Optimizer) -> aa.ModelGraph:
    """One node."""
    return aa.ModelGraph([aa.ModelNode("net", model, rows.reference())], optimizer, seed=3)


def tell(name: str, **values: Any) -> None:
    """Write what this replica found."""
    (OUT / f"{name}-{RANK}.json").write_text(json.dumps(values))


def train() -> None:
    """100 Adam steps and more over shuffled rows with a ragged last batch, in plain, clipped and accumulated steps."""
    rows = data()
    settings: dict[str, tuple[aa.Optimizer, dict[str, Any]]] = {
        "plain": (aa.Optimizer("adam", lr=1e-2), {"epochs": 12, "residency": "resident"}),
        "streamed": (aa.Optimizer("adam", lr=1e-2, clip_norm=0.5), {"epochs": 3, "residency": "streamed"}),
        "accumulated": (aa.Optimizer("sgd", lr=1e-2, momentum=0.9), {"epochs": 3, "accumulate": 3}),
    }
    for name, (optimizer, more) in settings.items():
        model = model_of()
        experiment = aa.Experiment(graph_of(rows, model, optimizer))
        sampler = aa.SimpleSampler(96, shuffle=True)
        losses = [aa.AppliedLoss("mse", on="net")]
        phase = aa.TrainPhase("train", data="train", losses=losses, sampler=sampler, validation="val", **more)
        results = experiment.run_phase(phase)
        weights = [parameter.detach().numpy().tolist() for parameter in model.parameters()]
        epochs = [[epoch.loss, epoch.validation["loss"]] for epoch in results.epochs]
        tell(name, epochs=epochs, weights=weights, steps=[epoch.steps for epoch in results.epochs])


def beside_ddp() -> None:
    """The same rows by DistributedDataParallel, in a loop by hand."""
    rows = data(960)
    model, by_hand = model_of(), model_of()
    graph = graph_of(rows, model, aa.Optimizer("adam", lr=1e-2))
    phase = aa.TrainPhase(
        "train", data=rows, losses=[aa.AppliedLoss("mse", on="net")], sampler=aa.SimpleSampler(96), epochs=5
    )
    results = aa.Experiment(graph).run_phase(phase)
    x, y = torch.from_numpy(rows.array("x")), torch.from_numpy(rows.array("y"))
    size = torch.distributed.get_world_size()
    ddp = torch.nn.parallel.DistributedDataParallel(by_hand)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)
    part = 96 // size
    for _ in range(5):
        for start in range(0, 960, 96):
            own = slice(start + RANK * part, start + (RANK + 1) * part)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(ddp(x[own]), y[own]).backward()
            optimizer.step()
    apart = max(float((a - b).abs().max()) for a, b in zip(model.parameters(), by_hand.parameters(), strict=True))
    tell("ddp", apart=apart, loss=results.epochs[-1].loss)


class Branches(torch.nn.Module):
    """A branch that only rows of the second half of each batch take, and one that none takes."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.extra, self.never = (torch.nn.Linear(20, 3) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.base(x)
        some = x[:, 0] > 100
        return out + torch.where(some[:, None], self.extra(x), 0.0) if bool(some.any()) else out


def unused() -> None:
    """A parameter that has a gradient in one replica only, and one that has none in any."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 20)).astype(np.float32)
    x[np.arange(64) % 8 >= 4, 0] += 200
    rows = aa.FeatureSet.from_dict("data", {"x": x, "y": x[:, 1:4]}, features=["x"], target=["y"])
    torch.manual_seed(0)
    model = Branches()
    before = model.never.weight.detach().clone()
    graph = graph_of(rows, model, aa.Optimizer("adamw", lr=1e-3, weight_decay=0.1))
    phase = aa.TrainPhase(
        "train", data=rows, losses=[aa.AppliedLoss("mse", on="net")], sampler=aa.SimpleSampler(8), epochs=2
    )
    results = aa.Experiment(graph).run_phase(phase)
    weights = [parameter.detach().numpy().tolist() for parameter in model.parameters()]
    tell("unused", weights=weights, loss=results.epochs[-1].loss, same=bool(torch.equal(before, model.never.weight)))


class Idle(torch.nn.Module):
    """Gives constants, which no loss can train, where all rows are those of the second half of the third batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = model_of()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out.detach() if bool((x[:, 0] > 100).all()) else out


class Listener(aa.Callback):
    """Notes each step, and its loss."""

    def __init__(self) -> None:
        self.steps: list[list[float]] = []

    def step_end(self, run: Any) -> None:
        self.steps.append([run.epoch, run.step, *run.step_losses().values()])


def calls() -> None:
    """Trainings in calls of several steps, and the same steps one by one, as where they are asked to be compiled."""
    rows, pulled = data(480), list[int]()
    x = rows.array("x").copy()
    x[240:288, 0] += 200
    idle = aa.FeatureSet.from_dict("data", {"x": x, "y": rows.array("y")}, ["x"], ["y"])
    forward_pullback = TorchProgram.forward_pullback

    def counted(*arguments: Any) -> Any:
        pulled.append(1)
        return forward_pullback(*arguments)

    TorchProgram.forward_pullback = counted  # type: ignore[method-assign]
    mse, mae = aa.AppliedLoss("mse", on="net"), aa.AppliedLoss("mae", on="net", weight=0.5, label="mae")
    cases: dict[str, tuple[Callable[[], torch.nn.Module], dict[str, Any]]] = {
        "dropout": (deep_model, {}),
        "two losses": (model_of, {"losses": [mse, mae]}),
        "ragged": (model_of, {"batch_size": 91}),
        "scaled": (model_of, {"precision": "fp16-mixed"}),
        "weighted": (model_of, {"losses": [aa.AppliedLoss("mse", on="net", sample_weight="data.w")]}),
        "idle": (Idle, {"data": idle, "shuffle": False}),
        "heard": (model_of, {"callbacks": 1}),
    }
    for name, (make, more) in cases.items():
        for compile in ("auto", "steps"):
            model, listener, settings = make(), Listener(), {"data": rows, "losses": [mse], "batch_size": 96, **more}
            sampler = aa.SimpleSampler(settings.pop("batch_size"), shuffle=settings.pop("shuffle", True))
            settings["callbacks"] = [listener] * settings.get("callbacks", 0)
            graph = graph_of(rows, model, aa.Optimizer("adam", lr=1e-2, clip_norm=0.5))
            phase = aa.TrainPhase("train", sampler=sampler, epochs=4, compile=compile, **settings)
            pulled.clear()
            results = aa.Experiment(graph).run_phase(phase)
            tell(
                f"calls {name} {compile}",
                losses=[[epoch.loss, *epoch.losses.values()] for epoch in results.epochs],
                weights=[parameter.detach().numpy().tolist() for parameter in model.parameters()],
                steps=listener.steps,
                pulled=len(pulled),
            )
    TorchProgram.forward_pullback = forward_pullback  # type: ignore[method-assign]


class Ends(torch.nn.Module):
    """Kills the process of one replica in its fortieth step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.n_calls = model_of(), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n_calls += self.training
        if self.n_calls == 40 and RANK == 1:
            time.sleep(0.3)  # what was sent has arrived
            os.kill(os.getpid(), signal.SIGKILL)
        out: torch.Tensor = self.layer(x)
        return out


def lost() -> None:
    """One replica is killed in the middle of a call of several steps."""
    rows = data()
    graph = graph_of(rows, Ends(), aa.Optimizer("sgd", lr=1e-2))
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("train", data="train", losses=losses, batch_size=96, epochs=50)
    began = time.monotonic()
    try:
        aa.Experiment(graph).run_phase(phase)
    except AnyaccelError as error:
        notes = list(getattr(error, "__notes__", ()))
        tell("lost in a call", message=str(error), notes=notes, seconds=time.monotonic() - began)
        raise


def disagree() -> None:
    """One thing after the other is another one in each replica, and then one device of both.

    Tells the errors, and whether nothing was trained.
    """
    main: Any = sys.modules["__main__"]
    script, messages = Path(__file__), {}
    for what in ("model", "seed", "data", "setting", "optimizer", "code", "device"):
        rows = data(110 + RANK * (what == "data"))
        model, own = model_of(seed=RANK * (what == "model")), RANK * (what == "seed")
        optimizer = aa.Optimizer("sgd", lr=1e-2 * (1 + RANK * (what == "optimizer")))
        on = "sim:1" if what == "device" else None
        graph = aa.ModelGraph([aa.ModelNode("net", model, rows.reference(), accelerator=on)], optimizer, seed=own)
        losses = [aa.AppliedLoss("mse", on="net")]
        phase = aa.TrainPhase("train", data=rows, losses=losses, epochs=1 + RANK * (what == "setting"))
        before = [parameter.detach().clone() for parameter in model.parameters()]
        if what == "code" and RANK:
            (OUT / script.name).write_text("another script")
            main.__file__ = str(OUT / script.name)
        try:
            aa.Experiment(graph).run_phase(phase)
        except AnyaccelError as error:
            same = all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
            messages[what] = [str(error), same]
    main.__file__ = str(script)
    tell("disagree", messages=messages)


class Faulty(aa.Callback):
    """Fails in one replica, in the middle of an epoch."""

    def step_end(self, run: Any) -> None:
        if RANK == 1 and run.epoch == 1 and run.step == 2:
            raise ValueError("a fault of one replica")


def fail() -> None:
    """One replica raises; the others are waiting for its gradients."""
    rows = data()
    graph = graph_of(rows, model_of(), aa.Optimizer("sgd", lr=1e-2))
    losses = [aa.AppliedLoss("mse", on="net")]
    phase = aa.TrainPhase("train", data="train", losses=losses, epochs=500, callbacks=[Faulty()])
    began = time.monotonic()
    try:
        aa.Experiment(graph).run_phase(phase)
    except AnyaccelError as error:
        tell("fail", message=str(error), seconds=time.monotonic() - began)
        raise


class Listed(torch.nn.Sequential):
    """Remembers the first number of each row that it trains with, which no two rows share."""

    rows: list[float]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.rows = x[:, 0].tolist()
        return super().forward(x)


class Lists(aa.Callback):
    """Adds the rows of each step to a file of this replica."""

    def __init__(self, model: Listed) -> None:
        self.model, self.attempt = model, int((OUT / "killed").exists())

    def step_end(self, run: Any) -> None:
        with (OUT / f"rows-{RANK}.jsonl").open("a") as file:
            file.write(json.dumps([self.attempt, run.epoch, run.step, self.model.rows]) + "\n")


def deep_model() -> Listed:
    """A model with dropout, which draws random numbers in every step."""
    torch.manual_seed(0)
    return Listed(torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Dropout(0.3), torch.nn.Linear(32, 3))


class Killed(aa.Callback):
    """Kills or stops its process at a step of the whole run, if it is that replica, and nobody was before."""

    def __init__(self, folder: Path) -> None:
        plan = folder / "kill.json"
        self.rank, self.at, self.signal = json.loads(plan.read_text()) if plan.exists() else (None, -1, 0)
        self.mark = folder / "killed"
        self.done = 0

    def epoch_start(self, run: Any) -> None:
        self.done = sum(epoch.steps for epoch in run.history)

    def step_end(self, run: Any) -> None:
        if self.rank == RANK and self.done + run.step == self.at and not self.mark.exists():
            self.mark.write_text(f"{run.epoch} {run.step}")
            os.kill(os.getpid(), self.signal)


def resumed(dropout: bool = True) -> None:
    """Go on from the newest checkpoint, and tell weights to the last bit, losses and steps."""
    rows = data()
    model = deep_model() if dropout else Listed(*model_of().children())
    every: Any = json.loads(os.environ.get("EVERY", "4"))
    checkpoint = aa.Checkpoint(OUT / "checkpoints", every=every, wait=True)
    phase = aa.TrainPhase(
        "train",
        data="train",
        losses=[aa.AppliedLoss("mse", on="net")],
        batch_size=96,
        epochs=4,
        validation="val",
        checkpoint=checkpoint,
        callbacks=[Lists(model), Killed(OUT)],
    )
    graph = graph_of(rows, model, aa.Optimizer("adam", lr=1e-2, clip_norm=1.0))
    try:
        results = aa.Experiment(graph).run_phase(phase, resume="auto")
    except AnyaccelError as error:
        tell("lost", message=str(error))
        raise
    epochs = [[epoch.number, epoch.steps, epoch.loss, epoch.validation["loss"]] for epoch in results.epochs]
    state = {name: np.asarray(array).tobytes().hex() for name, array in graph.state().items()}
    events = [event.message for event in results.events if event.kind == "checkpoint"]
    weights = [parameter.detach().numpy().tolist() for parameter in model.parameters()]
    tell("resumed", epochs=epochs, state=state, events=events, weights=weights)


def resumed_without_dropout() -> None:
    """The same with a model that draws nothing, whose numbers do not depend on how many replicas there are."""
    resumed(dropout=False)


class StopsOne(aa.Callback):
    """Asks to stop in the last replica only, in a hook of epoch 1."""

    def __init__(self, hook: str) -> None:
        self.hook = hook

    def _called(self, hook: str, run: Any) -> None:
        if hook == self.hook and PLACE is not None and PLACE.rank == PLACE.size - 1:
            run.stop("enough for one")

    def after_loading(self, run: Any) -> None:
        self._called("after_loading", run)

    def epoch_start(self, run: Any) -> None:
        if run.epoch == 1:
            self._called("epoch_start", run)

    def epoch_end(self, run: Any) -> None:
        if run.epoch == 1:
            self._called("epoch_end", run)


def stop() -> None:
    """One replica asks to stop; all end with the same epoch."""
    rows, epochs = data(), {}
    for hook in ("after_loading", "epoch_start", "epoch_end"):
        graph = graph_of(rows, model_of(), aa.Optimizer("sgd", lr=1e-2))
        losses = [aa.AppliedLoss("mse", on="net")]
        phase = aa.TrainPhase("train", data="train", losses=losses, epochs=50, callbacks=[StopsOne(hook)])
        epochs[hook] = len(aa.Experiment(graph).run_phase(phase).epochs)
    tell("stop", epochs=epochs)


class Centres(torch.nn.Module):
    """Takes a mean over rows off: that of this batch, or one that it keeps in a buffer."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self.layer, self.keeps = torch.nn.Linear(20, 3), keeps
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        if self.keeps and self.training:
            self.mean = 0.5 * self.mean + 0.5 * out.detach().mean(0)
        return out - (self.mean if self.keeps else out.mean(0))


def rmse(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """No mean over rows."""
    return (outputs - targets).square().mean().sqrt()


def mixed() -> None:
    """Models and losses that take the rows of a whole batch, and a buffer of each replica's own rows."""
    torch.manual_seed(0)
    rows, made = data(130), {"model": Centres(keeps=False), "buffer": Centres(keeps=True), "loss": model_of()}
    for name, model in made.items():
        losses = [aa.AppliedLoss(rmse if name == "loss" else "mse", on="net")]
        graph = graph_of(rows, model, aa.Optimizer("sgd", lr=1e-2))
        phase = aa.TrainPhase("train", data=rows, losses=losses, batch_size=13)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            aa.Experiment(graph).run_phase(phase)
        messages = [str(each.message) for each in told if "Hint" in str(each.message)]
        aa.Experiment(graph).run_phase(phase)  # all begin alike again
        tell(f"mixed-{name}", messages=messages, buffers=[each.tolist() for each in model.buffers()])


def leave() -> None:
    """Leave the group when much of torch has been imported since it was joined, and tell which threads are left."""
    rows = data()
    graph = graph_of(rows, model_of(), aa.Optimizer("adam", lr=1e-2))
    aa.Experiment(graph).run_phase(aa.TrainPhase("train", data="train", losses=[aa.AppliedLoss("mse", on="net")]))
    import torch._dynamo

    torch.distributed.destroy_process_group()
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    tell("leave", threads=names)


if __name__ == "__main__":
    functions = (
        *(train, beside_ddp, unused, calls, lost, disagree, fail, stop, mixed, leave),
        *(resumed, resumed_without_dropout),
    )
    scripts: dict[str, Callable[[], None]] = {each.__name__: each for each in functions}
    for chosen in sys.argv[1].split(","):
        scripts[chosen]()
