"""What compiling would take and bring, guessed: from what is known of plain steps, and of compilations before."""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import os
import re
import tempfile
import time
from functools import cache
from pathlib import Path

import torch
from torch import nn

from anyaccel.backend import CompileEstimate
from anyaccel_torch import keras
from anyaccel_torch.compiling import toolchain_check
from anyaccel_torch.compiling.spec import Work
from anyaccel_torch.compiling.steps import FLAT_UP_TO

# Seconds, from measurements: a first compilation on a machine, one whose C++ is on disk already, what a layer adds, and
# what is compiled already in this process.
FIRST, AGAIN, LAYER, AT_ONCE = 14.0, 4.0, 0.6, 0.3
# What Python and the dispatcher take for each layer (forward, backward, update) and for each step beside, in times of
# one small operation, and the part of it that is left when compiled.
PER_LAYER, PER_STEP, LEFT = 22, 40, 0.12
WORTH = 0.85
"""Steps that take more than this part of a plain step's time are not worth a compilation."""

GRAPHED = 1.0, 0.3
"""Of a CUDA graph: a guess, as none was measured yet."""
_HEAVY = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.RNNBase, nn.MultiheadAttention)

_made: dict[str, float] = {}


def offer(work: Work, kind: str) -> CompileEstimate | None:
    """What it would take and bring to compile steps of a program; None where it cannot be or would not pay.

    Args:
        work: the program, with the time of a plain step.
        kind: what tells these steps from others: see `kind_of`.
    """
    if any(group.recipe.own is not None for group in work.groups) or keras.outermost(work.whole):
        return None
    if work.device.type == "cuda":
        return CompileEstimate(*GRAPHED)
    ratio = _ratio(work) if work.plain else _guess(work)
    return CompileEstimate(_seconds(work, kind), ratio) if ratio <= WORTH and toolchain_check.compiler() else None


def _ratio(work: Work) -> float:
    """Compiled steps lose what is between the operations, and keep the operations."""
    overhead = min((PER_STEP + PER_LAYER * len(_layers(work))) * _operation(), work.plain)
    return (LEFT * overhead + (work.plain - overhead)) / work.plain


def _guess(work: Work) -> float:
    """Before any step was seen: small models without convolutions are likely to be worth a try."""
    numbers = sum(each.numel() for group in work.groups for each in group.parameters)
    heavy = any(isinstance(layer, _HEAVY) for layer in _layers(work))
    return 1.0 if heavy or numbers > FLAT_UP_TO else WORTH / 2


@cache
def _operation() -> float:
    """Seconds that a small operation takes here: the least of some."""
    number, least = torch.zeros(4, requires_grad=True), math.inf
    for _ in range(20):
        begun = time.perf_counter()
        for _ in range(5):
            number.add(1.0)
        least = min(least, (time.perf_counter() - begun) / 5)
    return least


def _layers(work: Work) -> list[nn.Module]:
    return [part for part in work.whole.held.modules() if not list(part.children())]


def _seconds(work: Work, kind: str) -> float:
    if kind in _made:
        return AT_ONCE
    known = _read(kind)
    added = LAYER * len(_layers(work))
    return AGAIN + added if known else FIRST + added


def kind_of(work: Work, batch: int) -> str:
    """A name for steps that are compiled alike: of what their modules say of themselves, recipes, shapes and torch."""
    said = [
        torch.__version__,
        repr(work.whole.held),
        repr([(loss.label, loss.weight, loss.slots) for loss in work.losses]),
        repr([(term.loss.name, term.loss.own) for term in work.segment.losses if isinstance(term.loss.own, type)]),
        repr(
            [
                (group.recipe.name, sorted(group.recipe.settings.items()), group.recipe.clip_norm)
                for group in work.groups
            ]
        ),
        repr([(name, str(spec)) for name, (spec, _) in work.segment.inputs.items()]),
        str(batch),
    ]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:32]


def remember(kind: str, seconds: float) -> None:
    """Note a compilation, in this process and beside torch's own cache on disk, if that can be written."""
    _made[kind] = seconds
    try:
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{kind}.json").write_text(json.dumps({"seconds": round(seconds, 3)}), encoding="utf-8")
    except OSError:
        pass


def _read(kind: str) -> bool:
    return (_folder() / f"{kind}.json").exists()


def _folder() -> Path:
    """Where torch keeps what it has compiled: `TORCHINDUCTOR_CACHE_DIR`, or the user's folder of temporary files."""
    try:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):
        user = str(getattr(os, "getuid", lambda: "user")())
    given = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return Path(given or Path(tempfile.gettempdir()) / f"torchinductor_{user}") / "anyaccel"
