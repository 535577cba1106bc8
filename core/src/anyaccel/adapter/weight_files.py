"""WeightFiles: a framework's own names of the weights of its models, and its own files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from anyaccel.capability import Capability


class WeightFiles(Capability):
    """Capability: a framework with its own names or files of weights.

    Without it, the names are those of a state after `parameters/` and `buffers/`, and files are safetensors.
    """

    weight_suffixes: ClassVar[tuple[str, ...]] = ()
    """Endings of the framework's own files, such as `.pt`."""
    safetensors_format: ClassVar[str] = ""
    """The word for the framework in the metadata of safetensors (`format`), which some readers ask for."""

    @abstractmethod
    def weight_names(self, model: Any) -> Mapping[str, str]:
        """Return the name in `Compute.state` for each name of the framework; several if a value has several names."""

    def plain_name(self, model: Any, name: str) -> str:
        """Return the name in `Compute.state`, after `parameters/` or `buffers/`, for a name that a wrapper of the model
        created.
        """
        return name

    @abstractmethod
    def read_weights(self, path: Path) -> dict[str, np.ndarray]:
        """Return the arrays of a file by name, to copy at once: they may be on a private mapping of the file. Runs no
        code of the file, for any file extension.

        Raises:
            StateError: the file is damaged, or holds anything other than named arrays.
        """

    @abstractmethod
    def write_weights(self, path: Path, arrays: Mapping[str, np.ndarray]) -> None:
        """Write named arrays into a new file with exactly this name, for any file extension."""


def plain_state(
    backend: Any, model: Any, current: Mapping[str, Any], saved: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return a state that was written while the model was wrapped, by its current names.

    Args:
        backend: Backend of the model.
        model: Model that the state is for.
        current: Mapping with the names of the model's own state.
        saved: The state, with that of an optimizer.
    """
    files = backend.capability(WeightFiles)
    if files is None:
        return dict(saved)
    renamed: dict[str, np.ndarray] = {}
    for name, array in saved.items():
        kind, _, rest = name.partition("/")
        _, _, parameter = rest.partition("/") if kind == "optimizer" else ("", "", rest)
        is_strange = f"parameters/{parameter}" not in current and name not in current
        plain = files.plain_name(model, parameter) if parameter and is_strange else parameter
        renamed[name.removesuffix(parameter) + plain] = array
    return renamed
