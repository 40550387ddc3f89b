"""Llama and the families that differ from it by a bias or a norm: Mistral, Qwen2, Qwen3."""

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
    side_by_side,
    taken,
)

# Package of transformers and the prefix of its class names.
FAMILIES = {
    f"transformers.models.{package}.modeling_{package}": prefix
    for package, prefix in (
        ("llama", "Llama"),
        ("mistral", "Mistral"),
        ("qwen2", "Qwen2"),
        ("qwen3", "Qwen3"),
    )
}
LINEARS = tuple(
    [f"self_attn.{name}_proj" for name in "qkvo"]
    + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
)
NORMS = ("input_layernorm", "post_attention_layernorm")
HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")


class FusedLlamaBlock(FusedBlock):
    """The parts of a decoder layer."""

    def __init__(self, block: nn.Module, common: Common):
        package, prefix = type(block).__module__, FAMILIES[type(block).__module__]
        attention = checks.part(block, "self_attn", (package, prefix + "Attention"))
        checks.part(block, "mlp", (package, prefix + "MLP"))
        linears = [checks.part(block, path, checks.LINEAR) for path in LINEARS]
        normed_heads = hasattr(attention, "q_norm")
        norms = [*NORMS, *(HEAD_NORMS if normed_heads else ())]
        found = [checks.part(block, path, (package, prefix + "RMSNorm")) for path in norms]
        known = {"self_attn", "mlp", "mlp.act_fn", *LINEARS, *norms}
        checks.check_only(block, known)
        super().__init__(block, common)
        self.activation = checks.activation_name(block.mlp.act_fn)
        self.query_key_value, self.output = tuple(linears[:3]), linears[3]
        self.gate_up, self.down = tuple(linears[4:6]), linears[6]
        for joined in (self.query_key_value, self.gate_up):
            checks.check_biases(joined)
        self.first_norm, self.second_norm = found[:2]
        self.head_norms = tuple(found[2:])
        size = attention.head_dim
        query, key, _ = self.query_key_value
        heads = Heads(query.out_features // size, key.out_features // size, size, attention.scaling)
        self._attention = Attention(attention, heads)

    @property
    def attention(self) -> Attention:
        return self._attention

    def unserved(self, block: nn.Module, x: torch.Tensor, call: dict[str, Any]) -> str:
        embeddings = call.get("position_embeddings")
        if embeddings is None or embeddings[0].shape[-1] != self._attention.heads.size:
            return "the position embeddings are not those of whole heads"
        reason = checks.mixed_biases(self.query_key_value) or checks.mixed_biases(self.gate_up)
        if reason:
            return reason
        return super().unserved(block, x, call)

    def run(self, block: nn.Module, x: torch.Tensor, call: dict[str, Any]) -> torch.Tensor:
        mixed = autocast_dtype(x.device)
        normed = taken(x, self.first_norm)
        if normed is None:
            norm = self.first_norm
            normed, x = OPS.rms_norm_beside(x, norm.weight, norm.variance_epsilon)
        attended = self._attend(block, normed, call, mixed)
        normed, x = add_rms_norm(attended, x, self.second_norm)
        inner = OPS.activation(
            side_by_side(normed, self.gate_up, mixed, self.common), self.activation, True
        )
        out = side_by_side(inner, (self.down,), mixed, self.common)
        norm = self.next_norm(block)
        if norm is None:
            return x + out
        normed, total = add_rms_norm(out, x, norm)
        hand_on(total, normed, norm)
        return total

    def _attend(
        self, block: nn.Module, x: torch.Tensor, call: dict[str, Any], mixed: torch.dtype | None
    ) -> torch.Tensor:
        heads = self._attention.heads
        tables = rotation(call["position_embeddings"], x.shape[0])
        rows = side_by_side(x, self.query_key_value, mixed, self.common)
        if self.head_norms:
            parts = rows.unflatten(-1, (-1, heads.size))
            q, k, v = parts.split((heads.query, heads.key, heads.key), dim=2)
            q = rotated(rms_norm(q, self.head_norms[0]), tables, heads.query, heads.size)
            k = rotated(rms_norm(k, self.head_norms[1]), tables, heads.key, heads.size)
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        else:
            in_place = self.common.in_place and not rows.is_inference()
            rotate = OPS.rope_ if in_place else OPS.rope
            q, k, v = heads.split(rotate(rows, *tables, heads.query + heads.key, heads.size))
        self.fill_cache(call, k, v)
        dropout = self._attention.module.attention_dropout if block.training else 0.0
        attended = self._attention(q, k, v, call["attention_mask"], dropout)
        return side_by_side(attended, (self.output,), mixed, self.common)


def rms_norm(x: torch.Tensor, norm: nn.Module) -> torch.Tensor:
    return OPS.rms_norm(x, norm.weight, norm.variance_epsilon)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, norm: nn.Module
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm of the sum, sum); the sum has the dtype of the residual."""
    if x.dtype != residual.dtype:
        x = x.to(residual.dtype)
    return OPS.add_rms_norm(x, residual, norm.weight, norm.variance_epsilon)


def rotation(
    embeddings: tuple[torch.Tensor, torch.Tensor], batch: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """(cosines, sines, positions) for our op of the cosines and sines that transformers makes for
    all blocks, [1 or batch, seq, head]: its halves are the same. Kept with the cosines."""
    cosines, sines = embeddings
    tables = getattr(cosines, "_shardwise_tables", None)
    if tables is None:
        half = cosines.shape[-1] // 2
        first, second = (
            table[..., :half].to(torch.float32).reshape(-1, half) for table in embeddings
        )
        positions = None
        if cosines.shape[0] != 1:
            count = first.shape[0]
            positions = torch.arange(count, device=first.device).view(batch, count // batch)
        tables = cosines._shardwise_tables = (first, second, positions)
    return tables


def rotated(
    x: torch.Tensor, tables: tuple[torch.Tensor, ...], heads: int, size: int
) -> torch.Tensor:
    """The rotated heads of x, [batch, seq, heads, size]."""
    return OPS.rope(x.flatten(2), *tables, heads, size).view(x.shape)


def forward(self: nn.Module, hidden_states: torch.Tensor) -> torch.Tensor:
    """The forward of a final norm."""
    normed = taken(hidden_states, self)
    if normed is not None:
        return normed
    if torch.compiler.is_compiling() or hidden_states.dtype != self.weight.dtype:
        return type(self).forward(self, hidden_states)
    return rms_norm(hidden_states, self)
