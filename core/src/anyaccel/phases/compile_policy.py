"""Compiling: whether whole steps are compiled, decided by what it costs and by the steps that are to come."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable

from anyaccel.backend import CompileEstimate
from anyaccel.errors import CompileError, CompileWarning, OutOfMemoryError
from anyaccel.phases.events import LogEvent
from anyaccel.phases.executor.stepper import Stepper
from anyaccel.phases.traceback_cleanup import forget

_SURE_SECONDS, _SURE_SHARE = 0.02, 0.02
"""Plain steps are timed for so long, or for such a part of the compilation, before they say anything."""

Key = tuple[int, int | None, int]
"""Steps that are compiled together: of so many rows, at most so many at once, from columns of so many rows."""


class Compiling:
    """The choice of one TrainPhase.

    `off` compiles nothing, `steps` compiles before the first step. `auto` times plain steps first; it compiles as soon
    as the steps that are to come take longer plain than compiled, the compilation included. Where the phase may end
    before its last epoch (`early`), it waits until plain steps have taken as long as the compilation would, so that it
    never takes more than twice the time of the better choice. Where it compiled nothing it says why at the end.

    Args:
        mode: one of `auto`, `off` and `steps`.
        steps: that the phase takes in all; None where that is not known.
        most: the most steps that one call may take.
        early: whether the phase may end before.
        able: whether there is something to compile with; where there is not, `auto` has nothing to say.
        tell: is told what is decided, and why.
        doing: is told that it is being compiled, and when that is over.
    """

    def __init__(
        self,
        mode: str,
        steps: int | None,
        most: int,
        early: bool,
        able: bool,
        tell: LogEvent,
        doing: Callable[[str], None],
    ) -> None:
        self._mode, self._left, self._most = mode, steps, most
        self._early = early
        self._tell, self._doing = tell, doing
        self._tried: set[Key] = set()
        self._key: Key | None = None
        self._spent = 0.0
        self._timed_steps, self._timed_seconds = 0, 0.0
        self._wait = math.inf
        self._settled = mode == "off"
        self._offer: CompileEstimate | None = None
        self._able = able

    def before(self, step: Stepper, batch: int, piece: int | None) -> None:
        """Called before each call of steps: compile now, if it is time."""
        self._key, self._wait = (batch, piece, step.rows), math.inf
        if self._settled or self._key in self._tried:
            return
        if step.program is None:
            self._never("no single program takes them whole")
        elif self._mode == "steps":
            self._compile(step, batch, piece, "as the phase asks")
        else:
            self._choose(step, batch, piece, step.program.estimate_compile(self._most))

    @property
    def limit(self) -> int:
        """The most steps of the next call: no more than there are until the next decision."""
        if not self._timed_steps or self._wait == math.inf:
            return 2**31
        return max(1, math.ceil(self._wait / max(self._each, 1e-9)))

    def took(self, count: int, seconds: float) -> None:
        """A call of `count` steps has taken so long; the first says little of the others."""
        if self._left is not None:
            self._left -= count
        if self._key in self._tried:
            return
        if self._spent > 0.0:
            self._timed_steps += count
            self._timed_seconds += seconds
        self._spent += seconds

    def again(self, count: int) -> None:
        """So many steps are to be done once more."""
        if self._left is not None:
            self._left += count

    def end(self) -> None:
        """The loop is over, and steps were taken: say why none are compiled, unless that was said."""
        if self._settled or self._tried:
            return
        if self._key is None:
            self._never("batches differ from each other")
        elif self._offer is not None:
            self._plain(self._why_not(self._offer))
        elif self._most == 1:
            self._plain("each is a call of its own, as somebody listens to step_end, and for such none are offered")
        else:
            self._plain("the backend offers none, as they cannot be or would gain little; compile='steps' tries it")

    @property
    def _each(self) -> float:
        return self._timed_seconds / self._timed_steps

    def _never(self, why: str) -> None:
        self._settled = True
        if self._mode == "steps":
            self._tell("compile", f"steps run one by one, uncompiled: {why}")
        else:
            self._plain(why)

    def _plain(self, why: str) -> None:
        if self._able:
            self._tell("compile", f"steps are not compiled: {why}", verbose=True)

    def _choose(self, step: Stepper, batch: int, piece: int | None, offer: CompileEstimate | None) -> None:
        self._offer = offer
        if offer is None:
            return
        sure = min(_SURE_SECONDS, _SURE_SHARE * offer.compile_seconds)
        if offer.compile_seconds <= 0.0 and offer.step_ratio <= 1.0:
            self._compile(step, batch, piece, "that takes no longer than plain steps do")
        elif not self._timed_steps or self._timed_seconds < sure:
            self._wait = sure - self._timed_seconds
        elif self._pays(offer):
            self._compile(step, batch, piece, f"{self._why(offer)}; {offer.compile_seconds:.1f} s were expected for it")

    def _pays(self, offer: CompileEstimate) -> bool:
        """Whether to compile now, as far as is known; notes how long to wait with that at least."""
        left = math.inf if self._left is None else self._left
        if offer.step_ratio >= 1.0 or left * self._each * (1.0 - offer.step_ratio) <= offer.compile_seconds:
            return False
        if (self._early or self._left is None) and self._spent < offer.compile_seconds:
            self._wait = offer.compile_seconds - self._spent
            return False
        return True

    def _why(self, offer: CompileEstimate) -> str:
        if self._early or self._left is None:
            return f"plain steps have taken {self._spent:.1f} s"
        saved = self._each * (1 - offer.step_ratio) * 1e6
        return f"{self._left:,} steps are to come, of which each saves about {saved:.0f} us"

    def _why_not(self, offer: CompileEstimate) -> str:
        """What is known when all is over: the choice may have been made when less was."""
        if offer.step_ratio >= 1.0:
            return "compiled ones would take no less time"
        takes = f"compiling would take about {_shown(offer.compile_seconds)}"
        if not self._timed_steps:
            return f"{takes}, and the phase was over before plain ones were timed"
        saved = self._timed_seconds * (1.0 - offer.step_ratio)
        late = ", as was known too late" if saved > offer.compile_seconds else ""
        steps = f"{self._timed_steps:,} step{'s' * (self._timed_steps > 1)} of {_shown(self._each)}"
        return f"{takes} and save {_shown(saved)} in {steps}{late}"

    def _compile(self, step: Stepper, batch: int, piece: int | None, why: str) -> None:
        self._tried.add((batch, piece, step.rows))
        if step.parts(batch, piece) is None:
            self._tell("compile", f"steps of {batch} rows in pieces of {piece} run one by one, uncompiled")
            return
        self._doing("compiling")
        began = time.perf_counter()
        try:
            step.compile(batch, piece)
        except (CompileError, OutOfMemoryError) as error:  # neither has changed anything
            self._uncompiled(error)
        else:
            self._tell("compile", f"steps compiled in {time.perf_counter() - began:.1f} s: {why}")
        finally:
            self._doing("")

    def _uncompiled(self, error: CompileError | OutOfMemoryError) -> None:
        self._settled = True
        forget(error)
        self._tell("compile", f"steps run uncompiled: {error}")
        if self._mode == "steps":
            warnings.warn(f"steps run uncompiled: {error}", CompileWarning, stacklevel=9)


def _shown(seconds: float) -> str:
    """A time for people, of a step or of a compilation."""
    if seconds >= 0.1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.0f} us"
