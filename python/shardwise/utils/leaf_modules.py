"""Leaf modules: modules whose parameters are gathered together, at a point that all ranks pass."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from shardwise import _C

FLAG = "_z3_leaf"  # DeepSpeed's name, which models set themselves


def set_z3_leaf_modules(
    model: nn.Module, leaf_module_classes: Iterable[type | str], raise_if_not_found: bool = True
) -> list[nn.Module]:
    """Marks the modules of these classes, given as types or as names, and returns them.

    Before ``initialize``. At stage 3 nothing inside a leaf module is gathered on its own: its
    parameters belong to the unit around it, or are a unit where the leaf is one of several blocks.
    So modules inside may run on some ranks only, or more often there.
    """
    return _mark_classes(model, leaf_module_classes, True, raise_if_not_found)


def unset_z3_leaf_modules(
    model: nn.Module, leaf_module_classes: Iterable[type | str], raise_if_not_found: bool = True
) -> list[nn.Module]:
    """Takes the mark away again; returns the modules of these classes."""
    return _mark_classes(model, leaf_module_classes, False, raise_if_not_found)


def set_z3_leaf_module(model: nn.Module, flag: bool) -> None:
    """Marks one module, or takes its mark away."""
    setattr(model, FLAG, flag)


def z3_leaf_module(model: nn.Module) -> bool:
    """Whether a module is marked."""
    return bool(getattr(model, FLAG, False))


def z3_leaf_parameter(param: Any) -> bool:
    """Whether a parameter lies in a leaf module of an initialised model."""
    return bool(getattr(param, "_shardwise_leaf", False))


def get_z3_leaf_modules(model: nn.Module) -> list[nn.Module]:
    """All marked modules."""
    return [module for module in model.modules() if z3_leaf_module(module)]


def set_z3_leaf_modules_by_name(
    model: nn.Module,
    module_names: Iterable[str],
    flag: bool = True,
    raise_if_not_found: bool = True,
) -> tuple[list[nn.Module], list[str]]:
    """Marks modules by their paths; returns them and the names that are no module's."""
    return _mark_names(model, module_names, str.__eq__, flag, raise_if_not_found)


def set_z3_leaf_modules_by_suffix(
    model: nn.Module,
    module_name_suffixes: Iterable[str],
    flag: bool = True,
    raise_if_not_found: bool = True,
) -> tuple[list[nn.Module], list[str]]:
    """Marks the modules whose paths end so; returns them and the endings without a module."""
    return _mark_names(model, module_name_suffixes, str.endswith, flag, raise_if_not_found)


def _mark_classes(
    model: nn.Module, classes: Iterable[type | str], flag: bool, raise_if_not_found: bool
) -> list[nn.Module]:
    wanted = list(classes)
    for entry in wanted:
        if not isinstance(entry, (type, str)):
            raise _C.UsageError(
                f"leaf modules are named by classes or names of classes, but got {entry!r}"
            )
    types = tuple(entry for entry in wanted if isinstance(entry, type))
    names = {entry for entry in wanted if isinstance(entry, str)}

    def fits(module: nn.Module) -> bool:
        kind = type(module)
        full = f"{kind.__module__}.{kind.__qualname__}"
        return isinstance(module, types) or kind.__name__ in names or full in names

    found = [module for module in model.modules() if fits(module)]
    if not found and raise_if_not_found:
        present = sorted({type(module).__name__ for module in model.modules()})
        raise ValueError(f"no module has one of the classes {wanted}; there are {present}")
    for module in found:
        set_z3_leaf_module(module, flag)
    return found


def _mark_names(
    model: nn.Module,
    names: Iterable[str],
    fits: Callable[[str, str], bool],
    flag: bool,
    raise_if_not_found: bool,
) -> tuple[list[nn.Module], list[str]]:
    found: dict[int, nn.Module] = {}
    missing = []
    for name in names:
        matches = [module for path, module in model.named_modules() if path and fits(path, name)]
        found.update((id(module), module) for module in matches)
        missing += [] if matches else [name]
    if missing and raise_if_not_found:
        raise ValueError(f"the model has no modules called, or ending in, {missing}")
    for module in found.values():
        set_z3_leaf_module(module, flag)
    return list(found.values()), missing
