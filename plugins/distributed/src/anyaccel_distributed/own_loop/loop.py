"""Loop: runs your own training loop in one or several processes."""

from __future__ import annotations

import gc
import inspect
import json
import math
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from anyaccel import arguments
from anyaccel.accelerator import Accelerator
from anyaccel.arguments import shown
from anyaccel.attribute_hints import AttributeHints
from anyaccel.call_hints import call_hints, constructor_hints, unknown_argument
from anyaccel.containers import leaves, map_leaves
from anyaccel.data.streaming.random_states import frameworks_of, from_arrays, imported_backends, to_arrays
from anyaccel.distributions import SETTINGS, load
from anyaccel.errors import AnyaccelError, ArgumentError, CapabilityError, ConfigError, DataError, StateError
from anyaccel.extensions import extensions
from anyaccel.launched import Launched
from anyaccel.phases.bound_phase import best_common_device
from anyaccel.phases.loading.device_loader import is_loader
from anyaccel.phases.memory_error import release_frames
from anyaccel.phases.process_group import SingleProcess
from anyaccel.phases.runner import checked_resume
from anyaccel.phases.settings import AUTO
from anyaccel.precision import checked_precision
from anyaccel.registry import registry
from anyaccel.user_level import user_level
from anyaccel_distributed.devices import devices_of_process, requested_of_process
from anyaccel_distributed.group import Replicate
from anyaccel_distributed.meeting_point import launched
from anyaccel_distributed.own_loop.capability import OwnLoops
from anyaccel_distributed.own_loop.gathering import Part, merged
from anyaccel_distributed.own_loop.loader import Iterations, LoopLoader
from anyaccel_distributed.own_loop.loop_folder import LoopCheckpoint, LoopFolder, Saving
from anyaccel_distributed.own_loop.processes import LoopProcesses, is_out_of_memory
from anyaccel_distributed.phase_groups import join

# -- Tracking: the values that a loop logs, in memory, as lines of JSON in a folder, and in installed trackers --------


class Tracking:
    """The values that one run has logged.

    A distribution with a tracker extends the point `loop_trackers` by a function of the folder. The function returns an
    object with `log(values, step)` and `close()`, or None if its tracking is off.

    Args:
        folder: Folder to write to; None stores the values in memory.
        writes: Whether this process writes.

    Attributes:
        history: The logged values, each with its step.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, *, writes: bool) -> None:
        self.history: list[dict[str, Any]] = []
        self._folder = None if folder is None or not writes else Path(folder)
        self._trackers: list[Any] | None = None

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Record and write values."""
        self.history.append({"step": step, **values})
        if self._folder is None:
            return
        if self._trackers is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            offered = [make(self._folder) for make in extensions("loop_trackers")]
            self._trackers = [tracker for tracker in offered if tracker is not None]
            self._closing = weakref.finalize(self, _close, self._trackers)  # with the loop, or at the end of Python
        with (self._folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
        for tracker in self._trackers:
            tracker.log(values, step)

    def close(self) -> None:
        """Let trackers write their values."""
        if self._trackers is not None:
            self._closing()
        self._trackers = None


def _close(trackers: Sequence[Any]) -> None:
    for tracker in trackers:
        tracker.close()


# ----------------------------------------------------------------------------------------------------------------------


OF_MODELS = "model "
"""Prefix of the names of random states that models hold."""


MISPLACED_SETTINGS: Mapping[str, str] = {
    "data batch_size sampler dataset dataloader": "your loader makes the batches: loader = loop.prepare(loader)",
    "loss losses optimizer lr learning_rate": "write loop.backward(loss), with your own loss and optimizer",
    "schedule scheduler lr_scheduler": "write net, optimizer, schedule = loop.prepare(net, optimizer, schedule)",
    "epochs num_epochs max_epochs n_epochs": "write for epoch in loop.epochs(10):",
    "checkpoint checkpoints save resume keep every project_dir ckpt_path": (
        "write for epoch in loop.epochs(10, save='runs/a'):"
    ),
    "validation validate_every": "evaluate in your loop: loop.gather(net(x) for x, y in test)",
    "microbatching": "write loop.find_batch_size(train), or accumulate=4",
    "on_nan": "write if loop.any(loss != loss): break",
    "loss_scale fp16 scaler grad_scaler": "write precision='fp16-mixed', which scales losses",
    "amp bf16": "write precision='bf16-mixed'",
    "replicas devices n_devices num_devices num_processes world_size num_nodes strategy distributed ddp": (
        "start the script as anyaccel run --replicas 2 SCRIPT"
    ),
    "fsdp zero shard fsdp_plugin": "write sharding='full'",
    "cpu device_placement": "name the device: Loop('cpu')",
    "gradient_as_bucket_view static_graph bucket_cap_mb": (
        "pass it to the framework's engine: options={'gradient_as_bucket_view': True}"
    ),
    "find_unused_parameters": "not needed: parameters without gradients are found",
    "per_replica split_batches": "write loop.prepare(loader, batch='per_replica')",
    "trackers tracker log_with loggers report_to": (
        "write log='runs/a'; each tracker that is installed and turned on logs, too"
    ),
    "max_grad_norm max_norm clip_norm clipnorm grad_clip gradient_clip_val": (
        "clip in your loop: loop.clip_grad_norm_(net, 1.0), or in the optimizer where a loop has no such call"
    ),
    "callbacks": "call them in your loop",
    "step": "your loop is the step",
    "compile": "compile the model or the step as your framework does, in your loop",
    "residency offload cpu_offload device_map": (
        "a Loop keeps the model on the device: shard it, with sharding='full', or train in a TrainPhase, which offloads"
    ),
    "deterministic": "for the same bits on any number of devices, train in a TrainPhase, with deterministic=True",
    "matmul_precision tf32 allow_tf32": "set it in the framework before your loop begins",
    "final_device": "move the model after loop.close()",
    "strict policy label": "a Loop has no use for it",
}
"""Settings of phases and of other libraries that a Loop does not have, and what has their place."""


def _unknown(owner: Any, name: str) -> AnyaccelError:
    """Create the error for an argument that a Loop does not have."""
    for names, hint in MISPLACED_SETTINGS.items():
        if name in names.split():
            return ArgumentError(f"Loop has no argument {name!r}", hint=hint)
    return unknown_argument("Loop", name, inspect.signature(Loop).parameters)


@constructor_hints
class Loop(AttributeHints):
    """Run your own training loop on any device, in one process or in those of a launcher.

    ```python
    loop = aa.Loop(accumulate=4)
    net, optimizer, loader = loop.prepare(net, optimizer, loader)
    for x, y in loader:
        loss = nn.functional.mse_loss(net(x), y)
        loop.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    ```

    Losses, gradients and metrics in several processes equal those of a single process that computes whole batches.

    Args:
        accelerator: An Accelerator, a Device, or text such as `"gpu:0"`; `"auto"` is the best device. With several
            processes on a machine, each takes a different device of this kind.
        framework: `"torch"`, `"jax"` or `"tensorflow"`; can be omitted if only one of them has been imported.
        precision: Precision such as `"bf16-mixed"` or `"fp16-mixed"`, see `TrainPhase`; None computes in the dtypes of
            the models.
        accumulate: Number of batches per update.
        sharding: `"full"` shards parameters, gradients and optimizer state over the processes.
        sync_batchnorm: Whether batch normalization computes its statistics over the rows of all processes. Required if
            there are several processes and a model has batch normalization.
        seed: Seed of random numbers: of models created afterwards, dropout, the order of rows, and random numbers that
            data sets draw. None uses the state of the frameworks' generators.
        log: Folder that `log` writes to; None stores the values in memory.
        profile: An `aa.Profile`. The first process records the updates that it names, and writes its `files` after the
            last one, at the end of `epochs`, or in `close`.
        options: Settings passed to the framework's engine unchanged, such as those of DistributedDataParallel.

    Attributes:
        accelerator: Accelerator of the loop.
        device: Device of the loop; in torch a `torch.device`, for `x.to(loop.device)`.
        num_processes, process_index, local_process_index: Number of processes, index of this process, and its index on
            this machine.
        step: Number of finished updates.
        epoch: Current epoch of `epochs`.

    Raises:
        ConfigError: A setting is out of range, or there are several frameworks and none is named.
        FrameworkError: The processes cannot be joined.
    """

    framework: ClassVar[str]
    attribute_hints: ClassVar[Mapping[str, str]] = {
        "plan simulate explain memory": (
            "nothing is known of your loop before it runs; a graph has a plan: experiment.plan(phase)"
        ),
        "doctor devices": "read loop.accelerator; `anyaccel doctor` checks the machine",
        "ledger report transfers": "write with aa.ledger() as moved: around your loop",
        "history metrics results logger loggers": "read loop.tracking.history",
        "offload device_map residency": "a Loop keeps the model on the device; a TrainPhase offloads",
        "gather_for_metrics all_gather": "write loop.gather(x), which has each row once, in the order of the data",
        "pad_across_processes": "write loop.gather(x, pad=0)",
        "all_reduce": "write loop.reduce(x, 'mean')",
        "split_between_processes": "write items[loop.process_index :: loop.num_processes]",
        "wait_for_everyone": "write loop.barrier()",
        "set_trigger check_trigger": "write if loop.any(is_over): break",
        "rank global_rank data_parallel_rank data_parallel_shard_rank": "read loop.process_index",
        "local_rank": "read loop.local_process_index",
        "world_size use_distributed multi_device": "read loop.num_processes",
        "is_global_zero on_main_process": "write if loop.is_main_process:",
        "on_local_main_process": "write if loop.is_local_main_process:",
        "local_main_process_first": "write if loop.is_local_main_process:, and loop.barrier() after it",
        "rank_zero_first": "write with loop.main_process_first():",
        "is_last_process on_last_process": "write if loop.process_index == loop.num_processes - 1:",
        "on_process": "compare loop.process_index",
        "on_local_process": "compare loop.local_process_index",
        "save_state": "write loop.save('runs/a')",
        "load_state": "write loop.load('runs/a')",
        "skip_first_batches": "loop.load('runs/a') resumes after the last batch; nothing is skipped by hand",
        "register_for_checkpointing": "write loop.prepare(x), or loop.save('runs/a', extra={'x': x})",
        "register_save_state_pre_hook register_load_state_pre_hook": (
            "call your function before loop.save('runs/a') or loop.load('runs/a')"
        ),
        "unwrap_model save_model get_state_dict": "write loop.unwrap(net)",
        "prepare_model setup_module": "write net = loop.prepare(net)",
        "prepare_optimizer setup_optimizers": "write net, optimizer = loop.prepare(net, optimizer)",
        "prepare_scheduler setup": "write net, optimizer, schedule = loop.prepare(net, optimizer, schedule)",
        "prepare_data_loader": "write loader = loop.prepare(loader)",
        "setup_dataloaders": "write loader = loop.prepare(loader, batch='per_replica')",
        "split_batches dispatch_batches even_batches": "write loader = loop.prepare(loader, batch='global')",
        "use_stateful_dataloader non_blocking": "prepared loaders resume, and copy ahead",
        "to_device move to": "write loop.accelerator.move(batch)",
        "no_sync no_backward_sync trigger_sync_in_backward": (
            "write Loop(accumulate=4): gradients are exchanged once an update"
        ),
        "join_uneven_inputs": "not needed: all processes do the same number of steps",
        "sync_gradients": "read loop.is_update",
        "gradient_accumulation_steps": "read loop.accumulation_steps",
        "optimizer_step_was_skipped": "read optimizer.was_skipped",
        "mixed_precision": "read loop.precision",
        "distributed_type is_fsdp2 strategy": "read loop.sharding",
        "sharded_model": "write Loop(sharding='full')",
        "use_seedable_sampler seed_everything": "write Loop(seed=0)",
        "log_dict": "write loop.log({'loss': loss})",
        "project_dir logging_dir save_iteration should_save_model": "name the folder: loop.save(f'runs/{loop.step}')",
        "launch run": "start the script as anyaccel run --replicas 2 SCRIPT",
        "node_rank": "the launcher knows it",
        "call": "call your functions in the loop",
        "free_memory clear": "delete the objects; loop.close() releases those that it has prepared",
        "verify_device_map": "not needed: prepare() places whole models",
        "end_training": "not needed: each value is written when it is logged",
        "deepspeed_plugin fp8_backend lomo_backward deepspeed_ulysses_dl_adapter maybe_context_parallel "
        "parallelism_config is_composable_parallelism_enabled tensor_parallel_rank "
        "pipeline_parallel_rank context_parallel_rank": "a Loop does not support it",
        "profile profiler": "write Loop(profile=aa.Profile((10, 20), 'traces'))",
        "trackers get_tracker init_trackers": (
            "write Loop(log='runs/a'); each tracker that is installed and turned on logs, too"
        ),
    }

    if TYPE_CHECKING:  # a type checker sees what all frameworks have in common, and accepts their additional methods

        def __getattr__(self, name: str) -> Any: ...

    @call_hints(unknown=_unknown)
    def __new__(
        cls,
        accelerator: Any = AUTO,
        *,
        framework: str | None = None,
        precision: str | None = None,
        accumulate: int = 1,
        sharding: str | None = None,
        sync_batchnorm: bool | None = None,
        seed: int | None = None,
        log: str | os.PathLike[str] | None = None,
        profile: Any = None,
        options: Mapping[str, Any] | None = None,
    ) -> Loop:
        return object.__new__(_loop_class(framework) if cls is Loop else cls)

    @call_hints(unknown=_unknown)
    def __init__(
        self,
        accelerator: Any = AUTO,
        *,
        framework: str | None = None,
        precision: str | None = None,
        accumulate: int = 1,
        sharding: str | None = None,
        sync_batchnorm: bool | None = None,
        seed: int | None = None,
        log: str | os.PathLike[str] | None = None,
        profile: Any = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if sharding not in (None, "none", "full"):
            raise ConfigError(
                f"Loop: unknown sharding={shown(sharding)}",
                available="'none', 'full'",
                hint="write sharding='full', or train in a TrainPhase, which offloads"
                if "offload" in str(sharding)
                else "write sharding='full'",
            )
        self.precision = None if precision is None else checked_precision(ConfigError, "Loop: ", precision)
        if seed is not None:
            arguments.check(ConfigError, "Loop: ", "seed", seed, arguments.is_integer, "an int", 0)
        if log is not None:
            is_path = lambda it: isinstance(it, (str, os.PathLike))  # noqa: E731
            arguments.check(ConfigError, "Loop: ", "log", log, is_path, "the name of a folder", "'runs/a'")
        self.seed, self.options = seed, dict(options or {})
        self.sharding = None if sharding == "none" else sharding
        self.sync_batchnorm = sync_batchnorm
        place = launched()
        group = SingleProcess() if place is None else self._joined_group(place)
        self._processes = LoopProcesses(group, seed, self._seed_framework)
        self.num_processes, self.process_index = group.size, group.rank
        local = None if place is None else place.local_rank
        self.local_process_index = self.process_index if local is None else local
        is_auto = isinstance(accelerator, str) and accelerator == AUTO
        wanted = Accelerator(best_common_device([self.framework])) if is_auto else Accelerator.of(accelerator)
        if place is not None and wanted.is_request:
            there = wanted.requested_devices([self.framework])
            wanted = wanted.at(requested_of_process(wanted, there, place))
        elif place is not None and (is_auto or ":" not in wanted.spec):
            devices = devices_of_process("Loop", wanted.device.kind, place, [self.framework], None)
            wanted = wanted.at(devices[0]) if devices else wanted
        self.accelerator = wanted.on_one_device(self.framework)
        self.accelerator.check(self.framework)
        self.device: Any = self.accelerator.device
        self.step = self.epoch = 0
        self._has_ended = False  # `epochs`
        self._iterations = Iterations(self._steps_done, self._step_begins, self._marks)
        self.tracking = Tracking(log, writes=self.is_main_process)
        self._prepared_loaders: list[LoopLoader] = []
        self._undo: list[Callable[[], object]] = []  # changes made by prepare, oldest first
        self.accumulation_steps = accumulate
        self._run = os.urandom(8).hex()
        self._saving: Saving | None = None
        self._profiling: Any = None
        if profile is not None:
            profiling = load(SETTINGS, "Loop.profile")
            profiling = profiling(profile, self.framework, self.accelerator, self._named_models)
            self._profiling = profiling if self.is_main_process else None
        self._processes.begin()

    def __repr__(self) -> str:
        several = f", process {self.process_index} of {self.num_processes}" if self.num_processes > 1 else ""
        return f"Loop({str(self.accelerator)!r}, framework={self.framework!r}{several})"

    def __reduce__(self) -> str | tuple[Any, ...]:
        # A copy in another process would train alone there, without a word.
        raise TypeError("cannot pickle a Loop: it belongs to the process that created it")

    # -- implemented by a framework's class ------------------------------------------------------------------------

    def _prepare(self, objects: Sequence[Any], frozen: bool) -> list[Any]:
        """Place and register models, optimizers and other objects except loaders, and return them in their order."""
        raise NotImplementedError

    def _state(self) -> dict[str, Any]:
        """Return the state of the prepared objects by name: nested dicts, lists and tuples of arrays and plain values.

        Called in all processes together; only the first process's result is written.
        """
        raise NotImplementedError

    def _load(self, state: Mapping[str, Any]) -> None:
        """Load the result of `_state`, from a run with any number of processes.

        Raises:
            StateError: The state belongs to other models.
        """
        raise NotImplementedError

    def _accumulation_changed(self) -> None:
        """Adapt to `accumulation_steps`, which has been set."""

    def _named_models(self) -> dict[str, Any]:
        """Return the prepared models by their names in a profile."""
        return {}

    def _drop_update(self) -> None:
        """Discard the gradients of an unfinished update."""

    def _marks(self) -> dict[str, list[float]]:
        """Return numbers that show whether all processes have the same weights and rates, by what they belong to."""
        return {}

    def _model_states(self) -> dict[str, Any]:
        """Return the random states that models hold in this process, by names that begin with `OF_MODELS`."""
        return {}

    def _set_model_states(self, states: Mapping[str, Any]) -> None:
        """Load the result of `_model_states` in the process of this rank."""

    @property
    def is_update(self) -> bool:
        """Whether the last batch received completes its `accumulate`, so that optimizers step after it."""
        raise NotImplementedError

    def _to_numpy(self, tensor: Any) -> np.ndarray | None:
        """Return a tensor of the framework in host memory; None for anything else."""
        raise NotImplementedError

    def _concatenated(self, rows: Sequence[np.ndarray]) -> Any:
        """Concatenate the rows of several arrays into the result of `gather` for a tensor."""
        raise NotImplementedError

    def _make_loader(self, loader: Any, *settings: Any) -> LoopLoader:
        """Return a loader of the loop around a loader; `settings` are additional arguments of `LoopLoader`."""
        return LoopLoader(loader, *settings)

    def _meet(self, what: str) -> None:
        """Wait for the other processes to reach the same point.

        Raises:
            FrameworkError: Other processes are at a different point.
        """

    def _seed_framework(self, seed: int) -> None:
        """Seed the framework's global generators, if it has any."""

    def _is_loader(self, candidate: Any) -> bool:
        """Return whether an object is an iterable of batches: it is neither callable, as models are, nor a tensor."""
        return is_loader(candidate)

    def _is_container(self, candidate: Any) -> bool:
        """Return whether the items of an object are prepared one by one."""
        return type(candidate) in (list, tuple, dict)

    def _parts_of_all(self, parts: list[Part]) -> list[Part]:
        """Return the batches' results in all processes, in the order of their rows, from those of this process."""
        every = self._processes.gather(parts, "in loop.gather()")
        return [rank_parts[i] for i in range(max(map(len, every))) for rank_parts in every if i < len(rank_parts)]

    # -- processes -------------------------------------------------------------------------------------------------

    def _joined_group(self, place: Launched) -> Any:
        """Return the group of all processes of a launcher, joined."""
        join(self.framework)
        return registry().find(self.framework).required(Replicate).replica_group(place.rank, place.size)

    @property
    def accumulation_steps(self) -> int:
        """Number of batches per update. Set it before `prepare`, such as in the function of `find_batch_size`."""
        return self._accumulation_steps

    @accumulation_steps.setter
    def accumulation_steps(self, steps: int) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ConfigError(f"Loop: accumulate={shown(steps)} is not a number of batches", hint="write accumulate=4")
        if self._undo:
            raise ConfigError(
                "accumulation_steps was set after prepare(), which depends on it", hint="write Loop(accumulate=4)"
            )
        self._accumulation_steps = steps
        self._iterations.needs_last = steps > 1 or self.num_processes > 1
        self._accumulation_changed()

    @property
    def is_main_process(self) -> bool:
        """Whether this is the first process, which prints and writes."""
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first process on its machine."""
        return self.local_process_index == 0

    def find_batch_size(self, train: Callable[[int], Any], start: int = 128) -> Any:
        """Call a function with a batch size, halve the size after each out-of-memory error, and return the result.

        ```python
        loop.find_batch_size(train, start=512)  # train(512), train(256), ...
        ```

        In several processes, all of them begin again with half the size, whichever of them ran out of memory. Until the
        function returns, gradients are exchanged after each backward pass instead of within it.

        Args:
            train: Function of the batch size. It must create and prepare its model, optimizer and loader itself, so
                that nothing of a failed call remains. Each call begins with the same random numbers.
            start: First batch size.

        Raises:
            OutOfMemoryError: Not even one row fits into memory.
            ConfigError: `start` is no number of rows, or differs between the processes; or gradients are exchanged
                within a pass, so that the others would wait for the process that failed.
        """
        if isinstance(start, bool) or not isinstance(start, int) or start < 1:
            raise ConfigError(f"find_batch_size() begins with start={shown(start)}", hint="write start=128")
        if self.num_processes > 1:
            self._check_exchanges_apart()
            sizes = self._processes.gather_plain(start, "in loop.find_batch_size()")
            if len(set(sizes)) > 1:
                raise ConfigError(
                    f"find_batch_size() begins with different sizes in the processes: {', '.join(map(str, sizes))}",
                    hint="pass the same start= in every process",
                )
        prepared, step, epoch, states = len(self._undo), self.step, self.epoch, self._processes.random_states()
        size = start
        while True:
            try:
                return self._processes.try_together(partial(train, size))
            except Exception as error:
                if not is_out_of_memory(error) or size <= 1:
                    raise
                release_frames(error)
            self._release(prepared)
            gc.collect()
            self.step, self.epoch = step, epoch
            self._processes.set_random_states(states)
            size //= 2

    def _check_exchanges_apart(self) -> None:
        """Check that no process waits for another within a pass.

        Raises:
            ConfigError: Some would wait for one that ran out of memory.
        """
        raise ConfigError(
            f"find_batch_size() in several processes of {self.framework}: if one ran out of memory within a step, the "
            "others would wait for it",
            hint="find it in one process, and use Loop(accumulate=2) for batches of half the size",
        )

    def print(self, *values: Any, **settings: Any) -> None:
        """Print in the first process only; takes the arguments of `print`."""
        if self.is_main_process:
            print(*values, **settings)

    def barrier(self) -> None:
        """Wait until all processes get here."""
        self._processes.gather_plain(None, "at loop.barrier()")

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Return the value of process `source`: tensors, arrays, plain values, and containers of these."""
        on_host = self._on_host(value)  # in all processes, as sharded tensors are joined
        gathered = on_host if self.process_index == source else None
        return self._from_host(self._processes.gather(gathered, "in loop.broadcast()")[source])

    def any(self, flag: Any) -> bool:
        """Return whether `flag` is true in any process: `if loop.any(is_over): break` ends all after the same step."""
        return any(self._processes.gather_plain(bool(flag), "in loop.any()"))

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Run the block in the first process before the others run it, such as to download a file."""
        if not self.is_main_process:
            self.barrier()
        try:
            yield
        finally:
            if self.is_main_process:
                self.barrier()

    # -- prepare and close -----------------------------------------------------------------------------------------

    def prepare(self, *objects: Any, batch: str = "global", frozen: bool = False) -> Any:
        """Place models, optimizers, schedules and loaders for this loop, and distribute them over the processes.

        ```python
        net, optimizer, schedule, loader = loop.prepare(net, optimizer, schedule, loader)
        ```

        Loaders read and copy batches ahead.

        Args:
            objects: Objects in any order, including lists, tuples and dicts of them. Any other object with
                `state_dict()` and `load_state_dict()` is saved with them. None, for what a script can do without, stays
                None.
            batch: For loaders: `"global"` splits each batch among the processes; `"per_replica"` first joins as many
                batches as there are processes.
            frozen: Whether the models are not trained in this loop, such as the teacher of a distillation.

        Returns:
            The objects in the same order; a single object is returned alone.

        Raises:
            DataError: No object was passed, or one that cannot be prepared.
            ConfigError: A model is prepared already, or a loader is sharded already.
        """
        if not objects:
            raise DataError("prepare() received no arguments", hint="write loop.prepare(net, optimizer, loader)")
        flat: list[Any] = []
        _visit(objects, flat.append, self._is_container)
        loads = [self._is_loader(item) for item in flat]
        to_prepare = [
            item for item, loads_batches in zip(flat, loads, strict=True) if not loads_batches and item is not None
        ]
        others = iter(self._prepare(to_prepare, frozen))
        made = []
        for item, loads_batches in zip(flat, loads, strict=True):
            made.append(self._new_loader(item, batch) if loads_batches else None if item is None else next(others))
        results = iter(made)
        prepared = _rebuilt(objects, lambda _: next(results), self._is_container)
        return prepared[0] if len(prepared) == 1 else prepared

    def _new_loader(self, loader: Any, batch: str) -> LoopLoader:
        if isinstance(loader, LoopLoader):
            raise ConfigError(f"{loader!r} is prepared already", hint="prepare the original loader, only once")
        made = self._make_loader(loader, self.accelerator, self.framework, self._processes, self._iterations, batch)
        self._prepared_loaders.append(made)
        self._undo.append(lambda: self._prepared_loaders.remove(made))
        return made

    def close(self) -> None:
        """Release models, optimizers and schedules for another Loop, and let trackers write their values.

        The trained weights stay. You can omit the call if the program ends with its loop.
        """
        self._release(0)
        self.tracking.close()
        if self._profiling is not None:
            self._profiling.end()

    def _release(self, n_kept: int) -> None:
        """Undo all changes of `prepare` except the first `n_kept`."""
        self._drop_update()
        while len(self._undo) > n_kept:
            self._undo.pop()()

    # -- epochs and batches ----------------------------------------------------------------------------------------

    @call_hints
    def epochs(
        self,
        epochs: int,
        *,
        save: str | os.PathLike[str] | None = "",
        every: Any = "epoch",
        keep: int = 3,
        resume: str = "auto",
    ) -> Iterator[int]:
        """Yield the numbers of the epochs, from 0; with `save`, write checkpoints to a folder and resume from them.

        Args:
            epochs: Number of epochs, including those of the run to resume.
            save: Folder of this run's checkpoints; None writes none, for scripts with an optional folder.
            every: `"epoch"`, a number of updates, or a duration such as `"10min"`.
            keep: Number of checkpoints to keep, newest first.
            resume: `"auto"` resumes from the newest checkpoint if one exists; `"never"` starts from scratch.

        Raises:
            PhaseError: `resume` is unknown.
            ConfigError: `epochs` is not an int; or `every` is passed, but not `save`; or this loop has run all of the
                epochs in an earlier call.
            StateError: The checkpoint belongs to other models, or the folder to another run.
        """
        resume = checked_resume(resume)
        epochs = arguments.integer(ConfigError, "epochs(): ", "epochs", epochs, 0, 10)
        if save == "" and every != "epoch":
            raise ConfigError(f"epochs() has every={every!r}, but no folder to save to", hint="write save='runs/a'")
        if save:
            folder = LoopFolder(save, self._processes)
            newest = folder.newest(self.framework) if resume == "auto" else None
            if newest is not None:
                self._go_on_from(newest)
            self._saving = Saving(folder, every, keep, self.step)
        first = self.epoch
        if self._has_ended and first >= epochs > 0:
            raise ConfigError(
                f"epochs({epochs}) has no epoch left: this loop has finished {first}",
                hint=f"count all epochs of the loop: loop.epochs({first + epochs}); for another training, write "
                "another Loop()",
            )
        try:
            for epoch in range(first, epochs):
                self.epoch = epoch
                yield epoch
                self.epoch = epoch + 1
                is_last = epoch + 1 == epochs
                if self._saving is not None and self._saving.after_epoch(is_last=is_last):
                    if self._is_whole or is_last:  # after the last epoch, an incomplete update is never completed
                        self._saving.folder.write(self._checkpoint({}), keep)
                    else:
                        self._saving.is_overdue = True
            self._has_ended = True
        finally:
            if self._saving is not None:
                self._saving.folder.close()
            self._saving = None
            if self._profiling is not None:
                self._profiling.end()

    def _step_begins(self) -> None:
        if self._profiling is not None:
            self._profiling.begin(self.step)

    def _steps_done(self) -> None:
        saving = self._saving
        if (
            saving is not None
            and self._is_whole
            and saving.is_due(self.step, partial(self._processes.gather_plain, call="at the end of a batch"))
        ):
            saving.folder.write(self._checkpoint({}), saving.keep)

    @property
    def _is_whole(self) -> bool:
        """Whether no gradients are accumulated for an unfinished update."""
        return True

    # -- values of all processes -----------------------------------------------------------------------------------

    def gather(self, values: Any, *, pad: float | None = None) -> Any:
        """Return the rows of all processes, each once, in the order of the data.

        ```python
        predictions = loop.gather(net(x) for x, y in test)  # of all batches of a prepared loader
        predictions = loop.gather(net(x))  # of the last batch
        ```

        Within the loop over a loader, the values must have one row for each row of its last batch. After the loop, they
        may cover many batches, and are ordered by process.

        Args:
            values: Results for the rows of a batch: tensors [rows, ...], lists of one item for each row, scalars, None,
                and dicts and tuples of these; or a generator that yields such results for each batch of a prepared
                loader.
            pad: Padding value for tensors whose other axes differ between batches. By default, they become a list of
                one tensor for each row.

        Returns:
            The same structure in every process; a scalar becomes a list of one number for each process and batch.

        Raises:
            DataError: Batches have different structures, or tensors have no rows.
        """
        parts: list[Part] = []
        before = self._iterations.share
        if hasattr(values, "__next__"):
            for value in values:
                parts.append(self._part(value))
                del value
            self._iterations.share = before
        else:
            parts.append(self._part(values))
        return merged(self._parts_of_all(parts), self._concatenated, pad)

    def _part(self, value: Any) -> Part:
        on_host, share = self._on_host(value), self._iterations.training_share
        self._iterations.weigh()
        return on_host, None if share is None else share.rows

    def reduce(self, value: Any, how: str = "mean", *, count: Any = None) -> Any:
        """Reduce the values of all processes to one: a mean over rows, a sum, a maximum or a minimum.

        Args:
            value: A number, a tensor, or a dict, list or tuple of them.
            how: `"mean"`, `"sum"`, `"max"` or `"min"`. A mean weights each process by its number of rows in the last
                batch, even after the loop over a loader. To average over all batches, pass sums with their `count`.
            count: With `"mean"`: number of terms, such as tokens, that `value` is the sum of. The result is the total
                of the sums divided by the total of the counts.

        Returns:
            The same value in every process.
        """
        if how not in ("mean", "sum", "max", "min"):
            raise ConfigError(
                f"unknown reduction {shown(how)}", available="'mean', 'sum', 'max', 'min'", hint="write 'mean'"
            )
        if how == "mean" and count is None:
            self._iterations.weigh()
        share = getattr(value, "anyaccel_share", self._iterations.share)
        rows = 1.0 if share is None or share.rows is None else float(share.rows)
        if self.num_processes == 1:
            if count is None:
                return value
            return map_leaves(value, lambda leaf: leaf / (float(count) or 1.0), registry().owners)
        on_host = self._on_host(value)
        of_loop = None if how != "mean" or hasattr(value, "anyaccel_share") else self._iterations.n_rows_of_loop
        exchanged = on_host, rows, None if count is None else float(count), of_loop
        every = self._processes.gather(exchanged, "in loop.reduce()")
        result = _reduced([part[:3] for part in every], how)
        if count is None and None not in [part[3] for part in every]:
            self._warn_of_weights(result, _reduced([(part[0], float(part[3]), None) for part in every], how))
        return self._from_host(result)

    def _warn_of_weights(self, of_batch: Any, of_loop: Any) -> None:
        pairs = zip(leaves(of_batch, registry().owners), leaves(of_loop, registry().owners), strict=True)
        if self.is_main_process and any(not np.allclose(a, b, rtol=1e-6, equal_nan=True) for a, b in pairs):
            warnings.warn(
                "reduce() after a loop weights the mean of each process by its rows of the last batch, "
                "which is wrong for a mean over all batches. Hint: pass a mean over all batches as a sum and its "
                "count: loop.reduce(total, count=n_rows); and reduce the loss of a batch inside the loop",
                RuntimeWarning,
                stacklevel=user_level(),
            )

    def _on_host(self, value: Any) -> Any:
        """Return a structure with NumPy arrays instead of tensors."""

        def to_host(leaf: Any) -> Any:
            array = self._to_numpy(leaf)
            return leaf if array is None else array

        return map_leaves(value, to_host, registry().owners)

    def _from_host(self, value: Any) -> Any:
        """Return a structure with arrays replaced by the tensors that `gather` returns."""
        make = lambda leaf: self._concatenated([leaf]) if isinstance(leaf, np.ndarray) else leaf  # noqa: E731
        return map_leaves(value, make, registry().owners)

    # -- logging ---------------------------------------------------------------------------------------------------

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Record values by name, and write them to the loop's `log` folder, in the first process.

        Args:
            values: Numbers and scalar tensors by name.
            step: Step of the values; by default the number of finished updates.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"loop.log() needs values by name, not {shown(values)}", hint="write loop.log({'loss': loss})"
            )
        if self.is_main_process:
            numbers = {name: float(np.asarray(self._on_host(value))) for name, value in values.items()}
            self.tracking.log(numbers, self.step if step is None else step)

    # -- save and load ---------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str], extra: Mapping[str, Any] | None = None) -> None:
        """Write the prepared objects and the position of the loop into a folder. Call it in all processes.

        The folder appears only when it is complete, and contains no pickle. It holds models, optimizers, schedules, the
        loss scale, the random states of each process, and the positions in loaders.

        Args:
            folder: Folder to write; created if it does not exist.
            extra: Additional plain values and arrays by name, or objects with `state_dict()`.

        Raises:
            StateError: Gradients are accumulated for an unfinished update; an object holds something that only pickle
                could write; or the folder belongs to another run.
        """
        if not self._is_whole:
            raise StateError(
                "save() was called between updates: accumulated gradients would be lost",
                hint="write if loop.is_update: loop.save(...), after optimizer.step()",
            )
        self._meet("call loop.save()")
        LoopFolder(folder, self._processes).write_itself(self._checkpoint(extra or {}))

    def _warn_of_unsaved(self, saved: Sequence[Any]) -> None:
        """Warn once of what the next run needs to go on, but was not prepared, and is not `saved` by the user."""

    def _checkpoint(self, extra: Mapping[str, Any]) -> LoopCheckpoint:
        if self.is_main_process:
            self._warn_of_unsaved(list(extra.values()))
        kept = {name: value.state_dict() if hasattr(value, "state_dict") else value for name, value in extra.items()}
        return LoopCheckpoint(
            run=self._run,
            framework=self.framework,
            step=self.step,
            epoch=self.epoch,
            random=self._processes.gather(
                to_arrays({**self._processes.random_states(), **self._model_states()}), "writing a checkpoint"
            ),
            loaders=[loader.state_dict() for loader in self._prepared_loaders],
            state=self._on_host({**self._state(), "extra": kept}),
        )

    def load(self, folder: str | os.PathLike[str], extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Resume from a folder of `save`, or from the newest checkpoint of `epochs(save=...)`.

        Call it in all processes.

        Args:
            folder: Folder of `save` or of `epochs(save=...)`.
            extra: Objects with `load_state_dict()` by the names that were passed to `save`.

        Returns:
            The values that were saved as `extra`.

        Raises:
            StateError: The checkpoint belongs to other models or optimizers, or was changed.
            ConfigError: The folder has no checkpoint.
        """
        self._meet("call loop.load()")
        checkpoint = LoopFolder(folder, self._processes).newest(self.framework)
        if checkpoint is None:
            raise ConfigError(f"no checkpoint of a loop in {str(folder)!r}", hint="write one: loop.save(FOLDER)")
        kept = self._go_on_from(checkpoint)
        for name, target in (extra or {}).items():
            if name not in kept:
                raise StateError(
                    f"the checkpoint has no extra {name!r}", available=", ".join(kept), hint="name one of these"
                )
            target.load_state_dict(kept[name])
        return kept

    def _go_on_from(self, checkpoint: LoopCheckpoint) -> dict[str, Any]:
        """Restore everything that a checkpoint holds, and return its extra values."""
        if len(checkpoint.loaders) != len(self._prepared_loaders):
            raise StateError(
                f"the checkpoint has {len(checkpoint.loaders)} loaders, but this loop {len(self._prepared_loaders)}",
                hint="prepare the loaders of the run that wrote the checkpoint, in the same order",
            )
        self._load(checkpoint.state)
        self._run, self.step, self.epoch = checkpoint.run, checkpoint.step, checkpoint.epoch
        random_state = checkpoint.random[self.process_index] if self.process_index < len(checkpoint.random) else None

        def go_on(whole: bool) -> None:
            if random_state is not None:
                states = from_arrays(random_state)
                of_models = {name: states.pop(name) for name in list(states) if name.startswith(OF_MODELS)}
                self._processes.set_random_states(states if whole else frameworks_of(states))
                self._set_model_states(of_models)

        go_on(True)
        for loader, state in zip(self._prepared_loaders, checkpoint.loaders, strict=True):
            loader.load_state_dict(state, go_on)
        extra: dict[str, Any] = checkpoint.state.get("extra", {})
        return extra


def _loop_class(framework: str | None) -> type[Loop]:
    """Return the class of a framework; if none is named, of the only framework that has been imported."""
    if framework is None:
        able = {backend.framework for backend in imported_backends() if backend.capability(OwnLoops) is not None}
        if len(able) != 1:
            raise ConfigError(
                f"a Loop uses one framework, but {' and '.join(sorted(able)) or 'none'} "
                f"{'have' if able else 'has'} been imported",
                available=", ".join(f"Loop(framework={name!r})" for name in sorted(able)),
                hint=f"name it: Loop(framework={min(able)!r})" if able else "import the framework first",
            )
        (framework,) = able
    loops = registry().find(framework).capability(OwnLoops)
    if loops is None:
        raise CapabilityError(
            f"{framework} does not support your own loop here",
            cause="its plugin lacks the capability 'own_loops'",
            hint="train with a TrainPhase",
        )
    made: type[Loop] = loops.loop
    return made


def _visit(objects: Any, take: Callable[[Any], object], is_container: Callable[[Any], bool]) -> None:
    for item in objects.values() if isinstance(objects, dict) else objects:
        if is_container(item):
            _visit(item, take, is_container)
        else:
            take(item)


def _rebuilt(objects: Any, make: Callable[[Any], Any], is_container: Callable[[Any], bool]) -> Any:
    def rebuilt(item: Any) -> Any:
        return _rebuilt(item, make, is_container) if is_container(item) else make(item)

    if isinstance(objects, dict):
        return {name: rebuilt(item) for name, item in objects.items()}
    return type(objects)([rebuilt(item) for item in objects])


def _structure(value: Any) -> Any:
    """Return the names, lengths or shape that values must share in all processes to be reduced."""
    if isinstance(value, Mapping):
        return tuple(value)
    return len(value) if isinstance(value, (list, tuple)) else np.shape(value)


def _reduced(every: Sequence[tuple[Any, float, float | None]], how: str) -> Any:
    """Reduce the structures of all processes to one."""
    values, rows, counts = zip(*every, strict=True)
    first = values[0]
    shapes = {_structure(value) for value in values}
    if len(shapes) > 1:
        raise DataError(
            "reduce() received different structures or shapes in the processes",
            available=", ".join(sorted(map(str, shapes))),
            hint="pass the same names and shapes in each process, and gather values with rows",
        )
    if isinstance(first, Mapping):
        return {name: _reduced([(v[name], r, c) for v, r, c in every], how) for name in first}
    if isinstance(first, (list, tuple)):
        return type(first)([_reduced([(v[i], r, c) for v, r, c in every], how) for i in range(len(first))])
    arrays = [np.asarray(value) for value in values]
    stacked = np.stack([array.astype(np.result_type(array, np.float32)) for array in arrays])
    if how == "mean":
        if None not in counts:
            return np.asarray(stacked.sum(0) / (math.fsum(counts) or 1.0), stacked.dtype)
        weights = np.asarray(rows, np.float64)
        there = weights > 0
        weighted = np.tensordot(weights[there], stacked[there].astype(np.float64), 1)
        return np.asarray(weighted / max(weights.sum(), 1e-300), stacked.dtype)
    result = stacked.sum(0) if how == "sum" else stacked.max(0) if how == "max" else stacked.min(0)
    return np.asarray(result).astype(np.result_type(*arrays))
