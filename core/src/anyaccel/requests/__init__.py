"""Requests: what devices a user asks for, what a machine has, and which of them the request gets.

One grammar (`DeviceRequest.parse`), a table of products (`products.json`), inventories in words, from a file or of this
machine, and the same request as other schedulers write it. Nothing is initialised by looking. Stands on the kernel.
"""

from anyaccel.requests.allocation import Allocation, Candidate
from anyaccel.requests.device_request import DeviceRequest, with_count
from anyaccel.requests.entry import RequestEntry
from anyaccel.requests.inventory import Inventory, InventoryDevice
from anyaccel.requests.inventory_registry import InventoryRegistry
from anyaccel.requests.machine import machine_of
from anyaccel.requests.products import Product, products
from anyaccel.requests.requested_accelerator import RequestedAccelerator, accelerator_class, on_machine

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
    "on_machine",
    "products",
    "with_count",
]
