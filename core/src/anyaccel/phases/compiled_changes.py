"""What compiled steps have read and listeners have changed between them is refused."""

from __future__ import annotations

from collections.abc import Sequence

from anyaccel.errors import CompileError
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.run import Run


def refuse_changes_between_steps(run: Run, pipeline: Pipeline) -> None:
    """Compiled steps of an epoch cannot have seen what `step_end` or `steps_done` has changed.

    Raises:
        CompileError: it has changed a value that they read.
    """
    names = pipeline.renew_compiled()
    if names:
        raise CompileError(
            f"{changed(names)} changed between steps of epoch {run.epoch}, and the compiled steps have not seen it",
            hint="change it in epoch_start or epoch_end, or set compile='off'",
        )


def changed(names: Sequence[str]) -> str:
    """Some of the names that have changed."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more} " + ("has" if len(names) == 1 else "have")
