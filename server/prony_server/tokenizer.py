"""Text to token ids for the engine, and its token ids back to text, a few at a time."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from prony_server.errors import ApiError
from prony_server.parameters import Conversation

# A character has four bytes at most, so five held tokens are no unfinished character.
_MOST_HELD = 5
_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")  # SentencePiece's name for a byte


class Detokenizer(Protocol):
    """One answer's tokens in, its text out; joined, the same text as of all tokens at once.

    A character whose bytes have not all come is held back, so no piece ever ends inside one.
    """

    def feed(self, token_ids: Iterable[int]) -> str: ...

    def finish(self) -> str:
        """What is still held; a character cut short becomes one U+FFFD."""


class Tokenizer:
    """A transformers tokenizer as the server uses it. Encoding is safe from several threads."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._bytes = _byte_table(tokenizer)
        # Encoding with these set would change the tokenizer, which other threads are using.
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None:
            backend.no_truncation()
            backend.no_padding()

    def encode(self, prompt: Conversation | str | tuple[int, ...]) -> list[int]:
        """Raises ApiError (400) for a conversation that the chat template refuses."""
        if isinstance(prompt, Conversation):
            text = self._render(prompt)  # the template writes the special tokens itself
            ids = self._tokenizer.encode(text, add_special_tokens=False, verbose=False)
        elif isinstance(prompt, str):
            ids = self._tokenizer.encode(prompt, verbose=False)
        else:
            ids = prompt
        return list(ids)

    def detokenizer(self, prompt: Sequence[int] = ()) -> Detokenizer:
        """`prompt`: the tokens that the answer continues, where its first word may need a space."""
        if self._bytes is not None:
            return _ByteLevel(self._bytes)
        return _Windowed(self._tokenizer, prompt)

    def text(self, token_ids: Sequence[int]) -> str:
        detokenizer = self.detokenizer()
        return detokenizer.feed(token_ids) + detokenizer.finish()

    def token_bytes(self, token: int) -> bytes:
        """What one token stands for: part of a character, maybe; a special one for its name."""
        if self._bytes is not None and token < len(self._bytes) and self._bytes[token]:
            return self._bytes[token]
        name = self._tokenizer.convert_ids_to_tokens(token)
        if name is None:
            return b""
        byte = _BYTE_TOKEN.fullmatch(name)
        return bytes([int(byte[1], 16)]) if byte else str(name).replace("▁", " ").encode()

    def _render(self, conversation: Conversation) -> str:
        if not self._tokenizer.chat_template:
            message = "this model has no chat template; use /v1/completions"
            raise ApiError(400, message, param="messages", code="no_chat_template")
        try:
            rendered = self._tokenizer.apply_chat_template(
                list(conversation.messages), add_generation_prompt=True, tokenize=False
            )
        except Exception as error:
            # Templates refuse by raising (roles that do not alternate, say), and which error they
            # fail with on what they did not expect is up to each: the conversation is at fault.
            message = f"messages do not fit this model's chat template: {error}"
            raise ApiError(400, message, param="messages", code="invalid_value") from error
        return str(rendered)


class _ByteLevel:
    """For vocabularies whose tokens are plain bytes (GPT-2's kind): a UTF-8 decoder does it all."""

    def __init__(self, table: list[bytes]) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: Iterable[int]) -> str:
        table = self._table
        known = (table[token] for token in token_ids if token < len(table))
        return self._decoder.decode(b"".join(known))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _Windowed:
    """For every other tokenizer: decodes a short window with and without its newest tokens.

    The text of a token can depend on its neighbours (a space that is dropped at the start, bytes
    that make one character), so the window keeps the tokens before; it moves, so cost is linear.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._special = _special_ids(tokenizer)
        self._window = [token for token in prompt[-_MOST_HELD:] if token not in self._special]
        self._told = len(self._window)  # how many of the window's tokens are in text given out

    def feed(self, token_ids: Iterable[int]) -> str:
        pieces = []
        for token in token_ids:
            if token in self._special:
                continue
            self._window.append(token)
            piece = self._untold()
            held = len(self._window) - self._told
            if held < _MOST_HELD and (not piece or piece.endswith("\N{REPLACEMENT CHARACTER}")):
                continue
            pieces.append(piece)
            self._window = self._window[self._told :]
            self._told = len(self._window)
        return "".join(pieces)

    def finish(self) -> str:
        return self._untold() if len(self._window) > self._told else ""

    def _untold(self) -> str:
        return self._decode(self._window)[len(self._decode(self._window[: self._told])) :]

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, clean_up_tokenization_spaces=False))


def _byte_table(tokenizer: Any) -> list[bytes] | None:
    """Each token's bytes where the vocabulary is byte-level, else None; special ones are empty."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    decoder = json.loads(backend.to_str())["decoder"]
    if decoder is None or decoder["type"] != "ByteLevel":
        return None
    byte_of = {character: byte for byte, character in _byte_characters().items()}
    special = _special_ids(tokenizer)
    table = []
    for token, text in enumerate(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))):
        if token in special or text is None:
            table.append(b"")
        elif all(character in byte_of for character in text):
            table.append(bytes(byte_of[character] for character in text))
        else:
            table.append(text.encode())  # an added token, stored as it reads
    return table


def _special_ids(tokenizer: Any) -> frozenset[int]:
    """Marks, not text: the named ones (an end) and what else the vocabulary calls special."""
    added = tokenizer.added_tokens_decoder.items()
    return frozenset([*tokenizer.all_special_ids, *(id_ for id_, token in added if token.special)])


def _byte_characters() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_ins = {byte: chr(byte) for byte in printable}
    return stand_ins | {byte: chr(256 + i) for i, byte in enumerate(others)}
