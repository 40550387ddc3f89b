"""Micro-batches of token ids from text and token files."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from shardwise import _C
from shardwise._C import Corpus, Tokenizer

__all__ = ["Corpus", "TokenLoader", "Tokenizer", "open_corpus"]

PathLike = str | os.PathLike[str]


def open_corpus(
    files: PathLike | Sequence[PathLike],
    tokenizer: Tokenizer | PathLike,
    length: int,
    held_out: float = 0.0,
    held_out_files: PathLike | Sequence[PathLike] = (),
    separate_documents: bool = False,
) -> tuple[Corpus, Corpus | None]:
    """Samples of ``length`` tokens from text and token files (globs too).

    Args:
        tokenizer: "bytes", a tokenizer.json, or a ``Tokenizer``; the one that made token files.
        held_out: share of the samples that is kept apart; ``held_out_files`` name them instead.
        separate_documents: a loader says where the documents of its batches begin.

    Returns:
        The corpus to train on, and the one held out or None.
    """
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizer(os.fspath(tokenizer))
    return _C.open_corpus(
        _paths(files), tokenizer, length, held_out, _paths(held_out_files), separate_documents
    )


def _paths(files: PathLike | Sequence[PathLike]) -> list[str]:
    single = isinstance(files, (str, os.PathLike))
    return [os.fspath(file) for file in ([files] if single else files)]


def packed_batch(ids: torch.Tensor, begins: torch.Tensor, longest: int) -> dict[str, Any]:
    """Rows of several documents as models of transformers take them.

    Args:
        begins: int32 [documents + 1], where each begins in the tokens of all rows, then the number
            of tokens.

    Returns:
        [micro_batch, length]: ``input_ids``, ``position_ids`` that begin anew with each document
        and ``labels`` without its first token, which nothing before it predicts; ``begins`` as
        ``cu_seq_lens_q`` and ``cu_seq_lens_k``; ``max_length_q`` and ``max_length_k``.
    """
    firsts = begins[:-1].long()
    positions = torch.arange(ids.numel()) - firsts.repeat_interleave(begins.long().diff())
    labels = ids.clone()
    labels.view(-1)[firsts] = -100
    return {
        "input_ids": ids,
        "labels": labels,
        "position_ids": positions.view(ids.shape),
        "cu_seq_lens_q": begins,
        "cu_seq_lens_k": begins,
        "max_length_q": longest,
        "max_length_k": longest,
    }


class TokenLoader:
    """Endless micro-batches, int64 tensors [micro_batch, length], of this rank's part of a corpus.

    Of a corpus with ``separate_documents`` they are dictionaries, ``packed_batch``: ``engine(**b)``
    of an adopted model keeps its documents apart.

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
        if not isinstance(corpus, Corpus):
            raise _C.UsageError(
                f"TokenLoader() takes a corpus, not a {type(corpus).__name__}: make one with "
                f"shardwise.open_corpus(files, tokenizer, length)"
            )
        self.corpus = corpus
        self.micro_batch = micro_batch
        self._loader = _C.TokenLoader(corpus, micro_batch, *ranks, seed, shuffle)

    def __iter__(self) -> Iterator[torch.Tensor | dict[str, Any]]:
        return self

    def __next__(self) -> torch.Tensor | dict[str, Any]:
        ids, begins, longest = self._loader.next(self.micro_batch)
        return packed_batch(ids, begins, longest) if self.corpus.separates_documents else ids

    def state_dict(self) -> dict[str, str]:
        """Where the loader stands, the same on all ranks."""
        return {"cursor": self._loader.cursor}

    def load_state_dict(self, state: dict[str, str]) -> None:
        """Goes on where a loader over the same corpus stood, of any number of ranks."""
        if set(state) != {"cursor"}:
            raise _C.UsageError(
                f"the state of a token loader has the key 'cursor' alone, and this has "
                f"{sorted(state)}: pass what TokenLoader.state_dict() gave"
            )
        self._loader.seek(state["cursor"])
