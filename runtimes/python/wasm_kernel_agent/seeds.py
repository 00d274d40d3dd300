"""What must differ between two sessions that begin from one base image."""

from __future__ import annotations

import logging
import random
import sys
import tempfile
import time
from typing import Any


def refresh() -> None:
    """Seed everything afresh that was seeded, or may have been, while the image was built."""
    random.seed()
    tempfile._name_sequence = None  # type: ignore[attr-defined]
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    uuid: Any = sys.modules.get("uuid")
    if uuid is not None:
        uuid._node = uuid._last_timestamp = None
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = random.SystemRandom().randbytes(32)
    if hasattr(logging, "_startTime"):
        now = time.time_ns() if isinstance(logging._startTime, int) else time.time()
        logging._startTime = now
