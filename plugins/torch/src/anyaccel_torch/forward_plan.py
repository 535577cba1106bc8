"""A segment's operations as bound functions over one list of values, with the transfers between devices in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from anyaccel.adapter.call_layout import POSITIONAL, CallLayout, layout_of
from anyaccel.adapter.model_outputs import operation_outputs
from anyaccel.device import Device
from anyaccel.errors import GraphError, PhaseError, ShapeError, SpecError
from anyaccel.segment import Operation, Segment
from anyaccel_torch.error_translation import needs_gradients, raise_if_device_mismatch, raise_if_single_row
from anyaccel_torch.forward_call import bind_call, output_tensors, with_gradients
from anyaccel_torch.module_state import submodules
from anyaccel_torch.precise_call import bind_precision, casts_everything
from anyaccel_torch.recomputation import ReplacedForwards, bind_recomputation, parts_to_recompute, recomputed

Run = Callable[[list[Any]], None]


class ForwardPlan:
    """Slots for the values of a segment, and `runs`: functions that compute one value from others, in order.

    `nodes` has, for each run, the label of the node with a model that it computes, `""` for other runs. `forwards` are
    the forward functions of modules in a run if some of their parts are recomputed.

    The inputs have the first slots, in their order. A value needed on another device than its own gets a separate slot
    there, and is moved once, differentiably, for all operations that read it.
    """

    def __init__(self, segment: Segment, torch_device: Callable[[Device], torch.device]) -> None:
        self.runs: list[Run] = []
        self.nodes: list[str] = []
        self.forwards: list[ReplacedForwards] = []
        self._precision = segment.precision
        self._sources: list[tuple[int, ...]] = []
        self._homes: dict[str, torch.device] = {}
        self._slots: dict[tuple[str, torch.device], int] = {}
        for name, (_, device) in segment.inputs.items():
            self._add_value(name, torch_device(device))
        self._readers = Counter(segment.outputs)
        for operation in segment.operations:
            self._readers.update(operation.inputs)
        for term in segment.losses:
            self._readers.update(term.inputs)
        for operation in segment.operations:
            self._add(operation, torch_device(operation.device))

    @property
    def size(self) -> int:
        """The number of slots."""
        return len(self._slots)

    def run_available(self, values: list[Any]) -> None:
        """Run everything whose inputs are not None; results of the others stay None."""
        for run, sources in zip(self.runs, self._sources, strict=True):
            if all(values[i] is not None for i in sources):
                run(values)

    def slot(self, name: str, device: torch.device | None = None) -> int:
        """Return the slot of a value on `device`, or where it is computed.

        Raises:
            GraphError: no such value so far.
        """
        if name not in self._homes:
            raise GraphError(
                f"segment has no value {name!r} before the operation that reads it",
                available=", ".join(self._homes),
                hint="put the operation that computes it first",
            )
        home = self._homes[name]
        device = home if device is None else device
        if (name, device) not in self._slots:
            source, target = self._slots[name, home], len(self._slots)
            self._slots[name, device] = target

            def transfer(values: list[Any], edge: str = f"outputs of {name!r}") -> None:  # `edge` is read by ledgers
                values[target] = values[source].to(device)

            self._append(transfer, [source])
        return self._slots[name, device]

    def _append(self, run: Run, sources: Sequence[int], node: str = "") -> None:
        self.runs.append(run)
        self.nodes.append(node)
        self._sources.append(tuple(sources))

    def _add_value(self, name: str, device: torch.device) -> int:
        self._homes[name] = device
        return self._slots.setdefault((name, device), len(self._slots))

    def _add(self, operation: Operation, device: torch.device) -> None:
        sources = [self.slot(name, device) for name in operation.inputs]
        targets = [self._add_value(name, device) for name in operation.outputs]
        if operation.model is None:
            (joined,), axis = targets, operation.axis

            def concatenate(values: list[Any]) -> None:
                parts = [values[source] for source in sources]
                batch_axis = axis + 1 if axis >= 0 else parts[0].ndim + axis
                if batch_axis < 1:
                    raise ShapeError(
                        f"node {operation.label!r} cannot concatenate along axis {axis}: "
                        f"its inputs have {parts[0].ndim - 1} axes per sample, and the batch is never concatenated",
                        hint="use an axis of a sample",
                    )
                values[joined] = torch.cat(parts, batch_axis)

            self._append(concatenate, sources)
            return
        if not callable(operation.model):
            kind = type(operation.model).__name__
            raise SpecError(f"node {operation.label!r}: a {kind} is not callable", hint="pass an nn.Module")
        layouts = layout_of(operation, training=False), layout_of(operation, training=True)
        returned_by = output_tensors if layouts == (POSITIONAL, POSITIONAL) else tuple  # a layout gives a tuple
        model = self._bound(operation, device, layouts)

        def run_many(values: list[Any]) -> None:
            nonlocal model
            inputs = [values[source] for source in sources]
            try:
                returned = returned_by(model(*inputs))
            except (RuntimeError, ValueError) as error:
                if torch.is_grad_enabled() or not needs_gradients(error):
                    _name_node(error, operation, inputs)
                    raise
                model = with_gradients(model, operation.model)
                returned = returned_by(model(*inputs))
            outputs = operation_outputs(operation, returned, training=torch.is_grad_enabled())
            for slot, output in zip(targets, outputs, strict=True):
                values[slot] = output

        if len(sources) != 1 or len(targets) != 1:
            self._append(run_many, sources, operation.label)
            return
        (source,), (target,) = sources, targets

        def run_one(values: list[Any]) -> None:
            nonlocal model
            try:
                result = model(values[source])
            except (RuntimeError, ValueError) as error:
                if torch.is_grad_enabled() or not needs_gradients(error):
                    _name_node(error, operation, [values[source]])
                    raise
                model = with_gradients(model, operation.model)
                result = model(values[source])
            if not isinstance(result, Tensor):
                (result,) = operation_outputs(operation, output_tensors(result), training=torch.is_grad_enabled())
            values[target] = result

        self._append(run_one, sources, operation.label)

    def _bound(
        self, operation: Operation, device: torch.device, layouts: tuple[CallLayout, CallLayout]
    ) -> Callable[..., Any]:
        """Return the callable, in its operation's precision, and with parts that are recomputed, if any are requested.

        A model that writes to inputs that others read is called with copies.
        """
        model = bind_call(operation.model, device, len(operation.inputs), *layouts)
        if self._precision is not None:
            precision, remat = self._precision.of(operation.label), self._precision.remat(operation.label)
            casts = precision is not None and casts_everything(operation.model, precision)
            recomputes = parts_to_recompute(operation.model, remat) if remat and operation.trainable else {}
            if recomputes and not casts:
                self.forwards.append(ReplacedForwards(recomputes))
                model = bind_recomputation(model, self.forwards[-1])
            if precision is not None:
                model = bind_precision(operation.model, model, precision, device)
            if recomputes and casts:  # the parts would be computed again with tensors that are not cast
                assert isinstance(operation.model, torch.nn.Module)
                model = recomputed(model, [operation.model])
        if all(self._readers[name] <= 1 for name in operation.inputs):
            return model
        parts = submodules(operation.model) if isinstance(operation.model, torch.nn.Module) else ()
        writes = any(getattr(part, "inplace", False) for part in parts)
        known = {True: True, False: True} if writes else {}

        def call(*inputs: Tensor) -> Any:
            training = torch.is_grad_enabled()
            if not known.get(training, True):
                if torch.compiler.is_compiling():  # versions are not known there; a trial run has checked them before
                    return model(*inputs)
                versions = [tensor._version for tensor in inputs]  # noqa: SLF001
                result = model(*inputs)
                if [tensor._version for tensor in inputs] != versions:  # noqa: SLF001
                    raise PhaseError(
                        f"node {operation.label!r} has written to an input that other nodes read, but did not do "
                        "so in the first "
                        "batch",
                        hint="copy the input before writing to it: x = x.clone()",
                    )
                return result
            copies = [tensor.clone() for tensor in inputs]
            result = model(*copies)
            if training not in known:
                known[training] = any(copy._version for copy in copies)  # noqa: SLF001
            return result

        return call


def _name_node(error: Exception, operation: Operation, inputs: Sequence[Any]) -> None:
    raise_if_single_row(error, f"node {operation.label!r}", len(inputs[0]))
    named = dict(zip(operation.inputs, inputs, strict=True))
    raise_if_device_mismatch(error, f"node {operation.label!r} on {operation.device}", named)
