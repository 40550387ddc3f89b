"""What does not fit when full tensors are loaded into a module."""

import zlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX

PIECE = 1 << 24  # elements that are copied from a GPU at a time


def set_extra_states(module: nn.Module, given: Mapping[str, Any]) -> None:
    """What modules keep beside tensors, by their own ``set_extra_state``, as torch does."""
    for name, part in module.named_modules():
        key = f"{name}.{_EXTRA_STATE_KEY_SUFFIX}" if name else _EXTRA_STATE_KEY_SUFFIX
        if key in given:
            part.set_extra_state(given[key])


def tensors_of(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Without the states that modules keep beside tensors."""
    return {
        key: value
        for key, value in state.items()
        if key.rpartition(".")[2] != _EXTRA_STATE_KEY_SUFFIX
    }


def misfit(own: Mapping[str, Any], given: Any, strict: bool) -> str:
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
    for key, value in tensors_of(own).items():
        if key not in given:
            continue
        new = given[key]
        is_tensor = isinstance(new, torch.Tensor)
        if not is_tensor or new.shape != value.shape:
            what = tuple(new.shape) if is_tensor else type(new).__name__
            return f"{key} has shape {tuple(value.shape)} but the state to load gives {what}"
        if new.is_meta:
            return f"the state to load gives {key} on the meta device, where it has no values"
        if new.layout != torch.strided:
            return f"the state to load gives {key} as {new.layout}; make it dense by .to_dense()"
    return ""


def difference(
    own: Mapping[str, Any], given: Mapping[str, Any], group: dist.ProcessGroup | None
) -> str:
    """The first of ``own`` for which ranks were given other bits, the same text on every rank.

    ``given`` fits; ``group``: of all ranks, None where this is the only one. Collective.
    """
    if group is None:
        return ""
    sums: list[dict[str, int]] = [{} for _ in range(group.size())]
    mine = {key: checksum(given[key]) for key in tensors_of(own) if key in given}
    dist.all_gather_object(sums, mine, group)
    for key in own:
        for rank, theirs in enumerate(sums):
            if theirs.get(key) != sums[0].get(key):
                return (
                    f"load_state_dict() was given other values of {key} on rank {rank} than on "
                    f"rank 0: give every rank the same full tensors (state_dict() returns them on "
                    f"rank 0 alone)"
                )
    return ""


def checksum(tensor: torch.Tensor) -> int:
    """Of the bits of a dense tensor in their order, the same on every device."""
    found = 0
    for piece in tensor.detach().resolve_conj().resolve_neg().reshape(-1).split(PIECE):
        found = zlib.crc32(piece.cpu().contiguous().view(torch.uint8).numpy(), found)
    return found
