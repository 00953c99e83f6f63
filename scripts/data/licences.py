"""Text that every Debian has: the licences, in blocks that belong either to training or to validation."""

from pathlib import Path

FOLDER = Path("/usr/share/common-licenses")
_BLOCK = 2048
_HELD_OUT_EVERY = 10


def blocks(held_out, folder=FOLDER):
    """Yields blocks of about 2 KB as lists of words, in a fixed order; every tenth block is held out."""
    files = sorted({path.resolve() for path in Path(folder).glob("*") if path.is_file()})
    if not files:
        raise SystemExit(f"{folder}: no texts; apt-get install base-files, or select a folder with --texts")
    chosen = []
    number = 0
    for path in files:
        words = path.read_text(encoding="utf-8", errors="replace").split()
        block, length = [], 0
        for word in words:
            block.append(word)
            length += len(word.encode("utf-8")) + 1
            if length >= _BLOCK:
                if (number % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1) == held_out:
                    chosen.append(block)
                block, length = [], 0
                number += 1
    if not chosen:
        raise SystemExit(f"{folder}: too little text; at least {_HELD_OUT_EVERY * _BLOCK} bytes are needed")
    return chosen


class Pieces:
    """Draws pieces of `shortest` to `longest` bytes, in whole words, at random positions."""

    def __init__(self, random, held_out, shortest, longest, folder=FOLDER):
        if not 32 <= shortest <= longest <= 1024:
            raise SystemExit(f"pieces of {shortest} to {longest} bytes; allowed are 32 to 1024")
        self._random, self._shortest, self._longest = random, shortest, longest
        self._blocks = blocks(held_out, folder)
        # Several licences share paragraphs: a piece that training may contain is not held out.
        self._known = " ".join(" ".join(block) for block in blocks(False, folder)) if held_out else ""

    def draw(self):
        for _ in range(1000):
            block = self._blocks[self._random.integers(len(self._blocks))]
            target = self._random.integers(self._shortest, self._longest + 1)
            piece = self._cut(block, self._random.integers(len(block)), target)
            if len(piece.encode("utf-8")) >= self._shortest and not (self._known and piece in self._known):
                return piece
        raise SystemExit("the held-out texts are all contained in the training texts")

    @staticmethod
    def _cut(block, first, target):
        piece = ""
        for word in block[first:]:
            longer = f"{piece} {word}" if piece else word
            if len(longer.encode("utf-8")) > target:
                break
            piece = longer
        return piece
