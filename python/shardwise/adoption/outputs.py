"""Outputs of causal language models whose logits are computed when somebody reads them."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import (
    CausalLMOutputWithCrossAttentions,
    CausalLMOutputWithPast,
)

from shardwise import _C
from shardwise.adoption.layers import autocast_dtype


class Unread:
    """Logits that nobody has read: the hidden states they come from.

    ``around(function, x)`` calls function(x) where the head's parameters can be read;
    ``announced`` counts the updates of the weights.
    """

    def __init__(self, head: nn.Module, hidden: torch.Tensor, around: Callable, announced: Any):
        self._head = head
        self._hidden = hidden
        self._around = around
        self._announced = announced
        self._made_for = self._weights()
        self._records = torch.is_grad_enabled()
        self._mixed = autocast_dtype(hidden.device)

    def _weights(self) -> tuple[int, int]:
        return self._announced.updates, self._head.weight._version

    def read(self) -> torch.Tensor:
        if self._weights() != self._made_for:
            raise _C.UsageError(
                "outputs.logits were not read before the weights changed, and would be those of "
                "the new weights: read them before step(), or write "
                '"shardwise": {"fused_layers": false}'
            )
        hidden = self._hidden
        with (
            torch.inference_mode(hidden.is_inference()),
            torch.set_grad_enabled(self._records),
            torch.autocast(hidden.device.type, self._mixed, enabled=self._mixed is not None),
        ):
            return self._around(self._head, hidden)


class _LazyLogits:
    """Before an output class of transformers: all ways to ``logits`` but one make them."""

    @property
    def logits(self) -> Any:
        value = self.__dict__.get("logits")
        if isinstance(value, Unread):
            self["logits"] = value = value.read()
        return value

    @logits.setter
    def logits(self, value: Any) -> None:
        self.__dict__["logits"] = value

    def _shardwise_made_values(self) -> list:
        """The values without logits that nobody has read. The engine's hooks look at these."""
        return [value for value in super().values() if not isinstance(value, Unread)]

    def __getitem__(self, key: Any) -> Any:
        if key == "loss" or (key == 0 and self.__dict__.get("loss") is not None):
            return self.__dict__["loss"]
        _ = self.logits
        return super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def values(self) -> Iterable:
        _ = self.logits
        return super().values()

    def items(self) -> Iterable:
        _ = self.logits
        return super().items()

    def __reduce__(self) -> Any:
        plain = type(self).__mro__[2]
        return plain, tuple(self.get(name) for name in _fields(plain))


def _fields(kind: type) -> list[str]:
    return list(kind.__dataclass_fields__)


class CausalOutput(_LazyLogits, CausalLMOutputWithPast):
    """``CausalLMOutputWithPast``, logits on demand."""


class CrossOutput(_LazyLogits, CausalLMOutputWithCrossAttentions):
    """``CausalLMOutputWithCrossAttentions``, logits on demand."""


# They print as what they stand for.
for lazy in (CausalOutput, CrossOutput):
    lazy.__name__ = lazy.__qualname__ = lazy.__mro__[2].__name__

LAZY = {
    CausalLMOutputWithPast: CausalOutput,
    CausalLMOutputWithCrossAttentions: CrossOutput,
}
