"""What a dialect is: how a prompt becomes a request body, and what one event of an answer says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, get_args

from prony_loadgen.prompt import Prompt
from prony_loadgen.record import Channel
from prony_loadgen.sse import Event

Framing = Literal["events", "lines"]  # server-sent events, or JSON a line
FRAMINGS: tuple[Framing, ...] = get_args(Framing)


class DialectError(ValueError):
    """A request cannot be put in this dialect."""


class Output(NamedTuple):
    """Generated output of one choice in one channel. `text` is never empty."""

    channel: Channel
    choice: int
    text: str


class Said(NamedTuple):
    """What one event, or one answer that was not streamed, says."""

    outputs: tuple[Output, ...] = ()
    # Tokens that this event names one by one (logprobs), with or without text; None: it names none.
    listed_tokens: int | None = None
    finished: tuple[tuple[int, str], ...] = ()  # choice, why it ended (in OpenAI's words)
    usage: dict[str, Any] | None = None  # cumulative: the last one holds
    error: str | None = None  # an error told inside a 200
    malformed: str | None = None  # why it cannot be read
    done: bool = False  # the dialect's end mark: nothing follows


class Body(Protocol):
    """Makes the JSON object to post. `extra` is merged last and wins."""

    def __call__(
        self,
        prompt: Prompt,
        *,
        model: str,
        max_tokens: int | None,
        ignore_eos: bool,
        extra: Mapping[str, Any],
    ) -> dict[str, Any]: ...


def no_times(_: Mapping[str, Any]) -> None:
    """Of a server that does not say what its steps took."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way of asking a model and of reading what it streams back."""

    name: str
    path: str  # below the base path
    body: Body
    read_event: Callable[[Event], Said]
    read_whole: Callable[[bytes], Said]  # an answer in one JSON object
    prompt_tokens: Callable[[Mapping[str, Any]], int | None]  # from usage
    output_tokens: Callable[[Mapping[str, Any]], int | None]  # from usage
    # Keys of an event whose values `read_event` never looks at, wherever they stand.
    unread_keys: frozenset[str]
    framing: Framing = "events"
    versioned: bool = True  # whether its paths lie below /v1
    models_path: str = "/models"
    ignores_eos: bool = True  # whether it can be told to go on after its end token
    usage_in_parts: bool = False  # a later usage adds to an earlier one instead of replacing it
    # Seconds that the server's own steps took, from usage: "load", "prompt", "generate", "total".
    server_times: Callable[[Mapping[str, Any]], dict[str, float] | None] = no_times
    headers: tuple[tuple[str, str], ...] = ()
    key_header: str | None = None  # takes the bare API key, beside Authorization
    # What makes a body ask for the likeliest token each time.
    greedy: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0})
