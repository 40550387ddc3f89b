"""``shardwise.activation_checkpointing: "selective"``: keeps what is dear to compute, no more."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from shardwise import _C

_aten = torch.ops.aten
# Matrix products and convolutions, and the kernels of scaled_dot_product_attention; what is not
# among them, on any device, is recomputed.
DEAR = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten.baddbmm.default,
        _aten.convolution.default,
        _aten._scaled_mm.default,
        _aten._grouped_mm.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
        _aten._flash_attention_forward.default,
        _aten._efficient_attention_forward.default,
    }
)


def policy(_context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Whether torch keeps the results of a call."""
    keep = operation in DEAR and not _draws(operation, args, kwargs)
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


def _draws(operation: Any, args: tuple, kwargs: dict) -> bool:
    """Whether a call takes random numbers: left out, it would shift those of later calls."""
    names = [argument.name for argument in operation._schema.arguments]
    return (dict(zip(names, args, strict=False)) | kwargs).get("dropout_p", 0) > 0


def keep_dear_results() -> tuple[AbstractContextManager, AbstractContextManager]:
    """The contexts of the two runs of a block, for torch's ``checkpoint(context_fn=)``."""
    first, again = create_selective_checkpoint_contexts(policy)
    return first, _with_advice(again)


@contextmanager
def _with_advice(context: AbstractContextManager) -> Iterator[None]:
    """Torch refuses what it cannot recompute; it does not know our setting."""
    try:
        with context:
            yield
    except RuntimeError as error:
        if "selective activation checkpoint" not in str(error):
            raise
        raise _C.UsageError(
            f'shardwise.activation_checkpointing: "selective" keeps results of matrix products and '
            f"attention, and a block changed one in place or backward ran through it twice; "
            f'write "full" ({error})'
        ) from error
