"""A language model of transformers, which several processes divide by the plan that it brings.

Arguments: its folder, and one for what is told.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import anyaccel as aa

RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Logits(torch.nn.Module):
    """A language model, of whose outputs the losses take the logits."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of the next token [rows, positions, tokens]."""
        logits: torch.Tensor = self.model(input_ids=ids).logits
        return logits


def loaded(folder: str) -> Any:
    """The model, in several processes divided by its plan."""
    sys.modules["torchvision"] = None  # type: ignore[assignment]  # for images alone, and made for another torch
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    parallel: dict[str, Any] = {"distributed_config": DistributedConfig(tp_plan="auto")} if SIZE > 1 else {}
    return AutoModelForCausalLM.from_pretrained(folder, **parallel).train()


def main() -> None:
    """Train, and tell losses, values, and how much of the model is here."""
    model = loaded(sys.argv[1])
    local = sum(getattr(p, "to_local", lambda p=p: p)().numel() for p in model.parameters())
    ids = np.random.default_rng(0).integers(0, 61, (40, 8))
    columns = {"ids": ids, "next": np.roll(ids, -1, axis=1)}
    data = aa.FeatureSet.from_dict("d", columns, ["ids"], ["next"])
    node = aa.ModelNode("lm", Logits(model), data.reference())
    graph = aa.ModelGraph([node], aa.Optimizer("adamw", lr=1e-2, clip_norm=0.5))
    losses = [aa.AppliedLoss("cross_entropy", on="lm")]
    phase = aa.TrainPhase("train", data=data, losses=losses, batch_size=8, epochs=2, replicas=1)
    results = aa.Experiment(graph, progress="none").run_phase(phase)
    values = {name: float(np.abs(value).sum()) for name, value in graph.state().items()}
    told = {"losses": results.loss.tolist(), "values": values, "local": local}
    Path(sys.argv[2], f"{SIZE}-{RANK}.json").write_text(json.dumps(told))
    if SIZE > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
