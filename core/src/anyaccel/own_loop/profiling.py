"""Profiling: record some updates of a custom loop with its framework's profiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from anyaccel.accelerator import Accelerator
from anyaccel.adapter.step_profiler import Mark, ProfilesSteps, trace_name
from anyaccel.arguments import shown
from anyaccel.errors import CapabilityError, ConfigError, FrameworkError
from anyaccel.phases.profile import RECORDING, Profile
from anyaccel.registry import registry


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
            self._start()
        assert self._mark is not None
        self._step_mark.enter_context(self._mark(trace_name(f"step {step}")))

    def _start(self) -> None:
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

    def end(self) -> None:
        """End the recording, if there is one, and write the file."""
        self._step_mark.close()
        self._is_done = True
        recording, self._recording = self._recording, None
        if recording is not None:
            with recording:
                self._backend.synchronize(self._accelerator.device)
            self._profile.files = [self._path]
