"""A cell's question to its user, over real sockets."""

from __future__ import annotations

import threading
import time
from typing import Any

import zmq
from jupyter_client.session import Session

from tests.faces import PATIENCE
from wasm_kernel.frontends.jupyter.channels import StdinChannel


def test_a_question_waits_for_a_client_that_connects_late() -> None:
    session = Session(key=b"secret")
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        answered = threading.Thread(target=_answer_late, args=(context, port, session))
        answered.start()
        channel = StdinChannel(router, session)
        until = time.monotonic() + PATIENCE
        said = channel.ask(
            "name?", False, parent={}, ident=b"me", interrupted=lambda: time.monotonic() > until
        )
        answered.join()
    assert said == "Ada"


def _answer_late(context: zmq.Context[Any], port: int, session: Session) -> None:
    time.sleep(0.2)
    with context.socket(zmq.DEALER) as client:
        client.linger = int(PATIENCE * 1000)
        client.identity = b"me"
        client.connect(f"tcp://127.0.0.1:{port}")
        if client.poll(PATIENCE * 1000):
            session.recv(client, 0)
            session.send(client, "input_reply", {"value": "Ada"})
