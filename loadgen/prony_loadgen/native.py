"""The standard library's own sockets, selector and threads, also after gevent patched them.

Importing locust patches the process so that sockets and locks switch greenlets. The client's
thread runs beside the greenlets, so it must never touch a patched one.
"""

import _thread
import selectors
import socket as sockets
from collections.abc import Callable
from types import ModuleType
from typing import Any

from gevent.monkey import get_original

Socket: type[sockets.socket] = get_original("socket", "socket")
getaddrinfo: Callable[..., list[Any]] = get_original("socket", "getaddrinfo")
Selector: type[selectors.BaseSelector] = get_original("selectors", "DefaultSelector")
select: Callable[..., tuple[list[Any], list[Any], list[Any]]] = get_original("select", "select")
allocate_lock: Callable[[], "_thread.LockType"] = get_original("_thread", "allocate_lock")
start_new_thread: Callable[..., int] = get_original("_thread", "start_new_thread")


def ssl_module() -> ModuleType:
    """The module `ssl`, first imported when TLS is first used: gevent must patch it before that."""
    import ssl

    return ssl
