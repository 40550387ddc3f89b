"""Transformer blocks: per call, whether our forward serves it; per family, how."""

import copy
from functools import partial
from typing import Any

import torch
from torch import nn

from shardwise.adoption import checks
from shardwise.adoption.layers import Attention, Common, autocast_dtype
from shardwise.adoption.mask import BOUNDARIES, plain_mask

CACHES = ("cache", "past_key_values", "past_key_value", "layer_past")
# Arguments that models pass through to their blocks and that change nothing there.
IDLE = frozenset(
    {
        "attention_mask",
        "ignore_index",
        "num_items_in_batch",
        "output_hidden_states",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "shift_labels",
        "use_cache",
        *BOUNDARIES,
        *CACHES,
    }
)

# Others change nothing where they are None or False, or have this value.
IDLE_VALUES = {"is_causal": True}


class FusedBlock:
    """What a block keeps for its forward: its parts, and what follows it.

    A copy of the block has a copy of it, which hands nothing on; a pickled block comes back
    without, and with its own forward.
    """

    def __init__(self, block: nn.Module, common: Common):
        self.common = common
        self.dtype = checks.check_parameters(block)
        self.argument_names = checks.argument_names(block)
        self.checkpoints = checks.checkpoints_itself(block)
        self.own_forward = checks.own_forward(block)
        self.hooks = checks.hook_tables(block)
        self.places = checks.places(block)
        # The module that is called next, and the norm that it begins with.
        self.following: tuple[nn.Module, nn.Module] | None = None

    def run(self, block: nn.Module, x: torch.Tensor, call: dict[str, Any]) -> torch.Tensor:
        """The block's output."""
        raise NotImplementedError

    def unserved(self, block: nn.Module, x: torch.Tensor, call: dict[str, Any]) -> str:
        """Why this call is not for us; "" where it is."""
        attention = self.attention.module
        if any(self.hooks) and checks.foreign_hooks(self.hooks):
            return "a module inside a block has hooks"
        if not checks.still_there(self.places):
            return "a module inside a block was replaced"
        if attention.config._attn_implementation != "sdpa" or not attention.is_causal:
            return "the attention is not sdpa, or not causal"
        mixed = self.dtype == torch.float32 and autocast_dtype(x.device) is not None
        if x.dtype != self.dtype and not mixed:
            return f"the hidden states are {x.dtype}, the weights {self.dtype}"
        if x.dim() != 3 or x.numel() == 0:
            return "the hidden states are not [batch, sequence, hidden], or empty"
        mask = call["attention_mask"]
        if mask is not None and not (isinstance(mask, torch.Tensor) and mask.dim() == 4):
            return "the attention mask has not four dimensions"
        for name, value in call.items():
            if name in CACHES and value is not None and not self._is_empty(value):
                return "keys and values come from a cache"
            if name not in IDLE and value is not IDLE_VALUES.get(name, False) and value is not None:
                return f"a block gets {name}={value}"
        return ""

    def _is_empty(self, cache: Any) -> bool:
        known = type(cache).__name__ == "DynamicCache"
        return known and cache.get_seq_length(self.attention.module.layer_idx) == 0

    @property
    def attention(self) -> Attention:
        raise NotImplementedError

    def fill_cache(self, call: dict[str, Any], k: torch.Tensor, v: torch.Tensor) -> None:
        """Puts keys and values into the cache of the call, if there is one, which is empty."""
        for name in CACHES:
            cache = call.get(name)
            if cache is not None:
                cache.update(k, v, self.attention.module.layer_idx)

    def next_norm(self, block: nn.Module) -> nn.Module | None:
        """The norm that follows the block, where it is handed on: Note [Norms that are handed on]
        in layers.py."""
        if not self.common.hands_on or self.following is None or any(self.hooks):
            return None
        if torch.is_inference_mode_enabled():
            return None  # its tensors have no versions
        module, norm = self.following
        if block._forward_hooks or module._forward_pre_hooks or norm._forward_pre_hooks:
            return None
        recomputes = getattr(block, "gradient_checkpointing", False) and block.training
        same = norm.weight.dtype == self.dtype
        return norm if same and not recomputes else None

    def __reduce__(self) -> Any:
        return type(None), ()

    def __deepcopy__(self, memo: dict) -> Any:
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        for name, value in vars(self).items():
            setattr(twin, name, None if name == "following" else copy.deepcopy(value, memo))
        return twin


def forward(self: nn.Module, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The forward of every adopted block."""
    fused: FusedBlock = self._shardwise_fused
    call = dict(zip(fused.argument_names, args, strict=False)) | kwargs if args else kwargs
    call.setdefault("attention_mask", None)
    if torch.compiler.is_compiling():
        if fused.common.fp8 != "off":
            fused.common.fall_back("torch.compile traces a block")
        return type(self).forward(
            self, hidden_states, **_with_plain_mask(self, call, hidden_states)
        )
    replays = fused.checkpoints and getattr(self, "gradient_checkpointing", False)
    if replays and self.training and torch.is_grad_enabled():
        # A cache would be filled twice.
        call = {name: None if name in CACHES else value for name, value in call.items()}
        call["use_cache"] = False
        return self._gradient_checkpointing_func(partial(_serve, self, call), hidden_states)
    return _serve(self, call, hidden_states)


def _serve(block: nn.Module, call: dict[str, Any], hidden_states: torch.Tensor) -> torch.Tensor:
    fused: FusedBlock = block._shardwise_fused
    reason = fused.unserved(block, hidden_states, call)
    if reason:
        fused.common.fall_back(reason)
        call = _with_plain_mask(block, call, hidden_states)
        return fused.own_forward(block, hidden_states, **call)
    return fused.run(block, hidden_states, call)


def _with_plain_mask(
    block: nn.Module, call: dict[str, Any], hidden_states: torch.Tensor
) -> dict[str, Any]:
    """The call as transformers' own forward takes it."""
    window = block._shardwise_fused.attention.window
    return {**call, "attention_mask": plain_mask(call["attention_mask"], window, hidden_states)}
