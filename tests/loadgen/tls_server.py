"""The server's end of TLS, by the certificates of the tests; CA is who vouches for them."""

import ssl
from pathlib import Path

CERTIFICATES = Path(__file__).parent / "certificates"
CA = str(CERTIFICATES / "ca.pem")


def server_side(*, client_ca: str | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.pem")
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
