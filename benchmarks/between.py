"""What may stand between a client and a server: a relay of HTTP that is too narrow or too slow.

`at_once` requests are let through at a time, as by a proxy whose pool of connections is small;
answers leave at `bytes_per_s` each, as to a reader on a bad line. GETs pass freely: they are the
scrapes of /metrics. One thread with a loop of its own.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PIECE = 256  # bytes that a slow reader takes at once
LAST = b"0\r\n\r\n"  # of a chunked answer
BUFFER = 1 << 12


@contextmanager
def relay(port: int, at_once: int | None = None, bytes_per_s: float | None = None) -> Iterator[str]:
    """The URL of a relay to 127.0.0.1:`port`, until the block ends."""
    loop = asyncio.new_event_loop()
    through = _Relay(port, at_once, bytes_per_s)
    started = threading.Event()

    def main() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(through.listen())
        started.set()
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    thread = threading.Thread(target=main, name="relay", daemon=True)
    thread.start()
    started.wait()
    try:
        yield f"http://127.0.0.1:{through.port}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


class _Relay:
    def __init__(self, upstream: int, at_once: int | None, bytes_per_s: float | None) -> None:
        self._upstream, self._rate = upstream, bytes_per_s
        self._places = asyncio.Semaphore(at_once or 1_000_000)
        self.port = 0

    async def listen(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        limit = BUFFER if self._rate else 2**16
        up: asyncio.StreamWriter | None = None
        try:
            from_up, up = await asyncio.open_connection("127.0.0.1", self._upstream, limit=limit)
            while data := await reader.read(2**16):
                if data.startswith(b"GET"):
                    up.write(data)
                    await self._until_end(from_up, writer)
                    return
                async with self._places:
                    up.write(data)
                    await self._one_answer(from_up, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            for each in (up, writer):
                if each is not None:
                    each.close()

    async def _until_end(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The client ends a connection on which it asked for one page.
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(2**16):
                writer.write(data)
                await writer.drain()

    async def _one_answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tail = b""
        while data := await reader.read(PIECE if self._rate else 2**16):
            writer.write(data)
            await writer.drain()
            tail = (tail + data)[-len(LAST) :]
            if tail == LAST:
                return
            if self._rate:
                await asyncio.sleep(len(data) / self._rate)
        raise ConnectionResetError
