"""Outer contexts: TensorFlow's contexts of the caller, which a phase leaves: scopes of devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from anyaccel.adapter.outer_contexts import LeavesContexts, OuterContexts
from anyaccel.errors import PhaseError


class TensorFlowContexts(LeavesContexts):
    """Contexts of TensorFlow."""

    @contextmanager
    def leave_contexts(self) -> Iterator[OuterContexts]:
        """Leave scopes of devices."""
        if not tf.executing_eagerly():
            raise PhaseError(
                "a graph is computed inside a tf.function or a tf.Graph, which records operations instead of computing",
                hint="run it outside of the function",
            )
        with tf.device(None):
            yield OuterContexts()
