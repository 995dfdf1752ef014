"""What happened to one request: facts go in from the client, latencies and a JSON line come out.

All times are seconds on the run's clock: monotonic, zero at the start of the schedule. A record
stores what happened; every latency is derived from it (definitions: docs/design.md).
"""

import json
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, Self

Outcome = Literal[
    "ok",
    "http_error",
    "redirect",
    "wrong_content_type",
    "stream_error",
    "malformed_event",
    "truncated_transport",
    "truncated_stream",
    "empty_stream",
    "abnormal_finish",
    "timeout",
    "connect_error",
    "incomplete",
]
Channel = Literal["text", "reasoning", "refusal", "tool"]
TokenSource = Literal["usage", "logprobs", "chunks"]


# A server that tells more than this of one request tells nonsense; no context is so long.
MOST_TOKENS = 10**9
# A server that says it took this long to load its model, in seconds, did load it.
MODEL_LOAD = 0.2


class Arrival(NamedTuple):
    """One chunk with generated output."""

    at: float
    # As the stream told them (usage deltas, logprobs), else 1: a weight, not yet the true count.
    tokens: int
    channel: Channel


# Stands between the id of a conversation's first request and the number of a later turn.
FOLLOWS = "."


class Attempt(NamedTuple):
    """An earlier try of a request that was sent again, as the scenario's `retry` asks."""

    sent: float
    ended: float
    outcome: Outcome
    status: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request, as its user saw it: where it was tried again, the last try, and how the others
    ended.
    """

    id: str
    cls: str  # the request class, "class" in files
    intended: float  # when the schedule said to send it
    # When we first set out to send it: wrote to a connection, or began to make one. What connecting
    # takes is the target's and the network's, not lateness of ours. None where it never came to it.
    sent: float | None
    headers: float | None  # when the response's header block was complete
    arrivals: tuple[Arrival, ...]
    ended: float  # when the outcome was known
    outcome: Outcome
    error: str | None = None  # one line for people, with the first bytes of a bad answer
    status: int | None = None
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None  # the last one the server sent, as sent
    prompt_tokens: int | None = None  # by the server's usage
    output_tokens: int | None = None  # all channels and choices; None is unknown, never 0
    output_tokens_from: TokenSource | None = None
    asked_input_tokens: int | None = None
    asked_output_tokens: int | None = None
    flags: tuple[str, ...] = ()  # "empty", "coalesced", "not_streamed", ...
    text: str | None = None  # choice 0, where the scenario keeps text
    reasoning: str | None = None
    connected: float | None = None  # when its own connection stood; None where it reused one
    worker: int = 0
    trace_id: str | None = None  # 32 hex digits, as in the traceparent that was sent
    span_id: str | None = None  # 16 hex digits
    # The longest that bytes of the answer waited for us, by the kernel's times, which all times of
    # this record are. None where it gave none: then what we were late by is in them.
    client_lag: float | None = None
    # What the server says its own steps took, in seconds: "load" (of the model), "prompt",
    # "generate", "total".
    server_times: dict[str, float] | None = None
    quality: dict[str, float] | None = None  # what the answer's text shows: see quality.py
    retry_after: float | None = None  # seconds for which the server asked us to stay away
    earlier: tuple[Attempt, ...] = ()  # tries before the one that all else is of, but `sent`

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"

    @property
    def send_lag(self) -> float | None:
        """Seconds by which it was sent after it was intended."""
        return None if self.sent is None else self.sent - self.intended

    @property
    def model_load(self) -> float:
        """Seconds that the server spent loading its model for this request; 0 where it did not.

        Servers that load on demand report some milliseconds for a model that lay ready.
        """
        took = (self.server_times or {}).get("load", 0.0)
        return took if took >= MODEL_LOAD else 0.0

    @property
    def ttft(self) -> float | None:
        """First generated token of any channel, from `intended`.

        From `intended`, not `sent`: waiting in our own client is latency that users would feel.
        Without what the server says it took to load its model, which is reported apart.
        None where nothing was generated, or where the answer was not streamed.
        """
        return self._since_intended(self.arrivals)

    @property
    def ttft_from_send(self) -> float | None:
        if self.ttft is None or self.sent is None:
            return None
        waited = self.arrivals[0].at - self.sent
        return max(0.0, waited - self.model_load) if self.model_load else waited

    @property
    def ttfo(self) -> float | None:
        """First visible output (text, refusal, tool call), from `intended`."""
        return self._since_intended(tuple(a for a in self.arrivals if a.channel != "reasoning"))

    @property
    def e2e(self) -> float | None:
        """Last generated token, from `intended`; a late usage chunk or [DONE] is not output."""
        return self.arrivals[-1].at - self.intended if self.arrivals else None

    @property
    def tpot(self) -> float | None:
        """(last token - first token) / (output tokens - 1); None under 2 tokens or 2 times."""
        if self.output_tokens is None or self.output_tokens < 2 or len(self.arrivals) < 2:
            return None
        span = self.arrivals[-1].at - self.arrivals[0].at
        return span / (self.output_tokens - 1) if span > 0 else None

    @property
    def itl(self) -> list[tuple[float, float]]:
        """Gaps between tokens as (seconds, weight): a chunk of k tokens after a gap g is k of g/k.

        Where the stream did not say how many tokens a chunk held, the known total is spread over
        the chunks by what is known of each.
        """
        told = sum(arrival.tokens for arrival in self.arrivals)
        if not told or "not_streamed" in self.flags:
            return []
        scale = (self.output_tokens or told) / told
        samples = []
        for before, after in zip(self.arrivals, self.arrivals[1:], strict=False):
            weight = after.tokens * scale
            if weight > 0:
                samples.append(((after.at - before.at) / weight, weight))
        return samples

    @property
    def max_gap(self) -> float | None:
        """The longest wait between two arrivals of this request."""
        gaps = [b.at - a.at for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]
        return max(gaps, default=None)

    def _since_intended(self, arrivals: tuple[Arrival, ...]) -> float | None:
        if not arrivals or "not_streamed" in self.flags:
            return None
        waited = arrivals[0].at - self.intended
        # A negative one is a broken clock, which is to be seen.
        return max(0.0, waited - self.model_load) if self.model_load else waited

    def to_json(self) -> str:
        """One line of requests.jsonl, without its newline."""
        # Not asdict: its deep copy of every arrival costs several times the rest, and this runs
        # beside the client's thread while requests are timed.
        facts: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        facts["class"] = facts.pop("cls")
        facts["arrivals"] = [[round(a.at, 7), a.tokens, a.channel] for a in self.arrivals]
        for name in ("intended", "sent", "connected", "headers", "ended", "client_lag"):
            if facts[name] is not None:
                facts[name] = round(facts[name], 7)
        facts["earlier"] = [
            [round(try_.sent, 7), round(try_.ended, 7), *try_[2:]] for try_ in self.earlier
        ]
        # Most servers tell none of these.
        for name in ("server_times", "quality", "retry_after", "earlier"):
            if not facts[name] and facts[name] != 0:
                del facts[name]
        return json.dumps(facts, ensure_ascii=True, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> Self:
        """The record of a line that to_json wrote; a count that is none is unknown.

        Raises ValueError where the line is not one: not JSON, or a key missing or unknown.
        """
        facts = json.loads(line)
        try:
            facts["cls"] = facts.pop("class")
            facts["arrivals"] = tuple(_arrival(*arrival) for arrival in facts["arrivals"])
            facts["prompt_tokens"] = token_count(facts.get("prompt_tokens"))
            if token_count(facts.get("output_tokens")) is None:
                facts["output_tokens"] = facts["output_tokens_from"] = None
            facts["flags"] = tuple(facts["flags"])
            facts["earlier"] = tuple(Attempt(*told) for told in facts.get("earlier", ()))
            return cls(**facts)
        except (KeyError, TypeError) as error:
            known = ", ".join(field.name for field in fields(cls))
            raise ValueError(f"not a request record ({error}); expected the keys {known}") from None


def token_count(told: object) -> int | None:
    """The number of tokens that a server or a file tells; None where it can be none."""
    if isinstance(told, int) and not isinstance(told, bool) and 0 <= told <= MOST_TOKENS:
        return told
    return None


def _arrival(at: float, tokens: int, channel: Channel) -> Arrival:
    return Arrival(at, tokens if 0 <= tokens <= MOST_TOKENS else 1, channel)
