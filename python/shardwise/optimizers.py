"""The optimizer that users see: torch's interface over sharded states."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from shardwise import _C
from shardwise.console import log

# torch's optimizers that the engine carries out itself, and its rule for each.
RULES = {torch.optim.Adam: "adam", torch.optim.AdamW: "adam", torch.optim.SGD: "sgd"}
UNSUPPORTED_FLAGS = ("amsgrad", "maximize", "differentiable")


class ShardedOptimizer(torch.optim.Optimizer):
    """``param_groups`` can be read and edited as with torch; the engine carries the step out.

    The states live in shards and are read with ``shardwise.utils.safe_get_full_optimizer_state``.
    """

    def __init__(self, groups: list[dict[str, Any]], defaults: dict[str, Any], rule: str):
        super().__init__(groups, defaults)
        self.rule = rule
        self.with_momentum = any(group.get("momentum", 0) != 0 for group in self.param_groups)
        self._run: Callable[[list[dict[str, float]]], None] | None = None
        self._zero_grad: Callable[[], None] | None = None

    def attach(self, zero_grad: Callable[[], None]) -> None:
        """Connects the optimizer with its engine; from here on the groups are fixed."""
        self._zero_grad = zero_grad

    @contextmanager
    def carried_out_by(self, run: Callable[[list[dict[str, float]]], None]) -> Iterator[None]:
        """Inside, ``step`` hands the groups' hyperparameters to ``run``."""
        self._run = run
        try:
            yield
        finally:
            self._run = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if getattr(self, "_zero_grad", None) is not None:
            raise _C.UsageError(
                "add_param_group() after initialize() is not available in this version of "
                "shardwise: give all groups to initialize()"
            )
        super().add_param_group(param_group)

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

        def number(key: str) -> float:
            if key not in group:
                raise _C.UsageError(f"param_groups[{index}] lacks {key!r}; put it back")
            try:
                value = float(group[key])
            except (TypeError, ValueError):
                value = math.nan
            if not math.isfinite(value):
                raise _C.UsageError(
                    f"param_groups[{index}][{key!r}] is {group[key]!r}: set a finite number"
                )
            return value

        if self.rule == "sgd":
            keys = ("lr", "momentum", "dampening", "weight_decay", "nesterov")
            return {key: number(key) for key in keys}
        beta1, beta2 = group["betas"]
        values = {key: number(key) for key in ("lr", "eps", "weight_decay")}
        values["beta1"], values["beta2"] = float(beta1), float(beta2)
        values["decoupled"] = float(group.get("decoupled_weight_decay", False))
        values["bias_correction"] = float(group.get("bias_correction", True))
        return values


def make_optimizer(
    optimizer: Any, model_parameters: Any, model: nn.Module, config: _C.Config, params: dict
) -> ShardedOptimizer | None:
    """From an object or a function of the user, else from the configuration, else None."""
    groups = _as_groups(model_parameters, model)
    if optimizer is None:
        if not config.optimizer_type:
            return None
        made = _from_config(config.optimizer_type, params, groups)
        _check_belongs_to(made, model)
        return made
    if not isinstance(optimizer, torch.optim.Optimizer):
        if not callable(optimizer):
            raise _C.UsageError(
                f"optimizer must be a torch optimizer or a function that makes one from "
                f"parameters, but it is a {type(optimizer).__name__}"
            )
        optimizer = optimizer(groups)
    if config.optimizer_type:
        log(
            f"initialize(optimizer=) is used; the configuration's optimizer, "
            f"{config.optimizer_type}, is not"
        )
    return _from_torch(optimizer, model)


def group_of_parameters(optimizer: ShardedOptimizer | None) -> dict[int, int]:
    """id of each parameter in the optimizer → index of its group."""
    if optimizer is None:
        return {}
    return {
        id(parameter): index
        for index, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
    }


def _as_groups(model_parameters: Any, model: nn.Module) -> list[Any]:
    chosen = list(model.parameters() if model_parameters is None else model_parameters)
    if chosen and isinstance(chosen[0], tuple):  # named_parameters()
        chosen = [parameter for _, parameter in chosen]
    if chosen and isinstance(chosen[0], dict):
        return chosen
    for position, parameter in enumerate(chosen):
        if not isinstance(parameter, torch.Tensor):
            raise _C.UsageError(
                f"model_parameters[{position}] is a {type(parameter).__name__}; give parameters, "
                f"groups (dicts) or named_parameters()"
            )
    return [parameter for parameter in chosen if parameter.requires_grad]


def _from_config(name: str, params: dict[str, Any], groups: list[Any]) -> ShardedOptimizer:
    if not groups:
        raise _C.UsageError(
            "the optimizer got no parameters: model_parameters is empty, or all are frozen. Leave "
            '"optimizer" out to run the model without training, or set requires_grad.'
        )
    if name == "SGD":
        keys = ("lr", "momentum", "dampening", "weight_decay", "nesterov")
        return ShardedOptimizer(groups, {key: params[key] for key in keys}, "sgd")
    defaults = {key: params[key] for key in ("lr", "eps", "weight_decay", "bias_correction")}
    defaults["betas"] = tuple(params["betas"])
    defaults["decoupled_weight_decay"] = name == "AdamW" or params["adam_w_mode"]
    return ShardedOptimizer(groups, defaults, "adam")


def _from_torch(optimizer: torch.optim.Optimizer, model: nn.Module) -> ShardedOptimizer:
    name = type(optimizer).__name__
    rule = RULES.get(type(optimizer))
    if rule is None:
        raise _C.UsageError(
            f"the optimizer {name} is not available in this version of shardwise: there are "
            f"torch.optim.Adam, AdamW and SGD. It is not replaced by another algorithm."
        )
    if optimizer.state:
        raise _C.UsageError(
            f"the {name} object has states already (it has been stepped or loaded); pass a new one"
        )
    for flag in UNSUPPORTED_FLAGS:
        if any(group.get(flag) for group in optimizer.param_groups):
            raise _C.UsageError(
                f"{name}({flag}=True) is not available in this version of shardwise; set it False"
            )
    _check_belongs_to(optimizer, model)
    made = ShardedOptimizer(optimizer.param_groups, optimizer.defaults, rule)
    # The same group objects, so that a schedule made for the user's object moves ours.
    made.param_groups = optimizer.param_groups
    return made


def _check_belongs_to(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    known = {id(parameter) for parameter in model.parameters()}
    for index, group in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(group["params"]):
            if id(parameter) not in known:
                raise _C.UsageError(
                    f"the optimizer's param_groups[{index}]['params'][{position}] (shape "
                    f"{tuple(parameter.shape)}) is no parameter of the model. Make the optimizer "
                    f"from this model's parameters()."
                )
