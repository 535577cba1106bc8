"""Profile: a request for a profile of some training steps, and what records it in phases and in custom loops."""

from __future__ import annotations

import operator
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyaccel import arguments
from anyaccel.accelerator import Accelerator
from anyaccel.adapter.step_profiler import Mark, ProfilesSteps, trace_name
from anyaccel.arguments import shown
from anyaccel.call_hints import constructor_hints
from anyaccel.errors import CapabilityError, ConfigError, FrameworkError, PhaseError
from anyaccel.phases.callbacks import Callback
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.loop_extension import UNLIMITED, Call, LoopExtension
from anyaccel.registry import registry

if TYPE_CHECKING:
    from anyaccel.graph import Plan
    from anyaccel.phases.run import Run
    from anyaccel.phases.runner import PhasePrograms

_HINT = "write callbacks=[Profile(steps=(10, 20))]"
_LONGEST = 50
"""Characters of a label in the name of a file."""
RECORDING = threading.Lock()
"""Held while something is being profiled: profilers record whole processes."""


@constructor_hints
class Profile(Callback):
    """Record some training steps with the profiler of each framework in the graph.

    Each profiler writes a trace that Perfetto (https://ui.perfetto.dev) and Chrome open, with the names of the phase
    and the nodes. `files` holds the paths when the run has ended. The other steps do not become slower. With several
    processes, only the first is profiled.

    Args:
        steps: The first step, and the one after the last, counted from 0 over all epochs of the run: `(10, 20)` is ten
            steps.
        folder: Folder for the files, which replace those of an earlier run. A relative path is below the working folder
            at the time the Profile was created.

    Attributes:
        location: The absolute folder.
        files: The paths of the files.

    Raises:
        PhaseError: a setting out of range; or, when the phase begins, a phase that trains nothing, or a framework whose
            plugin has no profiler.

    Example:
        >>> import anyaccel as aa
        >>> profile = aa.Profile((10, 20), "traces")
        >>> phase = aa.TrainPhase("train", data="train", callbacks=[profile])
    """

    def __init__(self, steps: Sequence[int] = (10, 20), folder: str = "profile") -> None:
        where = "Profile: "
        is_pair = isinstance(steps, (tuple, list)) and len(steps) == 2 and all(map(arguments.is_integer, steps))
        if not is_pair or not 0 <= steps[0] < steps[1]:
            available = "two numbers, the first step and the one after the last"
            raise PhaseError(f"{where}steps is {shown(steps)}", available=available, hint=_HINT)
        self.steps = operator.index(steps[0]), operator.index(steps[1])
        self.folder = arguments.text(PhaseError, where, "folder", folder, "the name of a folder", "'profile'")
        self.location = Path(self.folder).absolute()
        self.files: list[Path] = []

    def get_config(self) -> dict[str, Any]:
        """Return the arguments as plain data."""
        return {"steps": list(self.steps), "folder": self.folder}

    def phase_start(self, phase: Any, run: Run) -> None:
        """Refuse phases without training steps, and a folder that cannot be made."""
        if not phase.trains:
            if self not in phase.callbacks:  # it is one of an experiment, which has other phases too
                return
            problem = f"phase {phase.label!r} has a Profile, but no training steps"
            raise PhaseError(problem, available="a TrainPhase", hint="pass the Profile to the TrainPhase")
        self.files = []
        try:
            self.location.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            problem = f"Profile: the folder {self.folder!r} cannot be created: {error.strerror}"
            raise PhaseError(problem, hint="name another: Profile(folder=...)") from None

    def before_placement(self, phase: Any, plan: Plan, run: Run) -> None:
        """Refuse frameworks that have no profiler."""
        if not phase.trains:
            return
        lacking = {
            assignment.framework
            for assignment in plan.assignments
            if assignment.backend.capability(ProfilesSteps) is None
        }
        if lacking:
            raise PhaseError(
                f"phase {phase.label!r} has a Profile, but the plugin of {', '.join(sorted(lacking))} has no profiler",
                cause="it lacks the capability 'profile_steps'",
                hint="leave the Profile out, or use a system profiler",
            )

    def loop_extensions(self, programs: PhasePrograms) -> list[LoopExtension]:
        """Return the session that records the run; none in processes after the first.

        Raises:
            PhaseError: another callback of the run also requests a profile.
        """
        run = programs.run
        n_requests = sum(isinstance(callback, Profile) for callback in programs.hooks.callbacks)
        if n_requests > 1:
            raise PhaseError(f"phase {run.phase.label!r} has {n_requests} Profile callbacks", hint="keep one of them")
        return [ProfileSession(self, run, programs.pipeline)] if run.is_main_process else []


class ProfileSession(LoopExtension):
    """Record the profile of one run.

    Args:
        profile: The request.
        run: The run whose steps are counted.
        pipeline: It is synchronized before and after, so that the trace holds only these steps.
    """

    def __init__(self, profile: Profile, run: Run, pipeline: Pipeline) -> None:
        self._profile, self._run, self._pipeline = profile, run, pipeline
        self._first, self._stop = profile.steps
        self._recording = ExitStack()
        self._n_steps = 0  # of the run so far
        self._marks: list[Mark] = []
        self._files: list[Path] = []
        self._from = self._last = -1  # the steps with which the recording began and ended

    @property
    def _position(self) -> int:
        return sum(epoch.steps for epoch in self._run.history) + self._run.step

    def most_steps(self, call: Call) -> int:
        """Return the number of steps until the recording begins or ends."""
        at = self._position
        if at >= self._stop:
            return UNLIMITED
        return (self._first if at < self._first else self._stop) - at

    @contextmanager
    def around_call(self, call: Call) -> Iterator[None]:
        """Record the call if its steps are requested."""
        at, n_steps = self._position, call.n_steps
        self._n_steps = at + n_steps
        if not self._first <= at < self._stop or self._is_done:
            yield
            return
        if not self._marks:
            if not RECORDING.acquire(blocking=False):
                raise PhaseError(
                    f"phase {self._run.phase.label!r} has a Profile, but another phase of this process is being "
                    "profiled",
                    hint="run the phases one at a time",
                )
            with ExitStack() as until_started:
                until_started.callback(RECORDING.release)
                self._pipeline.synchronize()
                self._from = at
                assignments = self._run.plan.assignments if self._run.plan is not None else ()
                profilers, files = [], []
                for framework in sorted({assignment.framework for assignment in assignments}):
                    of_framework = [assignment for assignment in assignments if assignment.framework == framework]
                    models = {
                        trace_name(assignment.node): getattr(self._run.graph[assignment.node], "model", None)
                        for assignment in of_framework
                    }
                    stem = re.sub(r"[^\w.-]+", "_", self._run.phase.label)[:_LONGEST]
                    path = self._profile.location / f"{stem}-{framework}.trace.json.gz"
                    profiler = of_framework[0].backend.required(ProfilesSteps)
                    try:
                        context = profiler.profile_steps(
                            path, models, [assignment.device for assignment in of_framework]
                        )
                        profilers.append(until_started.enter_context(context))
                    except Exception as error:  # what each framework raises where its user records, too
                        label, said = self._run.phase.label, str(error).partition("\n")[0]
                        raise PhaseError(
                            f"phase {label!r} has a Profile, but the profiler of {framework} does not start: {said}",
                            hint="stop the profiler that is running in this process, or leave the Profile out",
                        ) from error
                    files.append(path)
                self._marks, self._files = profilers, files
                self._recording = until_started.pop_all()
        last = self._last = at + n_steps - 1
        name = f"{self._run.phase.label}: {f'step {at}' if n_steps == 1 else f'steps {at} to {last}'}"
        with ExitStack() as marks:
            for mark in self._marks:
                marks.enter_context(mark(trace_name(name)))
            yield
        if last + 1 >= self._stop:
            self.ended()

    @property
    def _is_done(self) -> bool:
        return self._from >= 0 and not self._marks

    def ended(self) -> None:
        """End the recording and report the files, or the reason why none were written; a run does not fail because of
        them.
        """
        if not self._marks:
            if self._from < 0:
                self._from = self._stop
                self._tell(f"none of steps {self._first} to {self._stop - 1} was profiled: the run had {self._n_steps}")
            return
        self._marks = []
        try:
            with self._recording:
                self._pipeline.synchronize()
        except OSError as error:
            self._tell(f"the profile could not be written: {error}")
            return
        self._profile.files = self._files
        files = ", ".join(map(str, self._files))
        self._tell(f"steps {self._from} to {self._last} are in {files}")

    def _tell(self, message: str) -> None:
        self._run.log_event("profile", message)


class LoopProfiling:
    """Record the updates that a `Profile` requests, in one process.

    Args:
        profile: The request.
        framework: Framework of the loop.
        accelerator: Where the loop computes.
        models: Function that returns the prepared models by their names in the trace.

    Raises:
        ConfigError: The request is not a `Profile`.
        CapabilityError: The framework's plugin has no profiler.
    """

    def __init__(
        self, profile: Any, framework: str, accelerator: Accelerator, models: Callable[[], Mapping[str, Any]]
    ) -> None:
        if not isinstance(profile, Profile):
            raise ConfigError(
                f"Loop: profile={shown(profile)} is not a Profile", hint="write profile=aa.Profile((10, 20), 'traces')"
            )
        self._backend = registry().find(framework, accelerator.device.kind)
        profiler = self._backend.capability(ProfilesSteps)
        if profiler is None:
            raise CapabilityError(
                f"Loop: profile= needs a profiler, but the plugin of {framework} has none",
                cause="it lacks the capability 'profile_steps'",
                hint="leave profile= out, or use a system profiler",
            )
        self._profile, self._profiler, self._models = profile, profiler, models
        self._framework, self._accelerator = framework, accelerator
        self._recording: ExitStack | None = None
        self._mark: Mark | None = None
        self._step_mark = ExitStack()
        self._is_done = False

    def begin(self, step: int) -> None:
        """Start or end the recording if the profile requests it at this number of updates.

        Raises:
            FrameworkError: The profiler does not start.
        """
        first, stop = self._profile.steps
        if self._is_done or step < first:
            return
        self._step_mark.close()
        if step >= stop:
            self.end()
            return
        if self._recording is None:
            if not RECORDING.acquire(blocking=False):
                raise ConfigError(
                    "Loop: profile= cannot start while something else in this process is being profiled",
                    hint="profile one at a time",
                )
            with ExitStack() as until_started:
                until_started.callback(RECORDING.release)
                self._profile.location.mkdir(parents=True, exist_ok=True)
                path = self._profile.location / f"loop-{self._framework}.trace.json.gz"
                self._backend.synchronize(self._accelerator.device)
                try:
                    context = self._profiler.profile_steps(path, self._models(), [self._accelerator.device])
                    self._mark = until_started.enter_context(context)
                except Exception as error:  # the error of each framework if the user is already recording
                    raise FrameworkError(
                        f"Loop: the profiler of {self._framework} does not start: {str(error).partition(chr(10))[0]}",
                        hint="stop the profiler that is running in this process, or leave profile= out",
                    ) from error
                self._path = path
                self._recording = until_started.pop_all()
        assert self._mark is not None
        self._step_mark.enter_context(self._mark(trace_name(f"step {step}")))

    def end(self) -> None:
        """End the recording, if there is one, and write the file."""
        self._step_mark.close()
        self._is_done = True
        recording, self._recording = self._recording, None
        if recording is not None:
            with recording:
                self._backend.synchronize(self._accelerator.device)
            self._profile.files = [self._path]
