"""What does not fit when full tensors are loaded into a module."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def misfit(own: Mapping[str, torch.Tensor], given: Any, strict: bool) -> str:
    """Why ``given`` cannot be loaded over ``own``, a module's state; "" where it can."""
    if not isinstance(given, Mapping):
        return f"load_state_dict() needs a dict of tensors but got {type(given).__name__}"
    missing = [key for key in own if key not in given]
    unexpected = [key for key in given if key not in own]
    if strict and (missing or unexpected):
        return (
            f"the state does not fit the module: missing {missing or 'nothing'}, "
            f"unexpected {unexpected or 'nothing'}"
        )
    for key, value in own.items():
        if key not in given:
            continue
        new = given[key]
        is_tensor = isinstance(new, torch.Tensor)
        if not is_tensor or new.shape != value.shape:
            what = tuple(new.shape) if is_tensor else type(new).__name__
            return f"{key} has shape {tuple(value.shape)} but the state to load gives {what}"
        if new.is_meta:
            return f"the state to load gives {key} on the meta device, where it has no values"
    return ""


def difference(
    own: Mapping[str, torch.Tensor], given: Mapping[str, Any], group: dist.ProcessGroup | None
) -> str:
    """The first of ``own`` for which ranks were given other bits, the same text on every rank.

    ``group``: of all ranks; None where this is the only one, which agrees with itself. Collective.
    """
    if group is None:
        return ""
    sums: list[dict[str, int]] = [{} for _ in range(group.size())]
    dist.all_gather_object(sums, {k: _sum_of_bits(given[k]) for k in own if k in given}, group)
    for key in own:
        for rank, theirs in enumerate(sums):
            if theirs.get(key) != sums[0].get(key):
                return (
                    f"load_state_dict() was given other values of {key} on rank {rank} than on "
                    f"rank 0: give every rank the same full tensors (state_dict() returns them on "
                    f"rank 0 alone)"
                )
    return ""


def _sum_of_bits(tensor: torch.Tensor) -> int:
    """Alike on every device and for every order of the sum: integers wrap around."""
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return int(plain.detach().view(INTEGERS[plain.element_size()]).sum())
