"""Which modules of a model form the units that are gathered and reduced together."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from shardwise import _C
from shardwise.utils.leaf_modules import z3_leaf_module

NOT_CALLED = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
CONTAINERS = (*NOT_CALLED, nn.Sequential)
# Where no block repeats, modules with at least this share of all elements become units.
LARGE_SHARE = 1 / 16
# Where zero.register_external_parameter keeps them: a list, which torch does not take for the
# module's own parameters.
EXTERNAL = "_shardwise_external"
WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


@dataclass
class Unit:
    """One unit: the module whose forward uses it, and what it holds."""

    name: str
    module: nn.Module
    is_root: bool = False
    parameters: list[tuple[str, list[str], nn.Parameter]] = field(default_factory=list)
    uses: list[int] = field(default_factory=list)


def canonical(name: str) -> str:
    """The parameter's own name, without what torch.compile and other wrappers put in."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name.removeprefix("module.")


def split_into_units(model: nn.Module, requested: list[str]) -> list[Unit]:
    """Units of the model: blocks in the order of their names, then the root with the rest.

    A leaf module (``utils.set_z3_leaf_modules``) is never split; unless it is one of several blocks
    of its kind, it belongs to the unit around it, whose gather all ranks pass however often they
    run the leaf.
    """
    blocks = _requested_blocks(model, requested) if requested else _find_blocks(model)
    units = [Unit(canonical(name), module) for name, module in blocks]
    units.append(Unit("root", model, is_root=True))
    _assign_parameters(model, units)
    kept = [unit for unit in units if unit.parameters or unit.uses or unit.is_root]
    number = {id(unit): index for index, unit in enumerate(kept)}
    for unit in kept:
        unit.uses = [number[id(units[used])] for used in unit.uses]
    return kept


def is_plain(parameter: torch.Tensor) -> bool:
    """Whether the engine can take the parameter over: dense, floating point, no tensor subclass."""
    return type(parameter.data) is torch.Tensor and parameter.is_floating_point()


def external_parameters(module: nn.Module) -> list[torch.Tensor]:
    """Parameters of other modules that this one reads, as registered."""
    return module.__dict__.get(EXTERNAL, [])


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _find_blocks(model: nn.Module) -> list[tuple[str, nn.Module]]:
    blocks = list(_repeated(model, ""))
    return blocks or list(_large(model, "", LARGE_SHARE * _count(model)))


def _repeated(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Outermost modules of a class that occurs at least twice in one list or sequence.

    Nothing inside a leaf module is one; its parameters go to the unit around it.
    """
    children = [(name, child) for name, child in module.named_children() if _count(child) > 0]
    classes = [type(child) for _, child in children]
    for name, child in children:
        path = f"{prefix}{name}"
        leaf = z3_leaf_module(child)
        repeats = classes.count(type(child)) >= 2 and isinstance(module, CONTAINERS)
        if repeats and (leaf or not isinstance(child, CONTAINERS)):
            yield path, child
        elif not leaf:
            yield from _repeated(child, f"{path}.")


def _large(module: nn.Module, prefix: str, least: float) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        if z3_leaf_module(child):
            continue
        if isinstance(child, CONTAINERS):
            yield from _large(child, f"{path}.", least)
        elif _count(child) >= max(least, 1):
            yield path, child


def _requested_blocks(model: nn.Module, requested: list[str]) -> list[tuple[str, nn.Module]]:
    in_leaves = {
        id(module)
        for leaf in model.modules()
        if leaf is not model and z3_leaf_module(leaf)
        for module in leaf.modules()
    }
    found: dict[int, tuple[str, nn.Module]] = {}
    for wanted in requested:
        matches = [
            (name, module)
            for name, module in model.named_modules()
            if name and (type(module).__name__ == wanted or canonical(name) == wanted)
        ]
        if not matches:
            inner = [module for module in model.modules() if module is not model]
            classes = sorted({type(module).__name__ for module in inner})
            raise _C.ConfigError(
                f"shardwise.units names {wanted!r}, but no module below the root (which is a unit "
                f"anyway) has that path or class; its classes are {', '.join(classes)}"
            )
        for name, module in matches:
            if isinstance(module, NOT_CALLED):
                raise _C.ConfigError(
                    f"shardwise.units names {wanted!r}, which is a {type(module).__name__} and has "
                    f"no forward of its own; name the blocks inside it"
                )
            found[id(module)] = (name, module)
    return [entry for number, entry in found.items() if number not in in_leaves]


def _assign_parameters(model: nn.Module, units: list[Unit]) -> None:
    """Each parameter to the innermost unit around it; tied ones to the root or the first user."""
    root = len(units) - 1
    index_of = {id(unit.module): index for index, unit in enumerate(units)}
    names: dict[int, list[str]] = {}
    users: dict[int, list[int]] = {}
    tensors: dict[int, nn.Parameter] = {}
    external: list[tuple[int, int]] = []  # unit, id of a parameter that a module in it reads

    def visit(module: nn.Module, prefix: str, unit: int) -> None:
        unit = index_of.get(id(module), unit)
        for name, parameter in module._parameters.items():
            if parameter is not None and is_plain(parameter):
                key = id(parameter)
                tensors[key] = parameter
                names.setdefault(key, []).append(canonical(prefix + name))
                if unit not in users.setdefault(key, []):
                    users[key].append(unit)
        external.extend((unit, id(parameter)) for parameter in external_parameters(module))
        for name, child in module._modules.items():
            if child is not None:
                visit(child, f"{prefix}{name}.", unit)

    visit(model, "", root)
    _refuse_equal_names(names)
    for unit, key in external:
        if key not in tensors:
            raise _C.UsageError(
                f"a parameter that was registered as external in unit {units[unit].name} is no "
                f"parameter of the model"
            )
    for key, parameter in tensors.items():
        owner = root if root in users[key] else users[key][0]
        units[owner].parameters.append((names[key][0], names[key][1:], parameter))
        for user in users[key]:
            if user != owner and owner not in units[user].uses:
                units[user].uses.append(owner)
        for user, used in external:
            if used == key and user != owner and owner not in units[user].uses:
                units[user].uses.append(owner)


def _refuse_equal_names(names: dict[int, list[str]]) -> None:
    seen: dict[str, int] = {}
    for key, all_names in names.items():
        for name in all_names:
            if seen.setdefault(name, key) != key:
                raise _C.UsageError(
                    f"two parameters of the model have the name {name!r} once the prefixes of "
                    f"wrappers ({', '.join(WRAPPERS)}, module.) are taken off: rename one of them"
                )
