"""Whole weights, gradients and optimizer states of single parameters, from their shards."""

import torch

__all__ = ["safe_get_full_fp32_param", "safe_get_full_grad", "safe_get_full_optimizer_state"]


def safe_get_full_fp32_param(param: torch.Tensor) -> torch.Tensor | None:
    """A copy of the fp32 master weight; None if no engine trains ``param``. Collective."""
    return _full(param, "master")


def safe_get_full_grad(param: torch.Tensor) -> torch.Tensor | None:
    """A copy of the gradient, averaged over ranks and unscaled; zeros where no backward reached it.

    Between ``backward()`` and ``step()``; None otherwise. Collective.
    """
    return _full(param, "gradient")


def safe_get_full_optimizer_state(param: torch.Tensor, optim_state_key: str) -> torch.Tensor | None:
    """A copy of a state such as ``exp_avg``; None if the optimizer has none. Collective."""
    return _full(param, optim_state_key)


def _full(param: torch.Tensor, kind: str) -> torch.Tensor | None:
    owner = getattr(param, "_shardwise", None)
    engine = owner[0]() if owner else None
    return None if engine is None else engine.full_tensor(owner[1], kind)
