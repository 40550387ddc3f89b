"""``shardwise.activation_checkpointing: "selective"``: keeps what is dear to compute, no more."""

from contextlib import AbstractContextManager
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
        torch.ops.shardwise.joined_linear_forward.default,
        torch.ops.shardwise.scaled_product.default,
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
    return first, _OneBackward(again)


class _OneBackward:
    """The context of a recomputation, which takes the kept results out of their list. A second
    backward through the block would find the wrong ones there, and is refused."""

    def __init__(self, context: AbstractContextManager):
        self._context = context
        self._entered = False

    def __enter__(self) -> None:
        if self._entered:
            raise _refusal("two backward passes through one graph")
        self._entered = True
        self._context.__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._context.__exit__(kind, error, trace)
        if isinstance(error, RuntimeError) and "has been mutated" in str(error):
            raise _refusal("a block that changes a result of them in place") from error


def _refusal(what: str) -> _C.UsageError:
    return _C.UsageError(
        f'shardwise.activation_checkpointing: "selective" keeps results of matrix products and '
        f'attention for one backward as they are, and cannot serve {what}; write "full"'
    )
