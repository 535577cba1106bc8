"""Ledger: counts transfers between devices and waits of the host, around any code.

Offers `ledger`, which counts inside a block, and `no_transfers`, which raises at the first; `Ledger`, the counts, with
rows and totals; `register_running`, to report the running phases; and for errors `last_mover`, which moved a tensor
last. `mixed_tensors` comes from `anyaccel.adapter`.
"""

from anyaccel.adapter.mixed_tensors import MixedTensors, mixed_tensors
from anyaccel_devtools.transfer_ledger.call_site import CallSite, register_running
from anyaccel_devtools.transfer_ledger.counting import Ledger, LedgerRow, Totals, last_mover, ledger, no_transfers

__all__ = [
    "CallSite",
    "Ledger",
    "LedgerRow",
    "MixedTensors",
    "Totals",
    "last_mover",
    "ledger",
    "mixed_tensors",
    "no_transfers",
    "register_running",
]
