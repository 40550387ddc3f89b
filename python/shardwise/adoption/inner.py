"""Models without head: they tell their blocks that attention is causal and nothing else.

transformers builds the mask from the positions. Where the caller gives neither, it looks for packed
samples in the positions that it has just made itself, and waits for the GPU to answer. A mask of
four dimensions it passes on as it is, so an empty one says all that blocks need to know.
"""

from typing import Any

import torch
from torch import nn

from shardwise.adoption.block import CACHES
from shardwise.adoption.layers import EMPTY


class FusedModel:
    """A model all of whose blocks are adopted, and so know the mark. ``layers``: their name."""

    def __init__(self, layers: str):
        self._layers = layers

    def __reduce__(self) -> Any:
        return type(None), ()

    def __deepcopy__(self, memo: dict) -> "FusedModel":
        return self

    def plain(self, model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> bool:
        """Whether the mask of this call would be none: causal, no cache, no window, no padding."""
        config = model.config
        uses_cache = kwargs.get("use_cache")
        if config.use_cache if uses_cache is None else uses_cache:
            return False
        named = ("attention_mask", "position_ids", "is_causal", *CACHES)
        if args[1:] or any(kwargs.get(name) is not None for name in named):
            return False
        if config._attn_implementation != "sdpa" or not getattr(config, "is_causal", True):
            return False
        tokens = args[0] if args else kwargs.get("input_ids")
        tokens = kwargs.get("inputs_embeds") if tokens is None else tokens
        window = getattr(config, "sliding_window", None)
        if not isinstance(tokens, torch.Tensor) or tokens.dim() < 2:
            return False
        if window is not None and tokens.shape[1] >= window:
            return False
        layers = getattr(model, self._layers)
        return all(layer.__dict__.get("_shardwise_fused") is not None for layer in layers)


def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The forward of an adopted model without head."""
    fused: FusedModel | None = self._shardwise_fused
    if fused is not None and not torch.compiler.is_compiling() and fused.plain(self, args, kwargs):
        kwargs["attention_mask"] = torch.empty(EMPTY)
    return type(self).forward(self, *args, **kwargs)
