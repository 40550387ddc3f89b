"""Which optimizer an engine gets, from what the user gives and the configuration names."""

import inspect
import json
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from shardwise import _C, muon
from shardwise.console import log
from shardwise.optimizers import ShardedOptimizer, as_list, what_is
from shardwise.torch_rules import ShardedTorchOptimizer, check_runs_on_shards, constant_states
from shardwise.units import is_plain

# torch's optimizers that the core carries out itself, and its rule for each.
RULES = {
    torch.optim.Adam: "adam",
    torch.optim.AdamW: "adam",
    torch.optim.SGD: "sgd",
    torch.optim.Adagrad: "adagrad",
}
# Flags of these that only torch's own step carries out.
TORCH_FLAGS = ("amsgrad", "maximize")
# Settings that choose among torch's implementations of one rule.
IMPLEMENTATION = {"foreach", "fused", "capturable", "differentiable"}
FLAGS = {"decoupled_weight_decay", "bias_correction", "nesterov", "eps_inside_sqrt"}


def make_optimizer(
    optimizer: Any, model_parameters: Any, model: nn.Module, config: _C.Config
) -> ShardedOptimizer | None:
    """From an object or a function of the user, else from the configuration, else None."""
    made = _make(optimizer, _as_groups(model_parameters, model), model, config)
    if (
        made is not None
        and model_parameters is None
        and not isinstance(optimizer, torch.optim.Optimizer)
    ):
        made.list_frozen_by_default()
    return made


def _make(
    optimizer: Any, groups: list[Any], model: nn.Module, config: _C.Config
) -> ShardedOptimizer | None:
    if optimizer is None:
        if not config.optimizer_type:
            return None
        groups = _with_lists(groups)
        _check_belongs_to(groups, model)
        return _from_config(config, groups, model)
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
    return _from_torch(optimizer, model, config)


def _as_groups(model_parameters: Any, model: nn.Module) -> list[Any]:
    chosen = list(model.parameters() if model_parameters is None else model_parameters)
    if chosen and isinstance(chosen[0], tuple):  # named_parameters()
        chosen = [parameter for _, parameter in chosen]
    if all(isinstance(entry, dict) for entry in chosen):
        return chosen
    for position, parameter in enumerate(chosen):
        if not isinstance(parameter, torch.Tensor):
            raise _C.UsageError(
                f"model_parameters[{position}] is a {type(parameter).__name__}; give parameters, "
                f"groups (dicts) or named_parameters()"
            )
    # Frozen ones too: they train once they are unfrozen.
    return [parameter for parameter in chosen if is_plain(parameter)]


def _from_config(config: _C.Config, groups: list[Any], model: nn.Module) -> ShardedOptimizer:
    if not any(isinstance(entry, dict) or entry.requires_grad for entry in groups):
        raise _C.UsageError(
            "the optimizer got no parameters: model_parameters is empty, or all are frozen. Leave "
            '"optimizer" out to run the model without training, or set requires_grad.'
        )
    if config.optimizer_needs_torch:
        return ShardedTorchOptimizer(_torch_object(config, groups))
    if config.optimizer_type == "Muon":
        return muon.from_config(config, groups, model)
    rule, values, _ = _C.configured_rule(config)
    if "beta1" in values:
        values["betas"] = (values.pop("beta1"), values.pop("beta2"))
    for flag in FLAGS & values.keys():
        values[flag] = bool(values[flag])
    return ShardedOptimizer(groups, values, rule.name, rule.initial_state)


def _torch_object(config: _C.Config, groups: list[Any]) -> torch.optim.Optimizer:
    params = json.loads(config.value_json("optimizer.params"))
    name = config.optimizer_type
    if name == "Adam" and params["adam_w_mode"]:
        name = "AdamW"
    if name in ("Adam", "AdamW") and not params["bias_correction"]:
        raise _C.ConfigError(
            "optimizer.params.bias_correction: false does not go together with amsgrad and "
            "maximize, which torch's Adam carries out; set it true"
        )
    kind = getattr(torch.optim, name)
    names = inspect.signature(kind).parameters.keys() & params.keys() - IMPLEMENTATION
    values = {key: params[key] for key in names}
    pairs = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return kind(groups, **{**values, **pairs})


def _from_torch(
    optimizer: torch.optim.Optimizer, model: nn.Module, config: _C.Config
) -> ShardedOptimizer:
    _check_belongs_to(optimizer.param_groups, model)
    if type(optimizer) is torch.optim.Muon:
        constant_states(optimizer)
        return muon.from_torch(optimizer)
    check_runs_on_shards(optimizer, lambda path: json.loads(config.value_json(path)))
    rule = RULES.get(type(optimizer))
    needs_torch = any(group.get(f) for group in optimizer.param_groups for f in TORCH_FLAGS)
    if rule is None or needs_torch:
        return ShardedTorchOptimizer(optimizer)
    constant_states(optimizer)
    start = optimizer.defaults.get("initial_accumulator_value", 0)
    made = ShardedOptimizer(optimizer.param_groups, optimizer.defaults, rule, start)
    # The same group objects, so that a schedule made for the user's object moves ours.
    made.param_groups = optimizer.param_groups
    return made


def _with_lists(groups: list[Any]) -> list[Any]:
    """Groups whose ``params`` can be looked through more than once."""
    return [
        {**group, "params": list(group["params"])}
        if isinstance(group, dict) and isinstance(group["params"], Iterator)
        else group
        for group in groups
    ]


def _check_belongs_to(groups: list[Any], model: nn.Module) -> None:
    """``groups``: dicts, or parameters, which are one group."""
    known = {id(parameter) for parameter in model.parameters()}
    are_dicts = bool(groups) and isinstance(groups[0], dict)
    for index, group in enumerate(groups if are_dicts else [{"params": groups}]):
        for position, parameter in enumerate(as_list(group["params"])):
            if id(parameter) not in known:
                raise _C.UsageError(
                    f"the optimizer's param_groups[{index}]['params'][{position}], "
                    f"{what_is(parameter)}, is no parameter of the model. Make the optimizer "
                    f"from this model's parameters()."
                )
