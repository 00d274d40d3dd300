"""scikit-learn's sampling without replacement, which its compiled code can't do here.

That code asks numpy for `dtype=int` and takes the answer for an array of `long`. The two have the
same width on all other systems, but not here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def sample_in_python(module: ModuleType) -> None:
    """Replaces a function of `sklearn.utils._random`; the drawn numbers are the same."""
    changed: Any = module
    changed.sample_without_replacement = sample_without_replacement


def sample_without_replacement(
    n_population: int, n_samples: int, method: str = "auto", random_state: Any = None
) -> Any:
    """Samples integers of `[0, n_population)` without replacement.

    Args:
        n_population: The size of the set to sample from.
        n_samples: The number of integers to sample.
        method: `auto`, `tracking_selection`, `reservoir_sampling` or `pool`, as scikit-learn's
            documentation describes them.
        random_state: A seed, a `RandomState`, or None for `np.random`.
    """
    n_population, n_samples = int(n_population), int(n_samples)
    _check(n_population, n_samples)
    loaded: Any = sys.modules
    random = loaded["sklearn.utils.validation"].check_random_state(random_state)
    ratio = n_samples / n_population if n_population else 1.0
    if method == "auto" and 0.01 < ratio < 0.99:
        return random.permutation(n_population)[:n_samples]
    if method == "auto":
        method = "tracking_selection"
    if method == "tracking_selection" and ratio >= 0.2:
        method = "reservoir_sampling"
    if method not in _METHODS:
        raise ValueError(f"Expected a method name in {('auto', *_METHODS)}, got {method}. ")
    chosen = _METHODS[method](random.randint, n_population, n_samples)
    return loaded["numpy"].array(chosen, dtype=int)


def _check(n_population: int, n_samples: int) -> None:
    if n_samples < 0:
        raise ValueError("negative dimensions are not allowed")
    if n_population < 0:
        raise ValueError(f"n_population should be greater than 0, got {n_population}.")
    if n_samples > n_population:
        raise ValueError(
            "n_population should be greater or equal than n_samples, "
            f"got n_samples > n_population ({n_samples} > {n_population})"
        )


def _tracked(draw: Callable[..., int], n_population: int, n_samples: int) -> list[int]:
    chosen: dict[int, None] = {}
    for _ in range(n_samples):
        number = int(draw(n_population))
        while number in chosen:
            number = int(draw(n_population))
        chosen[number] = None
    return list(chosen)


def _reservoir(draw: Callable[..., int], n_population: int, n_samples: int) -> list[int]:
    chosen = list(range(n_samples))
    for number in range(n_samples, n_population):
        place = draw(0, number + 1)
        if place < n_samples:
            chosen[place] = number
    return chosen


def _pooled(draw: Callable[..., int], n_population: int, n_samples: int) -> list[int]:
    pool, chosen = list(range(n_population)), []
    for count in range(n_samples):
        place = draw(n_population - count)
        chosen.append(pool[place])
        pool[place] = pool[n_population - count - 1]
    return chosen


_METHODS = {
    "tracking_selection": _tracked,
    "reservoir_sampling": _reservoir,
    "pool": _pooled,
}
