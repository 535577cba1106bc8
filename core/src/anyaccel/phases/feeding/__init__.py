"""Feeding: how the rows of a phase come to its programs, all at once or streamed."""

from anyaccel.phases.feeding.ahead import ahead
from anyaccel.phases.feeding.batching import Batching, of_drawing, of_sight
from anyaccel.phases.feeding.passes import Pass, Stretch, Work, parts_of
from anyaccel.phases.feeding.provision import Place, Provision, RowsProvision, SourceProvision, free_memory
from anyaccel.phases.feeding.residency import growth, slots_of, supplies
from anyaccel.phases.feeding.streamed import Streamed
from anyaccel.phases.feeding.supply import Portion, Resident, Supply

__all__ = [
    "Batching",
    "Pass",
    "Place",
    "Portion",
    "Provision",
    "Resident",
    "RowsProvision",
    "SourceProvision",
    "Streamed",
    "Stretch",
    "Supply",
    "Work",
    "ahead",
    "free_memory",
    "growth",
    "of_drawing",
    "of_sight",
    "parts_of",
    "slots_of",
    "supplies",
]
