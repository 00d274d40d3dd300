"""The part of OpenSSL that `ssl` needs, for a guest without sockets.

Packages that use the network import `ssl` and make a context long before they connect. Nothing here
encrypts. If the sandbox has a network, the host makes the secure connection and checks the
certificate (`network.py`); if it has none, the connection fails, and its error says why.
"""

from __future__ import annotations

import errno
import os
from typing import Any, NoReturn

OPENSSL_VERSION = "OpenSSL 3.0.0 (a stand-in: nothing is encrypted in the sandbox)"
OPENSSL_VERSION_NUMBER = 0x30000000
OPENSSL_VERSION_INFO = _OPENSSL_API_VERSION = (3, 0, 0, 0, 0)
_DEFAULT_CIPHERS = "DEFAULT"
_NUMBERS = """
HAS_SNI 1 HAS_ECDH 1 HAS_NPN 0 HAS_ALPN 1 HAS_SSLv2 0 HAS_SSLv3 0 HAS_TLSv1 0 HAS_TLSv1_1 0
HAS_TLSv1_2 1 HAS_TLSv1_3 1 HAS_PSK 0 HAS_PSK_TLS13 0 HAS_PHA 0 PROTOCOL_TLS 2 PROTOCOL_TLSv1 3
PROTOCOL_TLSv1_1 4 PROTOCOL_TLSv1_2 5 PROTOCOL_TLS_CLIENT 16 PROTOCOL_TLS_SERVER 17
PROTO_MINIMUM_SUPPORTED -2 PROTO_MAXIMUM_SUPPORTED -1 PROTO_SSLv3 768 PROTO_TLSv1 769
PROTO_TLSv1_1 770 PROTO_TLSv1_2 771 PROTO_TLSv1_3 772 OP_ALL 2147483728 OP_NO_SSLv2 0
OP_NO_SSLv3 33554432 OP_NO_TLSv1 67108864 OP_NO_TLSv1_1 268435456 OP_NO_TLSv1_2 134217728
OP_NO_TLSv1_3 536870912 OP_CIPHER_SERVER_PREFERENCE 4194304 OP_SINGLE_DH_USE 0
OP_SINGLE_ECDH_USE 0 OP_NO_TICKET 16384 OP_NO_COMPRESSION 131072 OP_NO_RENEGOTIATION 1073741824
OP_ENABLE_MIDDLEBOX_COMPAT 1048576 OP_IGNORE_UNEXPECTED_EOF 128 OP_ENABLE_KTLS 8
OP_LEGACY_SERVER_CONNECT 4 SSL_ERROR_SSL 1 SSL_ERROR_WANT_READ 2 SSL_ERROR_WANT_WRITE 3
SSL_ERROR_WANT_X509_LOOKUP 4 SSL_ERROR_SYSCALL 5 SSL_ERROR_ZERO_RETURN 6 SSL_ERROR_WANT_CONNECT 7
SSL_ERROR_EOF 8 SSL_ERROR_INVALID_ERROR_CODE 10
VERIFY_DEFAULT 0 VERIFY_CRL_CHECK_LEAF 4 VERIFY_CRL_CHECK_CHAIN 12 VERIFY_X509_STRICT 32
VERIFY_ALLOW_PROXY_CERTS 64 VERIFY_X509_TRUSTED_FIRST 32768 VERIFY_X509_PARTIAL_CHAIN 524288
"""
HOSTFLAG_NEVER_CHECK_SUBJECT = 0x20
CERT_NONE, CERT_OPTIONAL, CERT_REQUIRED = range(3)
_words = _NUMBERS.split()
globals().update(zip(_words[::2], map(int, _words[1::2]), strict=True))


class SSLError(OSError):
    """An error of a secure connection."""

    library = reason = ""


class SSLZeroReturnError(SSLError):
    """A secure connection was closed."""


class SSLWantReadError(SSLError):
    """A secure connection waits to read."""


class SSLWantWriteError(SSLError):
    """A secure connection waits to write."""


class SSLSyscallError(SSLError):
    """A system call of a secure connection failed."""


class SSLEOFError(SSLError):
    """A secure connection ended."""


class SSLCertVerificationError(SSLError, ValueError):
    """A certificate could not be verified."""


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.ENETUNREACH, "the sandbox has no network, and no secure connections")


class _Setting:
    """A setting of a context, which only its owner reads."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, context: Any, owner: type | None = None) -> Any:
        return self if context is None else vars(context).get(f" {self._name}", self._value)

    def __set__(self, context: Any, value: Any) -> None:
        vars(context)[f" {self._name}"] = value


class _SSLContext:
    """The settings of a connection that is never made."""

    options = _Setting(0)
    verify_flags = _Setting(0)
    verify_mode = _Setting(0)
    minimum_version = _Setting(-2)
    maximum_version = _Setting(-1)
    check_hostname = _Setting(False)
    post_handshake_auth = _Setting(False)
    keylog_filename = _Setting(None)
    num_tickets = _Setting(2)
    security_level = _Setting(2)
    sni_callback = _Setting(None)
    _host_flags = _Setting(0)
    _msg_callback = _Setting(None)

    def __new__(cls, protocol: int = 2) -> Any:
        made = super().__new__(cls)
        vars(made)["protocol"] = protocol
        return made

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Accepts arguments that only a connection would use."""

    set_ciphers = set_ciphersuites = set_groups = set_ecdh_curve = load_dh_params = _nothing
    set_client_sigalgs = set_server_sigalgs = _set_alpn_protocols = _nothing
    load_cert_chain = load_verify_locations = set_default_verify_paths = _nothing
    set_psk_client_callback = set_psk_server_callback = _nothing
    _wrap_socket = staticmethod(_refuse)

    def _wrap_bio(
        self,
        incoming: MemoryBIO,
        outgoing: MemoryBIO,
        server_side: bool = False,
        server_hostname: str | None = None,
        *,
        owner: Any = None,
        session: Any = None,
    ) -> _PlainConnection:
        if server_side:
            _refuse()
        return _PlainConnection(self, incoming, outgoing, server_hostname, owner)

    def get_ciphers(self) -> list[Any]:
        """Returns no ciphers."""
        return []

    def get_ca_certs(self, binary_form: bool = False) -> list[Any]:
        """Returns no certificates."""
        return []

    def cert_store_stats(self) -> dict[str, int]:
        """Returns no certificates."""
        return {"x509": 0, "crl": 0, "x509_ca": 0}


SECURE: bytes = b"\x16wasm-kernel: secure, please: "
"""The first bytes from `ssl` to the socket of a secure connection; a name and a line end follow."""

_CIPHER = ("TLS_AES_256_GCM_SHA384", "TLSv1.3", 256)


class MemoryBIO:
    """A buffer between a secure connection and the code that sends its bytes."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._ended = False

    def read(self, size: int = -1) -> bytes:
        """Takes bytes out."""
        size = len(self._data) if size is None or size < 0 else size
        taken = bytes(self._data[:size])
        del self._data[:size]
        return taken

    def write(self, data: Any) -> int:
        """Puts bytes in."""
        if self._ended:
            raise SSLError("cannot write() after write_eof()")
        self._data += data
        return len(data)

    def write_eof(self) -> None:
        """Notes that no bytes come any more."""
        self._ended = True

    @property
    def pending(self) -> int:
        """The number of bytes in the buffer."""
        return len(self._data)

    @property
    def eof(self) -> bool:
        """True if the buffer is empty, and no bytes come any more."""
        return self._ended and not self._data


class SecureFacts:
    """The facts of a secure connection, which the host has made, as far as clients look at them."""

    session = None
    session_reused = False
    server_side = False

    def __init__(self, name: str | None) -> None:
        self.server_hostname = name

    def getpeercert(self, binary_form: bool = False) -> Any:
        """Returns a certificate for the name, which the host has checked."""
        name = self.server_hostname or ""
        return b"" if binary_form else {"subjectAltName": (("DNS", name),)}

    selected_alpn_protocol = staticmethod(lambda: "http/1.1")
    selected_npn_protocol = compression = staticmethod(lambda: None)
    cipher = staticmethod(lambda: _CIPHER)
    version = staticmethod(lambda: _CIPHER[1])


class _PlainConnection(SecureFacts):
    """A secure connection over two buffers: the bytes pass as they are.

    The first bytes ask the socket for a secure connection between the host and the server.
    """

    def __init__(
        self, context: Any, incoming: MemoryBIO, outgoing: MemoryBIO, name: str | None, owner: Any
    ) -> None:
        super().__init__(name)
        self.context, self.owner = context, owner
        self._in, self._out = incoming, outgoing
        self._began = False

    def do_handshake(self) -> None:
        """Asks for the secure connection."""
        if not self._began:
            self._began = True
            self._out.write(SECURE + (self.server_hostname or "").encode("idna") + b"\n")

    def read(self, size: int = 1024, buffer: Any = None) -> Any:
        """Returns bytes, or puts them into a buffer."""
        if not self._in.pending:
            if not self._in.eof:
                raise SSLWantReadError(2, "The operation did not complete (read)")
            return b"" if buffer is None else 0
        data = self._in.read(size if buffer is None else min(size or len(buffer), len(buffer)))
        if buffer is None:
            return data
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        """Sends bytes."""
        return self._out.write(data)

    def pending(self) -> int:
        """Returns how many bytes can be read at once."""
        return self._in.pending

    def shutdown(self) -> None:
        """Ends the connection."""

    @staticmethod
    def get_verified_chain() -> list[Any]:
        """Returns no certificates: the host has them."""
        return []

    get_unverified_chain = get_verified_chain
    shared_ciphers = get_channel_binding = staticmethod(lambda *_: None)


class SSLSession:
    """A session of a connection, which can't be made."""

    __init__ = _refuse


def get_default_verify_paths() -> tuple[str, str, str, str]:
    """Returns no paths, since there are no certificates."""
    return "SSL_CERT_FILE", "", "SSL_CERT_DIR", ""


def get_sigalgs() -> list[str]:
    """Returns no algorithms."""
    return []


def txt2obj(txt: str, **_: Any) -> tuple[int, str, str, str]:
    """The two purposes of certificates that `ssl` names; others are not known."""
    known = {"1.3.6.1.5.5.7.3.1": (129, "serverAuth", "TLS Web Server Authentication")}
    known["1.3.6.1.5.5.7.3.2"] = (130, "clientAuth", "TLS Web Client Authentication")
    if txt not in known:
        raise ValueError(f"unknown object {txt!r:.100}")
    number, short, long = known[txt]
    return number, short, long, txt


def nid2obj(nid: int) -> NoReturn:
    """Returns nothing, since objects have no numbers here."""
    raise ValueError(f"unknown NID {nid}")


RAND_bytes = os.urandom


def RAND_status() -> bool:  # noqa: N802 - as OpenSSL calls it
    """Returns True: the operating system always has random bytes."""
    return True


def RAND_add(data: Any, entropy: float, /) -> None:  # noqa: N802
    """Does nothing: the operating system's random bytes need no additions."""
