"""Which code this process may run: nothing that it could not stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.tiny import Guest
from wasm_kernel.engine.flavours import FLAVOURS, THIS_PROCESS, Flavour

WITHOUT_EPOCHS = [flavour for flavour in FLAVOURS.values() if not flavour.epochs]


@pytest.mark.parametrize("flavour", WITHOUT_EPOCHS, ids=lambda flavour: flavour.name)
def test_a_process_that_must_live_on_runs_nothing_that_it_could_not_stop(
    flavour: Flavour, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match="nobody may kill"):
        Guest(tmp_path, flavour=flavour)


@pytest.mark.parametrize("metered", [False, True])
def test_such_a_process_chooses_what_it_can_stop(metered: bool) -> None:
    chosen = THIS_PROCESS.flavour(metered=metered)
    assert (chosen.epochs, chosen.fuel) == (True, metered)
