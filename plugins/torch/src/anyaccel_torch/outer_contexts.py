"""Outer contexts: torch's contexts of the caller, which a phase leaves: autocast, no_grad, inference_mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from anyaccel.adapter.outer_contexts import LeavesContexts, OuterContexts
from anyaccel.errors import PhaseError

_PRECISIONS = {torch.bfloat16: "bf16-mixed", torch.float16: "fp16-mixed"}


class TorchContexts(LeavesContexts):
    """Contexts of torch."""

    @contextmanager
    def leave_contexts(self) -> Iterator[OuterContexts]:
        """Leave autocast, inference_mode and no_grad."""
        _check_values()
        set_aside: list[str] = []
        with ExitStack() as entered:
            if torch.is_inference_mode_enabled():
                set_aside.append("torch.inference_mode around the phase is ignored: training needs gradients")
                entered.enter_context(torch.inference_mode(False))
            if not torch.is_grad_enabled():
                set_aside.append("torch.no_grad around the phase is ignored: training needs gradients")
                entered.enter_context(torch.enable_grad())
            casts = entered.enter_context(
                _left_autocast({kind: self.backend.torch_types.get(kind, kind) for kind in self.backend.kinds})
            )
            set_aside += [
                f"{context} around the phase is ignored: set precision instead" for context, _ in casts.values()
            ]
            yield OuterContexts(set_aside=tuple(set_aside), casts=casts)


def _check_values() -> None:
    """Raise if tensors have no values, or a function is being recorded instead of run."""
    fake = next((mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, FakeTensorMode)), None)
    transforms = torch._C._functorch.peek_interpreter_stack()  # noqa: SLF001 - torch has no public way to ask
    is_traced = torch._C._get_tracing_state() is not None  # noqa: SLF001
    if fake is None and transforms is None and not is_traced:
        return
    where = "a FakeTensorMode" if fake is not None else "torch.jit.trace" if is_traced else "torch.func"
    raise PhaseError(
        f"a graph is computed inside {where}, where tensors have no values",
        hint="run it outside, before or after",
    )


@contextmanager
def _left_autocast(types: Mapping[str, str]) -> Iterator[dict[str, tuple[str, str]]]:
    """Leave autocast inside this context; yield the contexts that were left, by kind of device.

    Cast weights are cached until the outermost context of a thread ends, including those of inner contexts. So the
    count of contexts also restarts: otherwise `precision="bf16-mixed"` would use the first weights forever.
    """
    there: dict[str, str] = {}
    for kind, name in types.items():
        with suppress(RuntimeError):  # a type of device that nobody has given a name in this process
            if torch.amp.is_autocast_available(name):
                there[kind] = name
    casts: dict[str, tuple[str, str]] = {}
    for kind, name in there.items():
        if torch.is_autocast_enabled(name):
            dtype = torch.get_autocast_dtype(name)
            casts[kind] = f"torch.autocast({name!r}, {dtype})", _PRECISIONS.get(dtype, "bf16-mixed")
    depth = torch.autocast_increment_nesting() - 1
    for _ in range(depth + 1):
        torch.autocast_decrement_nesting()
    for kind in casts:
        torch.set_autocast_enabled(there[kind], False)
    if depth:
        torch.clear_autocast_cache()
    try:
        yield casts
    finally:
        for kind in casts:
            torch.set_autocast_enabled(there[kind], True)
        for _ in range(depth):
            torch.autocast_increment_nesting()
        if depth:  # the weights that the caller's contexts have kept are those of before
            torch.clear_autocast_cache()
