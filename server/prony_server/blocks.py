"""The KV cache's blocks: requests to hold a sequence's tokens come in, block tables go out.

The tables lie in one flat `array` of 32-bit integers, a row a running sequence, so that the runner
reads them as a tensor without copying and this module needs no torch.
"""

from array import array

from prony_server.sequence import Sequence


class BlockPool:
    """Which block belongs to which running sequence; a block belongs to one at most."""

    def __init__(self, num_blocks: int, block_size: int, max_rows: int, max_model_len: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.width = min(num_blocks, -(-max_model_len // block_size))
        self.tables = array("i", bytes(array("i").itemsize * max_rows * self.width))
        # Stacks: what was freed last is used next, so a quiet server touches little memory.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._rows = list(range(max_rows - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Makes room for its first `tokens` tokens; False, with nothing taken, if there is none."""
        blocks = sequence.blocks
        missing = self.blocks_for(tokens) - len(blocks)
        if missing <= 0:
            return True
        if missing > len(self._free):
            return False
        if sequence.row < 0:
            sequence.row = self._rows.pop()
        new = self._free[-missing:]
        del self._free[-missing:]
        at = sequence.row * self.width + len(blocks)
        self.tables[at : at + missing] = array("i", new)
        blocks += new
        return True

    def release(self, sequence: Sequence) -> None:
        """Takes back all that the sequence holds; its cached tokens are gone."""
        self._free += reversed(sequence.blocks)
        sequence.blocks.clear()
        sequence.computed = 0
        if sequence.row >= 0:
            self._rows.append(sequence.row)
            sequence.row = -1

    def check_all_free(self) -> None:
        """Raises unless free = total: called when nothing runs, so nothing may be held."""
        if len(self._free) != self.num_blocks:
            raise RuntimeError(
                f"KV blocks leaked: nothing runs, {len(self._free)} of {self.num_blocks} are free"
            )
