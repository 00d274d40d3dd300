"""Two sessions that begin from the same memory differ in random numbers, ids and names."""

from __future__ import annotations

import json
from collections import Counter

from tests.attacks.conftest import Making, Victim

DRAWS = """
import json, os, random, secrets, sqlite3, tempfile, uuid
import numpy as np
from multiprocessing.process import current_process
def draws():
    return {
        "random": random.random(),
        "gauss": random.gauss(),
        "system": random.SystemRandom().random(),
        "numpy": np.random.random(),
        "numpy normal": np.random.standard_normal(),
        "numpy generator": np.random.default_rng().random(),
        "urandom": os.urandom(8).hex(),
        "secrets": secrets.token_hex(),
        "uuid1": str(uuid.uuid1())[-17:],
        "uuid4": str(uuid.uuid4()),
        "uuid7": str(uuid.uuid7())[-21:],
        "sqlite": sqlite3.connect(":memory:").execute("select random()").fetchone()[0],
        "temporary": tempfile.mktemp(),
        "authkey": current_process().authkey.hex(),
    }
"""
SHOW = "print(json.dumps(draws()))"


def drawn(victim: Victim, code: str = SHOW) -> dict[str, object]:
    found: dict[str, object] = json.loads(victim.says(code))
    return found


def repeated(draws: list[dict[str, object]]) -> set[str]:
    """The values that are equal in any two of them."""
    return {name for name in draws[0] if max(Counter(str(one[name]) for one in draws).values()) > 1}


def test_case_29_two_sessions_draw_different_numbers_ids_and_names(fresh_victim_of: Making) -> None:
    victims = [fresh_victim_of(name) for name in ("first", "second", "third")]
    assert repeated([drawn(victim, DRAWS + SHOW) for victim in victims]) == set()
