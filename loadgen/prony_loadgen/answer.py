"""What a server answered, without I/O: bytes and their arrival times go in, the facts come out.

The client's thread feeds it what a socket gave; tests feed it the same bytes cut anywhere.
`outcome` is None until it is known. Nothing here raises on what a server sends.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from prony_loadgen.coding import CodingError, Decoder, decoder
from prony_loadgen.dialects.dialect import Dialect, Framing, Said
from prony_loadgen.error_text import error_line, shortened
from prony_loadgen.http_response import ResponseReader
from prony_loadgen.ndjson import LineStream
from prony_loadgen.record import Arrival, Channel, Outcome, TokenSource
from prony_loadgen.retry_after import wait_told
from prony_loadgen.shortcut import Shortcut, Shortcuts, Twin, all_unquoted, shortcuts_of
from prony_loadgen.sse import BOM, Event, EventStream

# Reasons for ending by which a server says that something went wrong.
ABNORMAL = frozenset(
    {
        "abort",
        "aborted",
        "cancelled",
        "canceled",
        "engine_error",
        "error",
        "failed",
        "insufficient_system_resource",
        "internal_error",
        "network_error",
        "timeout",
    }
)
# Of a body that is no stream, as much as a message about it can need.
FIRST_BYTES = 4096
# Enough to tell what a body without a content type is.
SNIFFED_BYTES = 64
# Up to so many events in one read are cheaper to match than to split.
FEW = 3
# Of an event that a read has cut, so much is kept until its end comes.
LONGEST_REST = 4096
# So many pieces of a read are looked at one by one, to find the first of many alike.
ALONE = 4
# Known usage objects have two or three.
USAGE_LEVELS = 16
LINE_TYPES = frozenset(
    {"application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines"}
)


class Answer:
    """One response to one request."""

    __slots__ = (
        "_body",
        "_body_size",
        "_choices",
        "_counted",
        "_decoder",
        "_dialect",
        "_events",
        "_finished",
        "_http",
        "_keep_text",
        "_kind",
        "_learned",
        "_listed",
        "_listed_waiting",
        "_rest",
        "_shortcuts",
        "_stream",
        "_texts",
        "_twin",
        "_twin_of",
        "_unlisted",
        "_usage",
        "arrivals",
        "begun",
        "ended",
        "error",
        "flags",
        "headers",
        "outcome",
    )

    def __init__(
        self,
        dialect: Dialect,
        *,
        keep_text: bool,
        shortcuts: Mapping[Framing, Shortcuts] | None = None,
    ) -> None:
        """`shortcuts` are what earlier answers of the same target taught."""
        self._dialect = dialect
        self._learned = shortcuts_of(dialect) if shortcuts is None else shortcuts
        self._shortcuts = self._learned["events"]
        self._keep_text = keep_text
        self._http = ResponseReader()
        # How the body is read: "events", "json", "error", "redirect", "wrong", or "unnamed" until
        # its first bytes show which.
        self._kind = ""
        self._decoder: Decoder | None = None
        self._stream: EventStream | LineStream = EventStream()
        self._events = 0
        self._rest = b""  # the start of an event whose end has not come
        self._body: list[bytes] = []
        self._body_size = 0
        self._twin: Twin | None = None
        self._twin_of: Shortcut | None = None
        self._texts: dict[tuple[int, Channel], list[str]] = {}
        self._finished: dict[int, str] = {}
        self._choices: set[int] = set()  # those that generated something
        self._counted = 0  # tokens of the arrivals so far
        self._listed = 0  # tokens that logprobs named
        self._listed_waiting = 0  # those among them that came without output
        self._unlisted = False  # some output came without logprobs
        self.begun = False  # any byte came
        self.headers: float | None = None
        self.arrivals: list[Arrival] = []
        self._usage: dict[str, Any] | None = None
        self.flags: list[str] = []
        self.outcome: Outcome | None = None
        self.error: str | None = None
        self.ended: float | None = None

    # What happens to it.

    def feed(self, data: bytes, at: float) -> None:
        """Bytes came from the peer."""
        self.begun = True
        http = self._http
        pieces = http.feed(data)
        if self.settled():
            return
        if self.headers is None and http.headers_complete:
            self.headers = at
            self._kind = self._body_kind()
        if pieces and self._decoder is not None:
            try:
                body = self._decoder.feed(b"".join(pieces))
            except CodingError as error:
                if self._kind not in ("error", "redirect"):
                    self._settle("malformed_event", f"the body is {error}", at)
                    return
                body = b""
            pieces = [body] if body else []
        if pieces:
            if self._kind == "events":
                self._take_pieces(pieces, at)
            else:
                self._collect(b"".join(pieces), at)
            if self.outcome is not None:
                return
        if http.complete:
            self._body_ended(at)
        elif http.broken is not None:
            self._cut(f"broken HTTP: {http.broken}", at)

    def end(self, at: float, why: str = "the server closed the connection") -> None:
        """No more bytes will come from the peer."""
        self._http.end()
        if self.settled():
            return
        if self._http.complete:
            self._body_ended(at)
        else:
            self._cut(why, at)

    def fail(self, outcome: Outcome, error: str, at: float) -> None:
        """The client gave up on it."""
        self._http.end()
        self._settle(outcome, error, at)

    # What is known of it.

    def settled(self) -> bool:
        """Whether its outcome is known; more may still be read, to free the connection."""
        return self.outcome is not None

    @property
    def over(self) -> bool:
        """Settled, with nothing left to read: the connection is free, or of no more use."""
        return self.settled() and self._http.over

    @property
    def reusable(self) -> bool:
        return self._http.reusable

    @property
    def status(self) -> int | None:
        return self._http.status

    @property
    def finish_reason(self) -> str | None:
        """Of choice 0, or of the only one."""
        return self._finished.get(0) or next(iter(self._finished.values()), None)

    @property
    def usage(self) -> dict[str, Any] | None:
        """The last usage as sent, but for what a reader of our files might not read."""
        return None if self._usage is None else _readable(self._usage)

    @property
    def prompt_tokens(self) -> int | None:
        return None if self._usage is None else self._dialect.prompt_tokens(self._usage)

    @property
    def server_times(self) -> dict[str, float] | None:
        """What the server says each of its own steps took, in seconds."""
        return (self._usage and self._dialect.server_times(self._usage)) or None

    def retry_after(self, unix_time: float) -> float | None:
        """Seconds for which the server asked us to stay away; `unix_time` is now."""
        return wait_told(self._http.headers, unix_time)

    def output_tokens(self) -> tuple[int | None, TokenSource | None]:
        """How many were generated, and who says so."""
        told = None if self._usage is None else self._dialect.output_tokens(self._usage)
        # A usage of 0 beside output is a field left unfilled.
        if told is not None and (told or not self.arrivals):
            return told, "usage"
        if self._listed and not self._unlisted:
            return self._listed, "logprobs"
        if self.outcome == "ok" and self.arrivals and "not_streamed" not in self.flags:
            return sum(arrival.tokens for arrival in self.arrivals), "chunks"
        return None, None

    def text(self, channel: Channel, choice: int = 0) -> str:
        """What was generated, where it was kept."""
        text = "".join(self._texts.get((choice, channel), ()))
        if text.isascii():
            return text
        # Some servers send the two halves of a surrogate pair apart: join them, replace lone ones.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    # How it is read.

    def _body_kind(self) -> str:
        coding = self._http.headers.get("content-encoding", "identity").lower()
        if coding != "identity":
            self._decoder = decoder(coding)
        status = self._http.status or 0
        if 300 <= status < 400:
            return "redirect"
        if not 200 <= status < 300:
            return "error"
        if coding != "identity" and self._decoder is None:
            return "wrong"
        content_type = self._http.headers.get("content-type", "").split(";")[0].strip().lower()
        if content_type == "text/event-stream":
            return "events"
        if content_type in LINE_TYPES:
            self._read_lines()
            return "events"
        if content_type == "application/json" or content_type.endswith("+json"):
            return "json"
        # Some servers name no type for their stream, or only that it is text.
        guess = content_type in ("", "text/plain", "application/octet-stream")
        return "unnamed" if guess else "wrong"

    def _read_lines(self) -> None:
        self._stream, self._shortcuts = LineStream(), self._learned["lines"]

    def _take_pieces(self, pieces: list[bytes], at: float) -> None:
        """Servers mostly send each event as a chunk of its own: then nothing is to be split.

        Before the many that are alike there may be the end of one that the read before cut, the
        role, and a first text that shows what its twins look like.
        """
        if len(pieces) == 1 and self._twin is not None and self._is_free():
            # Of servers that send each token when they have it, nearly every read.
            text = self._twin.text_of(pieces[0])
            if text is not None:
                self._take_twin_texts([text], at)
                return
        alone = 0
        while alone < ALONE and len(pieces) - alone > FEW:
            twin = self._twin
            if twin is not None and self._is_free():
                texts = twin.texts_of(pieces[alone:] if alone else pieces)
                if texts is not None:
                    self._take_twin_texts(texts, at)
                    alone += len(texts)
                    break
            self._take_events(pieces[alone], at)
            if self.outcome is not None:
                return
            alone += 1
        left = pieces[alone:] if alone else pieces
        if left:
            self._take_events(left[0] if len(left) == 1 else b"".join(left), at)

    def _take_events(self, body: bytes, at: float) -> None:
        if self._rest:
            body, self._rest = self._rest + body, b""
        if not self._events:
            self._stream.begin(body)
        start, size = 0, len(body)
        end_mark = b""
        twins = True  # whether it is worth to look for some in this body
        while start < size and self._shortcuts.known:
            end = start
            if self._is_free():
                twin = self._twin
                if twins and twin is not None and size - start > FEW * twin.size:
                    end = self._take_twins(twin, body, start, at)
                    twins = end > start
                if end == start:
                    end = self._take_matched(body, start, at)
                if end == start:
                    end = self._take_fixed(body, start, at)
            if end == start:
                end_mark = end_mark or _end_mark(self._stream, body)
                end = body.find(end_mark, start) + len(end_mark)
                if end < start + len(end_mark):
                    break
                self._decode_events(body[start:end], at)
            if self.outcome is not None:
                return
            start = end
        if start < size:
            left = body[start:] if start else body
            if self._shortcuts.known and self._is_free() and self._is_cut(left):
                self._rest = left
            else:
                self._decode_events(left, at)

    def _is_cut(self, left: bytes) -> bool:
        """Whether this is surely no whole event, and short: one that a read has cut."""
        if len(left) > LONGEST_REST or b"\r" in left:
            return False
        return (b"\n" if type(self._stream) is LineStream else b"\n\n") not in left

    def _take_fixed(self, body: bytes, start: int, at: float) -> int:
        """Takes the event at `start` if others said the same before; where it ends."""
        found = self._shortcuts.fixed(body, start)
        if found is None:
            return start
        said, end = found
        self._take_said(said, at)
        return end

    def _take_twins(self, twin: Twin, body: bytes, start: int, at: float) -> int:
        """Takes the many events at `start` that are like the last; where they end."""
        found = twin.texts(body, start)
        if found is None:
            return start
        texts, end = found
        self._take_twin_texts(texts, at)
        return end

    def _take_twin_texts(self, texts: list[bytes], at: float) -> None:
        shortcut = self._twin_of
        assert shortcut is not None
        self._events += len(texts)
        self._take_untold(shortcut.channel, shortcut.choice, len(texts), at)
        if self._keep_text:
            self._keep(shortcut, all_unquoted(texts))

    def _take_matched(self, body: bytes, start: int, at: float) -> int:
        """Takes the events at `start` that a shortcut matches; where they end."""
        shortcuts = self._shortcuts
        # One alone shows what its twins look like.
        match = shortcuts.match if self._twin is not None else shortcuts.match_one
        found = match(body, start)
        if found is None:
            return start
        shortcut, end = found
        if self._twin_of is not shortcut:
            self._twin, self._twin_of = Twin(shortcut, body, start), shortcut
        count = shortcut.count(body, start, end)
        self._events += count
        self._take_untold(shortcut.channel, shortcut.choice, count, at)
        if self._keep_text:
            self._keep(shortcut, shortcut.texts(body, start, end))
        return end

    def _is_free(self) -> bool:
        """Whether what comes next is to be understood by itself."""
        # A token that logprobs named alone belongs to the next chunk: that one is decoded.
        return self._stream.between_events and not self._rest and not self._listed_waiting

    def _take_untold(self, channel: Channel, choice: int, count: int, at: float) -> None:
        """Chunks of output that do not say how many tokens they hold."""
        self._counted += count
        self._choices.add(choice)
        self._unlisted = True
        self.arrivals += [Arrival(at, 1, channel)] * count

    def _keep(self, shortcut: Shortcut, texts: Iterable[str]) -> None:
        self._texts.setdefault((shortcut.choice, shortcut.channel), []).extend(texts)

    def _decode_events(self, body: bytes, at: float) -> None:
        whole = self._stream.between_events
        for event in self._stream.feed(body):
            said = self._take(event, at)
            if whole:
                self._shortcuts.learn(event, said, body)
            if self.settled():
                return

    def _collect(self, body: bytes, at: float) -> None:
        self._body.append(body)
        self._body_size += len(body)
        if self._kind == "unnamed" and self._body_size > SNIFFED_BYTES:
            self._name_kind(at)
        elif self._kind in ("error", "redirect", "wrong") and self._body_size >= FIRST_BYTES:
            self._body_ended(at)

    def _name_kind(self, at: float) -> None:
        """Decides by the first bytes what a body is whose headers do not say it."""
        body = b"".join(self._body)
        start = body.removeprefix(BOM).lstrip()
        if start.startswith((b"data:", b"event:", b"id:", b"retry:", b":")):
            self._kind = "events"
            self._take_events(body, at)
        elif self._dialect.framing == "lines" and start.startswith(b"{"):
            self._kind = "events"
            self._read_lines()
            self._take_events(body, at)
        else:
            self._kind = "json" if start.startswith((b"{", b"[")) else "wrong"

    def _take(self, event: Event, at: float) -> Said:
        said = self._dialect.read_event(event)
        self._take_said(said, at)
        return said

    def _take_said(self, said: Said, at: float) -> None:
        self._events += 1
        if said.outputs or said.usage is not None or said.listed_tokens is not None:
            self._take_output(said, at)
        if said.finished:
            self._finished.update(said.finished)
        if said.error is not None:
            self._settle("stream_error", said.error, at)
        elif said.malformed is not None:
            self._settle("malformed_event", said.malformed, at)
        elif said.done:
            self._events -= 1
            self._conclude(at, done=True)

    def _take_output(self, said: Said, at: float) -> None:
        if said.usage is not None:
            parts = self._dialect.usage_in_parts and self._usage
            self._usage = {**parts, **said.usage} if parts else said.usage
        if said.listed_tokens is not None:
            self._listed += said.listed_tokens
            self._listed_waiting += said.listed_tokens
        if not said.outputs:
            return
        if len(said.outputs) == 1 and said.usage is None and not self._listed_waiting:
            [(channel, choice, text)] = said.outputs  # nearly every chunk
            self._take_untold(channel, choice, 1, at)
            if self._keep_text:
                self._texts.setdefault((choice, channel), []).append(text)
            return
        counts: dict[Channel, int] = {}
        for channel, choice, text in said.outputs:
            counts[channel] = counts.get(channel, 0) + 1
            self._choices.add(choice)
            if self._keep_text:
                self._texts.setdefault((choice, channel), []).append(text)
        told = self._told_tokens(said)
        left = sum(counts.values()) if told is None else told
        self._counted += left
        # The stream does not say how they divide between channels: the last gets the rest.
        last = next(reversed(counts))
        for channel, count in counts.items():
            tokens = left if channel == last else min(count, left)
            left -= tokens
            self.arrivals.append(Arrival(at, tokens, channel))

    def _told_tokens(self, said: Said) -> int | None:
        """How many tokens this chunk holds, where the stream says it."""
        listed, self._listed_waiting = self._listed_waiting, 0
        if not listed:
            self._unlisted = True
        # With several choices some servers count each alone, some all together.
        if said.usage is not None and len(self._choices) == 1:
            so_far = self._dialect.output_tokens(said.usage)
            if so_far is not None and so_far > self._counted:
                return so_far - self._counted
        return listed or None

    def _all_finished(self) -> bool:
        return bool(self._finished) and self._choices <= self._finished.keys()

    def _flush(self, at: float) -> None:
        if self._rest:
            self._decode_events(self._rest, at)
            self._rest = b""
        event = self._stream.flush()
        # The standard drops an event without its blank line; several servers and SDKs do not.
        # It counts if it is whole, which its JSON shows.
        if event is not None and self._dialect.read_event(event).malformed is None:
            self._take(event, at)

    def _body_ended(self, at: float) -> None:
        if self._kind == "unnamed":
            self._name_kind(at)
        body = b"".join(self._body)
        if self._kind == "events":
            self._flush(at)
            if not self.settled():
                self._conclude(at)
        elif self._kind == "json":
            self._take_whole(body, at)
        elif self._kind == "redirect":
            where = self._http.headers.get("location", "nowhere (no Location)")
            line = f"{self._status_line()} to {shortened(where)}; redirects are not followed"
            self._settle("redirect", line, at)
        elif self._kind == "error":
            self._settle("http_error", self._http_error(body), at)
        else:
            self._settle("wrong_content_type", self._wrong_type(body), at)

    def _take_whole(self, body: bytes, at: float) -> None:
        said = self._dialect.read_whole(body)
        self.flags.append("not_streamed")
        self._take_output(said, at)
        self._finished.update(said.finished)
        if said.error is not None:
            self._settle("stream_error", said.error, at)
        elif said.malformed is not None:
            self._settle("malformed_event", said.malformed, at)
        else:
            self._events += 1
            self._conclude(at, done=True)

    def _conclude(self, at: float, *, done: bool = False) -> None:
        """The stream is over and told of no error."""
        abnormal = [reason for reason in self._finished.values() if reason in ABNORMAL]
        if abnormal:
            self._settle("abnormal_finish", f"finish_reason {abnormal[0]!r}", at)
        elif not done and not self._all_finished():
            if self._events:
                line = "the stream ended without finish_reason or end mark"
                self._settle("truncated_stream", line, at)
            else:
                self._settle("empty_stream", "the stream held no event", at)
        elif self.arrivals:
            together = self.arrivals[0].at == self.arrivals[-1].at
            if len(self.arrivals) > 1 and together and "not_streamed" not in self.flags:
                self.flags.append("coalesced")
            self._settle("ok", None, at)
        elif self._finished or self.output_tokens()[0] is not None:
            self.flags.append("empty")
            self._settle("ok", None, at)
        else:
            line = "the stream ended without output, finish_reason or usage"
            self._settle("empty_stream", line, at)

    def _cut(self, why: str, at: float) -> None:
        """No more of the body will come, although it is not complete."""
        if self._kind in ("error", "redirect", "wrong"):
            self._body_ended(at)
            return
        if self._kind == "events":
            self._flush(at)
            if not self.settled() and self._all_finished():
                # What was generated is whole; only its wrapping is cut.
                self.flags.append("transport_incomplete")
                self._conclude(at)
        if self.headers is not None:
            self._settle("truncated_transport", f"{why} before the end of the answer", at)
        elif self._http.broken is None:
            self._settle("truncated_transport", f"{why} before any answer", at)
        else:
            self._settle("http_error", f"the answer is {why}", at)

    def _settle(self, outcome: Outcome, error: str | None, at: float) -> None:
        if self.outcome is None:
            self.outcome, self.error, self.ended = outcome, error, at

    def _status_line(self) -> str:
        return shortened(f"{self._http.status} {self._http.reason}")

    def _http_error(self, body: bytes) -> str:
        line = self._status_line()
        if told := error_line(body):
            line += f": {told}"
        if wait := self._http.headers.get("retry-after"):
            line += f"; Retry-After: {shortened(wait)}"
        return line

    def _wrong_type(self, body: bytes) -> str:
        encoding = self._http.headers.get("content-encoding")
        if encoding and encoding.lower() != "identity" and self._decoder is None:
            return f"content-encoding {shortened(encoding)}, which was not asked for"
        named = shortened(self._http.headers.get("content-type") or "no content type")
        start = shortened(body.decode("utf-8", "replace"))
        return f"expected text/event-stream, got {named}: {start}"


def _end_mark(stream: EventStream | LineStream, body: bytes) -> bytes:
    """What events of this body seem to end with; a wrong guess costs only time."""
    if type(stream) is LineStream:
        return b"\n"
    return b"\r\n\r\n" if b"\r" in body and b"\r\n\r\n" in body else b"\n\n"


def _readable(told: Any, levels: int = USAGE_LEVELS) -> Any:
    """Decoded JSON with null for NaN, infinities, integers over 64 bits and what lies too deep."""
    if isinstance(told, dict | list) and not levels:
        return None
    if isinstance(told, dict):
        return {key: _readable(value, levels - 1) for key, value in told.items()}
    if isinstance(told, list):
        return [_readable(value, levels - 1) for value in told]
    if isinstance(told, int):
        return told if -(2**63) <= told < 2**63 else None
    return None if isinstance(told, float) and not math.isfinite(told) else told
