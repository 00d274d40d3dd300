"""The channel: bytes out, bytes in, within the protocol's limits."""

from __future__ import annotations

import pytest
from wasm_kernel_agent.display import Outbox
from wasm_kernel_agent.host import Channel, FrameTooLarge


def test_a_lone_surrogate_is_replaced() -> None:
    sent: list[bytes] = []
    Channel(lambda data: sent.append(data) or b"").send({"op": "\ud800"})  # type: ignore[func-returns-value]
    assert sent == [b'{"op":"?"}']


def test_a_frame_over_the_limit_is_not_sent() -> None:
    def call(data: bytes) -> bytes:
        raise AssertionError("it was sent")

    with pytest.raises(FrameTooLarge, match="64 MiB"):
        Channel(call).send({"op": "x" * (64 * 1024 * 1024)})


def test_a_refusal_is_told_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    Outbox(Channel(lambda data: b'{"refused":"too much"}')).send({"op": "clear_output"})
    assert capsys.readouterr().err == "[wasm-kernel] the output was refused: too much\n"
