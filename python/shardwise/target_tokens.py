"""How many tokens a loss is the mean of, for ``shardwise.token_weighted_loss``."""

import numbers
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from shardwise import _C

# Keywords that change what transformers divides by, or which targets it counts.
OTHER_MEANS = ("num_items_in_batch", "shift_labels", "ignore_index")
IGNORED = -100  # the label of no target


@dataclass(frozen=True)
class Forward:
    """A loss, and the target tokens that it is the mean of unless ``keyword`` was given."""

    loss: weakref.ref[torch.Tensor]
    tokens: torch.Tensor
    keyword: str | None


@dataclass
class TargetTokens:
    """The forwards of the micro-batch under way, and the target tokens of each.

    ``micro_batch`` is a number that changes from one micro-batch to the next.
    """

    _micro_batch: int = -1
    _seen: list[Forward] = field(default_factory=list)

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
            tokens = (labels[..., 1:] != IGNORED).sum()
            self._seen.append(Forward(weakref.ref(loss), tokens, _other_mean(kwargs)))

    def behind(self, micro_batch: int, loss: torch.Tensor) -> torch.Tensor | None:
        """Tokens of the forward that gave this loss, or of the only one; None without any.

        Raises UsageError where that forward's loss may not be the mean over its targets.
        """
        self._forget_others(micro_batch)
        for forward in self._seen:
            if forward.loss() is loss:
                return _tokens_of(forward)
        if len(self._seen) > 1:
            raise _C.UsageError(
                f"{len(self._seen)} forwards with labels ran since the last step(), and this loss "
                f"is that of none of them: say how many tokens it is the mean of, "
                f"backward(loss, tokens=count)"
            )
        return _tokens_of(self._seen[0]) if self._seen else None

    def forget(self) -> None:
        """The gradients of the micro-batch under way were thrown away."""
        self._seen.clear()

    def _forget_others(self, micro_batch: int) -> None:
        if micro_batch != self._micro_batch:
            self._micro_batch = micro_batch
            self._seen.clear()


def _other_mean(kwargs: dict[str, Any]) -> str | None:
    """The first keyword with which the loss is no mean over the labels other than IGNORED."""
    given = (key for key in OTHER_MEANS if kwargs.get(key) is not None)
    return next((key for key in given if (key, kwargs[key]) != ("ignore_index", IGNORED)), None)


def _tokens_of(forward: Forward) -> torch.Tensor:
    if forward.keyword is not None:
        raise _C.UsageError(
            f"the model got {forward.keyword}=, with which its loss may not be the mean over the "
            f"labels that are not {IGNORED}, as shardwise.token_weighted_loss needs: leave "
            f"{forward.keyword} out, or pass the mean of your own and its tokens, "
            f"backward(loss, tokens=count)"
        )
    return forward.tokens


# Sums of counts up to here are exact.
MOST_TOKENS = 2**53


def checked_tokens(tokens: Any, device: torch.device) -> torch.Tensor:
    """What the user gave as ``backward(tokens=)``, on the device of the loss.

    UsageError where it is no count. A tensor on another device than the CPU is not waited for.
    """
    is_tensor = isinstance(tokens, torch.Tensor)
    readable = not is_tensor or tokens.device.type == "cpu"
    if is_tensor and tokens.numel() != 1:
        raise _C.UsageError(f"backward(tokens=) is one number, but it has {tuple(tokens.shape)}")
    if readable:
        value = tokens.item() if is_tensor else tokens
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= MOST_TOKENS or value != int(value):
            raise _C.UsageError(
                f"backward(tokens={value!r}) is no number of tokens: give how many tokens the loss "
                f"is the mean of, a whole number >= 0, for example (labels != -100).sum()"
            )
        tokens = tokens if is_tensor else int(value)
    return torch.as_tensor(tokens, device=device)
