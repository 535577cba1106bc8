"""Tools for anyaccel: conformance kit, transfer ledger, doctor, profiles, drawings, projects for plugins.

- `testing`: the conformance kit, which a plugin's author runs over a backend.
- `transfer_ledger`: counts transfers between devices and waits of the host; also `anyaccel.ledger` and `no_transfers`.
- `doctor`: checks of a machine, and the capability `HealthChecks`, to add checks for a backend.
- `drawing`: graphs as SVG, and plans as HTML files.
- `profiles`: `Profile`, traces of training steps by each framework's profiler; also `anyaccel.Profile`.
- `learning_rate_finder`: a range test of learning rates; also `anyaccel.find_learning_rate`.

The commands `conform`, `doctor`, `env` and `new-plugin` of `anyaccel` are in `cli`. Names are imported on first use;
importing this package imports none of it.
"""

from typing import TYPE_CHECKING

from anyaccel.lazy_attributes import lazy_attributes

if TYPE_CHECKING:
    from anyaccel_devtools.doctor import Check as Check
    from anyaccel_devtools.doctor import HealthChecks as HealthChecks
    from anyaccel_devtools.learning_rate_finder import RangeTest as RangeTest
    from anyaccel_devtools.learning_rate_finder import find_learning_rate as find_learning_rate
    from anyaccel_devtools.profiles import Profile as Profile
    from anyaccel_devtools.transfer_ledger import Ledger as Ledger
    from anyaccel_devtools.transfer_ledger import ledger as ledger
    from anyaccel_devtools.transfer_ledger import no_transfers as no_transfers

__all__ = ["Check", "HealthChecks", "Ledger", "Profile", "RangeTest", "find_learning_rate", "ledger", "no_transfers"]

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        **dict.fromkeys(("Check", "HealthChecks"), ".doctor"),
        **dict.fromkeys(("RangeTest", "find_learning_rate"), ".learning_rate_finder"),
        "Profile": ".profiles",
        **dict.fromkeys(("Ledger", "ledger", "no_transfers"), ".transfer_ledger"),
    },
)
