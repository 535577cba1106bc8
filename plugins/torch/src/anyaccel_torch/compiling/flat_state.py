"""What a program holds and a compiled step needs: read into tensors, written back, and counted on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from anyaccel_torch.compiling.dry_run import Facts
from anyaccel_torch.compiling.functional_step import State
from anyaccel_torch.compiling.spec import Piece, Plan, Rule, Work
from anyaccel_torch.compiling.updates import numbers, slots_of

Kin = tuple[int, int, int]
"""Group, steps that the node has done, and steps that the parameter has: what shares one rule."""


class Held:
    """The trained parameters that a step reaches, their slots, and the buffers that it changes.

    Args:
        work: the program.
        facts: what a step of it does.
        parts: in how many parts each step is to be computed.
        flat: whether parameters of one rule and dtype are laid end to end, so that they are updated at once.
    """

    def __init__(self, work: Work, facts: Facts, parts: int, *, flat: bool) -> None:
        self._groups = work.groups
        names = {id(parameter): name for name, parameter in work.whole.named_parameters()}
        self._reached = [
            [parameter for parameter in group.parameters if id(parameter) in facts.reached] for group in work.groups
        ]
        self._home = {
            each: group for group, reached in zip(work.groups, self._reached, strict=True) for each in reached
        }
        kin = self._kin()
        rules = list(dict.fromkeys(kin.values()))
        self._partition, self._standing = self._sorted(kin), _standing(kin)
        self._buffers = [(name, dict(work.whole.named_buffers())[name]) for name in facts.buffers]
        self._pieces = self._cut(kin, flat=flat)
        self._acts = self._count_acts()
        weights = tuple(loss.weight if i in facts.roots else 0.0 for i, loss in enumerate(work.losses))
        self.plan = Plan(
            tuple(self._rule(which) for which in rules),
            tuple(_piece(rules.index(kin[piece[0]]), piece, names) for piece in self._pieces),
            facts.buffers,
            weights,
            facts.written,
            work.rest,
            parts,
        )

    # -- how parameters go together --------------------------------------------------------------------------------

    def _kin(self) -> dict[nn.Parameter, Kin]:
        return {
            parameter: (i, group.done(parameter), group.own_steps(parameter))
            for i, (group, reached) in enumerate(zip(self._groups, self._reached, strict=True))
            for parameter in reached
        }

    def _sorted(self, kin: dict[nn.Parameter, Kin]) -> list[int]:
        """For each parameter the number of its rule, which says how they go together, whatever the counts are."""
        order = list(dict.fromkeys(kin.values()))
        return [order.index(which) for which in kin.values()]

    def _rule(self, which: Kin) -> Rule:
        recipe = self._groups[which[0]].recipe
        return Rule(recipe.name, tuple(sorted(recipe.settings.items())), recipe.clip_norm, which[0])

    def _cut(self, kin: dict[nn.Parameter, Kin], *, flat: bool) -> list[list[nn.Parameter]]:
        if not flat:
            return [[parameter] for parameter in kin]
        found: dict[tuple[Kin, torch.dtype], list[nn.Parameter]] = {}
        for parameter, which in kin.items():
            found.setdefault((which, parameter.dtype), []).append(parameter)
        return list(found.values())

    def _count_acts(self) -> int:
        return sum(group.acts for group in self._groups)

    def fits(self) -> bool:
        """Whether parameters still go together as they did; single steps between may have parted them."""
        acts = self._count_acts()
        if acts != self._acts:
            kin = self._kin()
            if self._sorted(kin) != self._partition:
                return False
            self._standing, self._acts = _standing(kin), acts
        return True

    # -- values ----------------------------------------------------------------------------------------------------

    def read(self) -> State:
        """The state of now. A piece of one parameter is that very memory; what is laid end to end is a copy."""
        with torch.no_grad():
            slots = [[_joined(column) for column in self._kept(piece)] for piece in self._pieces]
            return [_joined(piece) for piece in self._pieces], slots, [buffer for _, buffer in self._buffers]

    def _kept(self, piece: Sequence[nn.Parameter]) -> list[tuple[Tensor, ...]]:
        """The slots of the parameters in a piece: for each slot one tensor of each."""
        group = self._home[piece[0]]
        names = slots_of(group.recipe.name, group.recipe.settings)
        return list(zip(*[group.slot_tensors(each, names) for each in piece], strict=True))

    @torch.no_grad()
    def write(self, state: State) -> None:
        """Put a state into the parameters, slots and buffers."""
        pieces, slots, buffers = state
        for piece, value, kept in zip(self._pieces, pieces, slots, strict=True):
            _spread(value, piece)
            for slot, column in zip(kept, self._kept(piece), strict=True):
                _spread(slot, column)
        for (_, buffer), new in zip(self._buffers, buffers, strict=True):
            if new is not buffer:
                buffer.copy_(new)

    def copies(self) -> State:
        """The state of now in memory of its own."""
        pieces, slots, buffers = self.read()
        return (
            [piece.clone() for piece in pieces],
            [[slot.clone() for slot in held] for held in slots],
            [buffer.clone() for buffer in buffers],
        )

    # -- counts ----------------------------------------------------------------------------------------------------

    def numbers(self, count: int, device: torch.device) -> Tensor:
        """What changes from step to step: float64 [count, rules, WIDTH], on `device`, without a transfer."""
        rows = []
        for i, parameter, late in self._standing:
            group = self._groups[i]
            first = group.done(parameter) - late + 1
            steps = torch.arange(first, first + count, dtype=torch.float64, device=device)
            rates = _filled(group.rates(parameter, count), count, device)
            rows.append(numbers(group.recipe.settings, rates, steps))
        return torch.stack(rows, 1)

    def advance(self, count: int) -> None:
        """Count steps that were done."""
        for group, reached in zip(self._groups, self._reached, strict=True):
            group.advance(reached, count)


def _standing(kin: dict[nn.Parameter, Kin]) -> list[tuple[int, nn.Parameter, int]]:
    """For each rule its group, one of its parameters, and by how many steps these are behind their node."""
    firsts: dict[Kin, nn.Parameter] = {}
    for parameter, which in kin.items():
        firsts.setdefault(which, parameter)
    return [(i, parameter, done - own) for (i, done, own), parameter in firsts.items()]


def _piece(rule: int, piece: Sequence[nn.Parameter], names: dict[int, str]) -> Piece:
    return Piece(
        rule,
        tuple(names[id(parameter)] for parameter in piece),
        tuple(tuple(parameter.shape) for parameter in piece),
        tuple(parameter.numel() for parameter in piece),
    )


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([each.reshape(-1) for each in tensors]) if len(tensors) > 1 else tensors[0].detach()


def _spread(value: Tensor, into: Sequence[Tensor]) -> None:
    if len(into) == 1:
        if value.data_ptr() != into[0].data_ptr():
            into[0].copy_(value.view(into[0].shape))
        return
    cut = torch.split(value, [each.numel() for each in into])
    torch._foreach_copy_(list(into), [part.view(each.shape) for part, each in zip(cut, into, strict=True)])


def _filled(rates: Sequence[float], count: int, device: torch.device) -> Tensor:
    """Rates, float64 [count]: one for all, or one for each."""
    if len(rates) == 1:
        return torch.full((count,), rates[0], dtype=torch.float64, device=device)
    if device.type == "cpu":
        return torch.tensor(rates, dtype=torch.float64)
    return torch.stack([torch.full((), rate, dtype=torch.float64, device=device) for rate in rates])  # no transfer
