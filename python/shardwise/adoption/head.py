"""Causal language models whose loss is computed without logits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from shardwise.adoption import checks
from shardwise.adoption.layers import OPS, Common, autocast_dtype

LOSS = ("transformers.loss.loss_utils", "ForCausalLMLoss")
IGNORED = -100
# Arguments of the loss that are served; they go through the inner model too, as in transformers.
LOSS_ARGUMENTS = ("num_items_in_batch", "shift_labels", "ignore_index")
# Arguments that ask for another output than a loss with logits.
OTHERS = ("return_dict", "output_attentions", "output_hidden_states")


@dataclass
class Announced:
    """What the engine says of itself, without waiting for a GPU.

    Attributes: ``updates``, how often it updated the weights.
    """

    loss_scale: float = 1.0
    accumulation_steps: int = 1
    updates: int = 0

    def factor(self) -> float:
        """What backward will probably multiply a loss by."""
        return self.loss_scale / self.accumulation_steps


def at_hand(function: Callable, x: torch.Tensor) -> torch.Tensor:
    """For parameters that are always there."""
    return function(x)


class FusedHead:
    """What a causal language model keeps for its forward.

    ``inner``: the name of the model without head; ``plain``: the name of the class of its outputs;
    ``around``: see ``outputs.Unread``.
    """

    def __init__(self, model: nn.Module, inner: str, plain: str, common: Common):
        from shardwise.adoption import outputs

        head = checks.part(model, "lm_head", checks.LINEAR)
        if head.bias is not None:
            raise checks.Refused("lm_head has a bias")
        if type(head.weight.data) is not torch.Tensor or head.weight.dtype not in checks.FLOATING:
            raise checks.Refused(f"the weight of lm_head is {head.weight.dtype}")
        self._check_loss(model)
        self.head = head
        self.inner = inner
        self.common = common
        self.around: Callable = at_hand
        self.announced = Announced()
        self.hooks = tuple(getattr(head, hooks) for hooks in checks.HOOKS)
        self.plain_output = getattr(outputs, plain)
        self.output = outputs.LAZY[self.plain_output]
        self.unread = outputs.Unread

    @staticmethod
    def _check_loss(model: nn.Module) -> None:
        loss = model.loss_function
        if (loss.__module__, loss.__qualname__) != LOSS:
            raise checks.Refused(f"its loss_function is {loss.__qualname__}")

    def unserved(self, model: nn.Module, kwargs: dict[str, Any]) -> str:
        """Why this call is not for us; "" where it is."""
        if model.lm_head is not self.head or "forward" in self.head.__dict__:
            return "lm_head was replaced"
        if any(self.hooks):
            return "lm_head has hooks"
        if "_loss_function" in model.__dict__:
            return "the model's loss_function was replaced"
        kept = kwargs.get("logits_to_keep", 0)
        if isinstance(kept, torch.Tensor) or kept:
            return "logits_to_keep is given"
        for name in OTHERS:
            wanted = kwargs.get(name)
            usual = name == "return_dict"
            if (usual if wanted is None else bool(wanted)) != usual:
                return f"{name} is {wanted}"
        config = model.config
        if config.output_hidden_states or getattr(config, "output_attentions", False):
            return "the configuration asks for hidden states or attentions"
        return "" if getattr(config, "return_dict", True) else "the configuration asks for tuples"

    def loss(
        self, model: nn.Module, hidden: torch.Tensor, labels: torch.Tensor, kwargs: dict[str, Any]
    ) -> torch.Tensor:
        """The mean over the targets, or their sum over ``num_items_in_batch``."""
        ignored = kwargs.get("ignore_index", IGNORED)
        targets = kwargs.get("shift_labels")
        if targets is None:
            targets = F.pad(labels[..., 1:], (0, 1), value=ignored)
        targets = targets.to(hidden.device).reshape(hidden.shape[:-1])
        weight = model.lm_head.weight
        mixed = autocast_dtype(hidden.device)
        if mixed is not None:
            hidden, weight = hidden.to(mixed), weight.to(mixed)
        items = kwargs.get("num_items_in_batch")
        factor = self.announced.factor()
        if items is None:
            return OPS.linear_cross_entropy(
                hidden, weight, targets, ignore_index=ignored, announced_factor=factor
            )
        count = items if isinstance(items, (int, float)) and items > 0 else targets.numel()
        total = OPS.linear_cross_entropy(
            hidden,
            weight,
            targets,
            ignore_index=ignored,
            reduction="sum",
            announced_factor=factor / count,
        )
        return total / (items.to(total.device) if isinstance(items, torch.Tensor) else items)

    def finish(self, model: nn.Module, outputs: Any, loss: torch.Tensor) -> Any:
        """The output, whose logits are computed when somebody reads them."""
        hidden = outputs.last_hidden_state
        unread = self.unread(model.lm_head, hidden, self.around, self.announced)
        fields = self.plain_output.__dataclass_fields__
        rest = {name: outputs[name] for name in fields if name in outputs}
        return self.output(loss=loss, logits=unread, **rest)

    def __reduce__(self) -> Any:
        return type(None), ()

    def __deepcopy__(self, memo: dict) -> Any:
        """A copy of the model belongs to no engine."""
        return None


def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The forward of an adopted causal language model."""
    fused: FusedHead | None = self._shardwise_fused
    labels = kwargs.get("labels")
    if fused is None or labels is None or args[1:] or torch.compiler.is_compiling():
        return type(self).forward(self, *args, **kwargs)
    reason = fused.unserved(self, kwargs)
    if reason:
        fused.common.fall_back(reason)
        return type(self).forward(self, *args, **kwargs)
    passed = {
        name: value for name, value in kwargs.items() if name not in ("labels", "logits_to_keep")
    }
    outputs = getattr(self, fused.inner)(*args, **passed)
    loss = fused.loss(self, outputs.last_hidden_state, labels, kwargs)
    return fused.finish(self, outputs, loss)
