"""
What a pipeline remembers beside Spark's checkpoint: ``logstore-pipeline.json`` in its directory.

The id tells its output from that of another pipeline into the same place. The schema is the one
that its input had when it first ran: one that is inferred anew each time would change with the
files.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final, Self

from logstore.files import REAL_FILES
from logstore.log import make_directory
from logstore.spark.errors import SparkSourceError

STATE_FILE: Final = "logstore-pipeline.json"
KINDS: Final = ("ingest", "export", "table export")


@dataclass(frozen=True, slots=True)
class PipelineState:
    """
    What stays the same from run to run.

    Attributes:
        kind: Of :data:`KINDS`.
        pipeline_id: 8 hexadecimal digits, drawn at the first run.
        topic: What it writes or reads.
        schema: Of its input, as Spark's JSON; None: it needs none.
    """

    kind: str
    pipeline_id: str
    topic: str
    schema: str | None = None

    @classmethod
    def of(cls, checkpoint: str, kind: str, topic: str, schema: Callable[[], str | None]) -> Self:
        """
        Return what a checkpoint's directory remembers; a new one is there after :meth:`keep`.

        Args:
            checkpoint: The directory.
            kind: Of :data:`KINDS`.
            topic: As above.
            schema: Asked at the first run.

        Raises:
            SparkSourceError: PIPELINE_CHECKPOINT: it is another pipeline's, or damaged.
        """
        assert kind in KINDS
        path = os.path.join(checkpoint, STATE_FILE)
        if not REAL_FILES.exists(path):
            return cls(kind, uuid.uuid4().hex[:8], topic, schema())
        try:
            state = cls(**json.loads(REAL_FILES.read_file(path)))
        except (TypeError, ValueError) as error:
            raise SparkSourceError(
                "PIPELINE_CHECKPOINT", f"{path} is damaged ({error}); use another checkpoint"
            ) from error
        if (state.kind, state.topic) != (kind, topic):
            raise SparkSourceError(
                "PIPELINE_CHECKPOINT",
                f"{checkpoint} is the checkpoint of the {state.kind} of {state.topic}; use another"
                f" one for the {kind} of {topic}",
            )
        return state

    def keep(self, checkpoint: str) -> None:
        """
        Have a checkpoint's directory remember this, durably; it is made if it is missing.

        Not before what was given is known to be right: a wrong schema would stay.
        """
        make_directory(checkpoint, REAL_FILES)
        REAL_FILES.replace_file(
            os.path.join(checkpoint, STATE_FILE), json.dumps(asdict(self)).encode()
        )


def local_path(path: str | os.PathLike[str]) -> str:
    """Return a path absolute and without links: Spark's processes have other directories."""
    return os.path.realpath(os.path.expanduser(os.fspath(path)))
