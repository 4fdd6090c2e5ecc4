"""What ``--json`` prints: one object a line."""

from __future__ import annotations

import json
from collections.abc import Mapping


def print_json(fields: Mapping[str, object]) -> None:
    """Print one JSON object, in ASCII: names of files need not be valid UTF-8."""
    print(json.dumps(fields, separators=(",", ":")))
