"""GPT-2."""

from typing import Any

import torch
from torch import nn

from shardwise.adoption import checks
from shardwise.adoption.block import FusedBlock
from shardwise.adoption.layers import (
    OPS,
    Attention,
    Common,
    Heads,
    autocast_dtype,
    hand_on,
    runs_in_fp8,
    taken,
)

PACKAGE = "transformers.models.gpt2.modeling_gpt2"
PRODUCTS = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
DROPOUTS = ("attn.attn_dropout", "attn.resid_dropout", "mlp.dropout")


class FusedGpt2Block(FusedBlock):
    """The parts of a block."""

    def __init__(self, block: nn.Module, common: Common):
        attention = checks.part(block, "attn", (PACKAGE, "GPT2Attention"))
        checks.part(block, "mlp", (PACKAGE, "GPT2MLP"))
        products = [checks.part(block, path, checks.CONV1D) for path in PRODUCTS]
        dropouts = [checks.part(block, path, checks.DROPOUT) for path in DROPOUTS]
        norms = [checks.part(block, path, checks.LAYER_NORM) for path in ("ln_1", "ln_2")]
        known = {"attn", "mlp", "mlp.act", "ln_1", "ln_2", *PRODUCTS, *DROPOUTS}
        checks.check_only(block, known)
        super().__init__(block, common)
        self.activation = checks.activation_name(block.mlp.act)
        self.first_norm, self.second_norm = norms
        self.joined, self.output, self.up, self.down = products
        self.attention_dropout, self.output_dropout, self.mlp_dropout = dropouts
        heads = Heads(
            attention.num_heads, attention.num_heads, attention.head_dim, attention.scaling
        )
        self._attention = Attention(attention, heads)

    @property
    def attention(self) -> Attention:
        return self._attention

    def run(self, block: nn.Module, x: torch.Tensor, call: dict[str, Any]) -> torch.Tensor:
        normed = taken(x, self.first_norm)
        if normed is None:
            norm = self.first_norm
            normed, x = OPS.layer_norm_beside(x, norm.weight, norm.bias, norm.eps)
        q, k, v = self._attention.heads.split(product(normed, self.joined, self.common))
        self.fill_cache(call, k, v)
        dropout = self.attention_dropout.p if block.training else 0.0
        attended = self._attention(q, k, v, call["attention_mask"], dropout)
        attended = self.output_dropout(product(attended, self.output, self.common))
        normed, x = add_layer_norm(attended, x, self.second_norm)
        inner = OPS.activation(product(normed, self.up, self.common), self.activation, False)
        out = self.mlp_dropout(product(inner, self.down, self.common))
        norm = self.next_norm(block)
        if norm is None:
            return x + out
        normed, total = add_layer_norm(out, x, norm)
        hand_on(total, normed, norm)
        return total


def product(x: torch.Tensor, layer: nn.Module, common: Common) -> torch.Tensor:
    """x times a weight that lies as [in, out]; see ``layers.side_by_side``."""
    in_place = common.in_place and autocast_dtype(x.device) is None
    if in_place or runs_in_fp8([layer.weight], common):
        return OPS.projection(x, [layer.weight], [layer.bias], True, common.fp8)
    rows = torch.addmm(layer.bias, x.reshape(-1, x.shape[-1]), layer.weight)
    return rows.view(*x.shape[:-1], -1)


def layer_norm(x: torch.Tensor, norm: nn.Module) -> torch.Tensor:
    return OPS.layer_norm(x, norm.weight, norm.bias, norm.eps)


def add_layer_norm(
    x: torch.Tensor, residual: torch.Tensor, norm: nn.Module
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm of the sum, sum); the sum has the dtype of the residual."""
    if x.dtype != residual.dtype:
        x = x.to(residual.dtype)
    return OPS.add_layer_norm(x, residual, norm.weight, norm.bias, norm.eps)


def forward(self: nn.Module, input: torch.Tensor) -> torch.Tensor:
    """The forward of the final norm."""
    normed = taken(input, self)
    if normed is not None:
        return normed
    if torch.compiler.is_compiling() or input.dtype != self.weight.dtype:
        return type(self).forward(self, input)
    return layer_norm(input, self)
