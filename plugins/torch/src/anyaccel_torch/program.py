"""A segment's program in torch: whole training steps in one call, or forward, pullback and update one by one."""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial, reduce
from itertools import chain, islice
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn, split
from torch.nn.parallel import DistributedDataParallel

from anyaccel.adapter.notifying_program import AfterStep, NotifyingProgram, notify_one_by_one
from anyaccel.backend import CompileEstimate, MultiStepProgram
from anyaccel.device import Device
from anyaccel.errors import FrameworkError, GraphError, PhaseError
from anyaccel.segment import NodeState, Segment
from anyaccel.specs import Optimizer
from anyaccel_torch import keras, step_compiler
from anyaccel_torch.error_translation import translate_errors
from anyaccel_torch.forward_call import share_of_batch
from anyaccel_torch.forward_plan import ForwardPlan
from anyaccel_torch.gradient_buckets import BUCKET_VARIABLE, exchange_dtype, exchanged_bytes
from anyaccel_torch.loss_scaling import UNSCALED, DynamicLossScaling, LossScaling, ScaledProgram
from anyaccel_torch.losses import BoundLoss, bind, divisor
from anyaccel_torch.module_state import parameters, submodules
from anyaccel_torch.module_traits import input_dtype
from anyaccel_torch.optimizers import GroupOptimizer
from anyaccel_torch.state_guard import (
    BufferSnapshot,
    InputGuard,
    RandomState,
    TrainingModes,
    seed_generators,
)
from anyaccel_torch.step_compiler import BLOCK_BYTES, gathered_blocks
from anyaccel_torch.synchronized_norm import AllReduce, SynchronizedNorm, is_synchronizable

# -- Rows of uncompiled steps, gathered ahead --------------------------------------------------------------------------


AHEAD_STEPS = 64
"""Steps whose rows are gathered together; their memory is bounded by bytes, too."""


class RowsAhead:
    """The batches of a program's calls over columns that do not change between calls.

    Rows gathered for later steps are used by a call that continues where the last one ended, over the same columns and
    orders, and dropped otherwise.

    Args:
        max_bytes: Maximum bytes of the rows that are gathered together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        """Drop the gathered rows."""
        self._of: tuple[Tensor, ...] = ()
        self._next, self._batch, self._ahead = 0, 0, 0
        self._batches: Iterator[tuple[Tensor, ...]] = iter(())

    def take(
        self, columns: Sequence[Tensor], orders: Sequence[Tensor], start: int, n_steps: int, batch: int
    ) -> Iterator[tuple[Tensor, ...]]:
        """Return a batch of each column for each step: rows `order[start + i * batch :][:batch]`."""
        if n_steps >= AHEAD_STEPS:
            self.clear()
            return chain.from_iterable(_gathered(columns, orders, start, n_steps, batch, self._max_bytes))
        goes_on = start == self._next and batch == self._batch and n_steps <= self._ahead
        arrays = (*columns, *orders)
        if not goes_on or len(arrays) != len(self._of) or not all(map(operator.is_, arrays, self._of)):
            self._of, self._batch = arrays, batch
            left = min(map(len, orders), default=0) - start
            self._ahead = max(n_steps, min(AHEAD_STEPS, left // batch))
            blocks = _gathered(columns, orders, start, self._ahead, batch, self._max_bytes)
            self._batches = chain.from_iterable(blocks)
        self._next, self._ahead = start + n_steps * batch, self._ahead - n_steps
        batches = islice(self._batches, n_steps)
        if not self._ahead:  # what reads them drops the rows
            self.clear()
        return batches


def _gathered(
    columns: Sequence[Tensor], orders: Sequence[Tensor], start: int, n_steps: int, batch: int, max_bytes: int
) -> Iterator[Iterable[tuple[Tensor, ...]]]:
    """Yield the batches of each block of rows together: each step would enter a generator of batches.

    No method, whose frame would keep the object that holds it.
    """
    for block in gathered_blocks(columns, orders, start, start + n_steps * batch, batch, max_bytes):
        yield zip(*[_aligned(rows, batch) for rows in block], strict=True)


_ALIGNMENT = 64
"""Bytes; that of torch's own allocations on CPUs."""


def _aligned(rows: Tensor, batch: int) -> Sequence[Tensor]:
    """Split rows into batches that each begin at a multiple of 64 bytes.

    The last bits of matrix products on a CPU depend on it, and a resumed run, or one of other calls, gathers from
    another step on.
    """
    n_batches, rest = divmod(len(rows), batch)
    excess = batch * rows.stride(0) * rows.itemsize % _ALIGNMENT
    if n_batches < 2 or rest or not excess:
        return split(rows, batch)
    width = batch * rows.stride(0) + (_ALIGNMENT - excess) // rows.itemsize
    padded = rows.new_empty(n_batches * width)
    batches = padded.as_strided((n_batches, batch, *rows.shape[1:]), (width, *rows.stride()))
    return batches.copy_(rows.view(n_batches, batch, *rows.shape[1:])).unbind()


# ----------------------------------------------------------------------------------------------------------------------


class ProgramSnapshot:
    """A state that a program can return to any number of times.


    Args:
        parameters: Trained parameters.
        modules: Modules with buffers that change.
        groups: Groups with optimizer states that change.
        random: Current random state.
        scaling: Loss scaling with a scale that changes.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        modules: Iterable[nn.Module],
        groups: Sequence[GroupOptimizer],
        random: RandomState,
        scaling: LossScaling,
    ) -> None:
        self._parameters = [(parameter, parameter.detach().clone()) for parameter in parameters]
        self._buffers = BufferSnapshot(modules)
        self._groups = [(group, group.snapshot()) for group in groups]
        self._random, self._scaling = random, scaling
        self._loss_scale = scaling.state

    @torch.no_grad()
    def restore(self) -> None:
        """Restore all values of the snapshot."""
        for parameter, saved in self._parameters:
            parameter.copy_(saved)
        self._buffers.restore()
        for group, snapshot in self._groups:
            group.restore(snapshot)
        self._random.restore()
        self._scaling.load(self._loss_scale)


class Pullback:
    """Compute cotangents of inputs from those of outputs, once; see `Program.forward_pullback`.

    Args:
        terms: Losses times their factors.
        outputs: Outputs of the segment, or None.
        leaves: Inputs that have cotangents, by position.
        pulled: Positions of the inputs with requested cotangents.
        backward: Function that accumulates gradients.
        translate: Function that translates errors of the pass.
    """

    def __init__(
        self,
        terms: list[Tensor],
        outputs: list[Tensor | None],
        leaves: dict[int, Tensor],
        pulled: Sequence[int],
        backward: BackwardPass,
        translate: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._terms, self._outputs, self._leaves = terms, outputs, leaves
        self._pulled, self._backward, self._translate = pulled, backward, translate

    def __call__(self, cotangents: Sequence[Any]) -> tuple[Tensor | None, ...]:
        """Return the cotangents of inputs; gradients are accumulated into the parameters."""
        roots: list[tuple[Tensor | None, Any]] = [(term, None) for term in self._terms]
        roots += [pair for pair in zip(self._outputs, cotangents, strict=True) if pair[1] is not None]
        live = [(root, start) for root, start in roots if root is not None and root.requires_grad]
        del roots
        try:
            with self._translate("the pullback"):
                self._backward.run([root for root, _ in live], [start for _, start in live])
                pulled: list[Tensor | None] = []
                for i in self._pulled:  # zeros for an input that got no gradient, None where there was no input
                    leaf = self._leaves.get(i)
                    pulled.append(None if leaf is None else torch.zeros_like(leaf) if leaf.grad is None else leaf.grad)
                return tuple(pulled)
        finally:  # an error's traceback keeps this object and its frames, and with them the autograd graph
            for held in (self._terms, self._outputs, self._leaves, live):
                held.clear()


def create_groups(
    segment: Segment,
    models: Mapping[str, Any],
    losses: Sequence[BoundLoss],
    modules: Mapping[nn.Module, Mapping[str, nn.Parameter]],
) -> list[GroupOptimizer]:
    """Return an optimizer for each group.

    Parameters of a custom loss belong to the node of the loss, as `loss.LABEL.NAME`. A parameter in several nodes or
    groups belongs to the first, and a node whose model belongs to an earlier node is left out.

    Args:
        segment: The segment with the groups.
        models: Its models by node.
        losses: Losses with parameters that are trained together with the nodes of the losses.
        modules: All modules of the segment, with their parameters by name.

    Raises:
        SpecError: torch lacks an optimizer.
        GraphError: Nodes with different optimizers share a parameter.
    """
    states = dict(segment.states)
    continued: dict[int, NodeState] = {}  # by the id of a model: nodes that share it get the state that has slots
    for label, model in models.items():
        if label in states and states[label].slots:
            continued.setdefault(id(model), states[label])
    for label, model in models.items():
        if id(model) in continued and not (label in states and states[label].slots):
            states[label] = continued[id(model)]
    variables: dict[nn.Parameter, Any] = {}
    constraints: dict[nn.Parameter, Callable[[Any], Any]] = {}
    for module in modules:
        for layer in keras.outermost(module):
            for variable in layer.trainable_variables:
                variables[variable.value] = variable
                if variable.constraint is not None:
                    constraints[variable.value] = variable.constraint
    sparse = has_sparse_gradients(modules)
    seen: set[int] = set()  # ids of models
    owners: dict[int, tuple[str, Optimizer]] = {}  # node and optimizer by the id of a trained parameter
    groups = []
    for group in segment.groups:
        members: dict[str, dict[str, nn.Parameter]] = {}
        switched_off: dict[str, set[str]] = {}
        for node in group.nodes:
            model = models.get(node)
            named = dict(modules[model]) if isinstance(model, nn.Module) else {}
            switched_off[node] = {name for name, value in named.items() if not value.requires_grad}
            for term, loss in zip(segment.losses, losses, strict=True):
                if term.on == node and loss.module is not None:
                    named |= {f"loss.{term.label}.{name}": value for name, value in modules[loss.module].items()}
            own: dict[str, nn.Parameter] = {}
            for name, value in named.items():
                if not value.requires_grad:
                    continue
                owner, optimizer = owners.setdefault(id(value), (node, group.optimizer))
                if optimizer != group.optimizer:
                    raise GraphError(
                        f"nodes {owner!r} and {node!r} share the parameter {name!r} but have different optimizers",
                        hint="use the same optimizer for both",
                    )
                if owner == node:
                    own[name] = value
            if own or id(model) not in seen:
                members[node] = own
            seen.add(id(model))
        groups.append(
            GroupOptimizer(
                group,
                members,
                states,
                switched_off=switched_off,
                sparse=sparse,
                constraints=constraints,
                variables=variables,
            )
        )
    return groups


def has_sparse_gradients(modules: Iterable[nn.Module]) -> bool:
    """Whether some layer, such as an embedding, says that its gradients are sparse."""
    for module in modules:
        for part in submodules(module):
            if getattr(part, "sparse", False):
                return True
    return False


Losses = dict[str, tuple[Tensor, Tensor]]


class TorchProgram(ScaledProgram, MultiStepProgram, NotifyingProgram):
    """Train the user's own modules in place; `close` restores their modes and `requires_grad` flags.

    Parameters of the groups' nodes (and of custom losses on them) are trained, except those whose `requires_grad` the
    user has switched off; each is trained once, even if it is in several nodes. A node with `trainable=False` is in
    evaluation mode, BatchNorm and dropout included, and passes gradients through; others are in training mode as a
    whole, or, with `modes="as_is"`, in their current modes. Torch's global random state belongs to the program until
    `close`. `trained` has the trained parameters, in the order of groups and nodes.

    Args:
        segment: The segment to compute; its models are placed.
        torch_device: Function that returns the `torch.device` of a device.

    Raises:
        SpecError: torch lacks an optimizer or loss.
        GraphError: a trained parameter belongs to a frozen node.
    """

    supports_microbatching = True
    is_divided: ClassVar[bool] = False
    """Whether each replica keeps a part of the parameters, and gradients are those of all replicas."""

    def __init__(self, segment: Segment, torch_device: Callable[[Device], torch.device]) -> None:
        self.segment = segment
        self._plan = ForwardPlan(segment, torch_device)
        self._models: dict[str, Any] = {}
        self._modules: dict[nn.Module, bool] = {}  # those of nodes and of custom losses, and whether a node trains them
        self._devices: set[torch.device] = set()
        self._lacks_outputs = False  # in evaluation
        dtypes, as_is, trainable = set(), [], {}
        for operation in segment.operations:
            model = operation.model
            self._devices.add(torch_device(operation.device))
            trainable[operation.label] = operation.trainable
            self._lacks_outputs = self._lacks_outputs or bool(operation.training_only)
            if model is not None:
                self._models[operation.label] = model
                dtypes.add(input_dtype(model))
            if isinstance(model, nn.Module):
                self._modules[model] = operation.trainable or self._modules.get(model, False)
                if operation.modes == "as_is":
                    as_is.append(model)
        weight_dtype = torch.float64 if "float64" in dtypes else torch.float32  # of sums of loss weights
        self._losses: list[BoundLoss] = []
        self._means: list[Callable[[Sequence[Any]], Tensor]] = []
        self._weighs: list[Callable[[Sequence[Any]], Tensor]] = []  # of the losses that have weights
        for term in segment.losses:
            device = torch_device(term.device)
            loss = bind(term, [self._plan.slot(name, device) for name in term.inputs], device, weight_dtype)
            self._losses.append(loss)
            self._means.append(loss.mean)
            if loss.total_weight is not None:
                self._weighs.append(loss.total_weight)
            if loss.module is not None:
                self._modules[loss.module] = trainable.get(term.on, True) or self._modules.get(loss.module, False)
        self._outputs = [self._plan.slot(name) for name in segment.outputs]
        self._pulled = [list(segment.inputs).index(name) for name in segment.needs_pullback]
        self._empty_slots = [None] * (self._plan.size - len(segment.inputs))
        if segment.frozen:
            check_frozen(segment, self._losses)
        named: dict[nn.Module, Mapping[str, nn.Parameter]] = {}
        self._seeds: list[nn.Parameter] = []  # states of Keras that random numbers are drawn from
        for module in self._modules:
            named[module] = parameters(module)
            self._seeds += keras.contents(module).seeds
        self._modes = TrainingModes(self._modules, as_is)
        self._random = RandomState(self._devices, self._seeds)
        self._groups = create_groups(segment, self._models, self._losses, named)
        self.trained: list[nn.Parameter] = []
        self._steppers: list[Callable[[], None]] = []  # each does a step of a parameter group's optimizer
        for group in self._groups:
            self.trained += group.parameters
            self._steppers.append(group.stepper(clip=True))
        self._flags: dict[nn.Parameter, bool] = {}  # `requires_grad` of all parameters before, for `close`
        if self._groups:  # without them, another program may have set the flags: leave them
            trained = set(self.trained)
            for held in named.values():
                for parameter in held.values():
                    if parameter not in self._flags:
                        self._flags[parameter] = parameter.requires_grad
                        parameter.requires_grad_(parameter in trained)
            self.zero_grad()
        loss_scale = None if segment.precision is None else segment.precision.loss_scale
        self._scaling = UNSCALED if loss_scale is None else DynamicLossScaling(loss_scale)
        self._loss_kinds: list[tuple[bool, torch.dtype]] | None = None  # of the last uncompiled step
        self._start: tuple[list[int], list[Tensor]] = [], []  # of its backward pass
        self._exchange: Callable[[int], None] | None = None
        devices = set(self._devices)
        for _, location in segment.inputs.values():
            devices.add(torch_device(location))
        self._compiler = step_compiler.StepCompiler(
            segment, self._plan, list(self._modules), self._losses, self._groups, devices, self._scaling
        )
        self._rows = RowsAhead(BLOCK_BYTES)
        self._guard = InputGuard(segment)
        self._final: dict[str, NodeState] | None = None
        self._norms: list[SynchronizedNorm] = []
        self.backward = BackwardPass()

    def _translate(self, what: str) -> Any:
        return translate_errors(f"{what} of segment {self.segment.label!r}")

    def _enter(self, *, training: bool) -> None:
        """Set modes where they differ: another program over the same modules may have changed them."""
        for module, trained in self._modules.items():
            self._modes.enter(module, training=training and trained)

    def seed(self, key: int) -> None:
        """Seed the CPU and the devices of the segment; other devices' generators are untouched."""
        seed_generators(self._devices, key, self._seeds)

    def random_state(self) -> dict[str, np.ndarray]:
        """Return the states of the generators that `seed` seeds."""
        return RandomState(self._devices, self._seeds).to_arrays()

    def load_random_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a random state; raise StateError if it belongs to other kinds of devices."""
        RandomState(self._devices, self._seeds).load_arrays(state)

    # -- whole steps -----------------------------------------------------------------------------------------------

    def train_steps(
        self,
        columns: Sequence[Any],
        orders: Sequence[Any],
        start: int,
        n_steps: int,
        batch_size: int,
        n_microbatches: int = 1,
    ) -> Any:
        """Run training steps; see `MultiStepProgram.train_steps`. Micro-batches are as equal as possible.

        Uncompiled steps compute the same numbers, bit for bit, as a manual loop over the same rows; compiled ones agree
        up to rounding, with the same dropout on the CPU.
        """
        self._enter(training=True)
        with translate_errors(f"a training step of {batch_size} rows in segment {self.segment.label!r}"):
            done, tables = self._compiler.run(columns, orders, start, n_steps, batch_size, n_microbatches)
            if done == n_steps and tables:
                return torch.cat(tables) if len(tables) > 1 else tables[0]
            started, on_processor = time.perf_counter(), time.process_time()
            first = start + done * batch_size
            losses = self._run_eager(columns, orders, first, n_steps - done, batch_size, n_microbatches)
            seconds, on_processor = time.perf_counter() - started, time.process_time() - on_processor
            self._compiler.record_eager_time(seconds, on_processor, max(1, n_steps - done), batch_size)
            table = self.loss_table(losses)
            return torch.cat([*tables, table]) if tables else table

    def train_and_notify(
        self,
        columns: Sequence[Any],
        orders: Sequence[Any],
        start: int,
        n_steps: int,
        batch_size: int,
        after_step: AfterStep,
        n_microbatches: int = 1,
    ) -> Any:
        """Run steps and report each; if steps are compiled, each is a separate call."""
        if self._compiler.has_compiled(batch_size, n_microbatches):
            told = notify_one_by_one(self, columns, orders, start, n_steps, batch_size, after_step, n_microbatches)
            return torch.cat(told)
        self._enter(training=True)

        def notify(losses: list[Tensor]) -> bool:
            ends = after_step(partial(self.loss_table, losses))
            self._enter(training=True)  # listeners may have evaluated the model
            return ends

        with translate_errors(f"a training step of {batch_size} rows in segment {self.segment.label!r}"):
            losses = self._run_eager(columns, orders, start, n_steps, batch_size, n_microbatches, notify)
            table = self.loss_table(losses)
        if len(table) < n_steps:
            self._rows.clear()
        return table

    def _run_eager(
        self,
        columns: Sequence[Any],
        orders: Sequence[Any],
        start: int,
        n_steps: int,
        batch_size: int,
        n_microbatches: int,
        after_step: Callable[[list[Tensor]], bool] | None = None,
    ) -> list[Tensor]:
        """Run steps like a manual loop: forward, one backward pass over all losses, the optimizers.

        Return the mean losses of all steps, and the weights of those that have some, flat. `after_step` receives those
        of each step; if it returns True, that was the last one.
        """
        batches = self._rows.take(columns, orders, start, n_steps, batch_size)
        try:
            if n_microbatches > 1:
                return self._microbatched(batches, n_microbatches, after_step)
            runs, steppers, trained, scaling = self._plan.runs, self._steppers, self.trained, self._scaling
            means, weighs, backward = self._means, self._weighs, torch.autograd.backward
            history: list[Tensor] = []
            is_scaled, exchange, empty = scaling is not UNSCALED, self._exchange, self._empty_slots
            for batch in batches:
                values: list[Any] = [*batch, *empty]
                for run in runs:
                    run(values)
                losses: list[Tensor] = []
                kinds: list[tuple[bool, torch.dtype]] = []
                for mean in means:  # an error's traceback would keep a comprehension's frame, and with it all values
                    loss = mean(values)
                    losses.append(loss)
                    kinds.append((loss.requires_grad, loss.dtype))
                if kinds != self._loss_kinds:
                    self._start, self._loss_kinds = self._roots(losses), kinds
                roots, weights = self._start
                if roots:
                    backward(
                        losses if len(roots) == len(losses) else [losses[i] for i in roots],
                        scaling.scaled(weights) if is_scaled else weights,
                    )
                if exchange is not None:
                    exchange(len(values[0]))
                if not is_scaled or scaling.unscale(trained):
                    for step in steppers:
                        step()
                for parameter in trained:
                    parameter.grad = None
                for loss in losses:
                    history.append(loss.detach())
                if weighs:
                    history += [weigh(values) for weigh in weighs]
                if after_step is not None and after_step(history[-(len(means) + len(weighs)) :]):
                    break
            return history
        except BaseException:
            self._rows.clear()
            raise

    def _microbatched(
        self,
        batches: Iterable[Sequence[Any]],
        n_microbatches: int,
        after_step: Callable[[list[Tensor]], bool] | None,
    ) -> list[Tensor]:
        """Each batch in micro-batches of nearly equal size; gradients and losses are weighted by rows.

        Those of a loss with weights are weighted by these.
        """
        weighs = {i: loss.total_weight for i, loss in enumerate(self._losses) if loss.total_weight is not None}
        history: list[Tensor] = []
        starts: dict[Any, tuple[list[int], list[Tensor]]] = {}  # by share, and what the losses are
        for batch in batches:
            values = [*batch, *self._empty_slots]
            rows = next(len(value) for value in values if value is not None)
            totals: list[Tensor] = []
            whole = {i: weigh(values) for i, weigh in weighs.items()}
            n_parts = min(n_microbatches, rows)
            parts = [[None] * n_parts if value is None else torch.tensor_split(value, n_parts) for value in values]
            for microbatch in map(list, zip(*parts, strict=True)):  # the same rows of each value; None stays None
                share = next(len(value) for value in microbatch if value is not None) / rows
                with share_of_batch(share):
                    for run in self._plan.runs:
                        run(microbatch)
                losses: list[Tensor] = []
                for mean in self._means:
                    losses.append(mean(microbatch))
                kinds = share, *((loss.requires_grad, loss.dtype) for loss in losses)
                if kinds not in starts:
                    roots, full = self._roots(losses)
                    starts[kinds] = roots, [weight * share for weight in full]
                roots, scaled = starts[kinds]
                shares = {i: weigh(microbatch) / divisor(whole[i]) for i, weigh in weighs.items()}
                if shares:  # the gradients to start backward with, each times the share of its loss
                    full = [torch.full_like(losses[i], self._losses[i].weight, requires_grad=False) for i in roots]
                    scaled = [weight * shares.get(i, share) for weight, i in zip(full, roots, strict=True)]
                torch.autograd.backward([losses[i] for i in roots], self._scaling.scaled(scaled))
                more = [loss.detach() * shares.get(i, share) for i, loss in enumerate(losses)]
                totals = [total + loss for total, loss in zip(totals, more, strict=True)] if totals else more
            if self._exchange is not None:
                self._exchange(rows)
            if self._scaling.unscale(self.trained):
                for step in self._steppers:
                    step()
            for parameter in self.trained:
                parameter.grad = None
            history += [*totals, *whole.values()]
            if after_step is not None and after_step([*totals, *whole.values()]):
                break
        return history

    def _roots(self, losses: Sequence[Tensor]) -> tuple[list[int], list[Tensor]]:
        """Return indices of the losses that reach a parameter, and their weights as gradients to start backward
        with. In several processes, the rows of one may reach none.
        """
        roots = [i for i, loss in enumerate(losses) if loss.requires_grad]
        if self._exchange is None and not (roots and self.trained):
            labels = ", ".join(loss.label for loss in self._losses) or "none"
            raise PhaseError(
                f"no loss of segment {self.segment.label!r} reaches a trained parameter "
                f"(losses: {labels}; trained parameters: {len(self.trained)})",
                hint="unfreeze a node before the loss, set requires_grad on its parameters, add a loss after it, "
                "or remove detach() and no_grad() from the model and the loss",
            )
        return roots, [torch.full_like(losses[i], self._losses[i].weight, requires_grad=False) for i in roots]

    def loss_table(self, losses: list[Tensor]) -> Tensor:
        """Return losses and weights of all steps, flat -> [n_steps, n_losses + n_weights] on the device of the first
        loss.
        """
        width = len(self._losses) + len(self._weighs)
        if not losses:
            return torch.empty(0, width, device=next(iter(self._devices), None))
        if width == 1:
            return torch.stack(losses).unsqueeze(1)
        columns = [torch.stack(losses[i::width]) for i in range(width)]
        device, dtype = columns[0].device, reduce(torch.promote_types, (column.dtype for column in columns))
        return torch.stack([column.to(device, dtype) for column in columns], dim=1)

    def exchange_in_steps(self, exchange: Callable[[int], None]) -> None:
        """Call a function with the rows of each training step from now on, between its backward passes and its update:
        it replaces the gradients by those of all processes. Steps then run uncompiled.
        """
        self._exchange, self._compiler.exchanges = exchange, True

    def estimate_compile(self, max_steps: int) -> CompileEstimate | None:
        """Estimate the gain of compiling, from measured uncompiled steps and from earlier compilations."""
        return self._compiler.estimate(max_steps)

    def compile(self, columns: Sequence[Any], orders: Sequence[Any], batch_size: int, n_microbatches: int = 1) -> None:
        """Compile steps; `compiled_as` then describes the result. An interrupt leaves everything unchanged.

        A batch smaller than a compiled one (the last of an epoch) stays uncompiled, because compiling it would not pay
        off.

        Raises:
            CompileError: Compilation fails, or does not pay off; the message has the reason.
        """
        if self._compiler.needs_compiling(batch_size, n_microbatches):
            device = self._compiler.check()
            self._enter(training=True)
            self.zero_grad()
            self._compiler.compile(columns, orders, batch_size, n_microbatches, device)

    def renew_compiled(self) -> Sequence[str]:
        return self._compiler.renew()

    @property
    def compiled_as(self) -> str:
        """A description of how the steps compiled last run; `""` if none were compiled."""
        return self._compiler.description

    # -- forward and pullback --------------------------------------------------------------------------------------

    @torch.no_grad()
    def forward(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], Losses]:
        """Compute outputs and losses in evaluation mode; an input that a module writes to is copied first."""
        self._enter(training=False)
        with self._translate("a batch"):
            values = self._compute(inputs, training=False)
            return tuple(values[i] for i in self._outputs), self._compute_losses(values)

    def _compute(self, inputs: Sequence[Any], *, training: bool) -> list[Any]:
        """Return all values of the segment; None where an input is missing."""
        with self._guard.protect(inputs, training=training) as protected:
            values = [*protected, *self._empty_slots]
            if any(tensor is None for tensor in inputs) or (self._lacks_outputs and not training):
                self._plan.run_available(values)
            else:
                for run in self._plan.runs:
                    run(values)
        return values

    def _compute_losses(self, values: Sequence[Any]) -> Losses:
        """Return the losses whose inputs are available."""
        losses: Losses = {}
        for loss in self._losses:
            if not any(values[i] is None for i in loss.slots):
                losses[loss.label] = loss.sum_and_weight(values)
        return losses

    def forward_pullback(
        self, inputs: Sequence[Any], scale: Mapping[str, Any] | None = None
    ) -> tuple[tuple[Any, ...], Losses, Callable[[Sequence[Any]], tuple[Any, ...]]]:
        """Compute outputs and losses in training mode; the pullback is one backward pass over total loss and
        outputs.
        """
        self._enter(training=True)
        leaves = {i: inputs[i].detach().requires_grad_() for i in self._pulled if inputs[i] is not None}
        with self._translate("a batch"):
            # torch forbids in-place writes to a leaf, as of an in-place activation: modules get a copy
            tensors = [leaves[i].clone() if i in leaves else tensor for i, tensor in enumerate(inputs)]
            values = self._compute(tensors, training=True)
            losses = self._compute_losses(values)
            available = [loss for loss in self._losses if loss.label in losses]
            share = self._next_share()
            factors = self._scaling.scaled([loss.factor(losses[loss.label][1], scale, share) for loss in available])
            terms = [losses[loss.label][0] * factor for loss, factor in zip(available, factors, strict=True)]
        outputs = [values[i] for i in self._outputs]
        given_outputs = tuple(output if output is None else output.detach() for output in outputs)
        pullback = Pullback(terms, outputs, leaves, self._pulled, self.backward, self._translate)
        detached = {label: (total.detach(), weight) for label, (total, weight) in losses.items()}
        return given_outputs, detached, pullback

    def synchronize_norms(self, rank: int, size: int, all_reduce: AllReduce) -> None:
        """Let batch normalization in trained modules take the rows of all replicas, until `close`."""
        trained = [module for module, is_trained in self._modules.items() if is_trained]
        layers = dict.fromkeys(part for module in trained for part in submodules(module) if is_synchronizable(part))
        self._norms += [
            SynchronizedNorm(layer, rank, size, all_reduce, by_rows=not self.is_divided) for layer in layers
        ]

    @property
    def synchronizes_norms(self) -> bool:
        """Whether some layers take the rows of all replicas, by collectives within both passes."""
        return bool(self._norms)

    @property
    def has_sparse_gradients(self) -> bool:
        """Whether some layer reports sparse gradients."""
        return has_sparse_gradients(self._modules)

    @property
    def drops_gradients(self) -> bool:
        """Whether no optimizer keeps a gradient after its step, as those that torch has by name."""
        return all(group.spec.own is None for group in self._groups)

    @cached_property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients in the exchange."""
        return sum(map(exchanged_bytes, self.trained))

    def _next_share(self) -> float:
        """Return the fraction of a step's rows that is computed next, if its gradients are summed with those of other
        parts.
        """
        return 1.0

    def loss_weights(self, inputs: Sequence[Any]) -> dict[str, Any]:
        return {label: divisor(weight) for label, weight in self.summed_weights(inputs).items()}

    @torch.no_grad()
    def summed_weights(self, inputs: Sequence[Any]) -> dict[str, Tensor]:
        """Return the weights of `loss_weights`, but 0 if nothing counts."""
        values = [*inputs, *self._empty_slots]
        return {
            loss.label: loss.total_weight(values)
            for loss in self._losses
            if loss.total_weight is not None and not any(values[i] is None for i in loss.weight_slots)
        }

    # -- gradients -------------------------------------------------------------------------------------------------

    def grad_stats(self) -> dict[str, tuple[Any, Any]]:
        """Return norms and finiteness by group, each on the device of the group's first parameter."""
        return {group.name: group.grad_stats() for group in self._groups}

    @torch.no_grad()
    def clip_factor(self, limit: float, squares: Sequence[Any]) -> Any:
        """Return the clipping factor without waiting for the device."""
        total = squares[0]
        for square in squares[1:]:
            total = total + square.to(total.dtype)
        return torch.clamp(limit / (total.sqrt() + 1e-6), max=1.0)

    def map_gradients(self, fn: Callable[[Any], Any]) -> None:
        """Replace every gradient; `fn` is not called for a parameter without a gradient."""
        with self._translate("the gradients"):
            for parameter in self.trained:
                if parameter.grad is not None:
                    parameter.grad = fn(parameter.grad)

    def optimizer_step(self, scale: Mapping[str, Any] | None = None) -> None:
        """Run one optimizer step without clipping, which the caller includes in `scale`."""
        with self._translate("an optimizer step"):
            for group in self._groups:
                group.step_scaled(None if scale is None else scale.get(group.name))
        self.zero_grad()

    def zero_grad(self) -> None:
        for parameter in self.trained:
            parameter.grad = None

    def custom_step(self, step: Callable[..., Any], batch: Mapping[str, Any]) -> Any:
        """Run a custom step with the modules themselves in training mode, and torch's own optimizers."""
        self._enter(training=True)
        with self._translate("the custom step"):
            result = step(self._models, batch, self._optimizers)
        if isinstance(result, Mapping):
            return {name: value.detach() if isinstance(value, Tensor) else value for name, value in result.items()}
        return result.detach() if isinstance(result, Tensor) else result

    @cached_property
    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Optimizers by node; nodes that share an optimizer have the same object."""
        lived = {group.name: group.live() for group in self._groups}
        by_node = {node: lived[group.name] for group in self.segment.groups for node in group.nodes}
        return {node: optimizer for node, optimizer in by_node.items() if optimizer is not None}

    # -- state -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> ProgramSnapshot:
        """Return a snapshot; its copies are on the devices of the originals."""
        with self._translate("a snapshot"):
            random = RandomState(self._devices)
            return ProgramSnapshot(self.trained, self._modules, self._groups, random, self._scaling)

    def restore(self, snapshot: ProgramSnapshot) -> None:
        """Restore a snapshot; clears the gradients."""
        self.zero_grad()
        self._rows.clear()
        with self._translate("restoring a snapshot"):
            snapshot.restore()

    def optimizer_states(self) -> dict[str, NodeState]:
        """Return copies of the optimizer states, or, after `close`, the tensors themselves."""
        return self._final if self._final is not None else self._states(copies=True)

    def live_optimizer_states(self) -> dict[str, NodeState]:
        return self._final if self._final is not None else self._states(copies=False)

    def close(self) -> dict[str, NodeState]:
        """End the program; modes, `requires_grad` flags and torch's random state are restored to those at `build`."""
        if self._final is None:
            self.zero_grad()
            self._rows.clear()
            self._final = self._states(copies=False)
            for parameter, requires_grad in self._flags.items():
                parameter.requires_grad_(requires_grad)
            self._modes.restore()
            self._random.restore()
            for norm in self._norms:
                norm.restore()
            self.backward.close()
        return self._final

    def _states(self, *, copies: bool) -> dict[str, NodeState]:
        states: dict[str, NodeState] = {}
        for group in self._groups:
            states |= group.states(copies=copies)
        first: dict[int, str] = {}  # nodes that share a model all get the state of the first, which has its parameters
        for parameter_group in self.segment.groups:
            for node in parameter_group.nodes:
                states[node] = states[first.setdefault(id(self._models.get(node, node)), node)]
        return states


def check_frozen(segment: Segment, losses: Sequence[BoundLoss]) -> None:
    """Refuse a segment that would change a frozen node through a part that its model shares with a trained one.

    Raises:
        GraphError: they share a trained parameter, or a module that behaves differently in training mode.
    """
    in_training = [op for op in segment.operations if op.trainable and op.label not in segment.frozen]
    trained = {op.label: op.model for op in in_training if isinstance(op.model, nn.Module)}
    custom_losses = {loss.label: loss.module for loss in losses if loss.module is not None}
    on_trained = {term.label: term.on for term in segment.losses if term.on in trained}
    holders = [(f"node {label!r}", model) for label, model in trained.items()]
    holders += [(f"the loss {label!r}", custom_losses[label]) for label in on_trained if label in custom_losses]
    for label, model in segment.frozen.items():
        if isinstance(model, nn.Module):
            for holder, other in holders:
                kept = {id(parameter) for parameter in parameters(model).values()}
                names = [name for name, value in parameters(other).items() if value.requires_grad and id(value) in kept]
                parts, modes = {id(part) for part in submodules(model)}, []
                for name, part in other.named_modules():
                    # it has buffers itself, such as running statistics, or is random in training
                    has_modes = "ropout" in type(part).__name__ or next(part.buffers(recurse=False), None) is not None
                    if id(part) in parts and has_modes:
                        modes.append(name)
                if names or modes:
                    shared = (
                        f"the parameter {names[0]!r}"
                        if names
                        else f"the module {modes[0]!r}, which depends on the mode"
                    )
                    raise GraphError(
                        f"{holder} is trained and shares {shared} with node {label!r}, which is frozen",
                        hint="freeze both, use separate parameters, or set requires_grad=False for parameters "
                        "that must not be "
                        "trained"
                        if names
                        else "freeze both, or use separate parameters",
                    )


# -- -------------------------------------------------------------------------------------------------------------------
# Overlapped pass: the backward pass in which torch's DistributedDataParallel adds up gradients over all replicas.


_READY_TWICE = re.compile(r"index (\d+).*marked as ready twice", re.DOTALL)


class BackwardPass:
    """The backward passes of a program that exchanges nothing within them."""

    is_watched = False
    """Whether it is not decided yet if gradients are added up within the pass."""
    sums = False
    """Whether gradients can be added up within the pass."""
    is_expected = False
    """Whether they are in this step."""

    def run(self, roots: Sequence[Tensor], starts: Sequence[Any]) -> None:
        """Accumulate the gradients of some roots, each with its cotangent (None for a scalar)."""
        if roots:
            torch.autograd.backward(roots, starts)

    def close(self) -> None:
        """Leave the parameters."""


class StepWeight:
    """The fraction of a step that a replica has; the rows of all are summed during the next forward pass.

    Args:
        weight: Rows of this replica.
        part: Number of rows in the mean of its gradients.

    Raises:
        RuntimeError: another replica does not respond.
    """

    def __init__(self, weight: float, part: float) -> None:
        self._part, self._total = part, torch.tensor(float(weight), dtype=torch.float64)
        self._work: Any = dist.all_reduce(self._total, async_op=True)
        self.failure: Exception | None = None
        """What went wrong within the pass, which knows no step; for `OverlappedPass.finish`."""

    @cached_property
    def factor(self) -> float:
        """Factor of the gradients."""
        self._work.wait()
        return self._part / float(self._total)


class OverlappedPass(BackwardPass):
    """The backward passes of a program; in the last of a step, gradients become means over all replicas.

    No user module is wrapped: DistributedDataParallel receives the roots of the pass, and a module that holds the
    parameters. The pass of the first step is observed, and exchanges nothing: the recomputations of a reentrant
    checkpoint cannot be found from the roots, and may have their gradient twice; sparse gradients have no place in a
    bucket.

    Args:
        parameters: Trained parameters on one device.
        drops_gradients: Whether nobody keeps a gradient for a later step: then they stay in the memory of buckets,
            which the next step overwrites.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], *, drops_gradients: bool) -> None:
        self.is_watched, self.is_summable = True, True
        self._drops_gradients = drops_gradients
        self._parameters = tuple(parameters)
        self._counts = [0] * len(self._parameters)
        self._handles: list[Any] = [
            parameter.register_post_accumulate_grad_hook(partial(self._arrived, i))  # type: ignore[no-untyped-call]
            for i, parameter in enumerate(self._parameters)
        ]
        self._ddp: DistributedDataParallel | None = None
        self._state = _HookState()
        self._has_run = False

    def _arrived(self, i: int, _: Tensor) -> None:
        self._counts[i] += 1

    def decide(self, *, sums: bool, bucket_bytes: float) -> None:
        """Add up gradients from the next step on, or never; the same in all replicas."""
        for handle in self._handles:
            handle.remove()
        self.is_watched, self.sums, self._handles = False, sums, []
        if sums:
            self._ddp = DistributedDataParallel(
                Roots(self._parameters),
                init_sync=False,
                find_unused_parameters=True,  # else one that lacks a gradient never sends its bucket
                bucket_cap_mb=bucket_bytes / 2**20,
                gradient_as_bucket_view=self._drops_gradients,
            )
            self._ddp.register_comm_hook(self._state, _sum_bucket)

    def expect(self, step: StepWeight) -> None:
        """Prepare for the last pass of a step."""
        self._state.step, self.is_expected, self._has_run = step, True, False

    def run(self, roots: Sequence[Tensor], starts: Sequence[Any]) -> None:
        if self.is_watched:
            reachable = _variables(roots)
            self._counts = [0] * len(self._parameters)
            super().run(roots, starts)
            for parameter, count in zip(self._parameters, self._counts, strict=True):
                if count > 1 or (count and parameter not in reachable):
                    self.is_summable = False
                if parameter.grad is not None and parameter.grad.is_sparse:
                    self.is_summable = False
        elif self._ddp is None or not self.is_expected or self._has_run:
            super().run(roots, starts)
        else:
            self._sum(self._ddp, roots, starts)

    def _sum(self, ddp: DistributedDataParallel, roots: Sequence[Tensor], starts: Sequence[Any]) -> None:
        self._has_run = True
        try:
            with torch.enable_grad():
                ddp.module.use_the_last()
                outputs = ddp(*roots)
            torch.autograd.backward(outputs, [*starts, None])
        except RuntimeError as error:
            twice = _READY_TWICE.search(str(error))
            if twice is not None:
                parameter = self._parameters[int(twice[1])]
                self._state.step.failure = FrameworkError(
                    f"the gradient of a parameter of shape {list(parameter.shape)} was computed twice in one "
                    "backward pass, "
                    "but not in the first step",
                    cause="gradients are exchanged during the backward pass, so each must be computed once",
                    hint="checkpoint with use_reentrant=False, or exchange all gradients after the pass: "
                    f"{BUCKET_VARIABLE}=inf",
                )
            elif self._state.step.failure is None:
                raise

    def finish(self) -> None:
        """Complete the exchange after the passes of a step.

        Raises:
            FrameworkError: a gradient arrived while its bucket was being exchanged.
            RuntimeError: another replica does not respond.
        """
        assert self._ddp is not None
        if not self._has_run:  # this replica has no rows for it, and others have
            self._sum(self._ddp, [], [])
        self.is_expected = False
        if self._state.step.failure is not None:
            raise self._state.step.failure

    def close(self) -> None:
        self.decide(sums=False, bucket_bytes=0.0)
        self._ddp = None  # its hooks go with it


class _HookState:
    """State of a communication hook. It holds no wrapper, to avoid a reference cycle that Python does not see."""

    step: StepWeight


class Roots(nn.Module):
    """Return the roots of a backward pass unchanged, and an additional one; holds the parameters."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__()
        always, never = (nn.Parameter(torch.zeros((), device=parameters[0].device)) for _ in range(2))
        self.held = nn.ParameterList([*parameters, always, never])

    def forward(self, *roots: Tensor) -> list[Tensor]:
        """Return the roots with one that exists even if no other depends on a parameter, so that this replica takes
        part.
        """
        return [*roots, self.held[-2] * 0]

    def use_the_last(self) -> None:
        """Give a gradient to the parameter that no pass uses.

        Without an unused one, torch warns on stderr; without its gradient, torch waits in each step for the other
        replicas to learn whether one has it.
        """
        torch.autograd.backward(self.held[-1] * 0)


def _sum_bucket(state, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations that are text
    """Sum a bucket over all replicas in at least float32, each times its fraction of the step (communication hook)."""
    flat, step = bucket.buffer(), state.step
    try:
        wide = flat.to(exchange_dtype(flat)).mul_(step.factor)
        sent = dist.all_reduce(wide, async_op=True)
    except RuntimeError as error:
        step.failure = error
        raise

    def give(future):  # type: ignore[no-untyped-def]
        try:
            future.value()
        except RuntimeError as error:
            step.failure = error
            raise
        return flat if wide is flat else flat.copy_(wide)

    return sent.get_future().then(give)


def _variables(roots: Sequence[Tensor]) -> set[Tensor]:
    """Return the leaves that an autograd graph reaches."""
    found = {root for root in roots if root.is_leaf}
    nodes = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen: set[Any] = set(nodes)
    while nodes:
        node = nodes.pop()
        if hasattr(node, "variable"):
            found.add(node.variable)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
    return found
