"""Outer contexts: torch's contexts of the caller, which a phase leaves: autocast, no_grad, inference_mode."""

from __future__ import annotations

from collections.abc import Iterator
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
        """Leave autocast, inference_mode and no_grad; raise if tensors have no values, or a function is recorded."""
        where = ""
        if torch._C._functorch.peek_interpreter_stack() is not None:  # noqa: SLF001 - torch has no public way to ask
            where = "torch.func"
        if torch._C._get_tracing_state() is not None:  # noqa: SLF001
            where = "torch.jit.trace"
        for mode in _get_current_dispatch_mode_stack():
            if isinstance(mode, FakeTensorMode):
                where = "a FakeTensorMode"
        if where:
            raise PhaseError(
                f"a graph is computed inside {where}, where tensors have no values",
                hint="run it outside, before or after",
            )
        set_aside: list[str] = []
        casts: dict[str, tuple[str, str]] = {}
        autocast: list[str] = []  # torch's types of the devices with autocast
        with ExitStack() as entered:
            if torch.is_inference_mode_enabled():
                set_aside.append("torch.inference_mode around the phase is ignored: training needs gradients")
                entered.enter_context(torch.inference_mode(False))
            if not torch.is_grad_enabled():
                set_aside.append("torch.no_grad around the phase is ignored: training needs gradients")
                entered.enter_context(torch.enable_grad())
            for kind in self.backend.kinds:
                name = self.backend.torch_types.get(kind, kind)
                with suppress(RuntimeError):  # a type of device that nobody has given a name in this process
                    if torch.amp.is_autocast_available(name) and torch.is_autocast_enabled(name):
                        dtype = torch.get_autocast_dtype(name)
                        casts[kind] = f"torch.autocast({name!r}, {dtype})", _PRECISIONS.get(dtype, "bf16-mixed")
                        set_aside.append(f"{casts[kind][0]} around the phase is ignored: set precision instead")
                        autocast.append(name)
            # Cast weights are cached until the outermost context of a thread ends, including those of inner contexts.
            # So the count of contexts also restarts: otherwise precision="bf16-mixed" would use the first weights
            # forever.
            depth = torch.autocast_increment_nesting() - 1
            for _ in range(depth + 1):
                torch.autocast_decrement_nesting()
            for name in autocast:
                torch.set_autocast_enabled(name, False)
            if depth:
                torch.clear_autocast_cache()
            try:
                yield OuterContexts(set_aside=tuple(set_aside), casts=casts)
            finally:
                for name in autocast:
                    torch.set_autocast_enabled(name, True)
                for _ in range(depth):
                    torch.autocast_increment_nesting()
                if depth:  # the weights that the caller's contexts have kept are those of before
                    torch.clear_autocast_cache()
