"""Settings: flags of torch's backends that hold while a phase runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, reduce
from typing import Any, ClassVar

from anyaccel.adapter.framework_settings import HasSettings
from anyaccel.adapter.process_setting import ProcessSetting

BOOLEANS = (
    "torch.backends.cudnn.benchmark",
    "torch.backends.cudnn.deterministic",
    "torch.backends.cudnn.allow_tf32",
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
)


class TorchSettings(HasSettings):
    """Flags of cuDNN and cuBLAS."""

    kernel_trials: ClassVar[str] = "torch.backends.cudnn.benchmark"

    def settings(self) -> Mapping[str, tuple[Any, ...]]:
        """All may be True or False."""
        return dict.fromkeys(BOOLEANS, (True, False))

    @contextmanager
    def with_settings(self, values: Mapping[str, Any]) -> Iterator[None]:
        import torch

        owners = {name: reduce(getattr, name.split(".")[1:-1], torch) for name in values}
        before = {name: getattr(owner, _last(name)) for name, owner in owners.items()}
        try:
            for name, value in values.items():
                setattr(owners[name], _last(name), value)
            yield
        finally:
            for name, value in before.items():
                setattr(owners[name], _last(name), value)


@cache
def matmul_precision() -> ProcessSetting:
    """Return the setting for the precision of float32 matrix multiplications."""
    import torch

    read, write = torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    return ProcessSetting("matmul_precision", read, write)


def _last(name: str) -> str:
    return name.rpartition(".")[2]
