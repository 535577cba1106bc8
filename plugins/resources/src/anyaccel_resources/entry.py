"""RequestEntry: one wish of a request: a kind, a product, a memory size or anything, how many, and what else."""

from __future__ import annotations

from dataclasses import dataclass, field

from anyaccel.device import Device, vendor_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEntry:
    """One wish of a request; `str()` writes it so that it parses back.

    Attributes:
        kind: kind of device as it was written, such as `"gpu"` or `"cuda"`; `""` if the wish is for something else.
        index: which device of the kind; None for the first that fits.
        more: indices of more devices of the kind, in order.
        every: all devices that fit, as many as there are.
        product: name of a product, `""` if any will do.
        memory_gb: of a product, exactly so much memory; else at least so much. 0 for any.
        exact: the product itself, not its upgrades.
        newer: also newer products of the same vendor and segment.
        capabilities: what each device must be able to compute with, such as `"bf16"`.
        count: how many devices.
        host_memory_gb: memory of the host, at least.
        cores: cores of the host, at least.
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
        """The kind without a vendor: `"gpu"` for `"cuda"`; `""` if the wish is for something else."""
        return Device.parse(self.kind).kind if self.kind else ""

    @property
    def vendor(self) -> str:
        """The vendor that the kind implies, `""` for any."""
        return vendor_of(self.kind)
