"""``shardwise.activation_checkpointing``: recomputes the blocks of a model without its help."""

import copy
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import noop_context_fn

from shardwise import _C
from shardwise.checkpointing import recomputed
from shardwise.console import log
from shardwise.dear_results import keep_dear_results

CONTEXTS = {"full": noop_context_fn, "selective": keep_dear_results}


class Recomputed:
    """A block's forward that is computed again in backward. In training only.

    Copied or pickled it is the block's own forward again: a copy of a module computes with its own
    weights, and needs no engine. A key-value cache would be filled twice, so blocks get none.
    """

    def __init__(self, block: nn.Module, contexts: Callable):
        functools.update_wrapper(self, block.forward)
        self._block = block
        self._forward = block.forward
        self._contexts = contexts

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._block.training or not torch.is_grad_enabled():
            return self._forward(*args, **kwargs)
        args = tuple(None if _is_cache(value) else value for value in args)
        kwargs = {name: None if _is_cache(value) else value for name, value in kwargs.items()}
        if kwargs.get("use_cache"):
            kwargs["use_cache"] = False
        return recomputed(self._forward, args, kwargs, self._contexts)

    def __deepcopy__(self, memo: dict) -> Callable:
        return copy.deepcopy(self._forward, memo)

    def __reduce__(self) -> tuple:
        return copy.copy, (self._forward,)


class BlockCheckpoints:
    """Replaces the forward of each block by one that is computed again in backward.

    ``contexts``: of the two runs, as torch's ``checkpoint`` takes them. Hooks of a block, the
    engine's too, stay outside.
    """

    def __init__(self, blocks: list[nn.Module], contexts: Callable = noop_context_fn):
        self._replaced: list[tuple[nn.Module, bool, Callable]] = []
        for block in blocks:
            had_own = "forward" in vars(block)
            self._replaced.append((block, had_own, block.forward))
            block.forward = Recomputed(block, contexts)

    def restore(self) -> None:
        """Gives the blocks their own forward back."""
        while self._replaced:
            block, had_own, forward = self._replaced.pop()
            if had_own:
                block.forward = forward
            else:
                del block.forward


def _is_cache(value: Any) -> bool:
    caches = sys.modules.get("transformers.cache_utils")
    return caches is not None and isinstance(value, caches.Cache)


def checkpoint_blocks(engine: Any, units: list[Any]) -> BlockCheckpoints:
    """What the engine's ``shardwise.activation_checkpointing`` asks for."""
    setting = engine.config_value("shardwise.activation_checkpointing")
    if setting == "off":
        return BlockCheckpoints([])
    if any(getattr(part, "gradient_checkpointing", False) for part in engine.module.modules()):
        log(
            "shardwise.activation_checkpointing has no effect: the model's own gradient "
            "checkpointing is on"
        )
        return BlockCheckpoints([])
    blocks = [unit.module for unit in units if not unit.is_root]
    if not blocks:
        raise _C.ConfigError(
            f'shardwise.activation_checkpointing: "{setting}" recomputes blocks, but none were '
            "found in the model: name their class in shardwise.units"
        )
    _check_uncompiled(engine.module, blocks, setting)
    return BlockCheckpoints(blocks, CONTEXTS[setting])


def _check_uncompiled(model: nn.Module, blocks: list[nn.Module], setting: str) -> None:
    """torch.compile cannot trace the forward that a block gets."""
    compiled = [
        (name, module)
        for name, module in model.named_modules()
        if getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod")
    ]
    inner = {id(block) for block in blocks}
    for name, module in compiled:
        if any(id(part) in inner for part in module.modules()):
            raise _C.ConfigError(
                f'shardwise.activation_checkpointing: "{setting}" does not work with torch.compile '
                f'around blocks, but {name or "the model"} is compiled: set it to "off", leave '
                f"torch.compile out, or compile only modules inside of the blocks"
            )
