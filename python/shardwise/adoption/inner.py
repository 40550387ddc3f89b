"""Models without head: they tell their blocks what tokens see, so that no mask is made: mask.py."""

from typing import Any

import torch
from torch import nn

from shardwise.adoption.block import CACHES
from shardwise.adoption.mask import causal_mark, find_documents


class FusedModel:
    """A model all of whose blocks are adopted, and so know the mark. ``layers``: their name."""

    def __init__(self, layers: str):
        self._layers = layers

    def __reduce__(self) -> Any:
        return type(None), ()

    def __deepcopy__(self, memo: dict) -> "FusedModel":
        return self

    def mark(self, model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> torch.Tensor | None:
        """In the place of the mask of this call, if blocks know all of it: no cache, no padding."""
        config = model.config
        uses_cache = kwargs.get("use_cache")
        if config.use_cache if uses_cache is None else uses_cache:
            return None
        named = ("attention_mask", "is_causal", *CACHES)
        if args[1:] or any(kwargs.get(name) is not None for name in named):
            return None
        if config._attn_implementation != "sdpa" or not getattr(config, "is_causal", True):
            return None
        tokens = args[0] if args else kwargs.get("input_ids")
        tokens = kwargs.get("inputs_embeds") if tokens is None else tokens
        if not isinstance(tokens, torch.Tensor) or tokens.dim() < 2 or tokens.numel() == 0:
            return None
        layers = getattr(model, self._layers)
        if not all(layer.__dict__.get("_shardwise_fused") is not None for layer in layers):
            return None
        positions = kwargs.get("position_ids")
        if positions is None:
            return causal_mark()
        batch, sequence = tokens.shape[:2]
        if tokens.dim() != (3 if tokens.is_floating_point() else 2):
            return None
        if positions.shape not in ((1, sequence), (batch, sequence)):
            return None
        return causal_mark(find_documents(positions.expand(batch, -1), kwargs))


def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The forward of an adopted model without head."""
    fused: FusedModel | None = self._shardwise_fused
    if fused is not None and not torch.compiler.is_compiling():
        mark = fused.mark(self, args, kwargs)
        if mark is not None:
            kwargs["attention_mask"] = mark
    return type(self).forward(self, *args, **kwargs)
