"""The mask by which a model tells its blocks what tokens see, and that is never made.

transformers makes masks of the positions, [batch, 1, seq, seq] for windows and packed samples.
Where the caller gives neither mask nor positions it looks for packed samples in positions that it
has just made itself, and waits for the GPU to answer. A mask of four dimensions it passes on as it
is, so a mark says all that blocks need to know: an empty tensor, or where documents begin as int32
[1, longest, 1, documents + 1], of which one row is in memory. What checkpoints keep of a tensor is
enough for it.
"""

from dataclasses import dataclass
from typing import Any

import torch

from shardwise import _C

EMPTY = (0, 0, 0, 0)
# What transformers' flash attention takes beside positions; its sdpa looks at positions alone.
BOUNDARIES = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


@dataclass
class Documents:
    """Documents in rows: ``offsets`` int32 [documents + 1], where each begins in the tokens of all
    rows, then their number; ``longest``, the tokens of the longest."""

    offsets: torch.Tensor
    longest: int


def causal_mark(documents: Documents | None = None) -> torch.Tensor:
    """A mask that says: causal, within the layer's window and a token's document."""
    if documents is None:
        return torch.empty(EMPTY)
    return documents.offsets.expand(1, documents.longest, 1, -1)


def is_causal_mark(mask: Any) -> bool:
    if not isinstance(mask, torch.Tensor) or mask.dim() != 4:
        return False
    # transformers' masks are of other types.
    return mask.shape == EMPTY or (mask.dtype == torch.int32 and mask.shape[::2] == (1, 1))


def documents_of(mark: torch.Tensor) -> Documents | None:
    return None if mark.shape == EMPTY else Documents(mark[0, 0, 0], mark.shape[1])


def find_documents(positions: torch.Tensor, given: dict[str, Any]) -> Documents | None:
    """The documents of rows with these positions, [batch, seq]; None: one in each row.

    As transformers sees them: another begins wherever a position does not follow the one before it.
    Positions on a GPU have to be waited for, except where ``given`` has ``cu_seq_lens_q`` that a
    collator made of the same samples; ``longest`` is then a row's length.
    """
    batch, sequence = positions.shape
    begins = given.get("cu_seq_lens_q")
    if positions.is_cuda and isinstance(begins, torch.Tensor):
        begins = one_row(begins)
        # Of two at one place the document is empty; what they leave out is one of its own.
        begins = begins.to(positions.device, torch.int32).clamp(0, batch * sequence)
        rows = torch.arange(batch + 1, dtype=torch.int32, device=positions.device) * sequence
        return Documents(torch.cat((begins, rows)).sort()[0], sequence)
    first = torch.ones(batch, sequence, dtype=torch.bool)
    first[:, 1:] = positions.cpu().diff(dim=-1) != 1
    if first.sum() == batch:
        return None
    begins = torch.cat((first.flatten().nonzero().flatten(), torch.tensor([first.numel()])))
    return Documents(begins.to(positions.device, torch.int32), int(begins.diff().max()))


def one_row(begins: torch.Tensor) -> torch.Tensor:
    """``cu_seq_lens_q`` [documents + 1], to which a loader may have added a batch of one."""
    if begins.shape[-1:].numel() != begins.numel():
        raise _C.UsageError(
            f"cu_seq_lens_q is {list(begins.shape)}, but says in one row, [documents + 1], where "
            "documents begin in the tokens of all rows: make it of the whole micro-batch"
        )
    return begins.flatten()


def plain_mask(mask: Any, window: int | None, hidden: torch.Tensor) -> Any:
    """What transformers' own attention over ``hidden``, [batch, seq, width], takes for a mask: bool
    [batch, 1, seq, seq] for a mark, kept with it, or None where it is plainly causal; other masks
    are as they were."""
    if not is_causal_mark(mask):
        return mask
    if torch.compiler.is_compiling():
        return _made(mask, window, hidden)
    made = mask.__dict__.setdefault("_shardwise_made", {})
    key = (window, *hidden.shape[:2], hidden.device)
    if key not in made:
        made[key] = _made(mask, window, hidden)
    return made[key]


def _made(mark: torch.Tensor, window: int | None, hidden: torch.Tensor) -> torch.Tensor | None:
    documents = documents_of(mark)
    batch, sequence = hidden.shape[:2]
    if documents is None and (window is None or sequence <= window):
        return None
    places = torch.arange(sequence, device=hidden.device)
    seen = places <= places[:, None]
    if window is not None:
        seen &= places > places[:, None] - window
    seen = seen.expand(batch, 1, sequence, sequence)
    if documents is not None:
        tokens = torch.arange(batch * sequence, device=hidden.device, dtype=torch.int32)
        number = torch.bucketize(tokens, documents.offsets, right=True).view(batch, 1, sequence)
        seen = seen & (number[..., None] == number[..., None, :])
    return seen
