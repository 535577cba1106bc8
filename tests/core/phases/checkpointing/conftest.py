"""What tests of checkpoints share: runs that are broken off, and one that is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anyaccel.phases import Callback, Checkpoint, EarlyStopping

EPOCHS = 3  # of four steps each


class Broken(Exception):
    """What ends a run early."""


class BreakOff(Callback):
    """Raises in a hook when it was called so many times."""

    def __init__(self, hook: str, at: int, error: BaseException) -> None:
        self._hook, self._left, self._error = hook, at, error

    def _count(self, hook: str) -> None:
        if hook == self._hook:
            self._left -= 1
            if self._left == 0:
                raise self._error

    def step_end(self, run: Any) -> None:
        self._count("step_end")

    def epoch_start(self, run: Any) -> None:
        self._count("epoch_start")

    def epoch_end(self, run: Any) -> None:
        self._count("epoch_end")


@pytest.fixture
def break_off() -> Callable[..., Callback]:
    """`break_off("step_end", 3)`: a callback that ends the run there, with Ctrl-C or another error."""
    return lambda hook="", at=0, error=None: BreakOff(hook, at, KeyboardInterrupt() if error is None else error)


@pytest.fixture
def tuned(train: Callable[..., Any]) -> Callable[..., Any]:
    """`tuned(folder, every=...)`: a phase with a validation that keeps the best epoch, and writes checkpoints."""

    def make(folder: Any = None, callback: Any = None, **settings: Any) -> Any:
        own = {
            name: settings.pop(name)
            for name in ("every", "keep", "keep_best", "on_failure", "wait")
            if name in settings
        }
        stopping = EarlyStopping("val_loss", patience=50, restore_best=True)
        return train(
            epochs=settings.pop("epochs", EPOCHS),
            validation="val",
            callbacks=[*([] if callback is None else [callback]), stopping],
            checkpoint=None if folder is None else Checkpoint(folder, **own),
            **settings,
        )

    return make


@pytest.fixture
def like() -> Callable[[Any, Any], None]:
    """`like(one, other)`: two results have the same epochs, to the bit, but for the time that they took."""

    def compare(one: Any, other: Any) -> None:
        for name in ("number", "loss", "losses", "steps", "validation"):
            first, second = ([getattr(epoch, name) for epoch in results.epochs] for results in (one, other))
            np.testing.assert_equal(first, second, err_msg=name)

    return compare
