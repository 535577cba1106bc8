"""Allocation: which devices of a machine a request gets, and why not the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from anyaccel.device import Device
from anyaccel.errors import DeviceUnavailableError
from anyaccel_resources.entry import RequestEntry
from anyaccel_resources.inventory import Inventory, InventoryDevice
from anyaccel_resources.products import Product, product_named

_ONLY_BY_NAME = frozenset({"cpu", "sim"})
_KINDS = {"gpu": 3, "cpu": 1, "sim": 0}  # other accelerators are 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Devices of one product that one alternative of a request could get.

    Attributes:
        wish: The alternative, as text.
        label: The product, as the inventory names it.
        devices: The devices that it would get; empty if they do not fit.
        chosen: Whether the request gets them.
        reason: Why they are chosen, or why not.
    """

    wish: str
    label: str
    devices: tuple[Device, ...]
    chosen: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The answer to a request.

    Attributes:
        request: The request, as text.
        source: Where the inventory is from.
        candidates: All candidates, by alternative; at most one is chosen.
    """

    request: str
    source: str
    candidates: tuple[Candidate, ...]

    @property
    def chosen(self) -> Candidate | None:
        """The chosen candidate; None if no devices of the machine match the request."""
        return next((candidate for candidate in self.candidates if candidate.chosen), None)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that the request gets.

        Raises:
            DeviceUnavailableError: no device matches; the message has the reasons.
        """
        if self.chosen is not None:
            return self.chosen.devices
        reasons = [
            f"{candidate.wish} on {candidate.label}: {candidate.reason}"
            for candidate in self.candidates
            if candidate.label
        ]
        there = ", ".join(dict.fromkeys(candidate.label for candidate in self.candidates if candidate.label))
        problem = f"no device fits {self.request!r} ({'; '.join(reasons[:8])})"
        where = "" if self.source == "this machine" else f" (the machine given {self.source})"
        hint = "add alternatives, such as ', any'; `anyaccel resolve` shows every candidate"
        raise DeviceUnavailableError(problem, available=f"{there}{where}", hint=hint)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        rows = [
            {
                "wish": c.wish,
                "product": c.label,
                "devices": [str(d) for d in c.devices],
                "chosen": c.chosen,
                "reason": c.reason,
            }
            for c in self.candidates
        ]
        devices = [str(device) for device in self.chosen.devices] if self.chosen else []
        return {"request": self.request, "on": self.source, "devices": devices, "candidates": rows}


@dataclass(frozen=True, slots=True)
class _Fit:
    """A group of equal devices that an alternative may take, `taken` of them; `reason` tells why none."""

    entry: RequestEntry
    group: tuple[InventoryDevice, ...]
    taken: tuple[InventoryDevice, ...] = ()
    reason: str = ""
    note: str = ""

    @property
    def rank(self) -> tuple[Any, ...]:
        """Its rank: named products before their upgrades, accelerators before the CPU, newer ones, more memory."""
        device, product = self.group[0], self.group[0].product
        named = not self.entry.product or (product is not None and product.name == self.entry.product)
        order = product.generation_order if product else -1
        return named, _KINDS.get(device.device.kind, 2), order, device.memory_gb


def allocate(
    entries: Sequence[RequestEntry], ordered: bool, inventory: Inventory, *, strict: bool, asked: str
) -> Allocation:
    """Choose devices for the alternatives of a request; see `DeviceRequest.resolve`."""
    by_entry = [
        [_fit(entry, group, inventory) for group in _groups(inventory.devices, by_form=bool(entry.form))]
        for entry in entries
    ]
    allowed = by_entry[:1] if strict else by_entry
    good = [[fit for fit in fits if fit.taken] for fits in allowed]
    pools = good if ordered else [[fit for fits in good for fit in fits]]
    pool = next((fits for fits in pools if fits), [])
    best = max(pool, key=lambda fit: fit.rank, default=None)
    rows = []
    for place, fits in enumerate(by_entry):
        for fit in fits:
            reason = "the request is strict: only its first alternative is used" if strict and place else fit.reason
            rows.append(_candidate(replace(fit, reason=reason), best, fit is best))
    return Allocation(request=asked, source=inventory.source, candidates=tuple(rows))


def _candidate(fit: _Fit, best: _Fit | None, chosen: bool) -> Candidate:
    count = f"{len(fit.group)}x " if len(fit.group) > 1 else ""
    label = f"{count}{fit.group[0].label}"
    reason = fit.reason
    if chosen:
        reason = f"chosen{fit.note}"
    elif not reason and best is not None:
        better = f"{best.entry} is preferred" if best.entry != fit.entry else f"{best.group[0].label} is better"
        reason = f"fits, but {better}"
    devices = tuple(taken.device for taken in fit.taken)
    return Candidate(wish=str(fit.entry), label=label, devices=devices, chosen=chosen, reason=reason)


def _groups(devices: Iterable[InventoryDevice], *, by_form: bool) -> list[tuple[InventoryDevice, ...]]:
    groups: dict[tuple[str, str, str, str], list[InventoryDevice]] = {}
    for device in devices:
        label, form = (device.label if device.name else ""), (device.form if by_form else "")
        groups.setdefault((device.device.kind, label, form, device.vendor), []).append(device)
    return [tuple(group) for group in groups.values()]


def _fit(entry: RequestEntry, group: tuple[InventoryDevice, ...], inventory: Inventory) -> _Fit:
    reasons = (check(entry, group, inventory) for check in _CHECKS)
    reason = next(filter(None, reasons), "")
    if reason:
        return _Fit(entry, group, reason=reason)
    by_index = {entry.device.index: entry for entry in group}
    wanted = group if entry.index is None else [by_index[i] for i in (entry.index, *entry.more)]
    wanted = wanted if entry.every or entry.more else wanted[: entry.count]
    product, named = group[0].product, product_named(entry.product)
    upgrade = product and named and product.name != named.name
    how = "newer than" if entry.newer and product and named and product.is_newer(named) else "an upgrade of"
    note = f": {product.name} is {how} {named.name}" if upgrade and product and named else ""
    return _Fit(entry, group, tuple(wanted), note=note)


_Check = Callable[[RequestEntry, tuple[InventoryDevice, ...], Inventory], str]


def _check_kind(entry: RequestEntry, group: tuple[InventoryDevice, ...], inventory: Inventory) -> str:
    first = group[0]
    if entry.kind and first.device.kind != entry.canonical_kind:
        return f"its kind is {first.device.kind}"
    if entry.vendor and first.vendor and entry.vendor != first.vendor:
        return f"it is a device of {first.vendor}, not of {entry.vendor}"
    if not entry.kind and first.device.kind == "sim":
        return "simulated devices must be requested by name"
    return ""


def _check_product(entry: RequestEntry, group: tuple[InventoryDevice, ...], inventory: Inventory) -> str:
    wanted, actual = product_named(entry.product), group[0].product
    if wanted is None:
        return ""
    if actual is None:
        return "its product is unknown" if group[0].device.kind not in _ONLY_BY_NAME else "it is another product"
    if actual.name == wanted.name:
        form = group[0].form
        if entry.form and not form:
            return f"whether it is {wanted.name}-{entry.form} is unknown"
        return f"it is {wanted.name}-{form}, not {wanted.name}-{entry.form}" if entry.form not in ("", form) else ""
    if entry.exact or entry.form:
        return f"it is not exactly {wanted.name}"
    if entry.memory_gb == 0 and actual.name in wanted.upgrades:
        return ""
    if entry.newer:
        return "" if actual.is_newer(wanted) else f"it is neither {wanted.name} nor newer with as much memory"
    return f"it is not {wanted.name}"


def _check_memory(entry: RequestEntry, group: tuple[InventoryDevice, ...], inventory: Inventory) -> str:
    gb, product = group[0].memory_gb, product_named(entry.product)
    if not entry.memory_gb:
        return ""
    if group[0].device.kind in _ONLY_BY_NAME and not entry.kind:
        return "it is not an accelerator"
    if not gb:
        return "its memory is unknown"
    same = product is not None and group[0].product is not None and group[0].product.name == product.name
    if same and gb != entry.memory_gb and not (entry.newer and gb > entry.memory_gb):
        return f"it has {gb:g} GB, not {entry.memory_gb}"
    return f"it has {gb:g} GB" if gb < entry.memory_gb else ""


def _check_capabilities(entry: RequestEntry, group: tuple[InventoryDevice, ...], inventory: Inventory) -> str:
    if not entry.capabilities:
        return ""
    product: Product | None = group[0].product
    if product is None:
        return f"its product is not in the table, so its support of {', '.join(entry.capabilities)} is unknown"
    missing = [name for name in entry.capabilities if name not in product.capabilities]
    return f"it does not support {', '.join(missing)}" if missing else ""


def _check_sm(entry: RequestEntry, group: tuple[InventoryDevice, ...], inventory: Inventory) -> str:
    if not entry.sm:
        return ""
    product = group[0].product
    if product is None and group[0].device.kind == "gpu" and group[0].vendor in ("", "nvidia"):
        return "its product is not in the table, so its compute capability is unknown"
    if product is None or not product.sm:
        return "it has no compute capability"
    return f"its compute capability is {product.compute_capability}" if product.sm < entry.sm else ""


def _check_count(entry: RequestEntry, group: tuple[InventoryDevice, ...], inventory: Inventory) -> str:
    indices = {entry.device.index for entry in group}
    missing = [] if entry.index is None else [i for i in (entry.index, *entry.more) if i not in indices]
    if missing:
        return f"it does not have the index {missing[0]}"
    return f"there {'is 1' if len(group) == 1 else f'are {len(group)}'}" if len(group) < entry.count else ""


def _check_host(entry: RequestEntry, group: tuple[InventoryDevice, ...], inventory: Inventory) -> str:
    if entry.nodes > 1:
        return f"the request is for {entry.nodes} machines, but this is one"
    for name, wanted, actual in (
        ("memory", entry.host_memory_gb, inventory.host_memory_gb),
        ("cores", entry.cores, inventory.cores),
    ):
        unit = " GB" if name == "memory" else ""
        if wanted and not actual:
            return f"the host's {name} are unknown" if name == "cores" else "the host's memory is unknown"
        if wanted > actual:
            return f"the host has {actual:g}{unit} of memory" if unit else f"the host has {actual:g} cores"
    return ""


_OF_DEVICES: tuple[_Check, ...] = (_check_kind, _check_product, _check_memory, _check_capabilities, _check_sm)
_CHECKS: tuple[_Check, ...] = (*_OF_DEVICES, _check_count, _check_host)


def is_device_of(entry: RequestEntry, device: InventoryDevice) -> bool:
    """Return whether a device matches an alternative, regardless of the count, the index and the host."""
    return not any(check(entry, (device,), Inventory(devices=(device,))) for check in _OF_DEVICES)
