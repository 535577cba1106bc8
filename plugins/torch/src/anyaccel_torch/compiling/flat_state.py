"""The state that a compiled step needs: read from a program into tensors, written back, and counted on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyaccel.formulas import OPTIMIZERS
from anyaccel.specs import Optimizer
from anyaccel_torch import array_functions
from anyaccel_torch.compiling.device_loss_scale import device_loss_scale
from anyaccel_torch.compiling.dry_run import StepEffects
from anyaccel_torch.compiling.functional_step import State
from anyaccel_torch.compiling.spec import Block, CompileRequest, StepSpec, UpdateRule
from anyaccel_torch.replaced_tensors import tensor_names

RuleKey = tuple[int, int, int, Optimizer]
"""Group, steps that the node has done, steps that the parameter has, and settings; equal keys share a rule."""


class FlatState:
    """The trained parameters that a step reaches, their slots, and the buffers that it changes.

    Args:
        request: the program.
        effects: what a step of it does.
        n_microbatches: into how many parts each batch is split.
        flat: whether parameters of one rule and dtype are flattened end to end, so that they are updated at once.
    """

    def __init__(self, request: CompileRequest, effects: StepEffects, n_microbatches: int, *, flat: bool) -> None:
        self._groups = request.groups
        self._scale = device_loss_scale(request.scaling, request.device)
        self._reached = [
            [parameter for parameter in group.parameters if id(parameter) in effects.reached]
            for group in request.groups
        ]
        self._group_of = {
            parameter: group
            for group, reached in zip(request.groups, self._reached, strict=True)
            for parameter in reached
        }
        keys = self._keys()
        rules = list(dict.fromkeys(keys.values()))
        self._partition, self._representatives = _partition(keys), _representatives(keys)
        named_buffers = dict(request.module.named_buffers())
        self._buffers = [named_buffers[name] for name in effects.buffers]
        self._blocks = _blocks(keys) if flat else [[parameter] for parameter in keys]
        self._revision = self._current_revision()
        names = {id(parameter): name for name, parameter in request.module.named_parameters()}
        self.spec = StepSpec(
            rules=tuple(self._rule(key) for key in rules),
            blocks=tuple(_block_spec(rules.index(keys[block[0]]), block, names) for block in self._blocks),
            buffers=effects.buffers,
            places=tuple(tensor_names(request.module).items()),
            weights=tuple(request.losses[i].weight if i in effects.roots else 0.0 for i in range(len(effects.losses))),
            mutated=effects.mutated,
            n_computed=request.n_computed,
            n_microbatches=n_microbatches,
            loss_scale=request.scaling.spec,
            recomputes=request.recomputes,
        )

    # -- grouping --------------------------------------------------------------------------------------------------

    def _keys(self) -> dict[nn.Parameter, RuleKey]:
        return {
            parameter: (i, group.steps(parameter), group.custom_steps(parameter), group.settings_of(parameter))
            for i, (group, reached) in enumerate(zip(self._groups, self._reached, strict=True))
            for parameter in reached
        }

    def _rule(self, key: RuleKey) -> UpdateRule:
        spec, own = self._groups[key[0]].spec, key[3]
        rule = OPTIMIZERS[own.name]
        return UpdateRule(
            optimizer=rule,
            settings=tuple(sorted(own.settings.items())),
            coefficients=tuple(rule.coefficients(own.settings, np, own.lr, 1)),
            slots=rule.slots(own.settings),
            clip_norm=spec.clip_norm,
            clip_value=spec.clip_value,
            group=key[0],
        )

    def _current_revision(self) -> int:
        return sum(group.revision for group in self._groups)

    def fits(self) -> bool:
        """Whether parameters still share rules as they did; single steps in between may have changed that."""
        revision = self._current_revision()
        if revision != self._revision:
            keys = self._keys()
            if _partition(keys) != self._partition:
                return False
            self._representatives, self._revision = _representatives(keys), revision
        return True

    # -- values ----------------------------------------------------------------------------------------------------

    def read(self) -> State:
        """The current state. A block of one parameter is that very memory; several are copied end to end."""
        with torch.no_grad():
            slots = [[_flattened(slot) for slot in self._slots(block)] for block in self._blocks]
            return [_flattened(block) for block in self._blocks], slots, list(self._buffers), self._scale.arrays()

    def _slots(self, block: Sequence[nn.Parameter]) -> list[tuple[Tensor, ...]]:
        """The slots of a block: for each slot, one tensor per parameter."""
        group = self._group_of[block[0]]
        return list(zip(*[group.slot_tensors(parameter) for parameter in block], strict=True))

    @torch.no_grad()
    def write(self, state: State) -> None:
        """Write a state into the parameters, slots and buffers."""
        blocks, slots, buffers, _ = state
        for block, value, new_slots in zip(self._blocks, blocks, slots, strict=True):
            _unflatten(value, block)
            for new, held in zip(new_slots, self._slots(block), strict=True):
                _unflatten(new, held)
        for buffer, new in zip(self._buffers, buffers, strict=True):
            if new is not buffer:
                buffer.copy_(new)

    def copies(self) -> State:
        """The current state in memory of its own."""
        blocks, slots, buffers, scale = self.read()
        copied_slots = [[slot.clone() for slot in held] for held in slots]
        return [block.clone() for block in blocks], copied_slots, [buffer.clone() for buffer in buffers], scale

    # -- step counts -----------------------------------------------------------------------------------------------

    def scalars(self, count: int, device: torch.device) -> Tensor:
        """The coefficients of all rules in a row for each step: float64 [count, ...] on `device`, with no transfer."""
        columns = []
        for rule, (i, parameter, behind) in zip(self.spec.rules, self._representatives, strict=True):
            group = self._groups[i]
            first = group.steps(parameter) - behind + 1
            steps = torch.arange(first, first + count, dtype=torch.float64, device=device)
            rates = _rate_tensor(group.rates(parameter, count), count, device)
            numbers = rule.optimizer.coefficients(dict(rule.settings), array_functions, rates, steps)
            columns += [n if isinstance(n, Tensor) else torch.full_like(rates, n) for n in numbers.values()]
        return torch.stack(columns, 1)

    def scalars_of_call(self, scalars: Tensor, start: int, count: int) -> Tensor:
        """Those of `count` steps from step `start` of `scalars` on, less the steps that were skipped since `settle`."""
        return self._scale.rows(scalars, start, count)

    def settle(self) -> None:
        """After some calls, take back the count of steps that they skipped; waits for them where losses are scaled."""
        skipped = self._scale.settle()
        if skipped:
            self._count(-skipped)

    def count_steps(self, state: State, count: int) -> None:
        """Count steps that were done, which have left this state."""
        self._scale.leave(state[3])
        self._count(count)

    def _count(self, count: int) -> None:
        for group, reached in zip(self._groups, self._reached, strict=True):
            group.count_steps(reached, count)


def _partition(keys: dict[nn.Parameter, RuleKey]) -> list[int]:
    """The index of each parameter's rule: equal lists mean that parameters share rules alike, whatever the counts."""
    rules = list(dict.fromkeys(keys.values()))
    return [rules.index(key) for key in keys.values()]


def _representatives(keys: dict[nn.Parameter, RuleKey]) -> list[tuple[int, nn.Parameter, int]]:
    """For each rule its group, one of its parameters, and by how many steps that is behind its node."""
    first: dict[RuleKey, nn.Parameter] = {}
    for parameter, key in keys.items():
        first.setdefault(key, parameter)
    return [(group, parameter, steps - own) for (group, steps, own, _), parameter in first.items()]


def _blocks(keys: dict[nn.Parameter, RuleKey]) -> list[list[nn.Parameter]]:
    blocks: dict[Any, list[nn.Parameter]] = {}
    for parameter, key in keys.items():
        alone = None if OPTIMIZERS[key[3].name].elementwise else parameter
        blocks.setdefault((key, parameter.dtype, alone), []).append(parameter)
    return list(blocks.values())


def _block_spec(rule: int, block: Sequence[nn.Parameter], names: dict[int, str]) -> Block:
    return Block(
        rule,
        tuple(names[id(parameter)] for parameter in block),
        tuple(tuple(parameter.shape) for parameter in block),
        tuple(parameter.numel() for parameter in block),
    )


def _flattened(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors]) if len(tensors) > 1 else tensors[0].detach()


def _unflatten(value: Tensor, into: Sequence[Tensor]) -> None:
    if len(into) == 1:
        if value.data_ptr() != into[0].data_ptr():
            into[0].copy_(value.view(into[0].shape))
        return
    parts = torch.split(value, [tensor.numel() for tensor in into])
    torch._foreach_copy_(list(into), [part.view(tensor.shape) for part, tensor in zip(parts, into, strict=True)])


def _rate_tensor(rates: Sequence[float], count: int, device: torch.device) -> Tensor:
    """Learning rates, float64 [count]: one for all steps, or one for each."""
    if len(rates) == 1:
        return torch.full((count,), rates[0], dtype=torch.float64, device=device)
    if device.type == "cpu":
        return torch.tensor(rates, dtype=torch.float64)
    return torch.stack([torch.full((), rate, dtype=torch.float64, device=device) for rate in rates])  # no transfer
