"""How an engine holds on to a module: process groups, the C++ core, hooks, and letting go again."""

import json
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from shardwise import _C
from shardwise.console import log
from shardwise.dtypes import DTYPES
from shardwise.membership import Membership
from shardwise.optimizers import ShardedOptimizer, group_of_parameters
from shardwise.ownership import EngineHook, Mark, is_cut
from shardwise.process_groups import make_groups
from shardwise.travel import travel_dtypes
from shardwise.units import is_plain, split_into_units
from shardwise.utils.leaf_modules import (
    get_z3_leaf_modules,
    set_z3_leaf_modules,
    set_z3_leaf_modules_by_name,
    set_z3_leaf_modules_by_suffix,
)
from shardwise.whereabouts import Whereabouts

READ_ONLY = -1


@dataclass
class EngineParts:
    """What an engine is made of."""

    module: nn.Module
    config: _C.Config
    device: torch.device
    optimizer: ShardedOptimizer | None = None


def _by_value(setting: Any) -> Any:
    """The same on every rank where the setting is: no devices, no addresses."""
    if isinstance(setting, torch.Tensor):
        return setting.tolist()
    if isinstance(setting, (list, tuple)):
        return [_by_value(part) for part in setting]
    plain = isinstance(setting, (bool, int, float, str, type(None)))
    return setting if plain else type(setting).__name__


def _in_unit(wiring: "weakref.ref[Wiring]", number: int, function: Callable, x: Any) -> Any:
    owner = wiring()
    ended = owner is None or owner.ended
    return function(x) if ended else owner.call_in_unit(number, function, x)


class Wiring:
    """Connects a module with a C++ core and disconnects it again.

    Attributes: ``units`` in the core's order; ``index``, from a parameter's id to its number in
    the core, and ``unit_of``, from that to its unit; ``membership`` of its parameters.
    """

    def __init__(self, parts: EngineParts, value_of: Any, owner: Any):
        self._parts = parts
        self._stage = value_of("zero_optimization.stage")
        self._buffer_dtype = value_of("data_types.buffer_dtype")
        self._groups: dict[str, dist.ProcessGroup] = {}
        self.whereabouts: Whereabouts | None = None
        self._hooks: list[Any] = []
        self.index: dict[int, int] = {}
        self.unit_of: dict[int, int] = {}
        self._mark_leaf_modules(value_of)
        self.units = split_into_units(parts.module, value_of("shardwise.units"))
        self._travel = travel_dtypes(parts.module, value_of)
        self._check_the_rest()
        with ExitStack() as undo:
            undo.callback(self._leave_groups)
            if dist.get_world_size() > 1 or value_of("shardwise.force_communication"):
                self._groups = make_groups(
                    parts.device,
                    value_of("shardwise.timeout_seconds"),
                    value_of("shardwise.hybrid_shard_size"),
                    value_of("shardwise.max_ctas"),
                )
            self._core: _C.Engine | None = self._make_core()
            undo.callback(self.end, True)
            if dist.get_world_size() > 1:
                self.whereabouts = Whereabouts(self._core, self.everybody, parts.device)
            self._drop_early_shards()
            self._mark_parameters(weakref.ref(owner))
            if parts.optimizer is not None:
                parts.optimizer.connect(self.core, self.index)
            self._move_the_rest()
            self._install_hooks()
            self.membership = Membership(parts.module)
            undo.pop_all()

    def _mark_leaf_modules(self, value_of: Any) -> None:
        """Marks what the configuration names; what it names in vain is said."""
        path, module = "zero_optimization.leaf_module.", self._parts.module
        classes = value_of(path + "classes") or []
        missing = [c for c in classes if not set_z3_leaf_modules(module, [c], False)]
        missing += set_z3_leaf_modules_by_name(module, value_of(path + "names") or [], True, False)[
            1
        ]
        suffixes = value_of(path + "name_suffixes") or []
        missing += set_z3_leaf_modules_by_suffix(module, suffixes, True, False)[1]
        if missing:
            log(f"{path[:-1]} names {missing}, but the model has no such module")
        for leaf in get_z3_leaf_modules(module):
            for parameter in leaf.parameters():
                parameter._shardwise_leaf = True

    @property
    def core(self) -> _C.Engine:
        """The C++ engine; UsageError after ``end``."""
        if self._core is None:
            raise _C.UsageError("the engine was destroyed: call initialize() for a new one")
        return self._core

    @property
    def everybody(self) -> dist.ProcessGroup | None:
        """The engine's group of all ranks; None where there is one rank."""
        alone = dist.get_world_size() == 1
        return None if alone else self._groups.get("world", self._groups["gather"])

    def before_forward(self) -> None:
        """Refuses parameters that were replaced, and sees those that were unfrozen."""
        unfrozen = self.core.before_forward()
        if self.whereabouts is not None:
            self.whereabouts.unfrozen = unfrozen

    @property
    def ended(self) -> bool:
        return self._core is None

    def _make_core(self) -> _C.Engine:
        optimizer = self._parts.optimizer
        return _C.Engine(
            config=self._parts.config,
            device=self._parts.device,
            rule=optimizer.rule if optimizer else _C.RuleOptions(),
            groups=self._groups,
            settings=self._settings(),
            units=self._unit_specs(),
        )

    def _settings(self) -> str:
        """What all ranks must agree on, one setting a line."""
        lines = [
            f"{path} = {json.dumps(entry['value'])}"
            for path, entry in json.loads(self._parts.config.to_json(with_origins=True)).items()
        ]
        optimizer = self._parts.optimizer
        for number, group in enumerate(optimizer.param_groups if optimizer else []):
            values = {k: _by_value(v) for k, v in group.items() if k != "params"}
            lines.append(f"param_groups[{number}] of {optimizer.rule.name} = {values}")
        return "\n".join(lines)

    def _unit_specs(self) -> list[tuple]:
        optimizer = self._parts.optimizer
        group_of = group_of_parameters(optimizer)
        keep = getattr(self._parts.module, "_keep_in_fp32_modules", None) or ()

        def describe(name: str, aliases: list[str], parameter: nn.Parameter) -> tuple:
            fp32 = any(part in name.split(".") for part in keep)
            dtype = "fp32" if fp32 else self._parts.config.model_dtype
            # Built inside zero.Init, and not given other values (parameter.data = ...) since.
            early = parameter._shardwise_early if is_cut(parameter) else None
            group = group_of.get(id(parameter), -1)
            travel = self._travel.get(id(parameter), "")
            whole = optimizer is not None and optimizer.takes_whole(parameter)
            return (name, aliases, parameter, dtype, group, early, travel, whole)

        return [
            (unit.name, [describe(*entry) for entry in unit.parameters], unit.uses)
            for unit in self.units
        ]

    def _drop_early_shards(self) -> None:
        """What was cut while the model was built is in the core now."""
        for parameter in self._parts.module.parameters():
            if hasattr(parameter, "_shardwise_early") and is_plain(parameter):
                del parameter._shardwise_early

    def _mark_parameters(self, owner: weakref.ref) -> None:
        numbers = {name: number for number, (name, *_) in enumerate(self.core.parameters())}
        for position, unit in enumerate(self.units):
            for name, _, parameter in unit.parameters:
                self.index[id(parameter)] = numbers[name]
                self.unit_of[numbers[name]] = position
                parameter._shardwise = Mark(owner, numbers[name])

    def _check_the_rest(self) -> None:
        widened = []
        for name, parameter in self._parts.module.named_parameters():
            if self._parts.config.model_dtype == "fp32" and is_plain(parameter):
                widened += [name] if parameter.dtype != torch.float32 else []
            if not is_plain(parameter) and parameter.requires_grad:
                raise _C.UsageError(
                    f"parameter {name} is a {type(parameter.data).__name__} of {parameter.dtype}, "
                    f"which shardwise cannot train; freeze it with requires_grad_(False)"
                )
        if widened:
            log(
                f"{len(widened)} parameters are not float32, first {widened[0]}; they become so "
                f'(for 16-bit training write "bf16": {{"enabled": true}})'
            )

    @torch.no_grad()
    def _move_the_rest(self) -> None:
        """Buffers become rank 0's, in the dtype that is asked for; parameters that the engine does
        not manage are only moved."""
        module, device = self._parts.module, self._parts.device
        for name, buffer in module.named_buffers():
            cast = self._buffer_dtype is not None and buffer.is_floating_point()
            buffer.data = buffer.data.to(device, DTYPES[self._buffer_dtype] if cast else None)
            self.core.broadcast(buffer.data, name)
        for parameter in module.parameters():
            if not is_plain(parameter):
                parameter.data = parameter.data.to(device)

    def _install_hooks(self) -> None:
        if self._stage < 2:
            return  # nothing happens at the borders of units
        for number, unit in enumerate(self.units):
            before = EngineHook(self.core.pre_hook(number, unit.is_root))
            after = EngineHook(self.core.post_hook(number))
            self._hooks += [
                unit.module.register_forward_pre_hook(before, prepend=True, with_kwargs=True),
                unit.module.register_forward_hook(after),
            ]

    def around(self, parameter: torch.Tensor) -> Callable[[Callable, torch.Tensor], Any]:
        """A function that calls a function of a tensor where the parameter can be read, as if the
        module of its unit did. It does not keep the engine."""
        return partial(_in_unit, weakref.ref(self), self.unit_of[self.index[id(parameter)]])

    def call_in_unit(self, number: int, function: Callable, x: torch.Tensor) -> Any:
        """function(x) between the hooks of a unit."""
        if not self._hooks:
            return function(x)
        module = self.units[number].module
        changed = self.core.pre_hook(number, False)(module, (x,), {})
        output = function(changed[0][0] if changed else x)
        self.core.post_hook(number)(module, (x,), output)
        return output

    @contextmanager
    def without_hooks(self) -> Iterator[None]:
        """The module's forward is its own inside; nothing is gathered or reduced by itself."""
        self._remove_hooks()
        try:
            yield
        finally:
            self._install_hooks()

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    @contextmanager
    def gathered(self, units: list[int], modifier_rank: int | None = None) -> Iterator[None]:
        """The parameters of these units can be read inside, and changed by one rank. Collective."""
        for unit in units:
            if not 0 <= unit < len(self.units):
                raise _C.UsageError(f"there is no unit {unit}; the model has {len(self.units)}")
        with ExitStack() as stack:
            for unit in units:
                self.core.tensors.open(unit, READ_ONLY if modifier_rank is None else modifier_rank)
                stack.push(partial(self._close, unit))
            yield

    def _close(self, unit: int, kind: Any, error: Any, trace: Any) -> None:
        self.core.tensors.close(unit, kind is not None)

    def end(self, whole: bool) -> None:
        """Gives the module back: with its full weights (collective), or without communication."""
        if whole and not self._whole_weights_fit():
            whole = False
            log("the full weights do not fit on the device: sharded parameters throw when read")
        self._remove_hooks()
        self.core.dismantle(whole)
        for parameter in self._parts.module.parameters():
            if hasattr(parameter, "_shardwise"):
                del parameter._shardwise
        self._core = None
        self._leave_groups()

    def _leave_groups(self) -> None:
        if self.whereabouts is not None:
            self.whereabouts.stop()
            self.whereabouts = None
        for group in self._groups.values():
            dist.destroy_process_group(group)
        self._groups = {}

    def _whole_weights_fit(self) -> bool:
        module, device = self._parts.module, self._parts.device
        if device.type == "cpu" or self._stage < 3:
            return True
        free, _ = torch.cuda.mem_get_info(device)
        needed = sum(parameter.nbytes for parameter in module.parameters())
        fits = torch.tensor([int(needed < free)], device=device)
        dist.all_reduce(fits, op=dist.ReduceOp.MIN)
        return bool(fits.item())
