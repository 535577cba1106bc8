"""ReplicatedProgram: one segment on several devices of a process, each with its part of every batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from anyaccel import rng
from anyaccel.backend import ComputingBackend
from anyaccel.device import Device
from anyaccel.errors import PhaseError, StateError
from anyaccel.precision import LossScaleState, ScalesLosses
from anyaccel.program import Program
from anyaccel.segment import NodeState, Segment
from anyaccel_distributed.batch_shards import FIXED_SHARDS, BatchCut, BatchCutter, Shard, ShardProcesses, rounds
from anyaccel_distributed.device_replicas import DeviceReplicas, Gradients

LossSums = dict[str, tuple[Any, Any]]


def build_replicated(
    backend: ComputingBackend,
    segment: Segment,
    devices: Sequence[Device],
    *,
    deterministic: bool = False,
    divided: bool = False,
    whole: Collection[str] = (),
    processes: ShardProcesses | None = None,
) -> Program:
    """Return a program that trains copies of a segment's models on several devices; the models themselves get the
    result.

    Args:
        backend: Backend with the capability `device_replicas`.
        segment: Segment with its models, on the first device.
        devices: One device for each replica; with `deterministic` also a single one.
        deterministic: Whether results do not depend on how many devices there are, to the last bit.
        divided: Whether each device has a part of the parameters, by one program over all.
        whole: Labels of the nodes whose parameters are not sharded, with `divided`: each device has all of them.
        processes: Processes that compute some shards of each batch, with `deterministic`; None for this one alone.
    """
    one_by_one = deterministic or len(devices) == 1
    more: Any = {"whole": tuple(whole)} if whole else {}
    over_all = (
        None if one_by_one else backend.required(DeviceReplicas).build_over(segment, devices, divided=divided, **more)
    )
    if over_all is not None:
        return over_all
    programs: list[Program] = []
    try:
        for i, device in enumerate(devices):
            programs.append(backend.build(copied_segment(backend, segment, device) if i else segment))
    except BaseException:
        for program in reversed(programs):
            program.close()
        raise
    return ReplicatedProgram(segment, backend, programs, devices, FIXED_SHARDS if deterministic else None, processes)


def copied_segment(backend: ComputingBackend, segment: Segment, device: Device) -> Segment:
    """The segment on another device, with copies of its models, of losses with values, and of optimizer states."""
    held = [op.model for op in segment.operations] + [term.loss.own for term in segment.losses]
    held += list(segment.frozen.values())
    originals = {id(obj): obj for obj in held if obj is not None and not isinstance(obj, type) and backend.owns(obj)}
    copied = backend.required(DeviceReplicas).copy_models(list(originals.values()), device)
    copies = dict(zip(originals, copied, strict=True))
    return replace(
        segment,
        operations=tuple(
            replace(op, device=device, model=copies.get(id(op.model), op.model)) for op in segment.operations
        ),
        inputs={name: (spec, device) for name, (spec, _) in segment.inputs.items()},
        losses=tuple(
            replace(term, device=device, loss=replace(term.loss, own=copies[id(term.loss.own)]))
            if id(term.loss.own) in copies
            else replace(term, device=device)
            for term in segment.losses
        ),
        states={label: _moved_state(backend, state, device) for label, state in segment.states.items()},
        frozen={label: copies.get(id(model), model) for label, model in segment.frozen.items()},
    )


def _moved_state(backend: ComputingBackend, state: NodeState, device: Device) -> NodeState:
    slots = {
        parameter: {name: backend.place(tensor, device) for name, tensor in kept.items()}
        for parameter, kept in state.slots.items()
    }
    return NodeState(state.step, slots)


class ReplicatedProgram(Program, ScalesLosses):
    """Programs of one segment on several devices, which stay equal: every one steps with the gradients of all.

    Each step splits its rows into shards of adjacent rows, one for each replica, or a fixed number of them. The
    gradients of shards are added on the first device in the order of the shards, weighted by rows, and sent to all.
    Evaluations are computed only on the first device; the first program uses the user's models.

    Args:
        segment: The segment, on the first device. It has no inputs that need cotangents.
        backend: Backend of all programs.
        programs: One for each device, with equal values.
        devices: Devices of the programs.
        fixed_shards: Number of shards of each batch, for any number of devices, each with separate random numbers; None
            for one shard on each device.
        processes: Processes that compute shards of each batch; None computes all of them here.
    """

    def __init__(
        self,
        segment: Segment,
        backend: ComputingBackend,
        programs: Sequence[Program],
        devices: Sequence[Device],
        fixed_shards: int | None = None,
        processes: ShardProcesses | None = None,
    ) -> None:
        self.segment = segment
        self._backend, self._replicas = backend, backend.required(DeviceReplicas)
        self._programs, self._devices = tuple(programs), tuple(devices)
        self._fixed_shards = fixed_shards
        self._total: Gradients | None = None
        self._is_set = False  # the first program has the gradients of all
        self._key, self._draws = 0, 0
        self._processes = processes if processes is not None else ShardProcesses()
        self._cutter = BatchCutter(segment.label, backend, devices, fixed_shards, self._processes)
        self.raises_out_of_memory = all(program.raises_out_of_memory for program in programs)

    @property
    def n_replicas(self) -> int:
        """On how many devices of this process it is computed."""
        return len(self._programs)

    @property
    def has_fixed_shards(self) -> bool:
        """Whether each batch is split into a fixed number of shards, for any number of devices."""
        return self._fixed_shards is not None

    # -- random numbers --------------------------------------------------------------------------------------------

    def seed(self, key: int) -> None:
        """Restart the random streams: the first replica has those of a single program, the others their own."""
        self._key, self._draws = key, 0
        for i, program in enumerate(self._programs):
            program.seed(rng.key(key, f"replica {i}") if i else key)

    def random_state(self) -> Mapping[str, Any] | None:
        """Return the state of every replica; for fixed shards the number of draws, which determines it."""
        if self._fixed_shards is not None:
            return {"draws": np.array(self._draws, dtype=np.int64)}
        states = [program.random_state() for program in self._programs]
        if any(state is None for state in states):
            return None
        return {f"{i}/{name}": array for i, state in enumerate(states) for name, array in (state or {}).items()}

    def load_random_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the output of `random_state`.

        Raises:
            StateError: it belongs to another number of replicas.
        """
        if self._fixed_shards is not None:
            if set(state) != {"draws"}:
                raise self._other_state()
            self._draws = int(state["draws"])
            return
        by_replica: dict[str, dict[str, Any]] = {str(i): {} for i in range(self.n_replicas)}
        for name, array in state.items():
            number, _, inner = name.partition("/")
            if number not in by_replica:
                raise self._other_state()
            by_replica[number][inner] = array
        if not all(by_replica.values()):
            raise self._other_state()
        for program, arrays in zip(self._programs, by_replica.values(), strict=True):
            program.load_random_state(arrays)

    def _other_state(self) -> StateError:
        how = "in a fixed order" if self._fixed_shards is not None else f"on {self.n_replicas} devices"
        return StateError(f"the random state belongs to a run with other replicas than these, {how}")

    # -- forward and back ------------------------------------------------------------------------------------------

    def forward(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], LossSums]:
        """Compute outputs and losses in evaluation mode, on the first replica."""
        return self._programs[0].forward(inputs)

    def loss_weights(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """Return the weights over all rows."""
        return self._programs[0].loss_weights(inputs)

    def forward_pullback(
        self, inputs: Sequence[Any], scale: Mapping[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], LossSums, Callable[[Sequence[Any]], tuple[Any, ...]]]:
        """Compute losses in training mode and the pullback; outputs are None, because they are on several devices.

        Raises:
            PhaseError: there are fewer rows than replicas.
        """
        # Factors of the sums of losses that are not divided by the rows of a shard alone, by label.
        scales = dict(scale or {})
        weights = self.loss_weights(inputs)
        with self._backend.scope(self._devices[0]):
            weights_of_terms = {
                term.label: term.weight / weights[term.label] for term in self.segment.losses if term.label in weights
            }
        factors = {**weights_of_terms, **scales}
        gradients: dict[int, Gradients] = {}
        losses: dict[int, LossSums] = {}
        cut = self._cutter.cut(inputs)
        shards = list(self._cutter.shards(inputs, cut))
        self._draws += 1
        for together in rounds(shards):
            pullbacks = []
            for shard in together:
                losses[shard.number], pullback = self._forward(shard, factors)
                pullbacks.append(pullback)
            for shard, pullback in zip(together, pullbacks, strict=True):
                pullback([None] * len(self.segment.outputs))
                gradients[shard.number] = self._replicas.gradients(self._programs[shard.replica])
        if self._processes.gather is not None:
            labels = list(losses[min(losses)])
            sent = [[*gradients[n], *(x for label in labels for x in losses[n][label])] for n in sorted(gradients)]
            rows = self._processes.gather(self._programs[0], sent, cut.counts(self._processes.size))
            end = len(rows[0]) - 2 * len(labels)
            pairs = [dict(zip(labels, zip(row[end::2], row[end + 1 :: 2], strict=True), strict=True)) for row in rows]
            gradients, losses = {n: row[:end] for n, row in enumerate(rows)}, dict(enumerate(pairs))
        outputs = (None,) * len(self.segment.outputs)
        return outputs, self._loss_sums(losses), partial(self._add, cut, gradients)

    def _forward(self, shard: Shard, factors: Mapping[str, Any]) -> tuple[LossSums, Callable[..., Any]]:
        """Compute losses and pullback of a shard, whose gradients are weighted by rows later; factors are for all
        rows.
        """
        program = self._programs[shard.replica]
        program.zero_grad()
        if self._fixed_shards is not None:
            program.seed(rng.key(self._key, "shard", shard.number, self._draws))
        with self._backend.scope(self._devices[0]):
            scales = {label: factor / shard.weight for label, factor in factors.items()}
        scales = {label: self._sent(factor, shard.replica) for label, factor in scales.items()}
        _, losses, pullback = program.forward_pullback(shard.inputs, *([scales] if scales else []))
        return losses, pullback

    def _loss_sums(self, by_shard: Mapping[int, LossSums]) -> LossSums:
        labels = list(by_shard[0])
        tensors = [
            [self._sent(value, 0) for pair in (0, 1) for value in (by_shard[n][label][pair] for label in labels)]
            for n in sorted(by_shard)
        ]
        sums = self._replicas.weighted_sums(tensors, [1.0] * len(tensors))
        return {label: (sums[i], sums[len(labels) + i]) for i, label in enumerate(labels)}

    def _add(self, cut: BatchCut, gradients: Mapping[int, Gradients], _: Sequence[Any]) -> tuple[Any, ...]:
        """Return the pullback, which adds the gradients of the shards to the existing ones."""
        before = [] if self._total is None else [self._total]
        tensors = [[self._sent(tensor, 0) for tensor in gradients[number]] for number in range(cut.n_shards)]
        weights = [1.0] * len(before) + cut.weights
        lengths = {len(tensor_list) for tensor_list in (*before, *tensors)}
        if len(lengths) > 1:
            raise PhaseError(
                f"segment {self.segment.label!r}: the replicas have gradients of different parameters, "
                f"{' and '.join(map(str, sorted(lengths)))}",
                hint="train in several processes, anyaccel run --replicas 2 SCRIPT, or use all parameters in each step",
            )
        self._total, self._is_set = self._replicas.weighted_sums([*before, *tensors], weights), False
        return ()

    def _sent(self, tensor: Any, replica: int) -> Any:
        """Return a tensor or number, on the device of a replica."""
        if tensor is None or isinstance(tensor, (int, float)):
            return tensor
        return self._backend.move(tensor, self._devices[replica])

    # -- gradients and updates -------------------------------------------------------------------------------------

    def grad_stats(self) -> dict[str, tuple[Any, Any]]:
        """Return squared norm and finiteness by group, for the gradients of all replicas."""
        if self._total is not None and not self._is_set:
            self._replicas.set_gradients(self._programs[0], self._total)
            self._is_set = True
        return self._programs[0].grad_stats()

    def clip_factor(self, limit: float, squares: Sequence[Any]) -> Any:
        """Return the clipping factor on the first device."""
        return self._programs[0].clip_factor(limit, squares)

    def map_gradients(self, fn: Callable[[Any], Any]) -> None:
        """Replace every gradient of all replicas."""
        if self._total is not None:
            self._total = [None if tensor is None else fn(tensor) for tensor in self._total]
            self._is_set = False

    def optimizer_step(self, scale: Mapping[str, Any] | None = None) -> None:
        """Run the same step in every replica; then discard the gradients."""
        total, self._total = self._total, None
        for i, program in enumerate(self._programs):
            if total is not None and (i or not self._is_set):
                self._replicas.set_gradients(program, [self._sent(tensor, i) for tensor in total])
            factors = None if scale is None else {group: self._sent(factor, i) for group, factor in scale.items()}
            program.optimizer_step(factors)
        self._is_set = False

    def zero_grad(self) -> None:
        """Discard the gradients of all replicas."""
        self._total, self._is_set = None, False
        for program in self._programs:
            program.zero_grad()

    # -- the loss scale --------------------------------------------------------------------------------------------

    @property
    def _scaled(self) -> list[ScalesLosses]:
        return [cast("ScalesLosses", program) for program in self._programs]

    def loss_scale_state(self) -> LossScaleState:
        """Return the loss scale state, which is equal in every replica."""
        return self._scaled[0].loss_scale_state()

    def load_loss_scale_state(self, state: LossScaleState) -> None:
        """Restore the loss scale state in every replica."""
        for program in self._scaled:
            program.load_loss_scale_state(state)

    def update_loss_scale(self, *, finite: bool) -> None:
        """Update the loss scale in every replica: a step is skipped by all."""
        for program in self._scaled:
            program.update_loss_scale(finite=finite)

    # -- state -----------------------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Wait for all replicas."""
        for program in self._programs:
            program.synchronize()

    def snapshot(self) -> Any:
        """Return snapshots of every replica."""
        return [program.snapshot() for program in self._programs], self._key, self._draws

    def restore(self, snapshot: Any) -> None:
        """Go back to a snapshot; gradients are discarded."""
        states, self._key, self._draws = snapshot
        self._total, self._is_set = None, False
        for program, state in zip(self._programs, states, strict=True):
            program.restore(state)

    def optimizer_states(self) -> dict[str, NodeState]:
        """Return the optimizer states of the first replica; those of the others are equal."""
        return self._programs[0].optimizer_states()

    def live_optimizer_states(self) -> dict[str, NodeState]:
        return self._programs[0].live_optimizer_states()

    def sync_models(self) -> None:
        """Copy the values of the first replica into the user's models."""
        self._programs[0].sync_models()

    def unequal_buffers(self) -> list[str]:
        """Return buffers, as `NODE/buffers/NAME`, that differ between replicas, because each computes them from its
        rows.
        """
        every = [self._buffers(program) for program in self._programs]
        return [name for name in every[0] if len({buffers[name].tobytes() for buffers in every}) > 1]

    def _buffers(self, program: Program) -> dict[str, np.ndarray]:
        """Return floating buffers of trained nodes of a replica; others are counters or random states."""
        program.sync_models()
        trained = [op for op in program.segment.operations if op.trainable and op.model is not None]
        states = {
            f"{op.label}/{name}": array for op in trained for name, array in self._backend.state(op.model).items()
        }
        return {name: array for name, array in states.items() if "/buffers/" in name and array.dtype.kind not in "biu"}

    def renew_compiled(self) -> Sequence[str]:
        """Return the changed Python values of all replicas."""
        return list(dict.fromkeys(name for program in self._programs for name in program.renew_compiled()))

    def close(self) -> dict[str, NodeState]:
        """End all replicas, those on other devices first; the user's models have the result of the first."""
        for program in reversed(self._programs[1:]):
            program.close()
        return self._programs[0].close()
