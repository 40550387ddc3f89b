"""Micro-batches of token ids from text and token files."""

from collections.abc import Iterator

import torch

from shardwise import _C
from shardwise._C import Corpus, Tokenizer, open_corpus

__all__ = ["Corpus", "TokenLoader", "Tokenizer", "open_corpus"]


class TokenLoader:
    """Endless micro-batches, int64 tensors [micro_batch, length], of this rank's part of a corpus.

    The order of samples is the same for every number of ranks: a loader of 3 ranks can go on with
    the state of one of 2. ``open_corpus`` makes the corpus.
    """

    def __init__(
        self,
        corpus: Corpus,
        micro_batch: int,
        ranks: tuple[int, int] = (0, 1),
        seed: int = 0,
        shuffle: bool = True,
    ):
        """``ranks``: this rank and how many there are."""
        self.corpus = corpus
        self.micro_batch = micro_batch
        self._loader = _C.TokenLoader(corpus, micro_batch, *ranks, seed, shuffle)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return self

    def __next__(self) -> torch.Tensor:
        return self._loader.next(self.micro_batch)

    def state_dict(self) -> dict[str, str]:
        """Where the loader stands, the same on all ranks."""
        return {"cursor": self._loader.cursor}

    def load_state_dict(self, state: dict[str, str]) -> None:
        """Goes on where a loader over the same corpus stood, of any number of ranks."""
        self._loader.seek(state["cursor"])
