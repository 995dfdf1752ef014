"""One plain HTTP GET to a target: a path goes in, status, headers and body come out.

For what is asked of a target beside the load, such as its list of models. It blocks.
"""

import socket as sockets
import time
from typing import NamedTuple

from prony_loadgen import native
from prony_loadgen.connection import Addresses
from prony_loadgen.http_response import ResponseReader
from prony_loadgen.target import Target


class FetchError(Exception):
    """No HTTP answer came; the message says why."""


class Fetched(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def fetch(target: Target, path: str, timeout: float) -> Fetched:
    """What the target answers to GET `path`, a full path.

    Raises FetchError, and TargetError where the target's name has no address.
    """
    addresses = Addresses(target.host, target.port)
    ends = time.monotonic() + timeout
    failure = ""
    for index in addresses.order():
        family, address = addresses.address(index)
        try:
            with native.Socket(family) as sock:
                sock.settimeout(min(timeout, target.timeouts.connect))
                sock.connect(address)
                sock.sendall(_head(target, path))
                return _answer(sock, ends)
        except TimeoutError:
            failure = f"no answer within {timeout:g} s"
        except OSError as error:
            failure = (error.strerror or str(error)).lower()
    raise FetchError(failure)


def _head(target: Target, path: str) -> bytes:
    headers = [("Host", target.authority), ("Accept", "application/json"), *target.headers]
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "Connection: close", "\r\n"]).encode("latin-1")


def _answer(sock: sockets.socket, ends: float) -> Fetched:
    reader = ResponseReader()
    body = []
    while not reader.over:
        left = ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        sock.settimeout(left)
        data = sock.recv(65536)
        if data:
            body.append(reader.feed(data))
        else:
            reader.end()
    if reader.broken is not None:
        raise FetchError(f"the answer is not HTTP: {reader.broken}")
    if reader.status is None or not reader.complete:
        raise FetchError("the server closed the connection before the end of its answer")
    return Fetched(reader.status, reader.headers, b"".join(body))
