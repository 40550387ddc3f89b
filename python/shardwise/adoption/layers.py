"""What the families share: products, attention, norms that are handed on, embeddings."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from shardwise import _C
from shardwise.adoption.mask import documents_of, is_causal_mark
from shardwise.console import log

OPS = torch.ops.shardwise


@dataclass
class Common:
    """What the adopted modules of one engine share.

    Attributes: ``hands_on``, a block may compute the norm that the next one begins with;
    ``in_place``, results of products may be changed; ``fp8``, how products run, as the setting of
    that name has it; ``said``, reasons that were logged.
    """

    hands_on: bool = False
    in_place: bool = True
    fp8: str = "off"
    said: set[str] = field(default_factory=set)

    def __deepcopy__(self, memo: dict) -> "Common":
        return self

    def fall_back(self, reason: str) -> None:
        """One line for the first forward that HF's own code runs for this reason."""
        if reason not in self.said:
            self.said.add(reason)
            form = "" if self.fp8 == "off" else ", in bf16,"
            log(f"fused_layers: the module's own forward runs{form} where {reason}")

    # torch.compile runs it while tracing and leaves nothing of it in the graph: what
    # torch.compiler.assume_constant_result sets, which takes seconds to import.
    fall_back._dynamo_marked_constant = True


def side_by_side(
    x: torch.Tensor, layers: tuple[nn.Module, ...], mixed: torch.dtype | None, common: Common
) -> torch.Tensor:
    """The outputs of linear layers of one input in one tensor, [batch, seq, all].

    All of the layers have a bias, or none: ``checks.mixed_biases``.
    ``mixed``: the dtype of torch.autocast, where it is on. The gradients of the weights are made in
    the engine's flat gradient, where it has one; not where torch has to see a product that it keeps
    for backward, which it does of those in fp8.
    """
    weights = [layer.weight for layer in layers]
    biases = [] if layers[0].bias is None else [layer.bias for layer in layers]
    if mixed is not None:
        x = x.to(mixed)
        weights = [weight.to(mixed) for weight in weights]
        biases = [bias.to(mixed) for bias in biases]
    if common.in_place or runs_in_fp8(weights, common):
        return OPS.projection(x, weights, biases, False, common.fp8)
    return OPS.joined_linear(x, weights, biases)


def runs_in_fp8(weights: list[torch.Tensor], common: Common) -> bool:
    """Whether OPS.projection multiplies with these weights in fp8."""
    return common.fp8 != "off" and all(fits_fp8(weight) for weight in weights)


def fits_fp8(weight: torch.Tensor) -> bool:
    return all(size % _C.FLOAT8_MULTIPLE == 0 for size in weight.shape)


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype of torch.autocast, None where it is off."""
    if not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


@dataclass
class Heads:
    """The shape of an attention: rows hold ``query`` heads and twice ``key`` heads of ``size``."""

    query: int
    key: int
    size: int
    scale: float

    def split(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Rows of q, k and v side by side to three [batch, heads, seq, size], views."""
        parts = rows.view(*rows.shape[:-1], -1, self.size)
        q, k, v = parts.split((self.query, self.key, self.key), dim=2)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


class Attention:
    """Causal attention by the fastest kernel that takes it."""

    def __init__(self, module: nn.Module, heads: Heads):
        self.module = module  # HF's, whose attributes its attention function reads
        self.heads = heads

    @property
    def window(self) -> int | None:
        """How many tokens a token sees where the mask is a mark, as transformers reads it anew at
        each call; None: all."""
        if type(self.module).__name__ == "MistralAttention":
            return self.module.config.sliding_window
        return getattr(self.module, "sliding_window", None)

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, dropout: float
    ) -> torch.Tensor:
        """[batch, seq, heads × size] of q, k, v [batch, heads, seq, size]."""
        if mask is None:
            return OPS.causal_attention(q, k, v, self.heads.scale, dropout)
        if is_causal_mark(mask):
            documents = documents_of(mask)
            packed = () if documents is None else (documents.offsets, documents.longest)
            return OPS.causal_attention(
                q, k, v, self.heads.scale, dropout, self.window or 0, *packed
            )
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        out, _ = sdpa_attention_forward(
            self.module, q, k, v, mask, dropout=dropout, scaling=self.heads.scale
        )
        return out.flatten(2)


# Note [Norms that are handed on]
# The sum that ends a block and the norm that begins the next are one pass over memory if the block
# computes both, and so are their backwards. Blocks return the sum alone, so the norm travels as an
# attribute of it. Whoever takes the sum for something else, or makes another tensor of it, is right
# all the same: the next block then computes the norm itself. It takes what was handed on only if it
# was made for it, the sum was not changed since, and the same node of the graph made both: under
# reentrant checkpointing the sum has another. A gradient of the sum alone would miss what comes
# through the norm, so nothing is handed on where somebody could hold the sum: where a block has
# hooks. Nor where the engine has some, at ZeRO stages 2 and 3: the norm's weight belongs to another
# unit.


def hand_on(total: torch.Tensor, normed: torch.Tensor, norm: nn.Module) -> None:
    total._shardwise_handed = (norm, normed, total._version)


def taken(x: torch.Tensor, norm: nn.Module) -> torch.Tensor | None:
    """The norm of x where the module that made x computed it."""
    handed = getattr(x, "_shardwise_handed", None)
    if handed is None or handed[0] is not norm or handed[2] != x._version:
        return None
    normed = handed[1]
    return normed if normed.grad_fn is x.grad_fn else None
