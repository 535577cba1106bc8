"""The `gpu=` value of Modal, whose list of names is https://modal.com/docs/guide/gpu (read 2026-11-25)."""

from __future__ import annotations

from collections.abc import Sequence

from anyaccel.requests.entry import RequestEntry
from anyaccel.requests.exports.refusal import refused

NAMES = (
    *("T4", "L4", "A10", "L40S", "A100", "A100-40GB", "A100-80GB"),
    *("RTX-PRO-6000", "H100", "H100!", "H200", "B200", "B200+"),
)
"""Values that the documentation lists; `any` is documented as well."""
_ANOTHER_NAME = {"A10G": "A10"}
_MOST = {"A10": 4}  # in one container; of others 8
_OTHERS = 8


def modal(entries: Sequence[RequestEntry], ordered: bool) -> str | list[str]:
    """The value of `gpu=`: text, or a list in order of preference.

    Raises:
        ConfigError: Modal does not offer it.
    """
    if len(entries) > 1 and not ordered:
        raise refused(entries[0], "Modal", "its list is in order of preference", hint="write a list instead of a set")
    values = [_value(entry) for entry in entries]
    return values[0] if len(values) == 1 else values


def _value(entry: RequestEntry) -> str:
    if entry.capabilities or entry.host_memory_gb or entry.cores:
        why = "gpu= takes a product and a count; memory and cores are settings of their own"
        raise refused(entry, "Modal", why, hint="write memory= and cpu= beside gpu=")
    name = _name(entry)
    most = _MOST.get(name, _OTHERS)
    if entry.count > most:
        raise refused(entry, "Modal", f"a container has at most {most} of them", hint=f"ask for {most} or fewer")
    return f"{name}:{entry.count}" if entry.count > 1 else name


def _name(entry: RequestEntry) -> str:
    if entry.kind in ("gpu", "cuda") and entry.index is None:
        return "any"
    if not entry.kind and not entry.product and not entry.memory_gb:
        return "any"
    product = _ANOTHER_NAME.get(entry.product, entry.product)
    size = f"-{entry.memory_gb}GB" if entry.memory_gb else ""
    mark = "!" if entry.exact else "+" if entry.newer else ""
    exactly_so = {f"{product}{size}{mark}", f"{product}{mark}"} if product != "A100" else {f"{product}{size}{mark}"}
    if entry.exact and product != "H100":
        exactly_so.add(f"{product}{size}")  # nothing but H100 and B200 is upgraded
    name = next((name for name in NAMES if name in exactly_so and product), None)
    if name is None:
        raise refused(entry, "Modal", "its documentation does not list it", available=f"{', '.join(NAMES)}, any")
    return name
