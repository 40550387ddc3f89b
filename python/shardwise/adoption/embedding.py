"""The forward of an adopted ``nn.Embedding``."""

import torch
from torch import nn

from shardwise.adoption import checks
from shardwise.adoption.layers import OPS


def check(embedding: nn.Embedding) -> None:
    """Refuses what our operation does not do."""
    checks.check_parameters(embedding)
    if embedding.max_norm is not None or embedding.scale_grad_by_freq or embedding.sparse:
        raise checks.Refused("it has max_norm, scale_grad_by_freq or sparse")


def forward(self: nn.Embedding, input: torch.Tensor) -> torch.Tensor:
    """Rows of the table; their gradient without atomics."""
    if torch.compiler.is_compiling() or input.dtype != torch.int64:
        return type(self).forward(self, input)
    return OPS.embedding(self.weight, input, -1 if self.padding_idx is None else self.padding_idx)
