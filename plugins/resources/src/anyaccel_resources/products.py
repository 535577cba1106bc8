"""Products: memory, generation and capabilities of accelerators; `products.json` has the source of each figure."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parent / "products.json"
_SIZE = re.compile(r"[- ]?(\d{1,4})\s?GB\b", re.IGNORECASE)
# What drivers write beside the name of a product: vendors, form factors, memory types.
_FORM = re.compile(r"(?:^|[\s-])(SXM|PCIe|NVL|OAM)\d?(?=$|[\s-])", re.IGNORECASE)
_FORMS = {"sxm": "SXM", "pcie": "PCIe", "nvl": "NVL", "oam": "OAM"}
_BESIDE = re.compile(r"\b(NVIDIA|AMD|Tesla|SXM\d?|PCIe|PCI-?E|HBM\d?e?|NVL|OAM|HF)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """An accelerator product.

    Attributes:
        memory_gb: Available sizes in GB, as its maker states them.
        drivers: Names that drivers report for it, each with the memory in GB and the form (`"SXM"`, `"PCIe"`, ...).
        compute_capability: Compute capability of NVIDIA's, such as `"9.0"`.
        upgrades: Names of products that providers deliver instead at no cost.
        sources: Address and date by figure.
    """

    name: str
    vendor: str
    segment: str
    generation: str
    compute_capability: str
    memory_gb: tuple[int, ...]
    capabilities: tuple[str, ...]
    aliases: tuple[str, ...]
    upgrades: tuple[str, ...]
    drivers: tuple[tuple[str, int, str], ...]
    sources: Mapping[str, Mapping[str, str]]

    @property
    def kind(self) -> str:
        """The kind of device."""
        return "tpu" if self.vendor == "google" else "gpu"

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms it is sold in, such as `"SXM"` and `"PCIe"`."""
        return tuple(dict.fromkeys(form for _, _, form in self.drivers if form))

    def sizes_of(self, form: str) -> tuple[int, ...]:
        """Return the sizes in GB that a form of it has, and all for `""`."""
        return tuple(gb for gb in self.memory_gb if not form or (gb, form) in {driver[1:] for driver in self.drivers})

    @property
    def sm(self) -> int:
        """Its compute capability in the form of compilers: 90 for 9.0; 0 without one."""
        return int(self.compute_capability.replace(".", "") or 0)

    @property
    def generation_order(self) -> int:
        """The place of its generation among those of its vendor, from 0."""
        orders = _table()["generations"][self.vendor]
        return next(place for place, names in enumerate(orders) if self.generation in names)

    def is_newer(self, other: Product) -> bool:
        """Return whether it has a newer generation than `other`, the same vendor and segment, and as much memory."""
        alike = (self.vendor, self.segment) == (other.vendor, other.segment)
        newer = alike and self.generation_order > other.generation_order
        return newer and max(self.memory_gb) >= min(other.memory_gb)


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(_FILE.read_text("utf-8"))
    return table


@functools.cache
def products() -> tuple[Product, ...]:
    """Return every known product."""
    sources = _table()["sources"]
    return tuple(
        Product(
            **{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
            | {"drivers": tuple((name, gb, form) for name, gb, form in entry.get("drivers", ()))}
            | {"sources": {figure: sources[name] for figure, name in entry["sources"].items()}}
        )
        for entry in _table()["products"]
    )


@functools.cache
def capabilities() -> tuple[str, ...]:
    """Return every capability that some product has."""
    return tuple(dict.fromkeys(name for product in products() for name in product.capabilities))


@functools.cache
def _by_spelling() -> dict[str, Product]:
    return {_plain(name): product for product in products() for name in (product.name, *product.aliases)}


def product_names() -> Iterable[str]:
    """Return the names of all products, and their one-word aliases."""
    return [n for product in products() for n in (product.name, *product.aliases) if " " not in n]


def product_named(name: str) -> Product | None:
    """Return the product of a name or alias, in any case, with `-`, `_` or blanks between its words; None if
    unknown.
    """
    return _by_spelling().get(_plain(name))


def product_of(reported: str) -> tuple[Product | None, int]:
    """Return the product in a driver's device name, and the size in GB in that name.

    `"NVIDIA A100-SXM4-80GB"` is A100 and 80. None if the product is unknown, and 0 without a size. A part of a device
    (MIG) has the product of the whole, and no size.
    """
    if reported in _by_driver():
        product, stated, _ = _by_driver()[reported]
        return product, stated if f"{stated}GB" in reported else 0
    whole, part, _ = reported.partition(" MIG ")
    size = _SIZE.search(whole)
    words = _BESIDE.sub(" ", _SIZE.sub(" ", whole))
    gb = int(size.group(1)) if size and not part else 0
    return product_named(words), gb


def form_of(reported: str) -> str:
    """Return the form in a driver's device name: `"SXM"`, `"PCIe"`, `"NVL"` or `"OAM"`; `""` if it is not known."""
    if reported in _by_driver():
        return _by_driver()[reported][2]
    form = _FORM.search(reported)
    return _FORMS[form.group(1).lower()] if form else ""


@functools.cache
def _by_driver() -> dict[str, tuple[Product, int, str]]:
    """Return product, memory and form by a driver's name, as it is and as labels of nodes have it."""
    return {
        name.replace(" ", between): (product, gb, form)
        for product in products()
        for name, gb, form in product.drivers
        for between in " -_"
    }


def _plain(name: str) -> str:
    return "-".join(re.split(r"[\s_-]+", name.strip(" \t-_").lower())).strip("-")
