"""Reseeds random generators, and random names, of sessions that begin from the same memory.

Two sessions begin from one base image, and a fork begins from its parent's memory.
"""

from __future__ import annotations

import _random
import _thread
import contextlib
import gc
import logging
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

_SEED_BYTES = 32
_UUID_STATE = ("_node", "_last_timestamp", "_last_timestamp_v6", "_last_timestamp_v7")
_HEAP_TYPE = 1 << 9
_global: Any = vars(random)["_inst"]


def reseed(*, everything: bool = False) -> None:
    """Reseeds everything that would give the same numbers or names as in another session.

    If a cell broke a part, the others are still reseeded.

    Args:
        everything: Also reseed generators that cells made for themselves, seeded or not.
    """
    steps: list[Callable[[], None]] = [
        partial(_reseed, _global),
        _reseed_numpy,
        _forget_names,
        _reseed_process,
    ]
    for step in [*steps, _reseed_generators] if everything else steps:
        with contextlib.suppress(Exception):
            step()


def _reseed(generator: Any) -> None:
    """Reseeds like `Random.seed`, whatever a subclass or a cell put in its place."""
    _random.Random.seed(generator, int.from_bytes(os.urandom(_SEED_BYTES), "little"))
    object.__setattr__(generator, "gauss_next", None)


def _reseed_numpy() -> None:
    random_states: Any = sys.modules.get("numpy.random.mtrand")
    if random_states is not None:
        _reseed_bits(random_states._rand._bit_generator)
        _forget_gauss(random_states._rand)


def _forget_names() -> None:
    """Forgets names of temporary files, and the parts of UUIDs that are not random."""
    tempfile._name_sequence = None  # type: ignore[attr-defined]
    uuid: Any = sys.modules.get("uuid")
    for name in _UUID_STATE:
        if hasattr(uuid, name):
            setattr(uuid, name, None)
    if hasattr(uuid, "_last_counter_v7"):
        uuid._last_counter_v7 = 0


def _reseed_process() -> None:
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(_SEED_BYTES)
    if hasattr(logging, "_startTime"):
        now = time.time_ns() if isinstance(logging._startTime, int) else time.time()
        logging._startTime = now


def _reseed_generators() -> None:
    for one in _living_generators():
        with contextlib.suppress(Exception):
            if issubclass(type(one), random.Random):
                _reseed(one)
            elif type(one).__name__ == "RandomState":
                _forget_gauss(one)
            else:
                _reseed_bits(one)


def _living_generators() -> Iterator[Any]:
    """The generators that are alive.

    `gc.get_objects` would take a reference to every object, and so write to every page. A search
    for the objects that refer to a few things only reads: a `Random` refers to its class, numpy's
    bit generators and `RandomState`s to a lock of their own.
    """
    bits: Any = sys.modules.get("numpy.random.bit_generator")
    states: Any = sys.modules.get("numpy.random.mtrand")
    lock = _thread.RLock  # numpy's hook gives them such locks
    kinds = _subclasses(random.Random)
    near = gc.get_referrers(*kinds, *([lock] if bits is not None else []))
    yield from (one for one in near if _is_random(one))
    locks = [one for one in near if type(one) is lock]
    if bits is None or not locks:
        return
    owners = gc.get_referrers(*locks)
    yield from (one for one in owners if issubclass(type(one), bits.BitGenerator))
    yield from (one for one in owners if type(one) is states.RandomState)


def _is_random(one: Any) -> bool:
    kind = type(one)
    return issubclass(kind, random.Random) and not issubclass(kind, random.SystemRandom)


def _subclasses(kind: type) -> list[type]:
    found = [kind]
    for one in found:
        below: list[type] = type.__subclasses__(one)
        found += [each for each in below if each not in found]
    return found


def _reseed_bits(generator: Any) -> None:
    """Gives a numpy bit generator a fresh seed, with children of its own."""
    kind: Any = next(kind for kind in type(generator).__mro__ if not kind.__flags__ & _HEAP_TYPE)
    kind.__setstate__(generator, kind().__getstate__())


def _forget_gauss(state: Any) -> None:
    """Drops the second of a pair of normal numbers that a `RandomState` keeps."""
    known = state.get_state(legacy=False)
    state.set_state({**known, "has_gauss": 0, "gauss": 0.0})
