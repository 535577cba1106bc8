"""RequestEntry: one alternative of a request: a kind, a product, a memory size or anything, a count, and conditions."""

from __future__ import annotations

from dataclasses import dataclass, field

from anyaccel.device import Device, vendor_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEntry:
    """One alternative of a request; `str()` returns text that parses back.

    Attributes:
        kind: Kind of device as written, such as `"gpu"` or `"cuda"`; `""` if it asks for something else.
        index: Index of the device of the kind; None for the first that fits.
        more: Indices of more devices of the kind, in order.
        every: Whether it asks for all devices that fit.
        product: Name of a product, `""` for any.
        memory_gb: With a product, exactly this memory; otherwise at least this memory. 0 for any.
        exact: Only the product itself, not its upgrades.
        newer: Also newer products of the same vendor and segment.
        capabilities: Required compute formats of each device, such as `"bf16"`.
        count: Number of devices.
        host_memory_gb: Minimum memory of the host.
        cores: Minimum cores of the host.
    """

    kind: str = ""
    index: int | None = None
    more: tuple[int, ...] = ()
    every: bool = False
    product: str = ""
    memory_gb: int = 0
    exact: bool = False
    newer: bool = False
    capabilities: tuple[str, ...] = ()
    count: int = 1
    host_memory_gb: int = field(default=0)
    cores: int = 0

    def __str__(self) -> str:
        text = self._what()
        text += f"[{','.join(self.capabilities)}]" if self.capabilities else ""
        text += f":{self._number}" if self._number else ""
        text += f" mem={self.host_memory_gb}GB" if self.host_memory_gb else ""
        return text + (f" cores={self.cores}" if self.cores else "")

    @property
    def _number(self) -> str:
        if self.every:
            return "*"
        if self.kind:
            return "" if self.index is None else "+".join(map(str, (self.index, *self.more)))
        return str(self.count) if self.count > 1 else ""

    def _what(self) -> str:
        if self.kind:
            return self.kind
        if self.product:
            size = f"-{self.memory_gb}GB" if self.memory_gb else ""
            return f"{self.product}{size}{'!' if self.exact else '+' if self.newer else ''}"
        return f"{self.memory_gb}GB+" if self.memory_gb else "any"

    @property
    def is_plain(self) -> bool:
        """Whether it names a kind and perhaps an index, and nothing else."""
        wishes = self.capabilities or self.host_memory_gb or self.cores or self.more or self.every
        return bool(self.kind) and not wishes

    @property
    def canonical_kind(self) -> str:
        """The kind without a vendor: `"gpu"` for `"cuda"`; `""` if it asks for something else."""
        return Device.parse(self.kind).kind if self.kind else ""

    @property
    def vendor(self) -> str:
        """The vendor that the kind implies, `""` for any."""
        return vendor_of(self.kind)
