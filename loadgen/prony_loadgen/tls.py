"""TLS without I/O: bytes of the socket go in, what they say comes out, and the other way round.

The socket itself is read by `timestamps`, so the kernel's times hold under TLS too. `ssl` is
imported late: Locust must patch it before anybody uses it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prony_loadgen import native

if TYPE_CHECKING:
    import ssl

_READ_SIZE = 65536


class TlsError(Exception):
    """The other side cannot be talked to; the message says why and what would help."""


class TlsFileError(ValueError):
    """A certificate or key file cannot be used; the message names it."""


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Whom to believe, and who we are."""

    ca: str | None = None  # a PEM file in place of the system's authorities
    cert: str | None = None  # our own certificate, a PEM file
    key: str | None = None  # its key, where it is not in the same file
    insecure: bool = False  # believes anybody


def tls_context(options: TlsOptions) -> "ssl.SSLContext":
    """Raises TlsFileError where a file cannot be used."""
    ssl = native.ssl_module()
    # As gevent left it: the setters of the standard library's own class go round in circles once
    # gevent has put its class in that one's place. Memory is wrapped here, never a socket.
    context: Any = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if options.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif options.ca is None:
        context.load_default_certs()
    else:
        _readable(options.ca, "--ca")
        try:
            context.load_verify_locations(cafile=options.ca)
        except (ssl.SSLError, OSError):
            raise TlsFileError(f"--ca {options.ca}: holds no certificate in PEM form") from None
    if options.cert is not None:
        _readable(options.cert, "--cert")
        if options.key is not None:
            _readable(options.key, "--cert-key")
        try:
            context.load_cert_chain(options.cert, options.key, password=_no_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            why = getattr(error, "reason", None) or error
            raise TlsFileError(
                f"--cert {options.cert}: not a certificate with its unencrypted key in PEM form "
                f"({why}); a key in a file of its own goes to --cert-key"
            ) from None
    return context  # type: ignore[no-any-return]


class TlsSession:
    """One connection. Whatever is called, `outgoing` is to be sent afterwards."""

    def __init__(self, context: "ssl.SSLContext", host: str) -> None:
        self._ssl = native.ssl_module()
        self._incoming: ssl.MemoryBIO = self._ssl.MemoryBIO()
        self._outgoing: ssl.MemoryBIO = self._ssl.MemoryBIO()
        self._session: Any = context.wrap_bio(
            self._incoming, self._outgoing, server_side=False, server_hostname=host
        )
        self.ready = False  # the handshake is over
        self.ended = False  # the other side said that nothing follows

    def begin(self) -> None:
        self.received(b"")

    def outgoing(self) -> bytes:
        return self._outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        self._session.write(data)
        return self._outgoing.read()

    def received(self, data: bytes) -> bytes:
        """What `data` says. Raises TlsError."""
        if data:
            self._incoming.write(data)
        try:
            if not self.ready:
                self._session.do_handshake()
                self.ready = True
            return self._read()
        except (self._ssl.SSLWantReadError, self._ssl.SSLWantWriteError):
            return b""
        except self._ssl.SSLError as error:
            raise TlsError(_why(error)) from None

    def _read(self) -> bytes:
        pieces = []
        while True:
            try:
                piece = self._session.read(_READ_SIZE)
            except (self._ssl.SSLWantReadError, self._ssl.SSLWantWriteError):
                break
            except (self._ssl.SSLZeroReturnError, self._ssl.SSLEOFError):
                piece = b""
            if not piece:
                self.ended = True
                break
            pieces.append(piece)
        return b"".join(pieces)


def _why(error: Any) -> str:
    told = getattr(error, "verify_message", None)
    if told:
        return (
            f"its certificate is not trusted ({told}); name its authority by --ca FILE, "
            "or trust anybody by --insecure"
        )
    reason = (getattr(error, "reason", None) or str(error)).replace("_", " ").lower()
    if "wrong version number" in reason or "record layer failure" in reason:
        return "it does not speak TLS; use an http:// address"
    if "certificate required" in reason or "handshake failure" in reason:
        return f"it refused us ({reason}); it may want a client certificate: --cert FILE"
    return f"TLS failed: {reason}"


def _readable(path: str, option: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise TlsFileError(f"{option} {path}: {(error.strerror or str(error)).lower()}") from None


def _no_password() -> str:
    raise ValueError("the key is encrypted")
