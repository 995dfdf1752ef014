"""Conversations: an answer in, the same user's next request out, with all that was said before."""

from dataclasses import dataclass

from prony_loadgen.prompt import Prompt
from prony_loadgen.prompt_file import TEXTS_ONLY
from prony_loadgen.prompts import Draft, Turn
from prony_loadgen.record import RequestRecord


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a user has asked so far, and what is left to ask."""

    draft: Draft
    prompt: Prompt  # of the request under way
    number: int = 0  # of its turn, from 0

    @classmethod
    def of(cls, draft: Draft) -> "Conversation":
        return cls(draft, draft.prompt)

    @property
    def output_tokens(self) -> int:
        """What the request under way asks for."""
        if self.number == 0:
            return self.draft.output_tokens
        return self.draft.turns[self.number - 1].output_tokens

    @property
    def thought(self) -> float:
        """Seconds that the user thought before the request under way."""
        return self.draft.turns[self.number - 1].think_time if self.number else 0.0

    @property
    def next_turn(self) -> Turn | None:
        turns = self.draft.turns
        return turns[self.number] if self.number < len(turns) else None

    @property
    def needs_text(self) -> bool:
        """Whether the next request repeats what is answered now."""
        turn = self.next_turn
        return turn is not None and turn.stand_in is None

    def after(self, record: RequestRecord, dialect: str) -> "Conversation | None":
        """The conversation with its next request; None where it is over.

        Nobody goes on after a request that failed. `dialect` says whether there are messages.
        """
        turn = self.next_turn
        if turn is None or not record.ok:
            return None
        answer = record.text if turn.stand_in is None else turn.stand_in
        prompt = _longer(self.prompt, answer or "", turn, dialect in TEXTS_ONLY)
        return Conversation(self.draft, prompt, self.number + 1)


def _longer(prompt: Prompt, answer: str, turn: Turn, texts_only: bool) -> Prompt:
    if texts_only:
        parts = [prompt.text or "", answer, turn.text]
        return Prompt(text="\n".join(filter(None, parts)), asked_tokens=turn.asked_tokens)
    messages = prompt.messages or ({"role": "user", "content": prompt.text},)
    # Some servers refuse a message without content: an empty answer leaves no trace.
    said = ({"role": "assistant", "content": answer},) if answer else ()
    return Prompt(
        messages=(*messages, *said, {"role": "user", "content": turn.text}),
        asked_tokens=turn.asked_tokens,
    )
