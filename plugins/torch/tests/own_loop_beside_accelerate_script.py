"""Training of Accelerate's examples and of its test scripts, by Accelerate and by Loop in the same processes.

The arguments are a folder, and names of checks. As in `own_loop_accelerate_script.py`, each function is a check,
which is called in one process and in two. It names the script that it is a port of. What comes from a hub there is made
up here, in the same shapes.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import (
    ProjectConfiguration,
    find_executable_batch_size,
    set_seed,
)
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, StepLR
from torch.utils.data import DataLoader, Dataset, TensorDataset

import anyaccel as aa
from anyaccel.adapter.step_profiler import read_trace
from anyaccel.errors import ArgumentError, ConfigError, DataError

CHECKS: dict[str, Callable[[], None]] = {}
N_TRAINED, N_TESTED, BATCH_SIZE, LR = 32, 23, 4, 0.05


def check(function: Callable[[], None]) -> Callable[[], None]:
    """Register a check."""
    CHECKS[function.__name__] = function
    return function


def theirs(**settings: Any) -> Accelerator:
    """Create an Accelerator that knows nothing of those before it."""
    AcceleratorState._reset_state(True)  # noqa: SLF001
    GradientState._reset_state()  # noqa: SLF001
    return Accelerator(cpu=True, **settings)


def ours(**settings: Any) -> Any:
    """Create a Loop."""
    return aa.Loop("cpu", framework="torch", **settings)


def same(own: Any, other: Any) -> None:
    """Require the same numbers."""
    torch.testing.assert_close(torch.tensor(own), torch.tensor(other), rtol=1e-6, atol=1e-6)


# -- the pairs of sentences, the classifier and the pictures of the examples -------------------------------------------


class Pairs(Dataset[dict[str, Any]]):
    """Pairs of sentences as rows of tokens of different lengths, with a label."""

    def __init__(self, n_rows: int) -> None:
        draw = random.Random(n_rows)
        self.rows = [
            {"input_ids": [draw.randrange(1, 30) for _ in range(draw.randrange(3, 9))], "labels": i % 2}
            for i in range(n_rows)
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self.rows[i]


def padded(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Pad rows to the longest of them."""
    tokens = [torch.tensor(row["input_ids"]) for row in rows]
    input_ids = nn.utils.rnn.pad_sequence(tokens, batch_first=True)
    return {
        "input_ids": input_ids,
        "attention_mask": (input_ids != 0).long(),
        "labels": torch.tensor([row["labels"] for row in rows]),
    }


class Classifier(nn.Module):
    """Classify the mean of embedded tokens; the output has `loss` and `logits`."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(30, 8), nn.Linear(8, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> SimpleNamespace:
        mask = attention_mask[..., None]
        logits = self.head((self.embedding(input_ids) * mask).sum(1) / mask.sum(1))
        return SimpleNamespace(loss=nn.functional.cross_entropy(logits, labels), logits=logits)


def loaders(batch_size: int = BATCH_SIZE, data: Any = None) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Create loaders for training, in an order that a generator draws, and for evaluation."""
    order = torch.Generator().manual_seed(3)
    train = DataLoader(data or Pairs(N_TRAINED), batch_size, shuffle=True, generator=order, collate_fn=padded)
    return train, DataLoader(Pairs(N_TESTED), 8, collate_fn=padded)


def parts(steps: int) -> tuple[Classifier, torch.optim.Optimizer, LambdaLR]:
    """Create model, optimizer and a rate that falls to 0 in so many steps, after a warmup in a quarter of them."""
    set_seed(42)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    n_warm = steps // 4
    rate = lambda step: step / n_warm if step < n_warm else max(0.0, (steps - step) / (steps - n_warm))  # noqa: E731
    return model, optimizer, LambdaLR(optimizer, rate)


def weights(model: Any) -> list[list[float]]:
    """All parameters, also of a wrapped model."""
    return [parameter.detach().flatten().tolist() for parameter in getattr(model, "module", model).parameters()]


def flat(model: Any) -> list[float]:
    """All numbers of a model."""
    return [number for values in weights(model) for number in values]


def their_accuracy(accelerator: Accelerator, model: Any, test: Any) -> float:
    """Evaluate as the examples do."""
    model.eval()
    right = seen = 0
    for batch in test:
        with torch.no_grad():
            outputs = model(**batch)
        predictions, references = accelerator.gather_for_metrics((outputs.logits.argmax(-1), batch["labels"]))
        right, seen = right + int((predictions == references).sum()), seen + len(references)
    assert seen == N_TESTED
    return right / seen


def our_accuracy(loop: Any, model: Any, test: Any) -> float:
    """Evaluate by Loop."""
    model.eval()
    with torch.no_grad():
        predictions, references = loop.gather((model(**batch).logits.argmax(-1), batch["labels"]) for batch in test)
    assert len(references) == N_TESTED
    return float((predictions == references).float().mean())


Told = tuple[list[float], list[float]]
"""What an example prints, and the weights it ends with."""


def their_example(
    accelerator: Accelerator,
    made: Any = None,
    each: Callable[[Any, float], bool] = lambda model, loss: False,
    epochs: int = 2,
) -> Told:
    """Train as `nlp_example.py` does; `each` is called after each batch, and can end the epoch."""
    train, test = loaders() if made is None else made
    model, optimizer, schedule = parts(len(train) * epochs)
    model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)
    told = []
    for _ in range(epochs):
        model.train()
        for batch in train:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if each(model, loss.item()):
                break
        told.append(their_accuracy(accelerator, model, test))
    return told, flat(model)


def our_example(
    loop: Any, made: Any = None, each: Callable[[Any, float], bool] = lambda model, loss: False, epochs: int = 2
) -> Told:
    """Train the same by Loop."""
    train, test = loaders() if made is None else made
    steps = len(train) // loop.num_processes * epochs  # theirs goes as many steps at once as there are processes
    model, optimizer, schedule = parts(steps)
    model, optimizer, train, schedule = loop.prepare(model, optimizer, train, schedule, batch="per_replica")
    test = loop.prepare(test)
    told = []
    for _ in range(epochs):
        model.train()
        for batch in train:
            loss = model(**batch).loss
            loop.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if each(model, loss.item()):
                break
        told.append(our_accuracy(loop, model, test))
    return told, flat(model)


# -- examples ----------------------------------------------------------------------------------------------------------


@check
def nlp_example_and_multi_process_metrics() -> None:
    same(our_example(ours())[0], their_example(theirs())[0])
    same(our_example(ours())[1], their_example(theirs())[1])


@check
def early_stopping() -> None:
    accelerator, loop = theirs(), ours()
    seen: dict[str, int] = {"theirs": 0, "ours": 0}
    limit = 0.69

    def stops_theirs(_: Any, loss: float) -> bool:
        seen["theirs"] += 1
        if loss < limit:
            accelerator.set_trigger()
        return bool(accelerator.check_trigger())

    def stops_ours(_: Any, loss: float) -> bool:
        seen["ours"] += 1
        return bool(loop.any(loss < limit))

    first, second = their_example(accelerator, each=stops_theirs), our_example(loop, each=stops_ours)
    same(second[1], first[1])
    assert seen["ours"] == seen["theirs"] < 2 * N_TRAINED // BATCH_SIZE // loop.num_processes


@check
def cross_validation() -> None:
    folds, rows = [list(range(16, 48)), [*range(16), *range(32, 48)], list(range(32))], Pairs(48)

    def fold(chosen: list[int], batch_size: int) -> DataLoader[Any]:
        return DataLoader([rows[i] for i in chosen], batch_size, collate_fn=padded)

    def by_accelerate() -> list[float]:
        accelerator = theirs()
        predictions = []
        for trained in folds:
            train, test = fold(trained, BATCH_SIZE), DataLoader(Pairs(N_TESTED), 8, collate_fn=padded)
            model, optimizer, schedule = parts(len(train))
            model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)
            for batch in train:
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            with torch.no_grad():
                predictions.append(torch.cat([accelerator.gather_for_metrics(model(**b).logits) for b in test]))
            model, optimizer = accelerator.free_memory(model, optimizer)
        return list(torch.stack(predictions).mean(0).flatten().tolist())

    def by_loop() -> list[float]:
        loop = ours()
        predictions = []
        for trained in folds:
            train, test = fold(trained, BATCH_SIZE), DataLoader(Pairs(N_TESTED), 8, collate_fn=padded)
            model, optimizer, schedule = parts(len(train) // loop.num_processes)
            model, optimizer, train, schedule = loop.prepare(model, optimizer, train, schedule, batch="per_replica")
            test = loop.prepare(test)
            for batch in train:
                loop.backward(model(**batch).loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            with torch.no_grad():
                predictions.append(loop.gather(model(**b).logits for b in test))
            loop.close()
        return list(torch.stack(predictions).mean(0).flatten().tolist())

    same(by_loop(), by_accelerate())


@check
def gradient_accumulation() -> None:
    told = [their_example(theirs(gradient_accumulation_steps=2)), our_example(ours(accumulate=2))]
    same(told[1][0], told[0][0])
    same(told[1][1], told[0][1])


@check
def automatic_gradient_accumulation_and_memory() -> None:
    wanted, fits = 16, 8
    accelerator, loop = theirs(), ours()
    if loop.num_processes > 1:  # theirs tells nobody else that memory ran out: see own_loop_memory.py
        return
    told: list[Told] = []

    @find_executable_batch_size(starting_batch_size=wanted)
    def by_accelerate(batch_size: int) -> None:
        accelerator.gradient_accumulation_steps = wanted // batch_size
        accelerator.free_memory()
        if batch_size > fits:
            raise RuntimeError("CUDA out of memory.")
        told.append(their_example(accelerator, loaders(batch_size)))

    def by_loop(batch_size: int) -> None:
        loop.accumulation_steps = wanted // batch_size
        if batch_size > fits:
            raise RuntimeError("CUDA out of memory.")
        told.append(our_example(loop, loaders(batch_size)))

    by_accelerate()
    loop.find_batch_size(by_loop, start=wanted)
    assert loop.step == 2 * N_TRAINED // wanted
    same(told[1][0], told[0][0])
    same(told[1][1], told[0][1])


class NextTokens(nn.Module):
    """Scores of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(30, 8), nn.Linear(8, 30)

    def forward(self, input_ids: Tensor) -> Tensor:
        """The sum of the losses of all tokens but padding."""
        logits = self.head(self.embedding(input_ids[:, :-1]))
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), input_ids[:, 1:].flatten(), ignore_index=0, reduction="sum"
        )


def n_tokens(batch: Any) -> Tensor:
    """How many tokens have a loss."""
    return (batch["input_ids"][:, 1:] != 0).sum()


@check
def gradient_accumulation_for_autoregressive_models() -> None:
    steps = 3

    def by_accelerate() -> list[float]:
        accelerator = theirs(gradient_accumulation_steps=steps)
        set_seed(1)
        model = NextTokens()
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
        model, optimizer, train = accelerator.prepare(model, optimizer, loaders()[0])
        told = []
        batches = iter(train)
        for start in range(0, len(train), steps):
            window = [next(batches) for _ in range(min(steps, len(train) - start))]
            count = accelerator.gather(sum(map(n_tokens, window))).sum()
            losses = 0.0
            for number, batch in enumerate(window):
                with accelerator.no_sync(model) if number + 1 < len(window) else torch.enable_grad():
                    total = model(batch["input_ids"])
                    losses += float(total.detach())
                    accelerator.backward(total / count * steps * accelerator.num_processes)
            told.append(float(accelerator.clip_grad_norm_(model.parameters(), 1.0)))
            told.append(float(accelerator.gather(torch.tensor(losses)).sum() / count))
            optimizer.step()
            optimizer.zero_grad()
        return told + flat(model)

    def by_loop() -> list[float]:
        loop = ours(accumulate=steps)
        set_seed(1)
        model = NextTokens()
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
        model, optimizer, train = loop.prepare(model, optimizer, loaders()[0], batch="per_replica")
        told, losses, counts = [], 0.0, 0
        for batch in train:
            total, count = model(batch["input_ids"]), n_tokens(batch)
            losses, counts = losses + float(total.detach()), counts + int(count)
            loop.backward(total, count=count)
            norm = loop.clip_grad_norm_(model, 1.0)
            if loop.is_update:
                told += [float(norm), float(loop.reduce(losses, count=counts))]
                losses, counts = 0.0, 0
            optimizer.step()
            optimizer.zero_grad()
        return told + flat(model)

    same(by_loop(), by_accelerate())


@check
def profiler() -> None:
    with tempfile.TemporaryDirectory() as traces:
        profile = aa.Profile((0, 3), traces)
        loop = ours(profile=profile)
        told = our_example(loop)
        loop.close()
        assert len(profile.files) == (1 if loop.is_main_process else 0)
        accelerator = theirs()
        with accelerator.profile() as by_torch:
            others = their_example(accelerator)
        if loop.is_main_process:
            own_names = {event["name"] for event in read_trace(profile.files[0]) if event.get("ph") == "X"}
            their_names = {event.key for event in by_torch.key_averages()}
            calls = {"aten::embedding", "aten::cross_entropy_loss", "aten::embedding_dense_backward"}
            assert calls <= own_names & their_names
    same(told[1], others[1])


@check
def tracking() -> None:
    def logged(example: Callable[..., Told], context: Any, log: Callable[[dict[str, float], int], None]) -> None:
        losses: list[float] = []

        def collect(_: Any, loss: float) -> bool:
            losses.append(loss)
            return False

        told, _ = example(context, each=collect)
        half = len(losses) // 2
        for epoch, accuracy in enumerate(told):
            part = losses[epoch * half : (epoch + 1) * half]
            log({"accuracy": accuracy, "train_loss": sum(part) / half, "epoch": epoch}, epoch)

    from accelerate.tracking import GeneralTracker

    class Kept(GeneralTracker):
        name, requires_logging_directory, main_process_only = "kept", False, False

        def __init__(self) -> None:
            super().__init__()
            self.values: list[Any] = []

        tracker = property(lambda self: self.values)

        def store_init_configuration(self, values: Any) -> None: ...

        def log(self, values: Any, step: int | None, **kwargs: Any) -> None:
            self.values.append({"step": step, **values})

    kept = Kept()
    accelerator = theirs(log_with=[kept])
    accelerator.init_trackers("run", {})
    logged(their_example, accelerator, lambda values, step: accelerator.log(values, step=step))
    with tempfile.TemporaryDirectory() as folder:
        loop = ours(log=folder)
        logged(our_example, loop, lambda values, step: loop.log(values, step=step))
        if loop.is_main_process:
            lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
            assert lines == [pytest.approx(values, rel=1e-5) for values in kept.values] and len(lines) == 2


class AveragingSGD(torch.optim.SGD):
    """As a schedule-free optimizer: evaluates with the mean of all weights so far, which `eval` and `train` swap."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self.n_steps, self.is_training = 0, True

    def step(self, closure: Any = None) -> Any:
        assert self.is_training
        result = super().step(closure)
        self.n_steps += 1
        for parameter in self.param_groups[0]["params"]:
            mean = self.state[parameter].setdefault("mean", parameter.detach().clone())
            mean.lerp_(parameter.detach(), 1 / self.n_steps)
        return result

    def _swap(self, is_training: bool) -> None:
        if is_training != self.is_training:
            self.is_training = is_training
            for parameter, state in self.state.items():
                state["mean"], parameter.data = parameter.detach().clone(), state["mean"].clone()

    def train(self) -> None:
        self._swap(True)

    def eval(self) -> None:
        self._swap(False)


@check
def schedule_free() -> None:
    def told(prepare: Callable[..., Any], backward: Any, accuracy: Any) -> list[float]:
        train, test = loaders()
        set_seed(42)
        model = Classifier()
        model, optimizer, train, test = prepare(model, AveragingSGD(model.parameters(), LR), train, test)
        result = []
        for _ in range(2):
            model.train()
            optimizer.train()
            for batch in train:
                backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
            optimizer.eval()
            result += [accuracy(model, test), *flat(model)]
        return result

    accelerator, loop = theirs(), ours()
    by_accelerate = told(accelerator.prepare, accelerator.backward, partial(their_accuracy, accelerator))
    by_loop = told(partial(loop.prepare, batch="per_replica"), loop.backward, partial(our_accuracy, loop))
    same(by_loop, by_accelerate)


@check
def checkpointing_and_complete_nlp_example() -> None:
    epochs, every = 2, 3
    loop = ours()
    n_batches = N_TRAINED // BATCH_SIZE // loop.num_processes

    def by_accelerate(folder: str, resumed: int) -> list[float]:
        accelerator = theirs()
        train, test = loaders()
        model, optimizer, schedule = parts(len(train) * epochs)
        model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)
        overall, first = resumed, resumed // n_batches
        if resumed:
            accelerator.load_state(f"{folder}/step_{resumed}")
        for epoch in range(first, epochs):
            model.train()
            skipped = resumed - first * n_batches if resumed and epoch == first else 0
            for batch in accelerator.skip_first_batches(train, skipped) if skipped else train:
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                overall += 1
                if overall % every == 0 and not resumed:
                    accelerator.save_state(f"{folder}/step_{overall}")
            accuracy = their_accuracy(accelerator, model, test)
        return [accuracy, *flat(model)]

    def by_loop(folder: str, resumed: int) -> list[float]:
        loop = ours()
        train, test = loaders()
        model, optimizer, schedule = parts(len(train) // loop.num_processes * epochs)
        model, optimizer, train, schedule = loop.prepare(model, optimizer, train, schedule, batch="per_replica")
        test = loop.prepare(test)
        if resumed:
            loop.load(f"{folder}/step_{resumed}")
        for _ in loop.epochs(epochs):
            model.train()
            for batch in train:
                loop.backward(model(**batch).loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                if loop.step % every == 0 and not resumed:
                    loop.save(f"{folder}/step_{loop.step}")
            accuracy = our_accuracy(loop, model, test)
        return [accuracy, *flat(model)]

    with tempfile.TemporaryDirectory() as mine:
        folder = loop.broadcast(mine)
        whole = by_accelerate(f"{folder}/theirs", 0)
        same(by_loop(f"{folder}/ours", 0), whole)
        for resumed in (3, 6):
            same(by_loop(f"{folder}/ours", resumed), whole)
        # Theirs goes on to the same numbers within the first epoch only: the order of the second is drawn anew.
        same(by_accelerate(f"{folder}/theirs", 3)[0], whole[0])
        loop.barrier()


class Backbone(nn.Module):
    """A convolution, of which a head is trained alone."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 5)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.head(self.convolution(pictures).relu().flatten(1))


@check
def complete_cv_example() -> None:
    draw = torch.Generator().manual_seed(5)
    pictures = torch.rand(32, 3, 8, 8, generator=draw)
    rows = [{"image": picture, "label": i % 5} for i, picture in enumerate(pictures)]
    mean, deviation = torch.full((1, 3, 1, 1), 0.5), torch.full((1, 3, 1, 1), 0.25)

    def made(n_updates: int) -> Any:
        set_seed(42)
        model = Backbone()
        for parameter in model.convolution.parameters():
            parameter.requires_grad = False
        optimizer = torch.optim.Adam(model.parameters(), lr=LR / 25)
        schedule = OneCycleLR(optimizer, max_lr=LR, epochs=2, steps_per_epoch=n_updates)
        order = torch.Generator().manual_seed(3)
        train = DataLoader(rows, batch_size=4, shuffle=True, generator=order)
        return model, optimizer, schedule, train

    def by_hand(batch_size: int) -> list[float]:
        model, optimizer, schedule, train = made(32 // batch_size)
        order = torch.Generator().manual_seed(3)
        train = DataLoader(rows, batch_size=batch_size, shuffle=True, generator=order)
        for _ in range(2):
            for batch in train:
                nn.functional.cross_entropy(model((batch["image"] - mean) / deviation), batch["label"]).backward()
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        return flat(model)

    def trained(prepare: Any, backward: Any, n_updates: int) -> list[float]:
        model, optimizer, schedule, train = prepare(*made(n_updates))
        for _ in range(2):
            for batch in train:
                backward(nn.functional.cross_entropy(model((batch["image"] - mean) / deviation), batch["label"]))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        return flat(model)

    loop, accelerator = ours(), theirs()
    own = trained(partial(loop.prepare, batch="per_replica"), loop.backward, 8 // loop.num_processes)
    same(own, by_hand(4 * loop.num_processes))
    other = trained(accelerator.prepare, accelerator.backward, 8)
    if loop.num_processes == 1:
        same(own, other)
    else:  # its schedule goes two steps with each update, which is another curve
        assert max(abs(a - b) for a, b in zip(own, other, strict=True)) > 1e-5


@check
def local_sgd_and_communication_hooks_are_not_there() -> None:
    with pytest.raises(AttributeError, match="local_sgd"):
        ours().local_sgd  # noqa: B018
    with pytest.raises(ArgumentError, match="Loop has no argument 'comm_hook'"):
        ours(comm_hook="fp16")


# -- test_script.py ----------------------------------------------------------------------------------------------------


def line(seed: int = 42) -> nn.Linear:
    """A line to be fitted."""
    torch.manual_seed(seed)
    return nn.Linear(1, 1)


def points(n_rows: int) -> TensorDataset:
    """Points on a line."""
    x = torch.randn(n_rows, 1, generator=torch.Generator().manual_seed(n_rows))
    return TensorDataset(x, 2 * x + 3)


def shuffled(n_rows: int, batch_size: int, seed: int = 42) -> DataLoader[Any]:
    """A loader with a generator of its own."""
    order = torch.Generator().manual_seed(seed)
    return DataLoader(points(n_rows), batch_size, shuffle=True, generator=order)


def fitted(net: Any, optimizer: Any, loader: Any, backward: Callable[[Tensor], object]) -> list[float]:
    """Three epochs."""
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            backward(nn.functional.mse_loss(net(x).float(), y))
            optimizer.step()
    return flat(net)


def in_half_precision(n_rows: int) -> list[float]:
    """Three epochs by hand."""
    net, scaler = line(), torch.amp.GradScaler("cpu")
    optimizer, loader = torch.optim.SGD(net.parameters(), lr=0.1), shuffled(n_rows, 8)
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                outputs = net(x)
            scaler.scale(nn.functional.mse_loss(outputs.float(), y)).backward()
            scaler.step(optimizer)
            scaler.update()
    return flat(net)


@check
def training_is_that_of_one_process() -> None:
    size = ours().num_processes
    n_rows = 32 * size
    net = line()
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    by_hand = fitted(net, plain, shuffled(n_rows, 8 * size), lambda loss: loss.backward())

    def by_loop(batch: str, batch_size: int, **settings: Any) -> list[float]:
        loop, net = ours(**settings), line()
        made = net, torch.optim.SGD(net.parameters(), lr=0.1), shuffled(n_rows, batch_size)
        return fitted(*loop.prepare(*made, batch=batch), loop.backward)

    def by_accelerate(batch_size: int, *, split: bool = False, **settings: Any) -> list[float]:
        accelerator, net = theirs(dataloader_config=DataLoaderConfiguration(split_batches=split), **settings), line()
        made = net, torch.optim.SGD(net.parameters(), lr=0.1), shuffled(n_rows, batch_size)
        return fitted(*accelerator.prepare(*made), accelerator.backward)

    same(by_loop("per_replica", 8), by_hand)
    same(by_loop("global", 8 * size), by_hand)
    same(by_accelerate(8), by_hand)
    same(by_accelerate(8 * size, split=True), by_hand)
    same(by_loop("per_replica", 8, precision="bf16-mixed"), by_accelerate(8, mixed_precision="bf16"))
    if size == 1:  # theirs refuses fp16 on a CPU; in several processes others of the first steps are skipped
        same(by_loop("per_replica", 8, precision="fp16-mixed"), in_half_precision(n_rows))


@check
def the_first_process_is_first_and_prints_alone() -> None:
    loop = ours()
    with tempfile.TemporaryDirectory() as mine:
        file = Path(loop.broadcast(mine)) / "order"
        with loop.main_process_first(), file.open("a") as opened:
            opened.write(f"{loop.process_index}\n")
        loop.barrier()
        lines = file.read_text().split()
        assert lines[0] == "0" and sorted(lines) == [str(i) for i in range(loop.num_processes)]
        with (Path(mine) / "printed").open("w") as opened:
            loop.print("first", file=opened)
        assert (Path(mine) / "printed").read_text() == ("first\n" if loop.is_main_process else "")
        loop.barrier()
    assert loop.is_local_main_process == (loop.local_process_index == 0)


@check
def items_are_divided_between_processes() -> None:
    loop, accelerator = ours(), theirs()
    rank, size = loop.process_index, loop.num_processes
    for n_items in (2 * size, 2 * size - 1, 17, 1):
        items = list(range(n_items))
        own = items[rank::size]
        with accelerator.split_between_processes(items) as other:
            pass
        assert len(own) == len(other)
        assert sorted(loop.gather(own)) == items
        in_order = loop.prepare(DataLoader(items, batch_size=4))
        assert loop.gather(batch for batch in in_order).tolist() == items
        nested = {"a": items, "b": [str(i) for i in items], "c": torch.arange(n_items)}
        divided = {name: values[rank::size] for name, values in nested.items()}
        assert [len(values) for values in divided.values()] == [len(own)] * 3


@check
def the_order_of_rows_is_alike_whatever_the_processes_drew() -> None:
    loop = ours()
    for kind in ("global", "per_replica"):
        torch.manual_seed(100 + loop.process_index)
        by_hand = []
        if loop.is_main_process:
            by_hand = [int(i) for batch in DataLoader(range(32), batch_size=8, shuffle=True) for i in batch]
        torch.manual_seed(100 + loop.process_index)
        loader = loop.prepare(DataLoader(range(32), batch_size=8, shuffle=True), batch=kind)
        assert loop.gather(batch for batch in loader).tolist() == loop.broadcast(by_hand)


@check
def the_sampler_of_a_loader_stays() -> None:
    import numpy as np

    class Batches:
        batch_size = 8

        def __iter__(self) -> Iterator[Any]:
            yield from np.array_split(np.random.permutation(64), len(self))

        def __len__(self) -> int:
            return 8

    loop, sampler = ours(), Batches()
    loader = loop.prepare(DataLoader(range(64), batch_sampler=sampler))
    assert loader.batch_sampler is sampler
    epochs = [loop.gather(batch for batch in loader).tolist() for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(64)) and epochs[0] != epochs[1]


@check
def a_seed_and_an_epoch_are_an_order() -> None:
    def order(loop: Any, loader: Any) -> list[int]:
        return list(loop.gather(batch for _ in range(1) for batch in loader).tolist())

    loop = ours(seed=42)
    loader = loop.prepare(DataLoader(range(10), batch_size=2, shuffle=True))
    loader.set_epoch(0)
    first = [order(loop, loader) for _ in range(3)]
    loader.set_epoch(0)
    again = order(loop, loader)
    assert again == first[0] and first[0] != first[1]
    other = ours(seed=43)
    assert order(other, other.prepare(DataLoader(range(10), batch_size=2, shuffle=True))) != first[0]


@check
def a_flag_of_one_process_is_seen_by_all_once() -> None:
    loop, accelerator = ours(), theirs()
    assert loop.any(False) is accelerator.check_trigger() is False
    if accelerator.is_main_process:
        accelerator.set_trigger()
    assert loop.any(loop.is_main_process) is accelerator.check_trigger() is True
    assert loop.any(False) is accelerator.check_trigger() is False


# -- test_distributed_data_loop.py -------------------------------------------------------------------------------------


@check
def shares_differ_by_a_row_and_no_row_is_repeated() -> None:
    loop = ours()
    rank = loop.process_index
    if loop.num_processes == 1:
        return
    # (rows, batch size): shares of each process by Loop, by Accelerate, and by Accelerate without even batches
    cases = {
        (3, 1): ([[1, 0], [1, 1]], [[1, 1], [1, 1]], [[1, 1], [1]]),
        (7, 2): ([[2, 1], [2, 2]], [[2, 2], [2, 2]], [[2, 2], [2, 1]]),
    }
    for (n_rows, batch_size), expected in cases.items():
        loader = loop.prepare(DataLoader(TensorDataset(torch.arange(n_rows)), batch_size), batch="per_replica")
        with torch.no_grad():
            own = [loader.share.rows for _ in loader]
        assert own == expected[0][rank]
        for is_even, theirs_expected in ((True, expected[1]), (False, expected[2])):
            accelerator = theirs(dataloader_config=DataLoaderConfiguration(even_batches=is_even))
            other = accelerator.prepare(DataLoader(TensorDataset(torch.arange(n_rows)), batch_size))
            assert [len(x) for (x,) in other] == theirs_expected[rank]
        assert loop.gather(x for (x,) in loader).tolist() == list(range(n_rows))


@check
def uneven_data_needs_no_join() -> None:
    loop = ours()
    net, by_hand = line(), line()
    data = points(3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net, optimizer, loader = loop.prepare(net, optimizer, DataLoader(data, batch_size=1), batch="per_replica")
    fitted(net, optimizer, loader, loop.backward)
    size = loop.num_processes
    plain = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    same(flat(net), fitted(by_hand, plain, DataLoader(data, batch_size=size), lambda loss: loss.backward()))
    assert loop.step == 3 * -(-3 // size)


@check
def rows_that_workers_read_come_once() -> None:
    from torch.utils.data import BatchSampler, RandomSampler, default_collate

    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return 22

        def __getitem__(self, index: Any) -> Any:
            if isinstance(index, list):
                return [self[i] for i in index]
            return {"index": index, "label": index % 2, "random_augmentation": torch.rand(1).item()}

    loop, data = ours(), Rows()
    sampler = BatchSampler(RandomSampler(data), batch_size=4, drop_last=False)
    for made in (
        DataLoader(data, batch_size=4, num_workers=2),
        DataLoader(data, batch_sampler=sampler, num_workers=2),
        DataLoader(data, sampler=sampler, batch_size=None, collate_fn=default_collate, num_workers=2),
    ):
        gathered = loop.gather(loop.prepare(made).__iter__())
        assert sorted(gathered["index"].tolist()) == list(range(22))
        assert gathered["label"].tolist() == [i % 2 for i in gathered["index"].tolist()]
        assert len(set(gathered["random_augmentation"].tolist())) == 22  # no worker or process draws what another did


@check
def a_loader_that_is_saved_within_an_epoch_goes_on() -> None:
    loop = ours()
    values = torch.randperm(32 * loop.num_processes, generator=torch.Generator().manual_seed(1))

    class Stream(torch.utils.data.IterableDataset[Tensor]):
        def __iter__(self) -> Iterator[Tensor]:
            yield from values

    for data in (Stream(), TensorDataset(values)):
        first, second = ours(), ours()
        loader, resumed = (l.prepare(DataLoader(data, batch_size=4)) for l in (first, second))  # noqa: E741
        with tempfile.TemporaryDirectory() as mine:
            folder = loop.broadcast(mine)
            rest = []
            for number, batch in enumerate(loader):
                rows = first.gather(batch)
                if number == 2:
                    state = loader.state_dict()
                    first.save(folder)
                if number > 2:
                    rest.append(rows)
            second.load(folder)
            again = [second.gather(batch) for batch in resumed]
            loader.load_state_dict(state)
            third = [first.gather(batch) for batch in loader]
            for other in (again, third):
                torch.testing.assert_close(torch.cat([_rows(b) for b in other]), torch.cat([_rows(b) for b in rest]))
            loop.barrier()


def _rows(batch: Any) -> Tensor:
    rows: Tensor = batch[0] if isinstance(batch, (list, tuple)) else batch
    return rows


@check
def none_stays_none_and_what_nothing_can_be_done_with_is_an_error() -> None:
    loop, accelerator = ours(), theirs()
    net = line()
    made = net, torch.optim.SGD(net.parameters(), lr=0.1), None, DataLoader(points(4)), None
    assert [value is None for value in accelerator.prepare(line(), None)] == [False, True]
    assert [value is None for value in loop.prepare(*made)] == [False, False, True, False, True]
    assert accelerator.prepare([1, 2]) == [1, 2]
    with pytest.raises(DataError, match="cannot prepare a int"):
        loop.prepare([1, 2])


# -- test_state_checkpointing.py ---------------------------------------------------------------------------------------


def fit_with_draws(
    context: Any, net: Any, optimizer: Any, loader: Any, epochs: int, schedule: Any = None
) -> list[float]:
    """Train, and tell a number that is drawn after each epoch."""
    drawn = []
    for _ in range(epochs):
        for x, y in loader:
            context.backward(nn.functional.mse_loss(net(x), y))
            optimizer.step()
            optimizer.zero_grad()
        drawn.append(random.random())
        if schedule is not None:
            schedule.step()
    return drawn


@check
def training_goes_on_from_a_folder_of_weights_optimizer_schedule_and_random_state() -> None:
    size = ours().num_processes

    def made(prepare: Any) -> Any:
        set_seed(42)
        net = line()
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        return prepare(net, optimizer, shuffled(40 * size, 4), StepLR(optimizer, step_size=1, gamma=0.99))

    def saved(folder: str, context: Any, save: Any, load: Any, prepare: Any) -> list[float]:
        net, optimizer, loader, schedule = made(prepare)
        fit_with_draws(context, net, optimizer, loader, 2, schedule)
        save(f"{folder}/checkpoint")
        numbers = [*fit_with_draws(context, net, optimizer, loader, 1, schedule), *flat(net)]
        numbers.append(schedule.get_last_lr()[0])
        load(f"{folder}/checkpoint")  # into the same objects
        assert flat(net) != numbers[1:3]
        again = [*fit_with_draws(context, net, optimizer, loader, 1, schedule), *flat(net)]
        assert again[0] == numbers[0] and schedule.get_last_lr()[0] == numbers[-1]
        if context is not accelerator:  # whose loader draws the order of another epoch
            assert again == numbers[:-1]
        return numbers

    loop, accelerator = ours(), theirs()
    with tempfile.TemporaryDirectory() as mine:
        folder = loop.broadcast(mine)
        others = saved(f"{folder}/a", accelerator, accelerator.save_state, accelerator.load_state, accelerator.prepare)
        own = saved(f"{folder}/b", loop, loop.save, loop.load, partial(loop.prepare, batch="per_replica"))
        if size == 1:
            same(own[1:3], others[1:3])
        other = theirs()
        net, optimizer, loader, schedule = made(other.prepare)
        other.load_state(f"{folder}/a/checkpoint")
        fit_with_draws(other, net, optimizer, loader, 1)
        assert flat(net) != others[1:3]  # in another order of rows
        fresh = ours()
        net, optimizer, loader, schedule = made(partial(fresh.prepare, batch="per_replica"))
        fresh.load(f"{folder}/b/checkpoint")
        again = [*fit_with_draws(fresh, net, optimizer, loader, 1, schedule), *flat(net), schedule.get_last_lr()[0]]
        assert again == own
        state = next(iter(optimizer.state.values()))
        assert state["exp_avg"].device == fresh.device and fresh.step == 30
        loop.barrier()


@check
def no_more_checkpoints_are_kept_than_asked_for() -> None:
    loop = ours()
    with tempfile.TemporaryDirectory() as mine:
        folder = Path(loop.broadcast(mine))
        for keep in (1, 2):
            run = ours()
            net = line()
            net, optimizer, loader = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1), shuffled(8, 8))
            for _ in run.epochs(11, save=folder / str(keep), keep=keep):
                fit_with_draws(run, net, optimizer, loader, 1)
            run.barrier()
            steps = sorted(int(path.name[5:14]) for path in (folder / str(keep)).iterdir())
            assert steps == [10, 11][-keep:]
            trained = flat(net)
            again = ours()
            net = line()
            net, _, _ = again.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1), shuffled(8, 8))
            again.load(folder / str(keep))  # the newest
            assert flat(net) == trained
        config = ProjectConfiguration(total_limit=2, project_dir=str(folder / "b"), automatic_checkpoint_naming=True)
        accelerator = theirs(project_config=config)
        accelerator.prepare(line())
        for _ in range(3):
            accelerator.save_state()
        if loop.is_main_process:
            assert len(list((folder / "b/checkpoints").iterdir())) == 2
        loop.barrier()


@check
def what_has_no_state_is_not_saved() -> None:
    loop, accelerator = ours(), theirs()
    net = line()
    with pytest.raises(ValueError, match="Item at index 0"):
        accelerator.register_for_checkpointing(torch.tensor([1, 2, 3]), net)
    with pytest.raises(DataError, match="cannot prepare a Tensor"):
        loop.prepare(torch.tensor([1, 2, 3]), net)


# -- test_accelerator.py, test_scheduler.py and test_memory_utils.py ---------------------------------------------------


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(x))
        return result


@check
def weights_come_back_tied_ones_too() -> None:
    loop = ours()
    with tempfile.TemporaryDirectory() as mine:
        folder = Path(loop.broadcast(mine))
        for kind in (partial(nn.Linear, 2, 4), Tied):
            run = ours()
            torch.manual_seed(1)
            model = run.prepare(kind())
            before = flat(model)
            run.save(folder / getattr(kind, "__name__", "linear"))
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
            run.load(folder / getattr(kind, "__name__", "linear"))
            assert flat(model) == before
        assert model.second.weight is model.first.weight
        loop.barrier()


@check
def a_model_is_prepared_once() -> None:
    accelerator, loop = theirs(), ours()
    prepared = accelerator.prepare(line())
    assert accelerator.prepare(prepared) is prepared
    net = loop.prepare(line())
    with pytest.raises(ConfigError, match="prepared already"):
        loop.prepare(net)


@check
def a_compiled_model_is_unwrapped() -> None:
    accelerator, loop = theirs(), ours()
    net = line()
    wrapped = torch.compile(net, backend="eager")
    assert accelerator.unwrap_model(wrapped, keep_torch_compile=False) is net
    assert loop.unwrap(wrapped) is net and loop.unwrap(loop.prepare(net)) is net


@check
def a_schedule_steps_once_whatever_the_number_of_processes() -> None:
    loop, accelerator = ours(), theirs()
    rates = []
    for context in (loop, accelerator):
        net = line()
        optimizer = torch.optim.AdamW(net.parameters(), lr=1.0)
        net, optimizer, schedule = context.prepare(net, optimizer, LambdaLR(optimizer, lambda step: 1 - step / 10))
        loss = net(torch.ones(2, 1)).sum()
        if context is loop:
            loop.backward(loss, count=2)
        else:
            accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        rates.append(schedule.get_last_lr()[0])
    assert rates == [pytest.approx(0.9), pytest.approx(1 - loop.num_processes / 10)]


@check
def a_batch_size_is_halved_until_it_fits() -> None:
    tried: dict[str, list[int]] = {"ours": [], "theirs": []}

    def run(name: str, size: int, word: str) -> tuple[int, str]:
        tried[name].append(size)
        if size != 8:
            raise RuntimeError("CUDA out of memory.")
        return size, word

    loop = ours()
    assert loop.find_batch_size(lambda size: run("ours", size, "hello"), start=128) == (8, "hello")
    assert tried["ours"] == [128, 64, 32, 16, 8]
    decorated = find_executable_batch_size(lambda batch_size: run("theirs", batch_size, "hello"), 128)
    assert decorated() == (8, "hello") and len(tried["theirs"]) == 23  # each time a tenth less

    def never(size: int) -> None:
        raise RuntimeError("CUDA out of memory.")

    with pytest.raises(RuntimeError, match="out of memory"):
        loop.find_batch_size(never, start=16)
    for start in (0, -1, 2.0, True):
        with pytest.raises(ConfigError, match="begins with start="):
            loop.find_batch_size(never, start=start)
    with pytest.raises(ValueError, match="another"):
        loop.find_batch_size(_fails)


def _fails(size: int) -> None:
    raise ValueError("another")


@check
def the_batches_of_an_update_are_set_before_anything_is_prepared() -> None:
    loop = ours()
    loop.accumulation_steps = 3
    loader = loop.prepare(DataLoader(points(14), batch_size=2))
    ends = []
    for _ in loader:
        with loop.accumulate():
            ends.append(loop.is_update)
    assert ends == [False, False, True, False, False, True, True]
    with pytest.raises(ConfigError, match="set after prepare"):
        loop.accumulation_steps = 4
    with pytest.raises(ConfigError, match="accumulate=0 is not a number of batches"):
        ours().accumulation_steps = 0


if __name__ == "__main__":
    from checks_in_processes import run

    run(CHECKS, sys.argv[2:], Path(sys.argv[1]), ours().process_index)
