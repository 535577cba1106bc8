"""Feeding: how the rows of a phase come to its programs, all at once or streamed."""

from anyaccel.phases.loading.batching import Batching, of_drawing, of_sight
from anyaccel.phases.loading.epoch_plan import Pass, Stretch, Work, parts_of
from anyaccel.phases.loading.loader import Portion, Resident, Supply
from anyaccel.phases.loading.prefetch import ahead
from anyaccel.phases.loading.provision import Place, Provision, RowsProvision, SourceProvision, free_memory
from anyaccel.phases.loading.residency import growth, slots_of, supplies
from anyaccel.phases.loading.streaming import Streamed

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
