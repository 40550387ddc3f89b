"""Real English that every Python has: the language reference that `help()` shows.

python corpus.py FOLDER writes it as train.txt and held_out.txt.
"""

import re
import sys
from pathlib import Path
from pydoc_data.topics import topics

import torch


class Corpus:
    """Bytes of all topics in sorted order; every tenth paragraph-sized slice is held out."""

    SLICE = 4096  # bytes; large against the context, small enough that all topics are in both parts

    def __init__(self):
        self.text = "\n\n".join(topics[k] for k in sorted(topics) if isinstance(topics[k], str))
        data = self.text.encode()
        slices = [data[i : i + self.SLICE] for i in range(0, len(data), self.SLICE)]
        self.held_out = [s for i, s in enumerate(slices) if i % 10 == 9]
        train = b"".join(s for i, s in enumerate(slices) if i % 10 != 9)
        self.train = torch.frombuffer(bytearray(train), dtype=torch.uint8)

    def write(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "train.txt").write_bytes(self.train.numpy().tobytes())
        (folder / "held_out.txt").write_bytes(b"".join(self.held_out))

    def batch(self, size: int, context: int, generator: torch.Generator):
        """Inputs and targets [size, context], int64, at random places of the training part."""
        starts = torch.randint(len(self.train) - context, (size, 1), generator=generator)
        window = self.train[starts + torch.arange(context + 1)].long()
        return window[:, :-1], window[:, 1:]

    def held_out_batch(self, index: int, context: int):
        """The whole windows of held-out slice `index`: inputs and targets [windows, context]."""
        data = torch.frombuffer(bytearray(self.held_out[index]), dtype=torch.uint8).long()
        count = (len(data) - 1) // context
        inputs = data[: count * context].view(count, context)
        return inputs, data[1 : count * context + 1].view(count, context)

    def word_share(self, text: str) -> float:
        """Share of the words of `text` that occur in the corpus."""
        known = set(words(self.text))
        found = words(text)
        return sum(word in known for word in found) / max(len(found), 1)


def words(text: str) -> list[str]:
    """Lower-case runs of two or more letters: single letters would always count as known."""
    return [word.lower() for word in re.findall(r"[A-Za-z]{2,}", text)]


if __name__ == "__main__":
    Corpus().write(Path(sys.argv[1]))
