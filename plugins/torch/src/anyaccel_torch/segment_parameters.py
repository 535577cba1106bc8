"""The modules of a segment, and its trained parameters and optimizer states by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from anyaccel.errors import GraphError
from anyaccel.segment import NodeState, Segment
from anyaccel_torch.losses import BoundLoss
from anyaccel_torch.module_state import parameters, submodules

_FRESH = NodeState()


def segment_modules(segment: Segment, losses: Sequence[BoundLoss]) -> dict[nn.Module, bool]:
    """The modules of a segment and of its custom losses, each once, and whether any node trains it."""
    modules: dict[nn.Module, bool] = {}
    trainable = {operation.label: operation.trainable for operation in segment.operations}
    for operation in segment.operations:
        if isinstance(operation.model, nn.Module):
            modules[operation.model] = operation.trainable or modules.get(operation.model, False)
    for term, loss in zip(segment.losses, losses, strict=True):
        if loss.module is not None:
            modules[loss.module] = trainable.get(term.on, True) or modules.get(loss.module, False)
    return modules


def modules_as_is(segment: Segment) -> list[nn.Module]:
    """The modules of a segment whose submodules keep their modes."""
    models = (operation.model for operation in segment.operations if operation.modes == "as_is")
    return [model for model in models if isinstance(model, nn.Module)]


def trained_parameters(
    segment: Segment, losses: Sequence[BoundLoss], nodes: Sequence[str], seen: set[int]
) -> dict[str, dict[str, nn.Parameter]]:
    """Trained parameters by node and name, those of custom losses as `loss.LABEL.NAME`.

    Each parameter is listed once: `seen` (ids) holds models and parameters of earlier calls, and is added to. A node
    whose model is an earlier node's is left out.
    """
    members: dict[str, dict[str, nn.Parameter]] = {}
    for node in nodes:
        model = next((operation.model for operation in segment.operations if operation.label == node), None)
        named = dict(parameters(model)) if isinstance(model, nn.Module) else {}
        for term, loss in zip(segment.losses, losses, strict=True):
            if term.on == node and loss.module is not None:
                named |= {f"loss.{term.label}.{name}": value for name, value in parameters(loss.module).items()}
        own = {name: value for name, value in named.items() if value.requires_grad and id(value) not in seen}
        if own or id(model) not in seen:
            members[node] = own
        seen.update(map(id, (model, *own.values())))
    return members


def switched_off(segment: Segment, nodes: Sequence[str]) -> dict[str, set[str]]:
    """Names of the parameters with `requires_grad=False`, by node."""
    models = {operation.label: operation.model for operation in segment.operations}
    modules = {node: model for node in nodes if isinstance(model := models.get(node), nn.Module)}
    return {
        node: {name for name, value in parameters(module).items() if not value.requires_grad}
        for node, module in modules.items()
    }


def check_frozen(segment: Segment, losses: Sequence[BoundLoss]) -> None:
    """Refuse a segment that would change a frozen node through what its model shares with a trained one.

    Raises:
        GraphError: they share a parameter that is trained, or a module that acts otherwise in training mode.
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
                _check_not_shared(label, model, holder, other)


def _check_not_shared(frozen: str, model: nn.Module, holder: str, other: nn.Module) -> None:
    kept = {id(parameter) for parameter in parameters(model).values()}
    names = [name for name, value in parameters(other).items() if value.requires_grad and id(value) in kept]
    parts = {id(part) for part in submodules(model)}
    modes = [name for name, part in other.named_modules() if id(part) in parts and _depends_on_mode(part)]
    if names or modes:
        shared = f"the parameter {names[0]!r}" if names else f"the module {modes[0]!r}, which depends on the mode"
        raise GraphError(
            f"{holder} is trained and shares {shared} with node {frozen!r}, which is frozen",
            hint="freeze both, give each its own, or switch off requires_grad of what is not to be trained"
            if names
            else "freeze both, or give each its own",
        )


def _depends_on_mode(part: nn.Module) -> bool:
    """Whether a module itself has buffers, such as running statistics, or is random in training."""
    return "ropout" in type(part).__name__ or next(part.buffers(recurse=False), None) is not None


def shared_with_all(segment: Segment, states: Mapping[str, NodeState]) -> dict[str, NodeState]:
    """States by node; nodes that share a model all get the state of the first, which lists its parameters."""
    models = {operation.label: operation.model for operation in segment.operations}
    result, first = dict(states), dict[int, str]()
    for node in (node for group in segment.groups for node in group.nodes):
        result[node] = result[first.setdefault(id(models.get(node, node)), node)]
    return result


def initial_states(segment: Segment) -> dict[str, NodeState]:
    """The segment's optimizer states by node; nodes that share a model all get the one that has slots."""
    states = dict(segment.states)
    for operation in segment.operations:
        if operation.model is None or states.get(operation.label, _FRESH).slots:
            continue
        sharing = (other.label for other in segment.operations if other.model is operation.model)
        kept = next((states[label] for label in sharing if states.get(label, _FRESH).slots), None)
        if kept is not None:
            states[operation.label] = kept
    return states
