"""TensorFlowBackend: placement and every capability in one object."""

from __future__ import annotations

from typing import ClassVar

from anyaccel_tensorflow.compute import TensorFlowCompute
from anyaccel_tensorflow.exchange import TensorFlowExchange
from anyaccel_tensorflow.memory import TensorFlowMemory


class TensorFlowBackend(TensorFlowExchange, TensorFlowCompute, TensorFlowMemory):
    """TensorFlow and Keras on the kinds of device that TensorFlow itself serves. Making one does not import it.

    A chip that a plugin of TensorFlow's own (a PluggableDevice) adds is served by a subclass that says `kinds`, and
    where its word is another one `types` (see `TensorFlowPlacement`).
    """

    fork_safe = False  # TensorFlow keeps threads of its own, which a forked process lacks
    environment: ClassVar[tuple[str, ...]] = (
        "TF_FORCE_GPU_ALLOW_GROWTH",
        "TF_GPU_ALLOCATOR",
        "TF_XLA_FLAGS",
        "KERAS_BACKEND",
    )
