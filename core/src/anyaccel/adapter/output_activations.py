"""Warn of a loss of logits after a softmax, or a loss of probabilities without a softmax: both train to wrong
numbers.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

from anyaccel.adapter.layer_introspection import LayerLibrary
from anyaccel.formulas import LOSSES
from anyaccel.segment import LossTerm, Path, Segment

_TO_PROBABILITIES = ("softmax", "sigmoid")
_warned: WeakSet[Any] = WeakSet()


def warn_of_activations(library: LayerLibrary, segment: Segment) -> None:
    """Warn of each cross entropy in a segment that takes logits of a layer that ends with softmax or sigmoid.

    It also warns of a loss of the library that takes probabilities (`from_logits=False`, its default) of a layer that
    ends with no activation. Unknown ends, such as those of models with a custom `call`, cause no warning.
    """
    if library.module is None:  # none of its layers is in use
        return
    for term in segment.losses:
        takes_logits = _takes_logits(library, term)
        activation = _activation(library, segment, term) if takes_logits is not None else ""
        if takes_logits and activation in _TO_PROBABILITIES:
            _warned.update(operation.model for operation in segment.operations if term.inputs[0] in operation.outputs)
            _warn(term, f"takes logits, but the model ends with {activation}", f"remove {activation} from the model")
        elif takes_logits is False and activation == "linear":
            _warn(term, "takes probabilities, but the model ends without an activation", "set from_logits=True")


def was_warned_of(model: Any) -> bool:
    """Return whether a warning was issued for a model that ends with softmax or sigmoid, so that it is not repeated."""
    try:
        return model in _warned
    except TypeError:  # no layer: it cannot be referred to weakly, or has no hash
        return False


def _warn(term: LossTerm, problem: str, hint: str) -> None:
    warnings.warn(f"loss {term.label!r}: {term.loss.name} {problem}. Hint: {hint}.", UserWarning, stacklevel=2)


def _takes_logits(library: LayerLibrary, term: LossTerm) -> bool | None:
    """Whether a cross entropy takes logits; None for another loss, or where it cannot be known."""
    custom_loss = term.loss.own
    if custom_loss is None:
        return True if term.loss.name in LOSSES and LOSSES[term.loss.name].takes_logits else None
    if not library.is_loss(custom_loss):
        return None
    if not callable(getattr(custom_loss, "get_config", None)) or isinstance(custom_loss, type):
        parameter = inspect.signature(custom_loss).parameters.get("from_logits")
        takes_logits = term.loss.kwargs.get("from_logits", parameter.default if parameter is not None else None)
    else:
        takes_logits = custom_loss.get_config().get("from_logits")
    return takes_logits if isinstance(takes_logits, bool) else None


def _activation(library: LayerLibrary, segment: Segment, term: LossTerm) -> str:
    """Name of the activation that ends the output of a loss, `linear` for none; empty where it is not known."""
    for operation in segment.operations:
        if term.inputs[0] in operation.outputs and library.is_layer(operation.model):
            index = operation.outputs.index(term.inputs[0])
            path: Path = (index,) if len(operation.outputs) > 1 else ()
            if operation.results:
                path = operation.results[index].path
            return _final_activation(library, operation.model, path)
    return ""


def _final_activation(library: LayerLibrary, layer: Any, path: Path) -> str:
    if library.is_sequential(layer) and layer.layers:
        return _final_activation(library, layer.layers[-1], ())
    if library.is_functional(layer):
        output = layer.output
        for key in path:
            fits = isinstance(output, Mapping) or (isinstance(output, (list, tuple)) and isinstance(key, int))
            output = output[key] if fits else output
        end = getattr(getattr(output, f"_{library.module.__name__}_history", None), "operation", None)
        return _final_activation(library, end, ()) if end is not None else ""
    kind = type(layer).__name__
    if kind.lower() in _TO_PROBABILITIES:
        return kind.lower()
    name = str(getattr(getattr(layer, "activation", None), "__name__", ""))
    return name if name in _TO_PROBABILITIES or kind in ("Dense", "EinsumDense") or kind.startswith("Conv") else ""
