"""The optimizer that users see: torch's interface over sharded states."""

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from shardwise import _C

# Hyperparameters of the rules that torch's groups may lack.
OPTIONAL = {"decoupled_weight_decay": False, "bias_correction": True}


class ShardedOptimizer(torch.optim.Optimizer):
    """``param_groups`` can be read and edited as with torch; the engine carries the step out.

    The states live in shards and are read with ``shardwise.utils.safe_get_full_optimizer_state``.
    """

    def __init__(
        self, groups: list[Any], defaults: dict[str, Any], rule: str, initial_state: float = 0.0
    ):
        super().__init__(groups, defaults)
        momentum = any(group.get("momentum", 0) != 0 for group in self.param_groups)
        self.rule = _C.RuleOptions(rule, with_momentum=momentum, initial_state=initial_state)
        self._run: Callable[[list[dict[str, float]]], None] | None = None
        self._zero_grad: Callable[[], None] | None = None
        self._core: Callable[[], _C.Engine] | None = None
        self._index: dict[int, int] = {}
        self._frozen_by_default: set[int] = set()

    def list_frozen_by_default(self) -> None:
        """Nobody chose the groups of the frozen parameters: ``add_param_group`` may take them."""
        listed = (p for group in self.param_groups for p in group["params"])
        self._frozen_by_default = {id(p) for p in listed if not p.requires_grad}

    def attach(self, zero_grad: Callable[[], None]) -> None:
        """Connects ``zero_grad`` with the engine's."""
        self._zero_grad = zero_grad

    def connect(self, core: _C.Engine, index: dict[int, int]) -> None:
        """Connects the optimizer with a core. ``index``: from a parameter's id to its number."""
        self._core = weakref.ref(core)
        self._index = index

    def takes_whole(self, parameter: torch.nn.Parameter) -> bool:
        """Whether the rule moves this parameter as one matrix, not element by element."""
        return False

    def full_state(self, core: _C.Engine, number: int, name: str) -> torch.Tensor | None:
        """A whole state of one parameter; None if there is none of this name. Collective."""
        return core.tensors.full(number, name)

    def local_state(self, core: _C.Engine, number: int, name: str) -> torch.Tensor | None:
        """This rank's elements of a state, flat; None if there is none of this name."""
        return core.tensors.local(number, name)

    def set_state(
        self, core: _C.Engine, number: int, name: str, value: torch.Tensor, whole: bool
    ) -> bool:
        """Overwrites a state, the whole (collective) or this rank's elements; False if none."""
        tensors = core.tensors
        return (tensors.set_full if whole else tensors.set_local)(number, name, value)

    @contextmanager
    def carried_out_by(self, run: Callable[[list[dict[str, float]]], None]) -> Iterator[None]:
        """Inside, ``step`` hands the groups' hyperparameters to ``run``."""
        self._run = run
        try:
            yield
        finally:
            self._run = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Parameters of the model that are in no group yet join, every rank the same ones.

        After ``initialize()`` their states start from nothing and count their own steps. Frozen
        ones move once they are unfrozen, before or after this; those that have moved by then keep
        states and steps.
        """
        core = getattr(self, "_core", None)
        if core is None:
            super().add_param_group(param_group)
            return
        known = len(self.param_groups)
        listed = [group["params"] for group in self.param_groups]
        try:
            super().add_param_group(self._take_from_default(param_group))
            numbers = [self._number_of(parameter) for parameter in self.param_groups[-1]["params"]]
            self._values(known)
            core().assign_group(numbers, known)
        except BaseException:
            del self.param_groups[known:]
            for group, parameters in zip(self.param_groups, listed, strict=True):
                group["params"] = parameters
            raise
        self._frozen_by_default -= {id(p) for p in self.param_groups[-1]["params"]}

    def _take_from_default(self, param_group: dict[str, Any]) -> dict[str, Any]:
        """The new group; what it lists leaves the groups in which nobody has put it."""
        given = param_group["params"]
        if isinstance(given, (torch.Tensor, set)):
            given = [given] if isinstance(given, torch.Tensor) else given  # torch refuses sets
        else:
            given = list(given)
        leaving = {id(p[1] if isinstance(p, tuple) else p) for p in given} & self._frozen_by_default
        for group in self.param_groups if leaving else []:
            group["params"] = [p for p in group["params"] if id(p) not in leaving]
        return {**param_group, "params": given}

    def _number_of(self, parameter: torch.Tensor) -> int:
        if id(parameter) not in self._index:
            raise _C.UsageError(
                f"add_param_group(): {what_is(parameter)} is no parameter of the engine's model"
            )
        return self._index[id(parameter)]

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> None:
        """Carried out by ``engine.step()``, which also counts steps and moves the schedule."""
        if closure is not None:
            raise _C.UsageError("closures are not supported: call engine.step()")
        if self._run is None:
            raise _C.UsageError("call engine.step(), which also counts steps and moves schedules")
        self._run([self._values(index) for index in range(len(self.param_groups))])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients of the present accumulation window."""
        if self._zero_grad is not None:
            self._zero_grad()

    def state_dict(self) -> dict[str, Any]:
        raise _C.UsageError(
            "optimizer.state_dict() is not available in this version of shardwise: the states are "
            "sharded; read them with shardwise.utils.safe_get_full_optimizer_state"
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise _C.UsageError(
            "optimizer.load_state_dict() is not available in this version of shardwise"
        )

    def _values(self, index: int) -> dict[str, float]:
        """Hyperparameters of one group as the core wants them."""
        group = self.param_groups[index]
        values = {}
        for key in _C.rule_values(self.rule):
            if key in ("beta1", "beta2"):
                values[key] = number_of(group, index, "betas", int(key[-1]) - 1)
            elif key in OPTIONAL and key not in group:
                values[key] = float(OPTIONAL[key])
            else:
                values[key] = number_of(group, index, key)
        return values


def as_list(parameters: Any) -> list[torch.nn.Parameter]:
    """The ``params`` of a group, without the names that torch lets them have."""
    given = [parameters] if isinstance(parameters, torch.Tensor) else parameters
    return [entry[1] if isinstance(entry, tuple) else entry for entry in given]


def what_is(entry: Any) -> str:
    """What was found in the place of a parameter."""
    if isinstance(entry, torch.Tensor):
        return f"a tensor of shape {tuple(entry.shape)}"
    return f"an object of class {type(entry).__name__}"


def number_of(group: dict[str, Any], index: int, key: str, position: int | None = None) -> float:
    """A hyperparameter of ``param_groups[index]``; UsageError where there is no finite number."""
    if key not in group:
        raise _C.UsageError(f"param_groups[{index}] lacks {key!r}; put it back")
    try:
        value = float(group[key] if position is None else group[key][position])
    except (TypeError, ValueError, IndexError):
        value = math.nan
    if not math.isfinite(value):
        wanted = "a finite number" if position is None else "two finite numbers"
        raise _C.UsageError(f"param_groups[{index}][{key!r}] is {group[key]!r}: set {wanted}")
    if key == "lr" and value < 0:
        raise _C.UsageError(
            f"param_groups[{index}]['lr'] is {group[key]!r}: set a number >= 0 (to climb, negate "
            f"the loss or write maximize)"
        )
    return value


def group_of_parameters(optimizer: ShardedOptimizer | None) -> dict[int, int]:
    """id of each parameter in the optimizer → index of its group."""
    if optimizer is None:
        return {}
    return {
        id(parameter): index
        for index, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
    }
