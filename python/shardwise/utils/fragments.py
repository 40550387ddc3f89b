"""Weights, gradients and optimizer states of single parameters: whole, or this rank's part."""

from collections.abc import Callable, Iterable

import torch

from shardwise import _C
from shardwise.ownership import owner_of

MASTER, GRADIENT = "master", "gradient"


def safe_get_full_fp32_param(param: torch.Tensor) -> torch.Tensor | None:
    """A copy of the fp32 master weight; None if no engine trains ``param``. Collective."""
    return _full(param, MASTER)


def safe_get_full_grad(param: torch.Tensor) -> torch.Tensor | None:
    """A copy of the gradient, averaged over ranks and unscaled; zeros where no backward reached it.

    Between ``backward()`` and ``step()``; None otherwise. Collective.
    """
    return _full(param, GRADIENT)


def safe_get_full_optimizer_state(param: torch.Tensor, optim_state_key: str) -> torch.Tensor | None:
    """A copy of a state such as ``exp_avg``; None if the optimizer has none. Collective."""
    return _full(param, optim_state_key)


def safe_set_full_fp32_param(param: torch.Tensor, value: torch.Tensor) -> None:
    """Overwrites the fp32 master weight, and the parameter with its rounded values. Collective.

    ``value`` has the parameter's shape and is the same on every rank. The functions below, too,
    raise UsageError for another shape, an integer dtype, or a parameter without such a tensor.
    """
    _set_full(param, MASTER, value)


def safe_set_full_grad(param: torch.Tensor, value: torch.Tensor) -> None:
    """Overwrites the averaged, unscaled gradient, between ``backward()`` and ``step()``."""
    _set_full(param, GRADIENT, value)


def safe_set_full_optimizer_state(
    param: torch.Tensor, value: torch.Tensor, optim_state_key: str
) -> None:
    """Overwrites a state such as ``exp_avg``."""
    _set_full(param, optim_state_key, value)


def safe_update_full_grad_vectorized(
    param_list: Iterable[torch.Tensor], update_func: Callable[..., torch.Tensor]
) -> None:
    """Replaces each gradient by ``update_func(gradient, parameter)``. Collective.

    Parameters without a gradient are passed over.
    """
    for param in param_list:
        gradient = safe_get_full_grad(param)
        if gradient is not None:
            safe_set_full_grad(param, update_func(gradient, param))


def safe_get_local_fp32_param(param: torch.Tensor) -> torch.Tensor | None:
    """A copy of this rank's elements of the fp32 master weight, flat, in memory order.

    Units are cut as a whole, so a parameter's elements may lie on some ranks only: the parts of all
    ranks, one after the other, are the flattened parameter. None if no engine trains it. The local
    functions do not communicate, unless said.
    """
    return _local(param, MASTER)


def safe_get_local_grad(param: torch.Tensor) -> torch.Tensor | None:
    """This rank's elements of the averaged, unscaled gradient; ZeRO stages 2 and 3.

    Collective with hybrid sharding, whose replicas average their gradients here, and with
    ``shardwise.token_weighted_loss``, where the other ranks' tokens count too.
    """
    return _local(param, GRADIENT)


def safe_get_local_optimizer_state(
    param: torch.Tensor, optim_state_key: str
) -> torch.Tensor | None:
    """This rank's elements of a state such as ``exp_avg``."""
    return _local(param, optim_state_key)


def safe_set_local_fp32_param(param: torch.Tensor, value: torch.Tensor) -> None:
    """Overwrites this rank's elements of the master weight, and the parameter with them.

    Every rank calls it: where the parameter is kept whole, its new values are collected.
    """
    _set_local(param, MASTER, value)


def safe_set_local_grad(param: torch.Tensor, value: torch.Tensor) -> None:
    """Overwrites this rank's elements of the averaged, unscaled gradient; stages 2 and 3.

    Collective where ``safe_get_local_grad`` is.
    """
    _set_local(param, GRADIENT, value)


def safe_set_local_optimizer_state(
    param: torch.Tensor, value: torch.Tensor, optim_state_key: str
) -> None:
    """Overwrites this rank's elements of a state such as ``exp_avg``."""
    _set_local(param, optim_state_key, value)


def _full(param: torch.Tensor, kind: str) -> torch.Tensor | None:
    engine, number = owner_of(param)
    return None if engine is None else engine.full_tensor(number, kind)


def _local(param: torch.Tensor, kind: str) -> torch.Tensor | None:
    engine, number = owner_of(param)
    return None if engine is None else engine.local_tensor(number, kind)


def _set_full(param: torch.Tensor, kind: str, value: torch.Tensor) -> None:
    _set(param, kind, value, whole=True)


def _set_local(param: torch.Tensor, kind: str, value: torch.Tensor) -> None:
    _set(param, kind, value, whole=False)


def _set(param: torch.Tensor, kind: str, value: torch.Tensor, whole: bool) -> None:
    engine, number = owner_of(param)
    if engine is None:
        raise _C.UsageError(
            f"a parameter of shape {tuple(param.shape)} belongs to no engine, so that it has no "
            f"{kind} to set: give its model to initialize() first"
        )
    name = engine._core.parameters()[number][0]
    if not isinstance(value, torch.Tensor):
        raise _C.UsageError(
            f"parameter {name}: the new value must be a tensor, but it is a {type(value).__name__}"
        )
    if not engine.set_tensor(number, kind, value, whole):
        if kind == GRADIENT:
            why = "it is frozen, or no backward() has come since the last step()"
        else:
            why = "it is frozen, there is no optimizer, or the optimizer has no state of that name"
        raise _C.UsageError(f"parameter {name} has no {kind} to set: {why}")
