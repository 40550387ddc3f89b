"""Which parameters and gradients travel in the dtype of ``torch.autocast``."""

import difflib
import importlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from shardwise import _C
from shardwise.console import log

KEY = "torch_autocast.lower_precision_safe_modules"
# Autocast rounds their weights and gradients anyway.
STANDARD = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def travel_dtypes(model: nn.Module, value_of: Any) -> dict[int, str]:
    """The dtype of travel by the parameter's id, for those that have one.

    A parameter that a module of another class has too, as a head's weight that is the embedding's,
    has none: autocast does not round it there.

    Raises ConfigError for a name that is no module class.
    """
    if not value_of("torch_autocast.enabled"):
        return {}
    names = value_of(KEY)
    if names is not None:
        classes = [_class_of(name, model) for name in names]
    else:
        classes = [] if value_of("communication_data_type") else STANDARD
    chosen = [module for module in model.modules() if type(module) in classes]
    absent = [_full_name(c) for c in classes if c not in {type(module) for module in chosen}]
    if absent and names is not None:
        log(f"{KEY} names {absent}, but the model has no such module")
    dtype = value_of("torch_autocast.dtype")
    others = [module for module in model.modules() if type(module) not in classes]
    elsewhere = {id(parameter) for parameter in _own_parameters(others)}
    return {
        id(parameter): dtype
        for parameter in _own_parameters(chosen)
        if id(parameter) not in elsewhere
    }


def _own_parameters(modules: list[nn.Module]) -> Iterator[nn.Parameter]:
    for module in modules:
        yield from module.parameters(recurse=False)


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _class_of(name: str, model: nn.Module) -> type:
    package, _, kind = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(package), kind)
    except (ImportError, AttributeError, ValueError):
        found = None
    if isinstance(found, type) and issubclass(found, nn.Module):
        return found
    known = {_full_name(type(module)) for module in model.modules()}
    known |= {f"torch.nn.{kind.__name__}" for kind in STANDARD}
    by_end = [full for full in sorted(known) if full.rpartition(".")[2] == kind]
    near = by_end or difflib.get_close_matches(name, sorted(known), cutoff=0.4)
    raise _C.ConfigError(
        f"{KEY} names {name!r}, which is no class of modules that can be imported; write its full "
        f"name, such as {' or '.join(near[:3]) or 'torch.nn.Linear'}"
    )
