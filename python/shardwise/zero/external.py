"""Parameters that a module uses although they belong to another."""

from typing import Any

import torch
from torch import nn

from shardwise import _C
from shardwise.units import EXTERNAL, external_parameters


def register_external_parameter(module: nn.Module, parameter: torch.Tensor) -> None:
    """From now on ``parameter`` can be read whenever ``module`` runs.

    For a module whose forward uses a parameter of another (``F.linear(x, self.tied.weight)``): the
    unit that the module lies in gathers the parameter's unit too. Before ``initialize``.
    """
    _check(module, parameter)
    registered = module.__dict__.setdefault(EXTERNAL, [])
    if not any(known is parameter for known in registered):
        registered.append(parameter)


def unregister_external_parameter(module: nn.Module, parameter: torch.Tensor) -> None:
    """Takes it back. UsageError for a parameter that was not registered."""
    _check(module, parameter)
    registered = external_parameters(module)
    kept = [known for known in registered if known is not parameter]
    if len(kept) == len(registered):
        raise _C.UsageError(
            f"the parameter of shape {tuple(parameter.shape)} was not registered with this "
            f"{type(module).__name__}"
        )
    module.__dict__[EXTERNAL] = kept


def _check(module: Any, parameter: Any) -> None:
    if not isinstance(module, nn.Module) or not isinstance(parameter, nn.Parameter):
        raise _C.UsageError(
            f"external parameters are an nn.Parameter for an nn.Module, but got "
            f"{type(parameter).__name__} and {type(module).__name__}"
        )
    if getattr(parameter, "_shardwise", None) is not None:
        raise _C.UsageError(
            "external parameters are registered before initialize(), which decides what is "
            "gathered together; the model belongs to an engine already"
        )
