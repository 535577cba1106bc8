"""EventFile: an event file in TensorBoard's format, written by TensorBoard's own `RecordWriter`.

Its public writers start a thread, import TensorFlow where it is installed, and may overwrite files.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_TENSOR, Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from anyaccel.errors import PhaseError


class EventFile:
    """A new event file in an existing folder. Every call flushes what it writes.

    Raises:
        OSError: the file cannot be made, or exists already.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"events.out.tfevents.{int(time.time()):010d}.anyaccel"
        self._file = self._path.open("xb")
        self._records = RecordWriter(self._file)
        try:
            self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        except BaseException:
            self.close()
            raise

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers of one step by tag, as float32.

        Raises:
            PhaseError: the file cannot be written any more.
        """
        self._add(step, (Summary.Value(tag=_utf8(tag), simple_value=value) for tag, value in values.items()))

    def text(self, tag: str, markdown: str, step: int = 0) -> None:
        """Write a text in Markdown.

        Raises:
            PhaseError: the file cannot be written any more.
        """
        tensor = TensorProto(
            dtype=DT_STRING,
            tensor_shape=TensorShapeProto(),
            string_val=[markdown.encode("utf-8", errors="replace")],
        )
        metadata = create_summary_metadata(display_name="", description="")
        metadata.data_class = DATA_CLASS_TENSOR
        self._add(step, [Summary.Value(tag=tag, tensor=tensor, metadata=metadata)])

    def close(self) -> None:
        """Close the file, even if flushing fails.

        Raises:
            PhaseError: the rest could not be written.
        """
        try:
            self._records.close()
        except OSError as error:
            raise self._error(error) from error

    def _add(self, step: int, values: Iterable[Any]) -> None:
        self._write(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def _write(self, event: Any) -> None:
        try:
            self._records.write(event.SerializeToString())
            self._records.flush()
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> PhaseError:
        return PhaseError(
            f"TensorBoard's file {str(self._path)!r} cannot be written any more: {error}",
            hint="free disk space, or log to another folder",
        )


def _utf8(tag: str) -> str:
    """A tag as valid UTF-8: users' labels may contain lone surrogates."""
    return tag.encode("utf-8", errors="replace").decode("utf-8")
