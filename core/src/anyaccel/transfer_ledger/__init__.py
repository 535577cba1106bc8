"""Ledger: counts transfers between devices and waits of the host, around any code.

Offers `ledger`, which counts inside a block, and `no_transfers`, which raises at the first; `Ledger`, what was counted,
with its rows and totals; for the phases above, `register_running`, by which they say which phases are running; and for
errors of plugins `last_mover`, which has moved a tensor, and `mixed_tensors`, where an operation over several devices
failed.
Stands on `adapter`, which has the capability `ObservesTransfers`, and on the kernel.
"""

from anyaccel.transfer_ledger.call_site import CallSite, register_running
from anyaccel.transfer_ledger.counting import Ledger, LedgerRow, Totals, ledger, no_transfers
from anyaccel.transfer_ledger.mixed_tensors import MixedTensors, mixed_tensors
from anyaccel.transfer_ledger.observation import last_mover

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
