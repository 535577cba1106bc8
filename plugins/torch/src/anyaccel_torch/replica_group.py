"""Replica group of torch.distributed: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

import gc
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial, reduce
from secrets import token_hex
from threading import Thread
from typing import TYPE_CHECKING, Any, ClassVar, cast
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn  # first imported once there is a group, its defaults would keep that for ever: see `_leave`
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from anyaccel.backend import Program
from anyaccel.errors import ConfigError, FrameworkError
from anyaccel_distributed import ReplicaGroup, replica_timeout
from anyaccel_distributed.departure import Departure
from anyaccel_distributed.group import ProgramInputs
from anyaccel_torch.gradient_buckets import (
    GradientMessage,
    agreed_bucket_bytes,
    alike,
    buckets,
    positions_alike,
)
from anyaccel_torch.losses import divisor
from anyaccel_torch.program import OverlappedPass, StepWeight, TorchProgram

if TYPE_CHECKING:
    from anyaccel_torch.sharded_program import ShardedProgram

_SHORT, _IS_LONG = 127, 255
"""The most bytes of a short value, and what stands for the length of another."""
_POLL_SECONDS = 0.05
_MEET_SECONDS = 30.0
_JOIN = "join the others"
_AVERAGE = "average the gradients"
_HINT = "another replica has ended or does not answer; start all replicas again with their launcher"
_HINTS = {
    _JOIN: "run the phase, or create the loop, in all processes, not only inside `if rank == 0:`, or set "
    "replicas=1 to train only in this process; if one ended with an error, start all again with their launcher"
}
_meshes: list[DeviceMesh] = []
_REPORT_SECONDS = 3.0
"""So long a replica that has lost another waits for the others to say that they are there."""


class TorchReplicaGroup(ReplicaGroup):
    """The default process group of torch.distributed, which is joined unless the script has done so.

    Args:
        rank, size: Rank and size of the launcher.

    Attributes:
        bucket_bytes: The most bytes of gradients in one message; the same in all replicas.

    Raises:
        FrameworkError: the processes cannot be joined, or the script has joined a group of another size.
    """

    weighs_losses: ClassVar[bool] = True
    gathers_tensors: ClassVar[bool] = True

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._store: Store | None = None
        self._messages: dist.ProcessGroup | None = None
        self._departure = Departure()
        self._asked = WeakSet[TorchProgram]()
        # by the first program of an exchange: the `id`s of its parameters, which the messages keep alive
        self._reused = WeakKeyDictionary[TorchProgram, tuple[list[int], list[GradientMessage]]]()
        if not dist.is_available():
            raise FrameworkError("this torch was built without torch.distributed", hint="install a build with it")
        if not dist.is_initialized():
            self._try(_JOIN, self._join)
            self._departure = Departure(lambda _: _leave())
        elif dist.get_world_size() != size or dist.get_rank() != rank:
            raise FrameworkError(
                f"torch.distributed has joined {dist.get_world_size()} processes as rank {dist.get_rank()}, but "
                f"the launcher's environment has {size} and {rank}",
                hint="leave out init_process_group, or pass it the launcher's RANK and WORLD_SIZE",
            )
        self._departure.watch()
        self.bucket_bytes = agreed_bucket_bytes(self.gather)

    def overlap_gradients(self, programs: Sequence[Program], weight: float, part: float) -> Sequence[Program]:
        """Return those whose gradients are more than a bucket, from their second step on, by
        DistributedDataParallel.
        """
        torch_programs = [cast("TorchProgram", program) for program in programs]
        large = [program for program in torch_programs if program.gradient_bytes > self.bucket_bytes]
        if not self._asked.issuperset(large):
            self._asked.update(large)
            # See in the first step whether gradients can be added up within the backward pass. Not in programs
            # with collectives of their own in it, which replicas might mix up with these; nor where sparse
            # gradients may come in some step.
            holders = Counter(parameter for program in torch_programs for parameter in program.trained)
            for program in large:
                if (
                    not (program.is_divided or program.synchronizes_norms or program.has_sparse_gradients)
                    and len({parameter.device for parameter in program.trained}) == 1  # each has a thread in the pass
                    and all(holders[parameter] == 1 for parameter in program.trained)
                ):
                    program.backward = OverlappedPass(program.trained, drops_gradients=program.drops_gradients)
        summing = [program for program in large if program.backward.sums]
        if summing:
            self._try(_AVERAGE, lambda: self._expect(summing, StepWeight(weight, part)))
        return summing

    def _expect(self, programs: Iterable[TorchProgram], step: StepWeight) -> None:
        for program in programs:
            cast("OverlappedPass", program.backward).expect(step)

    @torch.no_grad()
    def average_gradients(self, programs: Sequence[Program], weight: float) -> None:
        """Average gradients with one all-reduce for each device and dtype, or for each bucket."""
        torch_programs = [cast("TorchProgram", program) for program in programs]
        summed = [program for program in torch_programs if program.backward.is_expected]
        for program in summed:
            self._try(_AVERAGE, cast("OverlappedPass", program.backward).finish)
        whole = [program for program in torch_programs if not program.is_divided and program not in summed]
        self._exchange(whole, [p for program in whole for p in program.trained], weight, means=True)
        sharded = [cast("ShardedProgram", program) for program in torch_programs if program.is_divided]
        for program in sharded:
            program.drop_unused(self.sums(program.take_used()))
        self._exchange(sharded, [p for program in sharded for p in program.undivided], 1.0, means=False)
        watched = [
            cast("OverlappedPass", program.backward) for program in torch_programs if program.backward.is_watched
        ]
        if watched:
            for backward, *summable in zip(
                watched, *self.gather([watched_pass.is_summable for watched_pass in watched]), strict=True
            ):
                backward.decide(sums=all(summable), bucket_bytes=self.bucket_bytes)

    def average_in_steps(self, program: Program, around: Callable[[], AbstractContextManager[None]]) -> bool:
        """Average with one all-reduce in each uncompiled step, if the gradients are at most a bucket."""
        torch_program = cast("TorchProgram", program)
        if torch_program.gradient_bytes > self.bucket_bytes or torch_program.segment.compile == "steps":
            return False
        messages = self.gradient_messages(torch_program.trained)

        @torch.no_grad()
        def exchange(n_rows: int) -> None:
            with around():
                self._send(messages, n_rows, means=True)

        torch_program.exchange_in_steps(exchange)
        return True

    def gradient_messages(self, parameters: Sequence[Tensor]) -> list[GradientMessage]:
        """Return the messages of parameters."""
        every = [bucket for same in alike(parameters) for bucket in buckets(same, self.bucket_bytes)]
        return [GradientMessage(bucket) for bucket in every]

    @torch.no_grad()
    def average(self, messages: Sequence[GradientMessage], are_ready: Callable[[], object] | None = None) -> None:
        """Replace the gradients of messages by their means over all replicas; one that none has stays None.

        Args:
            messages: The messages.
            are_ready: Called once all are written, before the first is sent; without it, each is sent at once.
        """
        if are_ready is not None:
            for message in messages:
                message.write(1.0 / self.size)
            are_ready()
        self._try(_AVERAGE, lambda: self._average(messages, are_written=are_ready is not None))

    def _average(self, messages: Sequence[GradientMessage], *, are_written: bool) -> None:
        group = cast("dist.ProcessGroup", dist.group.WORLD)
        sent = []
        for message in messages:
            if not are_written:
                message.write(1.0 / self.size)
            sent.append(group.allreduce([message.tensor]))
        for message, work in zip(messages, sent, strict=True):
            work.wait()
            message.read(means=False)  # sums of parts

    def sum_in_place(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all replicas."""
        self._try("normalize over all replicas", lambda: dist.all_reduce(tensor))

    def separate_messages(self) -> None:
        """Exchange plain values in a separate group from now on: a process that gathers alone cannot meet a
        gradient.
        """
        if self._messages is None:
            self._try(_JOIN, self._separate)

    def _separate(self) -> None:
        self._messages = dist.new_group(backend="gloo", timeout=_timeout())

    def meet(self, what: str) -> None:
        """Wait for all, who call this too, for half a minute at most.

        Raises:
            FrameworkError: some do not come.
        """
        seconds = min(_MEET_SECONDS, replica_timeout() or _MEET_SECONDS)
        try:
            dist.monitored_barrier(self._messages, timedelta(seconds=seconds), wait_all_ranks=True)
        except RuntimeError as error:
            missing = re.search(r"Ranks? ([\d, ]+) failed", str(error))
            who = f"replica{'s' * (',' in missing[1])} {missing[1]}" if missing else "others"
            self._departure.fail()
            raise FrameworkError(
                f"replica {self.rank} of {self.size} tried to {what}, but {who} did not within {seconds:g} seconds",
                hint=f"{what} in all processes, not only inside `if loop.is_main_process:`",
            ) from error

    def attempt(self, what: str, call: Callable[[], object]) -> None:
        """Call what exchanges, and name the replicas that have ended where it fails.

        Raises:
            FrameworkError: another replica has ended, or does not answer.
        """
        self._try(what, call)

    def _exchange(
        self, programs: Sequence[TorchProgram], parameters: Sequence[Tensor], weight: float, *, means: bool
    ) -> None:
        """Replace gradients of some programs by their weighted means over all replicas, or by their sums."""
        if not programs:
            return
        ids = list(map(id, parameters))
        known = self._reused.get(programs[0])
        if known is None or known[0] != ids:
            known = self._reused[programs[0]] = ids, self.gradient_messages(parameters)
        self._send(known[1], weight, means=means)

    def _send(self, messages: Sequence[GradientMessage], weight: float, *, means: bool) -> None:
        for message in messages:
            message.write(weight)
            self._try(_AVERAGE, lambda sent=message.tensor: dist.group.WORLD.allreduce([sent]).wait())  # type: ignore[misc,union-attr]
            message.read(means=means)

    def gather(self, value: Any) -> list[Any]:
        every: list[Any] = [None] * self.size
        if self._messages is None:
            self._try("gather values", lambda: dist.all_gather_object(every, value))
        else:
            self._try("gather values", lambda: self._gather_messages(every, value))
        return every

    def _gather_messages(self, every: list[Any], value: Any) -> None:
        """Gather short values with one message; `all_gather_object` needs two, and much more time."""
        text = _short_text(value)
        own = np.zeros(_SHORT + 1, np.uint8)
        if text is None:
            own[0] = _IS_LONG
        else:
            own[0] = len(text)
            own[1 : len(text) + 1] = np.frombuffer(text, np.uint8)
        rows = [torch.empty(_SHORT + 1, dtype=torch.uint8) for _ in every]
        self._messages.allgather([rows], [torch.from_numpy(own)]).wait()  # type: ignore[union-attr]
        texts = [bytes(row.numpy()) for row in rows]
        if any(text[0] == _IS_LONG for text in texts):
            dist.all_gather_object(every, value, self._messages)
        else:
            every[:] = [json.loads(text[1 : text[0] + 1]) for text in texts]

    def sums(self, values: Sequence[float]) -> list[float]:
        """Return sums, computed in host memory."""
        summed = torch.tensor(values, dtype=torch.float64)
        self._try("add up numbers", lambda: dist.all_reduce(summed))
        return summed.tolist()

    @torch.no_grad()
    def loss_weights(self, programs: Sequence[ProgramInputs], n_rows: float) -> list[dict[str, Any]]:
        """Return weights with one all-reduce for the losses of a device; nothing waits for it."""
        own = [cast("TorchProgram", program).summed_weights(inputs) for program, inputs in programs]
        by_device: dict[torch.device, list[tuple[int, str]]] = {}
        for i, weights in enumerate(own):
            for label, weight in weights.items():
                by_device.setdefault(weight.device, []).append((i, label))
        result: list[dict[str, Any]] = [{} for _ in programs]
        for device, keys in by_device.items():
            present = [own[i][label] for i, label in keys]
            dtype = reduce(torch.promote_types, (weight.dtype for weight in present), torch.float32)
            rows = torch.full((), n_rows, dtype=dtype, device=device)
            summed = torch.stack([rows, *[weight.to(dtype) for weight in present]])
            self._try("add up the weights of losses", lambda summed=summed: dist.all_reduce(summed))  # type: ignore[misc]
            in_all, part = divisor(summed[1:]), n_rows / summed[0]
            for (i, label), weight in zip(keys, in_all.unbind(), strict=True):
                result[i][label] = weight if cast("TorchProgram", programs[i][0]).is_divided else weight * part
        return result

    @torch.no_grad()
    def gather_tensors(
        self, program: Program, shards: Sequence[Sequence[Any]], counts: Sequence[int]
    ) -> list[list[Any]]:
        """Gather with one all-gather for all tensors of a device and dtype."""
        parameters = cast("TorchProgram", program).trained
        scalars = [_as_tensor(value) for value in shards[0][len(parameters) :]]
        like = [*parameters, *scalars]
        every: list[list[Any]] = [[None] * len(like) for _ in range(sum(counts))]
        for positions in positions_alike(like):
            rows = torch.stack([_row([shard[i] for i in positions], [like[i] for i in positions]) for shard in shards])
            padded = rows.new_zeros(max(counts), rows.shape[1])
            padded[: len(rows)] = rows
            by_replica = list(padded.new_empty(self.size, *padded.shape).unbind())
            self._try("gather the gradients", partial(dist.all_gather, by_replica, padded))
            gathered = [row for table, count in zip(by_replica, counts, strict=True) for row in table[:count].unbind()]
            for shard, row in zip(every, gathered, strict=True):
                present = row[: len(positions)].tolist()
                pieces = torch.split(row[len(positions) :], [like[i].numel() for i in positions])
                for i, is_there, piece in zip(positions, present, pieces, strict=True):
                    shard[i] = piece.view(like[i].shape) if is_there else None
        return every

    def sync_batch_statistics(self, program: Program) -> None:
        """Synchronize with one all-reduce for each layer forward, and one backward."""
        cast("TorchProgram", program).synchronize_norms(self.rank, self.size, self.sum_in_place)

    def begin_step(self, programs: Sequence[Program], sizes: Sequence[int]) -> None:
        """Begin a step with one all-reduce of the number of rows, in host memory."""
        n_rows = self.sums([float(sum(sizes))])[0]
        for program in programs:
            cast("ShardedProgram", program).begin_step(sizes, n_rows)

    def abandon(self, programs: Sequence[Program]) -> None:
        self._departure.fail()
        for program in programs:
            cast("ShardedProgram", program).abandon()

    def _join(self) -> None:
        timeout = _timeout()
        store = store_of_attempt(self.rank, self.size, timeout)
        group_store = PrefixStore("anyaccel-group", store)
        engine = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(engine, store=group_store, rank=self.rank, world_size=self.size, timeout=timeout)
        self._store = PrefixStore("anyaccel-alive", store)

    def _try(self, what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except ConfigError:  # of this process
            raise
        except (RuntimeError, ValueError) as error:
            silent = self._silent()
            ended = "replica" if len(silent) == 1 else "replicas"
            who = f"{ended} {', '.join(map(str, silent))} ended or did not answer" if silent else ""
            raise FrameworkError(
                f"replica {self.rank} of {self.size} could not {what}: {who or str(error).splitlines()[0]}",
                cause="errors of the other replicas, above or in their logs",
                hint=_HINTS.get(what, _HINT),
            ) from error

    def _silent(self) -> list[int]:
        """Return the ranks that do not respond, asked by all that have lost the connection to another.

        This replica closes its connections first, so that those that wait for it notice, too.
        """
        store, self._store = self._store, None
        if store is None:
            return []
        _leave()
        others, there = set(range(self.size)) - {self.rank}, set[int]()
        asking = Thread(target=_ask, args=(store, self.rank, others, there), daemon=True)
        asking.start()
        asking.join(_REPORT_SECONDS + 1)  # a store whose process hangs keeps whoever asks it for ever
        missing = others - there
        if there or not asking.is_alive():
            return sorted(missing)
        return [0] if 0 in missing else []


def _timeout() -> timedelta | None:
    seconds = replica_timeout()
    return None if seconds is None else timedelta(seconds=seconds)


def _ask(store: Store, rank: int, others: set[int], there: set[int]) -> None:
    """Announce this replica in the store, and add to `there` the others that have announced themselves."""
    deadline = time.monotonic() + _REPORT_SECONDS
    try:
        store.set_timeout(timedelta(seconds=_REPORT_SECONDS))
        store.set(str(rank), "there")
        while others - there and time.monotonic() < deadline:
            there |= {other for other in others - there if store.check([str(other)])}
            time.sleep(_POLL_SECONDS)
    except RuntimeError:  # the first replica keeps the store, unless its launcher does
        there |= others - {0} if 0 in others - there else set()


def device_mesh(kind: str, size: int) -> DeviceMesh:
    """Return a mesh of all replicas, which is given up when they part."""
    mesh = init_device_mesh(kind, (size,))
    _meshes.append(mesh)
    return mesh


def _leave() -> None:
    """End the group's threads: a process that ends with them running is aborted now and then."""
    if not dist.is_initialized():
        return
    for mesh in _meshes:  # torch's caches of DTensors keep each for ever, and it keeps the group
        getattr(mesh, "_pg_registry", {}).clear()
    if _meshes:
        gc.collect()  # so do divided modules, which are in circles
    dist.destroy_process_group()


def _short_text(value: Any) -> bytes | None:
    """Return a plain value as JSON if it is short, and the same after it was read."""
    try:
        text = json.dumps(value).encode()
    except TypeError:
        return None
    return text if len(text) <= _SHORT and json.loads(text) == value else None


def _row(tensors: Sequence[Any], like: Sequence[Tensor]) -> Tensor:
    """Return which tensors exist, followed by all of them, in one tensor; zeros for missing ones."""
    present = torch.tensor([tensor is not None for tensor in tensors]).to(like[0])
    parts = [torch.zeros_like(to) if x is None else _as_tensor(x) for x, to in zip(tensors, like, strict=True)]
    return torch.cat([present, *[part.reshape(-1) for part in parts]])


def _as_tensor(value: Any) -> Tensor:
    """Return a number as a tensor in host memory; a tensor unchanged."""
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


# -- -------------------------------------------------------------------------------------------------------------------
# Rendezvous: a store of this attempt alone, by which the replicas of a launcher find each other.
#
# torchrun keeps one store for all attempts (pytorch/pytorch#135712): after a restart a process would read the
# addresses of those that have ended. The number of the attempt is no help, as each machine counts its own.


_MEETING_POLL_SECONDS = 0.01
_WAIT_SECONDS = 300.0


def store_of_attempt(rank: int, size: int, timeout: timedelta | None = None) -> Store:
    """Return a store that the replicas of this attempt share, at the address in the environment.

    Args:
        rank: Rank of this process.
        size: Number of processes.
        timeout: Maximum time to wait for the others; by default five minutes.

    Raises:
        RuntimeError: some do not come in time.
    """
    wait = timedelta(seconds=_WAIT_SECONDS) if timeout is None else timeout
    store: Store = next(rendezvous("env://", rank=rank, world_size=size, timeout=wait))[0]
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return store
    own_store = PrefixStore("anyaccel", store)
    return PrefixStore(_agreed_name(own_store, rank, size, wait.total_seconds()), own_store)


def _agreed_name(store: Store, rank: int, size: int, seconds: float) -> str:
    """Return a name that all replicas have seen since they began.

    Each publishes its own token. The first publishes a name for the tokens that it sees, and each replica confirms that
    its token is among them. A name that all have confirmed does not belong to an earlier attempt, because no one is
    left who would confirm it.
    """
    token, confirmed, name = token_hex(8), "", ""
    store.set(f"token/{rank}", token)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if rank == 0:
            tokens = _read(store, "token", size)
            if None not in tokens and json.dumps(tokens) != name:
                name = json.dumps(tokens)
                store.set("name", name)
            if name and _read(store, "confirmed", size) == [name] * size:
                store.set(f"agreed/{name}", "yes")
        elif store.check(["name"]):
            name = store.get("name").decode()
        if name != confirmed and token in name:
            confirmed = name
            store.set(f"confirmed/{rank}", name)
        if confirmed and store.check([f"agreed/{confirmed}"]):
            return confirmed
        time.sleep(_MEETING_POLL_SECONDS)
    raise RuntimeError(f"{size} processes have not met within {seconds:.0f} seconds")


def _read(store: Store, name: str, size: int) -> list[str | None]:
    keys = [f"{name}/{rank}" for rank in range(size)]
    return [store.get(key).decode() if store.check([key]) else None for key in keys]
