"""TensorBoard's file of events, written update by update.

TensorBoard's own writer keeps events in memory for up to two minutes, in a thread that dies of a full disk; so a killed
run would lack the last ones, though the checkpoint says that they are there. Here each update is one whole piece.
"""

from __future__ import annotations

import io
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from movelist.run.growing_file import GrowingFile


class Events:
    """Scalars and texts for TensorBoard.

    Args:
        folder: Gets a new file.
        after: The step that a resumed run goes on from: TensorBoard forgets what came later.

    Raises:
        OSError: The folder cannot be made.
    """

    def __init__(self, folder: Path, after: int | None) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2  # some time to import, so only where it is wanted

        self._event, self._summary = event_pb2, summary_pb2
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names, and a run may be resumed within the same second.
        seconds, rest = divmod(time.time_ns(), 10**9)
        name = f"events.out.tfevents.{seconds:010d}.{rest:09d}.{socket.gethostname()}.{os.getpid()}"
        self._file = GrowingFile(folder / name)
        self._pieces = [self._piece(file_version="brain.Event:2")]
        if after is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._pieces.append(self._piece(step=after + 1, session_log=start))

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the numbers of one update.

        Raises:
            OSError: The disk is full; they wait for the next call.
        """
        values = [self._summary.Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()]
        pieces = [*self._pieces, self._piece(step=step, summary=self._summary.Summary(value=values))]
        self._pieces = []
        self._file.add(b"".join(pieces))

    def add_text(self, step: int, tag: str, text: str) -> None:
        """Write a text in markdown, for TensorBoard's page of texts.

        Raises:
            OSError: The disk is full; it waits for the next call.
        """
        from tensorboard.compat.proto import tensor_pb2, tensor_shape_pb2, types_pb2

        metadata = self._summary.SummaryMetadata(
            plugin_data=self._summary.SummaryMetadata.PluginData(plugin_name="text")
        )
        shape = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])
        tensor = tensor_pb2.TensorProto(
            dtype=types_pb2.DT_STRING, tensor_shape=shape, string_val=[text.encode("utf-8")]
        )
        value = self._summary.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)
        pieces = [*self._pieces, self._piece(step=step, summary=self._summary.Summary(value=[value]))]
        self._pieces = []
        self._file.add(b"".join(pieces))

    def finish(self) -> None:
        """As `GrowingFile.finish`."""
        self._file.finish()

    def _piece(self, **fields: Any) -> bytes:
        """An event with its length and check sums around it."""
        from tensorboard.summary.writer.record_writer import RecordWriter

        framed = io.BytesIO()
        RecordWriter(framed).write(self._event.Event(wall_time=time.time(), **fields).SerializeToString())
        return framed.getvalue()
