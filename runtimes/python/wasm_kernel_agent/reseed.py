"""What must differ between two sessions that begin from one memory: a base image, or a fork's."""

from __future__ import annotations

import _random
import contextlib
import gc
import logging
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

_SEED_BYTES = 32
_UUID_STATE = ("_node", "_last_timestamp", "_last_timestamp_v6", "_last_timestamp_v7")
_HEAP_TYPE = 1 << 9
_global: Any = vars(random)["_inst"]


def refresh(*, everything: bool = False) -> None:
    """Seed afresh whatever would give the same numbers or names as in another session.

    What a cell broke keeps nothing else from it.

    Args:
        everything: Generators that cells made for themselves, too, seeded or not.
    """
    steps: list[Callable[[], None]] = [_modules, _numpy, _names, _process]
    for step in [*steps, _generators] if everything else steps:
        with contextlib.suppress(Exception):
            step()


def _seed() -> int:
    return int.from_bytes(os.urandom(_SEED_BYTES), "little")


def _modules() -> None:
    _reseed(_global)


def _reseed(one: Any) -> None:
    """As `Random.seed` does it, whatever a subclass or a cell put in its place."""
    _random.Random.seed(one, _seed())
    object.__setattr__(one, "gauss_next", None)


def _numpy() -> None:
    random_states: Any = sys.modules.get("numpy.random.mtrand")
    if random_states is not None:
        _reseed_bits(random_states._rand._bit_generator)
        _forget_gauss(random_states._rand)


def _names() -> None:
    """Names of temporary files, and what UUIDs are made of besides chance."""
    tempfile._name_sequence = None  # type: ignore[attr-defined]
    uuid: Any = sys.modules.get("uuid")
    for name in _UUID_STATE:
        if hasattr(uuid, name):
            setattr(uuid, name, None)
    if hasattr(uuid, "_last_counter_v7"):
        uuid._last_counter_v7 = 0


def _process() -> None:
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(_SEED_BYTES)
    if hasattr(logging, "_startTime"):
        now = time.time_ns() if isinstance(logging._startTime, int) else time.time()
        logging._startTime = now


def _generators() -> None:
    for one in _found():
        with contextlib.suppress(Exception):
            if issubclass(type(one), random.Random):
                _reseed(one)
            elif type(one).__name__ == "RandomState":
                _forget_gauss(one)
            else:
                _reseed_bits(one)


def _found() -> Iterator[Any]:
    """The generators that are alive.

    `gc.get_objects` would take a reference to every object, and so write to every page. A look for
    who refers to a few things only reads: a `Random` refers to its class, numpy's bit generators
    and `RandomState`s to a lock of their own.
    """
    bits: Any = sys.modules.get("numpy.random.bit_generator")
    states: Any = sys.modules.get("numpy.random.mtrand")
    lock = type(threading.RLock())
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


def _reseed_bits(one: Any) -> None:
    """A numpy bit generator goes on from a fresh seed, with children of its own."""
    kind: Any = next(kind for kind in type(one).__mro__ if not kind.__flags__ & _HEAP_TYPE)
    kind.__setstate__(one, kind().__getstate__())


def _forget_gauss(state: Any) -> None:
    """A `RandomState` drops the second of a pair of normal numbers that it kept."""
    known = state.get_state(legacy=False)
    state.set_state({**known, "has_gauss": 0, "gauss": 0.0})
