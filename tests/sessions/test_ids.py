"""Session ids."""

from __future__ import annotations

import pytest

from tests.faces import A_UUID
from wasm_kernel.sessions import ids


@pytest.mark.parametrize("text", ["abc-123", "A", "7", A_UUID, "a" * ids.ID_LENGTH])
def test_letters_digits_and_hyphens_make_an_id(text: str) -> None:
    assert ids.checked(text) == text


@pytest.mark.parametrize(
    "text", ["", "..", "../x", "a/b", "a\\b", "-x", "a b", "a\n", "\u00e9", "a" * 65, "a\0", "a."]
)
def test_anything_else_does_not(text: str) -> None:
    with pytest.raises(ids.SessionIdError):
        ids.checked(text)


def test_a_derived_id_depends_on_every_part_and_its_place() -> None:
    assert ids.derived(b"a", b"b") == ids.derived(b"a", b"b")
    assert len({ids.derived(b"a", b"b"), ids.derived(b"b", b"a"), ids.derived(b"ab", b"")}) == 3
    assert ids.uuid_in(ids.derived(b"a")) is not None
