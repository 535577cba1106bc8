"""Requests: what devices a user asks for, what a machine has, and which of them the request gets.

One grammar (`DeviceRequest.parse`), a table of products (`products.json`), inventories in words, from a file or of this
machine, and the same request as other schedulers write it. Nothing is initialised by looking. Stands on `machine` and
the kernel.
"""

from typing import TYPE_CHECKING

from anyaccel.lazy_attributes import lazy_attributes
from anyaccel.requests.products import Product, products

if TYPE_CHECKING:
    from anyaccel.requests.allocation import Allocation as Allocation
    from anyaccel.requests.allocation import Candidate as Candidate
    from anyaccel.requests.device_request import DeviceRequest as DeviceRequest
    from anyaccel.requests.device_request import with_count as with_count
    from anyaccel.requests.entry import RequestEntry as RequestEntry
    from anyaccel.requests.inventory import Inventory as Inventory
    from anyaccel.requests.inventory import InventoryDevice as InventoryDevice
    from anyaccel.requests.inventory_registry import InventoryRegistry as InventoryRegistry
    from anyaccel.requests.inventory_registry import machine_of as machine_of
    from anyaccel.requests.requested_accelerator import RequestedAccelerator as RequestedAccelerator
    from anyaccel.requests.requested_accelerator import accelerator_class as accelerator_class
    from anyaccel.requests.requested_accelerator import at_device as at_device
    from anyaccel.requests.requested_accelerator import on_machine as on_machine

__all__ = [
    "Allocation",
    "Candidate",
    "DeviceRequest",
    "Inventory",
    "InventoryDevice",
    "InventoryRegistry",
    "Product",
    "RequestEntry",
    "RequestedAccelerator",
    "accelerator_class",
    "at_device",
    "machine_of",
    "on_machine",
    "products",
    "with_count",
]

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "Allocation": ".allocation",
        "Candidate": ".allocation",
        "DeviceRequest": ".device_request",
        "Inventory": ".inventory",
        "InventoryDevice": ".inventory",
        "InventoryRegistry": ".inventory_registry",
        "RequestEntry": ".entry",
        "RequestedAccelerator": ".requested_accelerator",
        "accelerator_class": ".requested_accelerator",
        "at_device": ".requested_accelerator",
        "machine_of": ".inventory_registry",
        "on_machine": ".requested_accelerator",
        "with_count": ".device_request",
    },
)
