"""Compressed answers: pieces of a body as they came go in, the bytes that they stand for come out.

We ask for none (`Accept-Encoding: identity`), but some gateways compress all the same. What a
server flushed can be read at once, so tokens keep their times.
"""

import zlib
from typing import Protocol


class CodingError(ValueError):
    """The body is not what its content-encoding says."""


class Decoder(Protocol):
    def feed(self, piece: bytes) -> bytes:
        """Raises CodingError."""
        ...


class Inflate:
    """gzip (of several members, too) and deflate, with the zlib wrapper or without it."""

    __slots__ = ("_begun", "_coding", "_engine")

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._engine = zlib.decompressobj(wbits=31 if coding == "gzip" else zlib.MAX_WBITS)
        self._begun = b""  # of a deflate body, what came until it showed its wrapper

    def feed(self, piece: bytes) -> bytes:
        """Raises CodingError where the bytes are not of this coding."""
        try:
            return self._inflated(piece)
        except zlib.error as error:
            raise CodingError(f"not {self._coding}: {error}") from None

    def _inflated(self, piece: bytes) -> bytes:
        if self._coding == "deflate" and len(self._begun) < 2:
            self._begun += piece
            if len(self._begun) < 2:
                return b""
            # By the standard deflate has zlib's wrapper; several servers leave it out.
            if self._begun[0] & 0x0F != 8 or int.from_bytes(self._begun[:2]) % 31:
                self._engine = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
            piece = self._begun
        told = self._engine.decompress(piece)
        while self._coding == "gzip" and self._engine.eof and self._engine.unused_data:
            rest = self._engine.unused_data
            self._engine = zlib.decompressobj(wbits=31)
            told += self._engine.decompress(rest)
        return told


def decoder(content_encoding: str) -> Decoder | None:
    """What reads a body of this content-encoding; None where we cannot."""
    coding = content_encoding.strip().lower().removeprefix("x-")
    return Inflate(coding) if coding in ("gzip", "deflate") else None
