"""What does not fit when full tensors are loaded into a module."""

from collections.abc import Mapping
from typing import Any

import torch


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
    return ""
