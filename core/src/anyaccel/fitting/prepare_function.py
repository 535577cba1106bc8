"""prepare: models, optimizers and loaders of a training loop of one's own, on a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyaccel.accelerator import SCALARS, Accelerator
from anyaccel.arguments import shown
from anyaccel.call_hints import call_hints
from anyaccel.containers import leaves
from anyaccel.errors import DataError
from anyaccel.fitting.device_loader import DeviceLoader
from anyaccel.phases.bound_phase import best_common_device
from anyaccel.phases.settings import AUTO
from anyaccel.registry import registry


@call_hints
def prepare(*objects: Any, accelerator: Any = AUTO) -> Any:
    """Models, optimizers and loaders for a training loop of your own: placed, and fed ahead.

    ```python
    net, optimizer, loader = aa.prepare(net, optimizer, loader)
    for x, y in loader: ...
    ```

    Args:
        objects: models and optimizers of one framework or several, in any order, a model before its optimizer; and
            loaders or other iterables of batches.
        accelerator: `"auto"` is the best device on which all of these frameworks run; else an Accelerator, a Device, or
            text such as `"gpu:0"`.

    Returns:
        the objects in the same order, one alone as it is: what was placed (**use the result**), and a DeviceLoader in
        place of each loader, which reads and copies one batch ahead.

    Raises:
        DataError: no object, or one in which there is nothing to place.
        NoBackendError: no plugin runs the framework of an object.
        AnyaccelError: the device is not there, or does not take an object; nothing is placed if that is known before.
    """
    if not objects:
        raise DataError("prepare() was given nothing", hint="write prepare(net, optimizer, loader)")
    loaders = [_is_loader(each) for each in objects]
    placed = [each for each, loads in zip(objects, loaders, strict=True) if not loads]
    frameworks = sorted({framework for each in placed for framework in _frameworks(each)})
    is_auto = isinstance(accelerator, str) and accelerator == AUTO
    wanted = Accelerator(best_common_device(frameworks)) if is_auto else Accelerator.of(accelerator)
    where = wanted.on_one_device(*frameworks)
    for framework in frameworks:
        where.check(framework)
    only = frameworks[0] if len(frameworks) == 1 else None
    prepared = tuple(
        DeviceLoader(each, where, only) if loads else where.place(each)
        for each, loads in zip(objects, loaders, strict=True)
    )
    return prepared[0] if len(prepared) == 1 else prepared


def _is_loader(given: Any) -> bool:
    """Whether an object gives batches: it can be iterated over, and is neither called, as models are, nor a tensor."""
    if isinstance(given, (Mapping, list, tuple, str, bytes)) or callable(given):
        return False
    return hasattr(given, "__iter__") and not hasattr(given, "shape")


def _frameworks(given: Any) -> set[str]:
    """The frameworks of a model or optimizer, or of a container of such."""
    known = registry()
    objects = [leaf for leaf in leaves(given, known.owners) if not isinstance(leaf, SCALARS)]
    if not objects:
        raise DataError(
            f"prepare() cannot prepare {shown(given)}",
            available="models, optimizers and loaders of installed plugins",
            hint="write prepare(net, optimizer, loader)",
        )
    return {known.owner(leaf) for leaf in objects}
