"""Requests for devices: the devices that a user asks for, those of a machine, and which of them the request gets.

One grammar (`DeviceRequest.parse`), a table of products (`products.json`), inventories in words, from a file or of this
machine, and the same request in the format of other schedulers. Looking at a machine initializes nothing.
"""

from anyaccel_resources.allocation import Allocation, Candidate
from anyaccel_resources.device_request import DeviceRequest, with_count
from anyaccel_resources.entry import RequestEntry
from anyaccel_resources.inventory import Inventory, InventoryDevice
from anyaccel_resources.inventory_registry import InventoryRegistry, machine_of
from anyaccel_resources.products import Product, products
from anyaccel_resources.requested_accelerator import RequestedAccelerator, accelerator_class

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
    "machine_of",
    "products",
    "with_count",
]
