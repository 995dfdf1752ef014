"""The KV cache's blocks: requests to hold a sequence's tokens come in, block tables go out.

A block belongs to one running sequence while it is written. Once full it may be kept under a hash
of all tokens up to its end: sequences that begin alike then share it, each counted, and when nobody
refers to it any more it stays until its room is needed, the least recently used first.

The tables lie in one flat `array` of 32-bit integers, a row a running sequence, so that the runner
reads them as a tensor without copying and this module needs no torch.
"""

from array import array
from hashlib import blake2b

from prony_server.sequence import Sequence

HASH_BYTES = 16  # two prompts of one hash would share an answer: as good as impossible at 128 bits


class BlockPool:
    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_rows: int,
        max_model_len: int,
        prefix_caching: bool = False,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.width = min(num_blocks, -(-max_model_len // block_size))
        self.tables = array("i", bytes(array("i").itemsize * max_rows * self.width))
        # Blocks given back that may hold NaN: to be wiped before the next step.
        self.suspects: list[int] = []
        self._prefix_caching = prefix_caching
        # Stacks: what was freed last is used next, so a quiet server touches little memory.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._rows = list(range(max_rows - 1, -1, -1))
        self._references = [0] * num_blocks
        self._kept: dict[bytes, int] = {}  # the block of each hash
        self._hashes: dict[int, bytes] = {}  # the hash of each block that is kept
        self._unused: dict[int, None] = {}  # kept and referred to by nobody, longest unused first

    @property
    def num_free(self) -> int:
        """Blocks that can be had, those that only the prefix cache holds among them."""
        return len(self._free) + len(self._unused)

    @property
    def num_cached(self) -> int:
        """Blocks that only the prefix cache holds."""
        return len(self._unused)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def enter(self, sequence: Sequence, spare: int) -> bool:
        """Gives it a row, what the cache has of it, and room for all its tokens so far.

        False, with nothing taken, unless `spare` blocks can still be had afterwards.
        """
        found = self._find(sequence)
        unused = sum(not self._references[block] for block in found)
        missing = self.blocks_for(len(sequence.tokens)) - len(found)
        if missing + unused + spare > self.num_free:
            return False
        sequence.row = self._rows.pop()
        self._adopt(sequence, found)
        self.grow(sequence, len(sequence.tokens))
        self._pad(sequence)
        return True

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Makes room for its first `tokens` tokens; False, with nothing taken, if there is none."""
        blocks = sequence.blocks
        missing = self.blocks_for(tokens) - len(blocks)
        if missing <= 0:
            return True
        if missing > self.num_free:
            return False
        new = [self._take() for _ in range(missing)]
        at = sequence.row * self.width + len(blocks)
        self.tables[at : at + missing] = array("i", new)
        blocks += new
        return True

    def reuse(self, sequence: Sequence) -> None:
        """Steps over blocks that others have computed since it entered."""
        found = self._find(sequence)
        if found:
            self._adopt(sequence, found)
            self._pad(sequence)

    def keep(self, sequence: Sequence) -> None:
        """Offers its full blocks to all: they are computed, and known to hold no NaN."""
        full = sequence.computed // self.block_size
        if not self._prefix_caching or full <= sequence.kept:
            return
        for at in range(sequence.kept, full):
            block, name = sequence.blocks[at], self._hash(sequence, at)
            if name not in self._kept and block not in self._hashes:
                self._kept[name] = block
                self._hashes[block] = name
        sequence.kept = full

    def release(self, sequence: Sequence) -> None:
        """Takes back all that the sequence holds. Its full blocks stay in the prefix cache."""
        suspect = sequence.sound < sequence.computed
        # From the end: of a prompt that is used no more, the last part is given up first.
        for block in reversed(sequence.blocks):
            if self._let_go(block) and suspect:
                self.suspects.append(block)
        sequence.blocks.clear()
        sequence.computed = sequence.sound = sequence.kept = 0
        if sequence.row >= 0:
            self._rows.append(sequence.row)
            sequence.row = -1

    def check_all_free(self) -> None:
        """Raises unless free + cached = total: called when nothing runs, so none may be in use."""
        if self.num_free != self.num_blocks:
            raise RuntimeError(
                f"KV blocks leaked: nothing runs, {self.num_free} of {self.num_blocks} are free"
            )

    def _find(self, sequence: Sequence) -> list[int]:
        """The blocks in the cache that continue what it has computed, its last token excepted."""
        size = self.block_size
        if not self._prefix_caching or sequence.computed % size:
            return []
        found: list[int] = []
        for at in range(sequence.computed // size, (len(sequence.tokens) - 1) // size):
            block = self._kept.get(self._hash(sequence, at))
            if block is None:
                break
            found.append(block)
        return found

    def _adopt(self, sequence: Sequence, found: list[int]) -> None:
        blocks = sequence.blocks
        at = sequence.computed // self.block_size
        for block in found:
            self._references[block] += 1
            self._unused.pop(block, None)
        for block in blocks[at : at + len(found)]:
            self._let_go(block)  # its own, not written yet
        blocks[at : at + len(found)] = found
        begin = sequence.row * self.width + at
        self.tables[begin : begin + len(found)] = array("i", found)
        sequence.kept = at + len(found)
        sequence.computed = sequence.sound = sequence.kept * self.block_size

    def _pad(self, sequence: Sequence) -> None:
        """Ends its row with its own block: padding reads there, and others' blocks may hold NaN."""
        end = (sequence.row + 1) * self.width
        rest = self.width - len(sequence.blocks)
        self.tables[end - rest : end] = array("i", sequence.blocks[:1]) * rest

    def _take(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block = next(iter(self._unused))
            del self._unused[block]
            del self._kept[self._hashes.pop(block)]
        self._references[block] = 1
        return block

    def _let_go(self, block: int) -> bool:
        """One reference less; whether the block is free now, and what it holds forgotten."""
        self._references[block] -= 1
        if self._references[block]:
            return False
        if block in self._hashes:
            self._unused[block] = None
            return False
        self._free.append(block)
        return True

    def _hash(self, sequence: Sequence, at: int) -> bytes:
        """Of all its tokens up to the end of its block number `at`."""
        hashes, size = sequence.hashes, self.block_size
        while len(hashes) <= at:
            begin = len(hashes) * size
            content = array("q", sequence.tokens[begin : begin + size]).tobytes()
            before = hashes[-1] if hashes else b""
            hashes.append(blake2b(before + content, digest_size=HASH_BYTES).digest())
        return hashes[at]
