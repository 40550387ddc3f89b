"""Who holds the values of a parameter."""

from typing import Any

import torch


def owner_of(parameter: torch.Tensor) -> tuple[Any, int] | tuple[None, None]:
    """The engine that holds the parameter, and the parameter's number in it; or two times None."""
    owner = getattr(parameter, "_shardwise", None)
    engine = owner[0]() if owner else None
    return (None, None) if engine is None else (engine, owner[1])


def is_cut(parameter: torch.Tensor) -> bool:
    """Whether the parameter's storage is one that ``zero.Init`` released."""
    early = getattr(parameter, "_shardwise_early", None)
    return early is not None and early.holds(parameter)
