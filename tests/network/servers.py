"""Local servers of HTTP and HTTPS for the tests of the network, and a CA of their own."""

from __future__ import annotations

import contextlib
import datetime
import gzip
import json
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from wasm_kernel.network_rules import NetworkRule

_PIECE = 64 * 1024
_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
DROPPED = {  # answers with a text in parts that are not passed on
    "early": b"HTTP/1.1 103 $\r\nLink: $\r\n$: $\r\n\r\n" + _CHUNKED + b"0\r\n\r\n",
    "switch": b"HTTP/1.1 101 $\r\nUpgrade: $\r\nConnection: upgrade\r\n\r\n",
    "extension": _CHUNKED + b"2;x=$\r\nab\r\n0;$\r\n\r\n",
    "trailer": _CHUNKED + b"2\r\nab\r\n0\r\nX: $\r\n$: $\r\n\r\n",
}


class Handler(BaseHTTPRequestHandler):
    """Answers by the path, and notes each request in its server's `seen`."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        parts = self.path.partition("?")[0].split("/")
        self.server.seen.append((self.command, self.path, self.headers.items()))
        answer = getattr(self, f"answer_{parts[1]}", None)
        if answer is None:
            return self.send(json.dumps(dict(self.headers.items())).encode())
        with contextlib.suppress(OSError):  # the client may leave
            answer(*parts[2:])
        return None

    def do_PUT(self) -> None:
        """Refuses, and reads no body."""
        self.close_connection = True
        self.send(b"too large", 413, Connection="close")

    def do_POST(self) -> None:
        size = sum(map(len, self._body()))
        self.send(str(size).encode())

    def _body(self) -> Iterator[bytes]:
        left = int(self.headers.get("Content-Length") or 0)
        while left and (data := self.rfile.read(min(left, _PIECE))):  # the client may leave
            left -= len(data)
            yield data
        while "Transfer-Encoding" in self.headers:
            size = int(self.rfile.readline(), 16)
            yield self.rfile.read(size)
            self.rfile.readline()
            if not size:
                return

    def begin(self, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def send(self, data: bytes, status: int = 200, **headers: str) -> None:
        self.begin(status, Content_Length=str(len(data)), **headers)
        self.wfile.write(data)

    def send_chunks(self, chunks: Iterable[bytes], **headers: str) -> None:
        self.begin(200, Transfer_Encoding="chunked", **headers)
        for chunk in chunks:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        self.wfile.write(b"0\r\n\r\n")

    def answer_csv(self) -> None:
        self.send(b"a,b\n1,2\n3,4\n")

    def answer_zeros(self, size: str) -> None:
        self.begin(Content_Length=size)
        for _ in range(int(size) // _PIECE):
            self.wfile.write(bytes(_PIECE))
        self.wfile.write(bytes(int(size) % _PIECE))

    def answer_status(self, status: str) -> None:
        self.send(b"", int(status))

    def answer_slow(self, seconds: str) -> None:
        time.sleep(float(seconds))
        self.send(b"slow")

    def answer_chunks(self, count: str) -> None:
        def hellos() -> Iterator[bytes]:
            for _ in range(int(count)):
                yield b"hello"
                time.sleep(0.01)

        self.send_chunks(hellos())

    def answer_count(self) -> None:
        """Answers each request differently."""
        self.send(str(len(self.server.seen)).encode())

    def answer_gzip(self) -> None:
        """Answers in chunks of a compressed text."""
        data = gzip.compress(b"hello " * 100)
        parts = (data[start : start + 7] for start in range(0, len(data), 7))
        self.send_chunks(parts, Content_Encoding="gzip")

    def answer_tell(self, kind: str) -> None:
        """Repeats the secret of a request in some way."""
        kept = self.server.kept
        kept += self.headers.get("Authorization", "").split()[1:2]
        told = self.path.partition("key=")[2] if kind == "query" else kept[-1]
        if kind in ("header", "name", "reason", "line"):
            head = {"header": f"X: {told}", "name": f"{told}: x", "line": f"{told} {told}"}
            reason = told if kind == "reason" else "OK"
            lines = [f"HTTP/1.1 200 {reason}", head.get(kind, "X: x"), "Content-Length: 0", "", ""]
            self.wfile.write("\r\n".join(lines).encode())
        elif kind in DROPPED:
            self.wfile.write(DROPPED[kind].replace(b"$", told.encode()))
        elif kind == "pieces":
            self.send_chunks(letter.encode() for letter in f"a{told}b")
        else:
            self.send((json.dumps(told) if kind == "json" else told).encode())

    def answer_reset(self) -> None:
        """Resets the connection."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())

    def answer_cut(self) -> None:
        self.close_connection = True
        self.begin(Content_Length="1000")
        self.wfile.write(b"a,b")

    def answer_to(self, *_: str) -> None:
        self.send(b"", 302, Location=self.path.partition("?")[2])

    def answer_echo(self, *_: str) -> None:
        self.send(json.dumps(self.headers.items()).encode())


class Server(ThreadingHTTPServer):
    """A server on localhost; `seen` holds its requests, `connections` counts those to it."""

    daemon_threads = True
    request_queue_size = 100

    def __init__(
        self, context: ssl.SSLContext | None = None, handler: type[Handler] = Handler
    ) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.seen: list[Any] = []
        self.kept: list[str] = []
        self.connections = 0
        self.port = self.server_address[1]
        scheme = "http"
        if context is not None:
            scheme = "https"
            self.socket = context.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )
        self.url = f"{scheme}://localhost:{self.port}"

    def get_request(self) -> tuple[socket.socket, Any]:
        self.connections += 1
        return super().get_request()

    def handle_error(self, *_: Any) -> None:
        """Says nothing: clients leave."""


def rule_for(server: Server) -> NetworkRule:
    """Returns the rule that allows a server of HTTP."""
    return NetworkRule("localhost", schemes=("http",), ports=(server.port,))


@contextlib.contextmanager
def serving(
    context: ssl.SSLContext | None = None, handler: type[Handler] = Handler
) -> Iterator[Server]:
    """Runs a server on a thread."""
    with Server(context, handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def tls(folder: Path, names: Sequence[str] = ("localhost",)) -> ssl.SSLContext:
    """Returns the settings of a server for some names; the CA is `ca.pem` in the folder."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca = _certificate(["CA"], "CA", ca_key, ca_key.public_key())
    own = _certificate(names, "CA", ca_key, key.public_key())
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(ca.public_bytes(pem))
    plain = serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    (folder / "own.pem").write_bytes(own.public_bytes(pem) + private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "own.pem")
    return context


def _certificate(
    subjects: Sequence[str],
    issuer: str,
    signer: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePublicKey,
) -> x509.Certificate:
    """Returns a certificate with all that Python 3.13 and later ask for."""
    now, is_ca = datetime.datetime.now(datetime.UTC), subjects[0] == issuer
    both = (subjects[0], issuer)
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, n)]) for n in both]
    return (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(is_ca, None), critical=True)
        .add_extension(x509.SubjectAlternativeName([*map(x509.DNSName, subjects)]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .add_extension(_usage(is_ca=is_ca), critical=True)
        .sign(signer, hashes.SHA256())
    )


def _usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
