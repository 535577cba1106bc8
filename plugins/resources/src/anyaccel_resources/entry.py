"""RequestEntry: one alternative of a request: a kind, a product, a memory size or anything, a count, and conditions."""

from __future__ import annotations

from dataclasses import dataclass

from anyaccel.device import Device, vendor_of

VENDORS = {"nvidia": "cuda", "amd": "rocm"}
"""Words of requests for vendors, and the kind that each stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEntry:
    """One alternative of a request; `str()` returns text that parses back.

    Attributes:
        kind: Kind of device as written, such as `"gpu"` or `"cuda"`; `""` if it asks for something else. `nvidia:40GB+`
            has the kind `"cuda"`.
        index: Index of the device of the kind; None for the first that fits.
        more: Indices of more devices of the kind, in order.
        every: Whether it asks for all devices that fit.
        product: Name of a product, `""` for any.
        form: Only this form of the product, such as `"SXM"` or `"PCIe"`.
        memory_gb: With a product, exactly this memory; otherwise at least this memory. 0 for any.
        exact: Only the product itself, not its upgrades.
        newer: Also newer products of the same vendor and segment.
        capabilities: Required compute formats of each device, such as `"bf16"`.
        sm: Minimum compute capability of NVIDIA's, as compilers write it: 80 for 8.0; 0 for any.
        count: Number of devices.
        host_memory_gb: Minimum memory of the host.
        cores: Minimum cores of the host.
        nodes: Number of machines, each with `count` devices.
        price: Most US dollars an hour for each machine, where a scheduler rents it; 0 for any.
    """

    kind: str = ""
    index: int | None = None
    more: tuple[int, ...] = ()
    every: bool = False
    product: str = ""
    form: str = ""
    memory_gb: int = 0
    exact: bool = False
    newer: bool = False
    capabilities: tuple[str, ...] = ()
    sm: int = 0
    count: int = 1
    host_memory_gb: int = 0
    cores: int = 0
    nodes: int = 1
    price: float = 0

    def __str__(self) -> str:
        if self.product:
            form, size = (f"-{self.form}" if self.form else ""), (f"-{self.memory_gb}GB" if self.memory_gb else "")
            text = f"{self.product}{form}{size}{'!' if self.exact else '+' if self.newer else ''}"
        else:
            of_kind = f"{self.vendor if self.vendor in VENDORS else self.kind}:" if self.kind else ""
            if self.memory_gb:
                text = f"{of_kind}{self.memory_gb}GB+"
            elif self.kind:
                text = f"{of_kind}any" if self.count > 1 else self.kind
            else:
                text = f"sm>={self.sm}" if self.sm and not self.capabilities else "any"
        text += f"[{','.join(self.capabilities)}]" if self.capabilities else ""
        if self.every:
            text += ":*"
        elif self.index is not None:
            text += f":{'+'.join(map(str, (self.index, *self.more)))}"
        elif self.count > 1:
            text += f":{self.count}"
        text += f" sm>={self.sm}" if self.sm and not text.startswith("sm>=") else ""
        text += f" mem={self.host_memory_gb}GB" if self.host_memory_gb else ""
        text += f" cores={self.cores}" if self.cores else ""
        text += f" nodes={self.nodes}" if self.nodes > 1 else ""
        return text + (f" price<={self.price:.12g}" if self.price else "")

    @property
    def is_plain(self) -> bool:
        """Whether it names a kind and perhaps an index, and nothing else."""
        return bool(self.kind) and self == RequestEntry(kind=self.kind, index=self.index)

    @property
    def canonical_kind(self) -> str:
        """The kind without a vendor: `"gpu"` for `"cuda"`; `""` if it asks for something else."""
        return Device.parse(self.kind).kind if self.kind else ""

    @property
    def vendor(self) -> str:
        """The vendor that the kind implies, `""` for any."""
        return vendor_of(self.kind)
