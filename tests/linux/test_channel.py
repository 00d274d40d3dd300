"""The channel between two processes of ours: whole messages in bounded memory."""

from __future__ import annotations

import signal
import socket
import threading
import tracemalloc
from contextlib import closing, suppress

import msgspec
import pytest

from wasm_kernel.errors import FrameError
from wasm_kernel.linux.broker import BrokerAnswer, EmptyReply
from wasm_kernel.linux.channel import FRAME_BYTES, FRAME_NODES, SPARE, Channel, read

MANY, LONG = b"[" + b"0," * 2 * FRAME_NODES + b"0]", b'"' + b"x" * FRAME_BYTES + b"x" * SPARE + b'"'


@pytest.mark.parametrize("data", [MANY, LONG], ids=["many values", "long"])
def test_a_message_that_would_take_too_much_memory_is_refused_unread(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with closing(Channel(ours)) as channel, closing(Channel(theirs)) as stranger:

        def send() -> None:
            with suppress(OSError):  # the other side does not read the message to its end
                stranger._write(data)

        sending = threading.Thread(target=send)
        sending.start()
        with pytest.raises(FrameError):
            channel.receive()
        channel.close()
        sending.join()


def test_a_message_that_comes_in_small_pieces_takes_no_more_memory_than_another() -> None:
    """Formerly, a message of 64 MiB that came byte by byte took gigabytes of memory."""
    size = 100_000
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps pieces apart

    def trickle() -> None:
        theirs.send(size.to_bytes(4))
        for _ in range(size // 2):
            theirs.send(b"ab")

    with theirs, closing(Channel(ours)) as channel:
        sending = threading.Thread(target=trickle)
        sending.start()
        tracemalloc.start()
        try:
            data = channel.receive()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        sending.join()
    assert data == b"ab" * (size // 2)
    assert peak < 5 * size


def test_a_line_that_is_closed_just_as_its_worker_is_asked_ends_nothing() -> None:
    """Formerly, `close` of a session could raise a ValueError."""
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    theirs.close()
    channel.close()
    assert not channel.send_at_once(EmptyReply())
    with pytest.raises(EOFError):
        channel.is_quiet(0)


def test_a_program_that_sigpipe_ends_outlives_its_workers() -> None:
    ours, theirs = socket.socketpair()
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        theirs.close()
        with closing(Channel(ours)) as channel, pytest.raises(BrokenPipeError):
            channel.send(EmptyReply())
    finally:
        signal.signal(signal.SIGPIPE, before)


@pytest.mark.parametrize("raw", [b"", b"\0,[{" * 2 * FRAME_NODES], ids=["none", "many marks"])
def test_bytes_pass_behind_the_json_as_they_are(raw: bytes) -> None:
    ours, theirs = socket.socketpair()
    with closing(Channel(ours)) as channel, closing(Channel(theirs)) as other:
        sent = BrokerAnswer(7, raw=raw)
        sending = threading.Thread(target=channel.send, args=(sent,))
        sending.start()
        data = other.receive()
        sending.join()
        assert read(data, msgspec.json.Decoder(BrokerAnswer).decode) == sent
        with pytest.raises(FrameError, match="larger"):
            channel.send(BrokerAnswer(8, raw=bytes(FRAME_BYTES + SPARE)))
