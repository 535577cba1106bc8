"""Replicated training: a TrainPhase in the processes that a launcher started, each with its part of every batch."""

from __future__ import annotations

import hashlib
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from anyaccel import rng
from anyaccel.backend import ComputingBackend, Program
from anyaccel.errors import FrameworkError, PhaseError
from anyaccel.graph import ModelGraph
from anyaccel.launched import Launched
from anyaccel.phases.executor.cross_segment import CrossSegmentStep, Losses, Parts, PipelineStage, SpanOf, StageRows
from anyaccel.phases.executor.pipeline import Pipeline
from anyaccel.phases.loading.epoch_plan import EpochPlan, RowOrders
from anyaccel.phases.loop_extension import Call, LoopExtension
from anyaccel.phases.process_group import BatchesShare, LossSums, ProcessGroup
from anyaccel.phases.run import Run
from anyaccel.phases.settings import PhaseSettings
from anyaccel.printable import printable
from anyaccel.results.events import LogEvent
from anyaccel.segment import Segment
from anyaccel.user_level import user_level
from anyaccel_distributed.batch_shards import ShardProcesses
from anyaccel_distributed.comparison import ReplicaComparison, as_plain, code_digests, digest, from_plain
from anyaccel_distributed.group import ReplicaGroup, Replicate
from anyaccel_distributed.replica_checks import replica_checks
from anyaccel_distributed.replicated_program import build_replicated
from anyaccel_distributed.row_shares import BatchShare, GlobalBatches, ReplicaEpochs, ReplicaEvaluation
from anyaccel_distributed.sharding import ShardParameters

_LOST = (
    "parameters were sharded over replicas, and this replica does not gather them after an error: they are NaN in "
    "its models, unless they were read since the last step; resume from a checkpoint"
)


class ReplicatedEpochs(LoopExtension):
    """Let replicas go through epochs together, and none wait for one that has failed.

    Args:
        run: The training.
        pipeline: The programs of this replica.
        replicas: Replicas of the run.
    """

    def __init__(self, run: Run, pipeline: Pipeline, replicas: ReplicatedTraining) -> None:
        self._run, self._pipeline, self._replicas = run, pipeline, replicas

    def epoch_begins(self) -> None:
        self._replicas.begin_epoch(self._run.epoch, self._run.step)

    def rows_end(self) -> None:
        self._replicas.end_steps()

    def failed(self, failure: BaseException, losses: object) -> bool:
        """Stop the exchange before values are settled, which may wait; create the error of an out-of-memory first."""
        if not isinstance(failure, MemoryError):
            self._replicas.abandon()
        return False

    def run_ends(self) -> None:
        """Make seeds that models keep equal in all replicas again."""
        self._pipeline.seed(rng.key(self._run.graph.seed, "end", self._run.phase.label))

    def run_fails(self, error: BaseException) -> None:
        self._replicas.abandon()
        if self._replicas.sharded:
            error.add_note(f"{_LOST} ({self._replicas.where})")


class AgreedStop(LoopExtension):
    """All replicas stop where one was asked to; the others would wait for it.

    Args:
        run, replicas: See `ReplicatedEpochs`.
    """

    def __init__(self, run: Run, replicas: ReplicatedTraining) -> None:
        self._run, self._replicas = run, replicas

    def run_begins(self) -> None:
        self._run.stop_reason = self._replicas.stop_reason_of_all(self._run.stop_reason)

    def epoch_begins(self) -> None:
        self._run.stop_reason = self._replicas.stop_reason_of_all(self._run.stop_reason)

    def epoch_ends(self) -> None:
        """All end with the same epoch."""
        self._run.stop_reason = self._replicas.end_epoch(self._run.stop_reason)


class SharedCalls(LoopExtension):
    """Calls of several steps by all replicas at once: each decides by its own clock, and all take the fewest.

    Args:
        replicas: See `ReplicatedEpochs`.
    """

    def __init__(self, replicas: ReplicatedTraining) -> None:
        self._replicas = replicas

    def agree(self, call: Call, n_steps: int) -> None:
        """Take the fewest steps of all.

        Blocks of streamed rows are as large as the memory of a process has room for, and may differ: then these steps
        are taken one by one, which need no more than the same rows.

        Raises:
            FrameworkError: another replica has ended, or does not answer.
        """
        offers = self._replicas.gather([n_steps, [call.start, call.runner.layout]])
        call.n_steps = min(count for count, _ in offers)
        if any(rows != offers[0][1] for _, rows in offers):
            call.runner = replace(call.runner, program=None, stage=None)

    def around_call(self, call: Call) -> AbstractContextManager[None]:
        """Errors name the steps of a call of one program."""
        return nullcontext() if call.runner.program is None else self._replicas.shared_call(call.n_steps)


# -- the processes of a TrainPhase -------------------------------------------------------------------------------------

_READS_MODELS = "reads the models"


class ReplicatedTraining(ProcessGroup):
    """The exchange between the replicas of a TrainPhase.

    Args:
        label: Label of the phase.
        place: Rank of this process and number of replicas.
        groups: Replica groups of the frameworks of the graph.
        sharded: Whether parameters are sharded over the replicas.
        offload: Whether these are stored in host memory.
        whole: Labels of the nodes whose parameters are replicated anyway.
        global_batches: Whether each replica passes its program all rows of a step.
        sync_batchnorm: Whether layers normalize by the rows of all replicas.
        fixed_order: Whether each replica has all rows of a step, computes some shards of them, and has the losses and
            gradients of all.
        accumulate: Batches of a step.
    """

    def __init__(
        self,
        label: str,
        place: Launched,
        groups: Mapping[str, ReplicaGroup],
        *,
        sharded: bool = False,
        offload: bool = False,
        whole: Sequence[str] = (),
        global_batches: GlobalBatches = GlobalBatches(),  # noqa: B008 - it is frozen
        sync_batchnorm: bool = False,
        fixed_order: bool = False,
        accumulate: int = 1,
    ) -> None:
        self.fixed_order = fixed_order
        self._global_batches = global_batches
        self.sharded, self._offload, self._sync_batchnorm = sharded, offload, sync_batchnorm
        self._whole: Any = {"whole": tuple(whole)} if whole else {}
        self._built: list[tuple[str, Program]] = []
        self._label, self._groups = label, dict(groups)
        self._host = next(iter(self._groups.values()))
        self.rank, self.size = place.rank, place.size
        self._comparison = ReplicaComparison(label, place.size, self.gather)
        self._orders = hashlib.blake2b(digest_size=16)
        self._epoch, self._step = -1, 0
        self._batches: deque[tuple[int, int]] | None = None  # fingerprints and rows of those read and not yet trained
        self._source, self._accumulate = "", accumulate
        self._has_failed = False
        self._gathered = 0  # batches of this step whose shards were exchanged

    @property
    def reads_all_rows(self) -> bool:
        """Whether each replica is given all rows of a step."""
        return self.fixed_order or self.global_batches

    @property
    def global_batches(self) -> bool:
        """Whether all replicas compute each step by one program, and each passes it all rows."""
        return self._global_batches.given

    def choose_rows(self, *, in_memory: bool, batches: bool) -> None:
        """Decide that; see `GlobalBatches.chosen`."""
        chosen = self._global_batches.chosen(self._label, self.size, in_memory=in_memory, batches=batches)
        self._global_batches = chosen

    def build(self, segment: Segment, backend: ComputingBackend) -> Program:
        """Build the program of a segment, with trained parameters sharded over the replicas if requested."""
        group = self._groups.get(backend.framework)
        if group is None:  # an evaluation, which needs one to gather by
            return backend.build(segment)
        if self.sharded:
            shards = backend.required(ShardParameters)
            with self._naming_this_replica():
                program = shards.build_sharded(segment, group, offload=self._offload, **self._whole)
            self._built.append((backend.framework, program))
        elif self.global_batches:
            replicate = backend.required(Replicate)
            with self._naming_this_replica():
                program = replicate.build_together(segment, group)
            self._built.append((backend.framework, program))
        elif self.fixed_order:
            processes = ShardProcesses(self.rank, self.size, partial(self._gather_shards, group))
            devices = (segment.operations[0].device,)
            program = build_replicated(backend, segment, devices, deterministic=True, processes=processes)
        else:
            program = backend.build(segment)
        if self._sync_batchnorm and not self.global_batches:
            group.sync_batch_statistics(program)
        return program

    def _gather_shards(
        self, group: ReplicaGroup, program: Program, shards: Sequence[Sequence[Any]], counts: Sequence[int]
    ) -> list[list[Any]]:
        """Gather tensors like `ReplicaGroup.gather_tensors`; the last batch of a step ends it."""
        self._gathered += 1
        ends = self._gathered == self._accumulate
        if ends and self._batches is not None:
            self._compare_batches(self._batches)
        with self._naming_this_replica():
            every = group.gather_tensors(program, shards, counts)
        if ends:
            self._gathered = 0
            self._step += 1
        return every

    def abandon(self) -> None:
        """This replica has failed: nothing is exchanged any more, as the others may wait elsewhere."""
        self._has_failed = True
        for framework, group in self._groups.items():
            group.abandon([program for name, program in self._built if name == framework])

    def begin_step(self, sizes: Sequence[int]) -> None:
        with self._naming_this_replica():
            for framework, program in self._built:
                self._groups[framework].begin_step([program], sizes)

    def _begin_parts(self) -> int:
        """A step begins; of how many replicas its rows are put together."""
        assert self._batches is not None
        n_replicas = 1 if self._batches[0][1] % self.size else self.size
        for framework, program in self._built:
            self._groups[framework].begin_parts(program, n_replicas)
        return n_replicas

    @property
    def keeps_snapshots(self) -> bool:
        """False if parameters are sharded, because there is too little memory."""
        return not self.sharded

    def loop_extensions(self, run: Run, pipeline: Pipeline) -> tuple[Sequence[LoopExtension], Sequence[LoopExtension]]:
        """Return the extensions before and after hooks; calls of several steps are agreed on if one program computes
        them.
        """
        shared_calls = [SharedCalls(self)] if pipeline.multi_step and self.global_batches else []
        after_hooks = (AgreedStop(run, self), *shared_calls, *replica_checks(run.phase, pipeline, self))
        return (ReplicatedEpochs(run, pipeline, self),), after_hooks

    def share_batches(self, source: str) -> BatchesShare:
        """Return this replica's part of the batches of a source; they are then compared in every step."""
        batches: deque[tuple[int, int]] = deque()
        self._batches, self._source, parts = batches, source, self._global_batches.parts
        return BatchShare(
            *(self._label, source, self.rank, self.size),
            on_batch=lambda seen, n_rows: batches.append((seen, n_rows)),
            on_begin=batches.clear,
            whole=self.reads_all_rows and not parts,
            parts=parts,
        )

    def share_epochs(self, epochs: EpochPlan) -> EpochPlan:
        """Return this replica's part of the steps of a training; the order of rows is compared with the others'.

        Raises:
            PhaseError: the steps cannot be split.
        """
        return ReplicaEpochs(self._label, epochs, self.rank, self.size, self.see_orders, whole=self.reads_all_rows)

    def shares_evaluation(self, epochs: EpochPlan) -> bool:
        """Not where blocks are gathered by all together, or where losses are added in one order."""
        return not (self.sharded or self.reads_all_rows) and len(epochs.epoch(0).steps) >= self.size

    def share_evaluation(self, epochs: EpochPlan) -> EpochPlan:
        """Return neighbouring batches."""
        return ReplicaEvaluation(epochs, self.rank, self.size)

    @property
    def random_key(self) -> tuple[str, ...]:
        """Key of the random numbers: the first replica, and all that read all rows, draw those of a single process."""
        return (f"replica {self.rank}",) if self.rank > 0 and not self.reads_all_rows else ()

    def step(self, stages: Sequence[PipelineStage], log_event: LogEvent) -> CrossSegmentStep:
        """Return steps that exchange gradients, unless the programs do it themselves."""
        if self.global_batches:
            multi_step = self._batches is None  # else each step compares its batches with those of the others
            begin = self._begin_parts if self._global_batches.parts else lambda: 1
            return GlobalBatchStep(stages, log_event, begin, self.compare_step, self.end_step, multi_step=multi_step)
        return CrossSegmentStep(stages, log_event) if self.fixed_order else ReplicatedStep(stages, log_event, self)

    def average_in_steps(self, stages: Sequence[PipelineStage]) -> bool:
        """Let the only program average gradients in calls of several steps, unless more is exchanged in a step."""
        if len(stages) > 1 or self.sharded or self._batches is not None or self._accumulate > 1:
            return False
        group = self._groups[stages[0].backend.framework]
        return group.average_in_steps(stages[0].program, partial(self.shared_call, 1))

    def begin_epoch(self, epoch: int, step: int) -> None:
        """An epoch of the run begins, or continues after its first `step` steps; errors name both."""
        self._epoch, self._step, self._gathered = epoch, step, 0
        if self._batches is not None:
            self._batches.clear()

    def end_steps(self) -> None:
        """The steps of an epoch are done.

        Raises:
            PhaseError: those of another replica are not.
        """
        if self._batches is not None:
            self._compare_batches(self._batches, ended=True)

    def _compare_batches(self, batches: deque[tuple[int, int]], *, ended: bool = False) -> None:
        """Compare the batches of this step with those of all replicas; each then knows whether they are equal."""
        seen = 0
        for _ in range(0 if ended else min(self._accumulate, len(batches))):
            seen = (31 * seen + batches.popleft()[0]) & 0xFFFFF
        with self._naming_this_replica():
            total, squares, n_ended = self._host.sums([seen, seen * seen, ended])
        if n_ended == 0 and total == self.size * seen and squares == self.size * seen * seen:
            return
        if n_ended == self.size:
            return
        every = self.gather([seen, ended])
        done = [str(rank) for rank, (_, is_done) in enumerate(every) if is_done]
        others = [str(rank) for rank, (batch, _) in enumerate(every) if batch != every[0][0]]
        what = f"has ended only in replica {', '.join(done)}" if done else "returns other batches in replica "
        raise PhaseError(
            f"phase {self._label!r}, epoch {self._epoch}, step {self._step}: the source {self._source!r} {what}"
            + ("" if done else f"{', '.join(others)} than in replica 0"),
            cause="each replica reads every batch and takes part of its rows",
            hint="return the same batches in every process: use no DistributedSampler, and seed "
            "random draws; or set replicas=1",
        )

    @property
    def where(self) -> str:
        """Rank of this replica and its step, in words."""
        return f"replica {self.rank} of {self.size}, epoch {max(self._epoch, 0)}, step {self._step}"

    def compare_step(self) -> None:
        """Compare the batches of a step with those of the other replicas, where a source gives them."""
        if self._batches is not None:
            self._compare_batches(self._batches)

    def end_step(self) -> None:
        self._step += 1

    def begin_last_part(self, stages: Sequence[PipelineStage], weight: float, part: float) -> set[int]:
        """Begin the last part of a step, after comparisons, because all replicas exchange in one order."""
        self.compare_step()
        overlapped = set[int]()
        with self._naming_this_replica():
            for framework, programs in _by_framework(stages).items():
                overlapped.update(map(id, self._groups[framework].overlap_gradients(programs, weight, part)))
        return {id(stage) for stage in stages if id(stage.program) in overlapped}

    @contextmanager
    def shared_call(self, n_steps: int) -> Iterator[None]:
        """Around what all replicas compute together, a call of a program or an exchange; errors name its steps."""
        with self._naming_this_replica(n_steps):
            yield
        self._step += n_steps

    def average(self, stages: Iterable[PipelineStage], weight: float) -> None:
        with self._naming_this_replica():
            for framework, programs in _by_framework(stages).items():
                self._groups[framework].average_gradients(programs, weight)

    def loss_weights(
        self, inputs: Sequence[tuple[PipelineStage, Sequence[Any]]], n_rows: float
    ) -> list[dict[str, Any]]:
        weights: list[dict[str, Any]] = [{} for _ in inputs]
        by_framework: dict[str, list[int]] = {}
        for i, (stage, _) in enumerate(inputs):
            by_framework.setdefault(stage.backend.framework, []).append(i)
        with self._naming_this_replica():
            for framework, positions in by_framework.items():
                calls = [(inputs[i][0].program, inputs[i][1]) for i in positions]
                found = self._groups[framework].loss_weights(calls, n_rows)
                for i, weight in zip(positions, found, strict=True):
                    weights[i] = weight
        return weights

    def arrays_of_all(self, arrays: Sequence[Mapping[str, np.ndarray]] | None) -> list[Mapping[str, np.ndarray]] | None:
        plain = (
            None
            if arrays is None
            else [{name: as_plain(np.asarray(array)) for name, array in named.items()} for named in arrays]
        )
        every = self.gather(plain)
        if any(one is None for one in every):
            return None
        return [{name: from_plain(array) for name, array in named.items()} for one in every for named in one]

    def outputs_of_all(self, outputs: dict[str, list[np.ndarray]]) -> dict[str, list[np.ndarray]]:
        """Return the outputs of all processes; nothing is exchanged if no outputs are requested."""
        if not outputs:
            return {}
        parts = {name: list[np.ndarray]() for name in outputs}
        named_arrays = [{name: array} for name, arrays in outputs.items() for array in arrays]
        for named in self.arrays_of_all(named_arrays) or ():
            for name, array in named.items():
                parts[name].append(array)
        return parts

    def gather(self, value: Any) -> list[Any]:
        """Return the plain values of all replicas, by rank; all call this together.

        Raises:
            PhaseError: another replica reads models at the same time.
        """
        with self._naming_this_replica():
            every = self._host.gather(value)
        readers = [rank for rank, answer in enumerate(every) if answer == _READS_MODELS]
        if readers and (value != _READS_MODELS or len(readers) < self.size):
            raise PhaseError(
                f"phase {self._label!r}, epoch {self._epoch}, step {self._step}: replica "
                f"{', '.join(map(str, readers))} reads models with sharded parameters, but the others do not",
                cause="all replicas must gather them together",
                hint="call run.model and run.snapshot in all replicas, before any `if run.is_main_process:`; or set "
                "checkpoint=, which gathers them automatically",
            )
        return every

    def begin_reading(self) -> None:
        if not self._has_failed:
            self.gather(_READS_MODELS)

    @contextmanager
    def _naming_this_replica(self, n_steps: int = 1) -> Iterator[None]:
        try:
            yield
        except FrameworkError as error:
            if self._epoch < 0:
                raise
            steps = f"step {self._step}" if n_steps == 1 else f"steps {self._step} to {self._step + n_steps - 1}"
            problem = f"phase {self._label!r}, epoch {self._epoch}, {steps}: {error.problem}"
            raise FrameworkError(problem, available=error.available, hint=error.hint) from error

    def total(self, sums: Mapping[str, tuple[float, float]]) -> LossSums:
        """Return sums and weights of losses over all replicas, added in the order of their ranks; or common ones."""
        if self.reads_all_rows:
            return dict(sums)
        every = self.gather({label: list(pair) for label, pair in sums.items()})
        totals: LossSums = {}
        for one in every:
            for label, (value, weight) in one.items():
                before = totals.get(label, (0.0, 0.0))
                totals[label] = before[0] + value, before[1] + weight
        return totals

    def see_orders(self, orders: RowOrders) -> None:
        """Remember the row orders that the samplers have drawn for all replicas."""
        for key in sorted(orders):
            self._orders.update(f"{key} {digest(np.asarray(orders[key]))}".encode())

    def stop_reason_of_all(self, reason_here: str) -> str:
        """Return why a replica is asked to stop, from the first that reports it, or `""`; all call this together."""
        return next((reason for reason in self.gather(reason_here) if reason), "")

    def end_epoch(self, stop_reason: str) -> str:
        """Exchange the stop reason at the end of an epoch; return the one of the first replica that has it.

        Raises:
            PhaseError: the replicas have drawn other rows.
        """
        every = self.gather([stop_reason, self._orders.hexdigest()])
        others = [str(rank) for rank, (_, drawn) in enumerate(every) if drawn != every[0][1]]
        if others:
            raise PhaseError(
                f"phase {self._label!r}: the samplers of the replicas drew different rows: replica "
                f"{', '.join(others)} differs from replica 0",
                hint="use only the seed and the number of the epoch in the sampler",
            )
        return next((reason for reason, _ in every if reason), "")

    def check_begin(self, phase: PhaseSettings, graph: ModelGraph, columns: Mapping[str, Any]) -> None:
        when = "before the first step"
        self.check_same(code_digests(phase, graph), when=when, hint="start the same files in every process")
        self._comparison.check_alike(graph, self._orders.hexdigest(), columns, when=when)

    def check_end(self, graph: ModelGraph) -> dict[str, np.ndarray]:
        """Compare the results; the first replica warns of buffers that differ."""
        buffers = self._comparison.check_ended(graph)
        if buffers and self.rank == 0:
            first, *others = sorted(buffers)
            more = f" and {len(others)} more" if others else ""
            warnings.warn(
                printable(
                    f"phase {self._label!r}: the buffer {first!r}{more} differed between replicas, because "
                    "each computed it from its own rows; now all have the value of the first replica. In one process "
                    "it would have another value. Hint: use layers whose buffers do not depend on the rows of a "
                    "batch; or "
                    "set replicas=1"
                ),
                UserWarning,
                stacklevel=user_level(),
            )
        return buffers

    def check_same(self, texts: Mapping[str, str], *, when: str, hint: str) -> None:
        """Compare texts; see `ReplicaComparison.check_same`."""
        self._comparison.check_same(texts, when=when, hint=hint)


def _by_framework(stages: Iterable[PipelineStage]) -> dict[str, list[Program]]:
    programs: dict[str, list[Program]] = {}
    for stage in stages:
        programs.setdefault(stage.backend.framework, []).append(stage.program)
    return programs


# -- Replicated steps: single steps of which several replicas compute a part each, or one program over all of them -----


class ReplicatedStep(CrossSegmentStep):
    """Steps with the rows split over the replicas.

    Args:
        stages, log_event: See `CrossSegmentStep`.
        replicas: Replicas that split each step.
    """

    is_share = True

    def __init__(self, stages: Sequence[PipelineStage], log_event: LogEvent, replicas: ReplicatedTraining) -> None:
        super().__init__(stages, log_event)
        self._replicas = replicas
        self.multi_step = not self._weighted and replicas.average_in_steps(stages)
        self._trained = [stage for stage in stages if stage.has_gradient]

    def begin_reading(self) -> None:
        if self._replicas.sharded:
            self._replicas.begin_reading()

    def _step(self, rows: StageRows, parts: Parts, whole: SpanOf) -> list[Losses]:
        if self._replicas.sharded:  # gradients of all parts are those of all replicas
            self._replicas.begin_step([size for _, size in parts])
            parts = [(span_of, 1) for span_of, _ in parts]
        return super()._step(rows, parts, whole)

    def _loss_weights(self, inputs: Sequence[tuple[PipelineStage, list[Any]]], n_rows: int) -> list[dict[str, Any]]:
        return self._replicas.loss_weights(inputs, n_rows)

    def _begin_last_part(self, n_rows: int, size: int) -> set[int]:
        return self._replicas.begin_last_part(self._trained, n_rows, size)

    def _update(self, stages: Collection[PipelineStage], n_rows: int) -> None:
        self._replicas.average(stages, n_rows)
        super()._update(stages, n_rows)
        self._replicas.end_step()


class GlobalBatchStep(CrossSegmentStep):
    """Steps that the replicas compute together by one program, which exchanges data itself.

    Args:
        stages, log_event: See `CrossSegmentStep`.
        begin_step: Function called when a step begins; it returns from how many replicas its rows come: 1 if each
            passes all of them.
        compare: Function called when the gradients of a step are computed.
        end_step: Function called when it is done.
        multi_step: See `CrossSegmentStep`; not if batches are compared in every step.
    """

    is_share = True

    def __init__(
        self,
        stages: Sequence[PipelineStage],
        log_event: LogEvent,
        begin_step: Callable[[], int],
        compare: Callable[[], None],
        end_step: Callable[[], None],
        *,
        multi_step: bool,
    ) -> None:
        super().__init__(stages, log_event)
        self.multi_step = multi_step
        self._begin_step, self._compare, self._end_step = begin_step, compare, end_step

    def _step(self, rows: StageRows, parts: Parts, whole: SpanOf) -> list[Losses]:
        n_replicas = self._begin_step()
        return super()._step(rows, [(span_of, size * n_replicas) for span_of, size in parts], whole)

    def _update(self, stages: Collection[PipelineStage], n_rows: int) -> None:
        self._compare()
        super()._update(stages, n_rows)
        self._end_step()
