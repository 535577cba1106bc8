"""Compute rates: operations a second that makers state; `compute_rates.json` names a page that quotes each."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyaccel_resources.products import product_of

_FILE = Path(__file__).parent / "compute_rates.json"
_UNIT = 10**12


@dataclass(frozen=True, slots=True)
class ComputeRate:
    """Dense operations a second of a product in a dtype, and where that is stated."""

    per_second: float
    url: str
    date: str


def compute_rate(reported: str, dtype: str) -> ComputeRate | None:
    """Return the rate of the product in a driver's device name; None if the table does not have it.

    Parts of a device (MIG) have no rate, nor do forms of a product that the table does not distinguish.

    Args:
        reported: A name such as `"NVIDIA H100 PCIe"`.
        dtype: `"fp32"`, `"tf32"`, `"fp16"` or `"bf16"`.
    """
    product, _ = product_of(reported)
    if product is None or " MIG " in reported:
        return None
    entry = next((e for e in _rates() if e["product"] == product.name and e["form"].lower() in reported.lower()), None)
    if entry is None or dtype not in entry:
        return None
    return ComputeRate(entry[dtype] * _UNIT, entry["url"], entry["date"])


@functools.cache
def _rates() -> list[Mapping[str, Any]]:
    rates: list[Mapping[str, Any]] = json.loads(_FILE.read_text("utf-8"))["rates"]
    return rates
