"""Muon behind torch's interface: matrices in whole, everything else by AdamW."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from shardwise import _C, config_source
from shardwise.optimizers import ShardedOptimizer, as_list, number_of

# What the core is told of torch.optim.Muon's adjust_lr_fn and of DeepSpeed's ns_method.
ADJUSTMENTS = {None: 0.0, "original": 0.0, "match_rms_adamw": 1.0}
NS_METHODS = {"gram": 1.0, "standard": 0.0}
# What a user's group cannot set for a half of it: eps belongs to Adam.
ONE_HALF = {True: ("use_muon", "eps"), False: ("use_muon",)}


def set_optimizer_flags(config_class: Any, model: nn.Module) -> None:
    """Sets ``use_muon`` on every parameter where the configuration's optimizer is Muon.

    True for parameters of two and more dimensions that are no embedding and no head, by their
    names and the class ``nn.Embedding``. Set it yourself afterwards where that guesses wrong.

    Args:
        config_class: a configuration in any form that ``initialize`` takes.
    """
    section = config_source.sections(config_class, ["optimizer"])["optimizer"]
    if section["type"] == "Muon":
        for parameter, takes in _choices(model):
            parameter.use_muon = takes


def _choices(model: nn.Module) -> list[tuple[nn.Parameter, bool]]:
    embeddings = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters()
    }
    return [
        (parameter, id(parameter) not in embeddings and _C.muon_takes(name, parameter.dim()))
        for name, parameter in model.named_parameters()
    ]


class ShardedMuon(ShardedOptimizer):
    """Groups with ``use_muon`` hold matrices and read lr, momentum and weight_decay; the others
    read lr, betas, eps and weight_decay.

    Args:
        standards: for parameters that Muon takes (True) and others (False), what a group that
            joins later has where it says nothing itself.
        takes: whether Muon takes a parameter.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        standards: dict[bool, dict[str, Any]],
        takes: Callable[[nn.Parameter], bool],
    ):
        super().__init__(groups, {}, _C.MUON_RULE)
        self._standards = standards
        self._takes = takes

    def takes_whole(self, parameter: nn.Parameter) -> bool:
        return self._takes(parameter)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if getattr(self, "_core", None) is not None:
            given = param_group["params"]
            given = [given] if isinstance(given, torch.Tensor) else list(given)
            parameters = as_list(given)
            for parameter in parameters:
                self._number_of(parameter)  # throws for what is not the model's
            kinds = {self._takes(parameter) for parameter in parameters}
            kinds |= {bool(param_group[key]) for key in ("use_muon",) if key in param_group}
            if len(kinds) > 1 or not kinds <= self._standards.keys():
                raise _C.UsageError(
                    f"add_param_group(): Muon takes {sum(map(self._takes, parameters))} of the "
                    f"{len(parameters)} parameters; a group holds matrices, with use_muon True, or "
                    f"others, with use_muon False where the optimizer has an Adam for them"
                )
            if not any("param_names" in group for group in self.param_groups):
                given = parameters
            param_group = {**self._standards[kinds.pop()], **param_group, "params": given}
        super().add_param_group(param_group)

    def _values(self, index: int) -> dict[str, float]:
        group = self.param_groups[index]

        def numbers(*keys: str) -> dict[str, float]:
            return {key: number_of(group, index, key) for key in keys}

        if not number_of(group, index, "use_muon"):
            values = numbers("lr", "eps", "weight_decay")
            beta1, beta2 = group["betas"]
            return {**values, "use_muon": 0.0, "beta1": float(beta1), "beta2": float(beta2)}
        values = numbers("lr", "weight_decay", "momentum", "nesterov", "ns_steps", "eps")
        a, b, c = map(float, group["ns_coefficients"])
        gram = _choice(group, index, "ns_method", NS_METHODS)
        match = _choice(group, index, "adjust_lr_fn", ADJUSTMENTS)
        flags = {"use_muon": 1.0, "gram": gram, "match_rms_adamw": match}
        return {**values, **flags, "ns_a": a, "ns_b": b, "ns_c": c}


def _choice(group: dict[str, Any], index: int, key: str, choices: dict[Any, float]) -> float:
    value = group.get(key)
    if value not in choices:
        raise _C.UsageError(
            f"param_groups[{index}][{key!r}] is {value!r}; write one of {list(choices)}"
        )
    return choices[value]


def from_config(config: _C.Config, groups: list[Any], model: nn.Module) -> ShardedMuon:
    """The optimizer that a configuration names, each of the user's groups cut in two.

    What a group sets itself wins, its ``lr`` and ``weight_decay`` in both halves.
    """
    for parameter, takes in _choices(model):
        if not hasattr(parameter, "use_muon"):
            parameter.use_muon = takes
    _check_tags(model)
    _, rest, matrices = _C.configured_rule(config)
    standards = {
        True: {
            **{key: matrices[key] for key in ("lr", "weight_decay", "momentum", "eps")},
            "use_muon": True,
            "nesterov": bool(matrices["nesterov"]),
            "ns_coefficients": tuple(matrices[key] for key in ("ns_a", "ns_b", "ns_c")),
            "ns_steps": int(matrices["ns_steps"]),
            "ns_method": "gram" if matrices["gram"] else "standard",
            "adjust_lr_fn": None,
        },
        False: {
            **{key: rest[key] for key in ("lr", "eps", "weight_decay")},
            "use_muon": False,
            "betas": (rest["beta1"], rest["beta2"]),
        },
    }
    halves = []
    for group in groups if isinstance(groups[0], dict) else [{"params": groups}]:
        parameters = as_list(group["params"])
        for takes, standard in standards.items():
            chosen = [p for p in parameters if bool(p.use_muon) is takes]
            foreign = {"params", *ONE_HALF[takes], *(standards[not takes].keys() - standard.keys())}
            own = {key: value for key, value in group.items() if key not in foreign}
            if chosen:
                halves.append({**standard, **own, "params": chosen})
    return ShardedMuon(halves, standards, lambda parameter: bool(parameter.use_muon))


def _check_tags(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.use_muon and parameter.dim() < 2:
            raise _C.UsageError(
                f"parameter {name} has use_muon = True, but its shape {tuple(parameter.shape)} is "
                f"no matrix; set it False"
            )


def from_torch(optimizer: torch.optim.Muon) -> ShardedMuon:
    """Carries out a ``torch.optim.Muon`` object; its groups stay the same objects."""
    standard = {**optimizer.defaults, "use_muon": True, "ns_method": "standard"}
    for group in optimizer.param_groups:
        group.update({key: value for key, value in standard.items() if key not in group})
    made = ShardedMuon(optimizer.param_groups, {True: standard}, lambda p: p.dim() == 2)
    made.param_groups = optimizer.param_groups
    return made
