"""How many tokens a loss is the mean of, for ``shardwise.token_weighted_loss``."""

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from shardwise import _C


@dataclass
class TargetTokens:
    """The forwards of the micro-batch under way, and the target tokens of each.

    ``micro_batch`` is a number that changes from one micro-batch to the next.
    """

    _micro_batch: int = -1
    _seen: list[tuple[weakref.ref[torch.Tensor], torch.Tensor]] = field(default_factory=list)

    def saw_forward(
        self, micro_batch: int, module: nn.Module, kwargs: dict[str, Any], output: Any
    ) -> None:
        """Counts the targets of a causal language model of transformers that got ``labels``."""
        self._forget_others(micro_batch)
        labels = kwargs.get("labels")
        kind = getattr(getattr(module, "loss_function", None), "__name__", None)
        loss = getattr(output, "loss", output[0] if isinstance(output, tuple) else None)
        known = kind == "ForCausalLMLoss" and isinstance(labels, torch.Tensor)
        if known and isinstance(loss, torch.Tensor) and loss.requires_grad:
            self._seen.append((weakref.ref(loss), (labels[..., 1:] != -100).sum()))

    def behind(self, micro_batch: int, loss: torch.Tensor) -> torch.Tensor | None:
        """Tokens of the forward that gave this loss, or of the only one; None without any."""
        self._forget_others(micro_batch)
        for seen, tokens in self._seen:
            if seen() is loss:
                return tokens
        if len(self._seen) > 1:
            raise _C.UsageError(
                f"{len(self._seen)} forwards with labels ran since the last step(), and this loss "
                f"is that of none of them: say how many tokens it is the mean of, "
                f"backward(loss, tokens=count)"
            )
        return self._seen[0][1] if self._seen else None

    def forget(self) -> None:
        """The gradients of the micro-batch under way were thrown away."""
        self._seen.clear()

    def _forget_others(self, micro_batch: int) -> None:
        if micro_batch != self._micro_batch:
            self._micro_batch = micro_batch
            self._seen.clear()
