"""A placement problem as arrays: units that are placed whole, the tensors between them, and devices by class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from anyaccel.errors import ConfigError
from anyaccel_offload.planner.values import Block, DeviceSpec, Edge

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
CATEGORIES = ("parameters", "buffers", "tied", "gradients", "optimizer", "cache", "activations")
WEIGHTS = ("parameters", "buffers")
ASSUMED_BANDWIDTH = 1e12  # bytes per second at which a current device reads weights, the limit of a decoding step


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a step; see `plan_blocks`."""

    training: bool
    optimizer_ratio: float
    tokens: int
    offload_buffers: bool = True


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Things that several units touch: tensors with their producers and consumers, or tied parameters.

    Attributes:
        nbytes: Bytes of each.
        units: Units that touch each, as pairs (index of the shared thing, unit), sorted and without repetition.
    """

    nbytes: Floats
    units: Ints

    def hits(self, assignment: Ints, devices: int) -> npt.NDArray[np.bool_]:
        """Return whether a unit on a device touches it, for each shared thing and device."""
        found = np.zeros((len(self.nbytes), devices), dtype=bool)
        found[self.units[:, 0], assignment[self.units[:, 1]]] = True
        return found


class Problem:
    """A placement problem. A unit is a group of blocks, or a single block.

    Attributes:
        units: Indices of the blocks of each unit.
        device_class: Class of each device; devices of one class differ only in their names.
        seconds: Compute time of each unit on each class.
        resident: Bytes of each unit on each class that stay during a step.
        transient: Bytes of each unit on each class that are freed after it was computed.
        connected: Pairs of units with an edge between them, whatever its size.
        tensors, ties: Tensors and tied parameters that units share.
    """

    def __init__(
        self, blocks: Sequence[Block], edges: Sequence[Edge], devices: Sequence[DeviceSpec], settings: Settings
    ) -> None:
        self.blocks, self.edges, self.devices, self.settings = blocks, edges, devices, settings
        self.estimated = all(block.seconds is None for block in blocks)
        self.index = {block.name: i for i, block in enumerate(blocks)}
        parent = list(range(len(blocks)))

        def root(i: int) -> int:
            while parent[i] != i:
                parent[i] = parent[parent[i]]
                i = parent[i]
            return i

        first: dict[tuple[str, str], int] = {}
        for i, block in enumerate(blocks):
            keys = [("group", block.group)] if block.group else []
            keys += [("tied", name) for name in block.tied] if settings.training else []
            for key in keys:
                a, b = sorted((root(first.setdefault(key, i)), root(i)))
                parent[b] = a
        units: dict[int, list[int]] = {}
        for i in range(len(blocks)):
            units.setdefault(root(i), []).append(i)
        unit_of = np.zeros(len(blocks), dtype=np.int64)
        for u, members in enumerate(units.values()):
            unit_of[members] = u
        self.units, self.unit_of = list(units.values()), unit_of
        models = list(dict.fromkeys(device.model for device in devices))
        self.device_class: Ints = np.array([models.index(device.model) for device in devices], dtype=np.int64)
        self.classes = [devices[int(np.argmax(self.device_class == c))] for c in range(len(models))]
        self.capacity: Floats = np.array([device_class.usable for device_class in self.classes])
        self.per_byte: Floats = np.array(
            [1 / device_class.link if device_class.link else 0.0 for device_class in self.classes]
        )
        touched: dict[Any, tuple[float, set[int]]] = {}
        for edge in edges:
            size, touching = touched.setdefault(
                (edge.source, edge.tensor), (edge.nbytes, {int(self.unit_of[self.index[edge.source]])})
            )
            if size != edge.nbytes:
                raise ConfigError(
                    f"edges from {edge.source!r} give tensor {edge.tensor!r} both {size:.0f} and {edge.nbytes} bytes",
                    hint="use different names for different tensors of one block: Edge(source, target, nbytes, "
                    "tensor='b')",
                )
            touching.add(int(self.unit_of[self.index[edge.target]]))
        self.tensors = _shared(touched, 2)
        ends = [(self.unit_of[self.index[it.source]], self.unit_of[self.index[it.target]]) for it in edges]
        pairs = sorted({(min(a, b), max(a, b)) for a, b in ends if a != b})
        self.connected: Ints = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        ties: dict[Any, tuple[float, set[int]]] = {}
        for place, block in enumerate(blocks):
            for name, size in block.tied.items():
                nbytes, touching = ties.setdefault(name, (math.ceil(size * self._tie_factor), set()))
                if nbytes != math.ceil(size * self._tie_factor):
                    raise ConfigError(
                        f"blocks give tied parameter {name!r} different numbers of bytes, {block.name!r} among them",
                        hint="use the same number of bytes for a tied parameter in each block",
                    )
                touching.add(int(self.unit_of[place]))
        self.ties = _shared(ties, 1)

    @property
    def _tie_factor(self) -> float:
        """Bytes for each byte of a tied parameter: in training with gradient and optimizer state."""
        return 2 + self.settings.optimizer_ratio if self.settings.training else 1

    @cached_property
    def block_bytes(self) -> dict[str, Ints]:
        """Bytes of each block by category, before rounding and without tied parameters."""
        made = {"parameters": np.array([block.parameter_bytes for block in self.blocks], dtype=np.int64)}
        made["buffers"] = np.array([block.buffer_bytes for block in self.blocks], dtype=np.int64)
        training, ratio = self.settings.training, self.settings.optimizer_ratio
        made["gradients"] = made["parameters"] * training
        made["optimizer"] = np.ceil(made["parameters"] * ratio * training).astype(np.int64)
        tokens = self.settings.tokens
        made["cache"] = np.array([block.cache_bytes_per_token * tokens for block in self.blocks], dtype=np.int64)
        made["activations"] = np.array([block.activation_bytes for block in self.blocks], dtype=np.int64)
        return made

    def rounded(self, category: str, device: DeviceSpec) -> Ints:
        """Return the bytes of each block in a category, rounded by the device's allocator."""
        return -(-self.block_bytes[category] // device.rounding) * device.rounding

    def _of_units(self, values: Any) -> Floats:
        made: Floats = np.bincount(self.unit_of, weights=values, minlength=len(self.units)).astype(np.float64)
        return made

    @cached_property
    def seconds(self) -> Floats:
        """Compute seconds of each unit on each class of devices, [classes, units]; infinite if it cannot run there.

        Estimated from the bytes of weights if no block has a time.
        """
        if self.estimated:
            weights = sum(self.block_bytes[name] for name in WEIGHTS) / ASSUMED_BANDWIDTH
            return np.array([self._of_units(weights / device_class.rate) for device_class in self.classes])
        times = [
            [block.seconds_on(device_class.kind) / device_class.rate for block in self.blocks]
            for device_class in self.classes
        ]
        return np.array([self._of_units(row) for row in times])

    @cached_property
    def resident(self) -> Floats:
        """Bytes of each unit that stay during a step, [classes, units]; in training with its activations."""
        kept = [name for name in CATEGORIES if name not in ("tied", "activations")]
        kept += ["activations"] * self.settings.training
        return np.array(
            [self._of_units(sum(self.rounded(name, device_class) for name in kept)) for device_class in self.classes]
        )

    @cached_property
    def transient(self) -> Floats:
        """Bytes of each unit, [classes, units], that are freed after computing it: its largest block; 0 in training."""
        made = np.zeros((len(self.classes), len(self.units)))
        if not self.settings.training:
            for c, device_class in enumerate(self.classes):
                np.maximum.at(made[c], self.unit_of, self.rounded("activations", device_class))
        return made

    @property
    def streamed(self) -> tuple[str, ...]:
        """Categories that are copied in and out with an offloaded unit."""
        return WEIGHTS if self.settings.offload_buffers else WEIGHTS[:1]

    @cached_property
    def weights(self) -> Floats:
        """Bytes of each unit that are copied if it is offloaded, on each class, rounded by its allocator."""
        return self._rounded_sum(self.streamed)

    @cached_property
    def slots(self) -> Floats:
        """Bytes of a staging slot for each unit: its weights, in training with their gradients."""
        return self._rounded_sum((*self.streamed, "gradients"))

    @cached_property
    def offloadable(self) -> Floats:
        """Bytes that an offloaded unit frees: its weights, in training with gradients and optimizer state."""
        return self._rounded_sum((*self.streamed, "gradients", "optimizer"))

    def _rounded_sum(self, names: Sequence[str]) -> Floats:
        return np.array(
            [self._of_units(sum(self.rounded(name, device_class) for name in names)) for device_class in self.classes]
        )

    # -- figures of an assignment: the device of each unit -----------------------------------------------------------

    def compute(self, assignment: Ints) -> Floats:
        """Return the compute seconds of each device."""
        times = self.seconds[self.device_class[assignment], np.arange(len(self.units))]
        made: Floats = np.bincount(assignment, weights=times, minlength=len(self.devices)).astype(np.float64)
        return made

    def transfer(self, assignment: Ints) -> Floats:
        """Return the seconds that each device sends and receives: a tensor once for each device involved."""
        hits = self.tensors.hits(assignment, len(self.devices))
        crossing = hits & (hits.sum(axis=1, keepdims=True) > 1)
        moved: Floats = self.tensors.nbytes @ crossing
        return moved * self.per_byte[self.device_class]

    def memory(self, assignment: Ints) -> Floats:
        """Return the bytes that each device needs."""
        held = self.resident[self.device_class[assignment], np.arange(len(self.units))]
        total = np.bincount(assignment, weights=held, minlength=len(self.devices))
        most = np.zeros(len(self.devices))
        np.maximum.at(most, assignment, self.transient[self.device_class[assignment], np.arange(len(self.units))])
        tied: Floats = self.ties.nbytes @ self.ties.hits(assignment, len(self.devices))
        return total + most + tied

    def crossings(self, assignment: Ints) -> int:
        """Return the number of connected pairs of units on different devices."""
        return int((assignment[self.connected[:, 0]] != assignment[self.connected[:, 1]]).sum())

    @property
    def crossing_bytes(self) -> float:
        """Copied bytes that a crossing is as bad as if nothing else differs: those of a unit."""
        return float(int(self.weights.max(axis=0).mean()))

    def fits(self, assignment: Ints) -> bool:
        """Return whether every device can hold and compute its units."""
        enough = self.memory(assignment) <= self.capacity[self.device_class]
        return bool(np.all(enough) and np.all(np.isfinite(self.compute(assignment))))

    def lower_bound(self, objective: str) -> float:
        """Return a lower bound of the objective: all work spread evenly, and copies that take no time."""
        fastest = self.seconds.min(axis=0)
        if objective == "latency":
            return float(fastest.sum())
        some = (fastest > 0) & np.isfinite(fastest)
        if not some.any():
            return 0.0
        speed = (fastest[some] / self.seconds[:, some]).max(axis=1)  # upper limit for any of the units
        return float(max(fastest.max(), fastest[some].sum() / speed[self.device_class].sum()))


def _shared(touched: dict[Any, tuple[float, set[int]]], least: int) -> Shared:
    """Return the things that at least `least` units touch, as arrays."""
    kept = [(size, units) for size, units in touched.values() if size and len(units) >= least]
    pairs = [(t, unit) for t, (_, units) in enumerate(kept) for unit in sorted(units)]
    return Shared(
        nbytes=np.array([size for size, _ in kept], dtype=np.float64),
        units=np.array(pairs, dtype=np.int64).reshape(-1, 2),
    )
