"""HTTP/1.x responses without I/O: bytes from the socket go in, status, headers and body come out.

httptools (llhttp, the parser of Node) does the framing: chunked, by length, or until the
connection closes, with chunk extensions, trailers and interim 1xx answers.
"""

import httptools


class ResponseReader:
    """Reads the one response to one request."""

    __slots__ = (
        "_body",
        "_excess",
        "_parser",
        "_pieces",
        "broken",
        "complete",
        "headers",
        "headers_complete",
        "keep_alive",
        "on_body",
        "reason",
        "status",
    )

    def __init__(self) -> None:
        self.status: int | None = None
        self.reason = ""
        self.headers: dict[str, str] = {}  # lower-case names; the last of several holds
        self.headers_complete = False
        self.complete = False
        self.keep_alive = False
        self.broken: str | None = None  # why these bytes are not HTTP
        self._excess = False  # more came than the one answer
        self._body: list[bytes] = []
        self._pieces: int | None = None  # of the body, once it is complete
        # Called by the parser for every piece, and there may be one a token.
        self.on_body = self._body.append
        # Parser and reader refer to each other, so it is dropped at the end: no work for the
        # garbage collector, whose pauses would enter latencies.
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    @property
    def reusable(self) -> bool:
        """Whether another request may go over the same connection."""
        return self.complete and self.keep_alive and not self._excess

    @property
    def over(self) -> bool:
        """Whether nothing more is to be read: it is complete, cut or broken."""
        return self._parser is None

    def feed(self, data: bytes) -> list[bytes]:
        """What `data` held of the body: a piece for each chunk that the server made of it."""
        if self._parser is None:
            self._excess = True
            return []
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise  # a fault of ours
        except httptools.HttpParserError as error:
            self._fault(str(error))
        if self.complete or self.broken is not None:
            self._parser = None
        pieces = self._body[: self._pieces]  # what follows is the body of another answer
        self._body.clear()
        return pieces

    def end(self) -> None:
        """The peer closed: the end of the body where nothing else marks it."""
        self._parser = None
        self._excess = True
        delimited = "content-length" in self.headers or "transfer-encoding" in self.headers
        if self.headers_complete and not delimited and self.broken is None:
            self.complete = True

    def _fault(self, why: str) -> None:
        if self.complete:
            self._excess = True  # what followed the answer is not HTTP, the answer was
        else:
            self.broken = why

    # What follows is called by the parser.

    def on_message_begin(self) -> None:
        if self.complete:
            self._excess = True

    def on_status(self, reason: bytes) -> None:
        if not self.complete:
            self.reason += reason.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.headers_complete:  # those after the body are trailers
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        if self._parser is None or self.complete:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self.reason = ""
            self.headers = {}
        else:
            self.status = status
            self.headers_complete = True

    def on_message_complete(self) -> None:
        if self._parser is not None and self.headers_complete and not self.complete:
            self.complete = True
            self._pieces = len(self._body)
            self.keep_alive = self._parser.should_keep_alive()
