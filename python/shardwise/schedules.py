"""DeepSpeed's learning-rate schedules under its names and arguments.

The C++ core computes the values, these classes put them into the parameter groups. A schedule's
only state is ``last_batch_iteration``: -1 when it is made, one more for each ``step()``. The engine
calls ``step()`` after each step that changed the weights.
"""

import inspect
import json
from typing import Any

import torch

from shardwise import _C
from shardwise.console import log

VALID_LR_SCHEDULES = ["LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"]


class Schedule:
    """What the five schedules share.

    A new schedule sets the groups' learning rates to its start; one that is made with a
    ``last_batch_iteration`` leaves them until its first ``step()`` or ``load_state_dict()``.
    """

    ARGUMENTS: tuple[str, ...] = ()  # in DeepSpeed's order; defaults are in docs/config.md

    def __init__(self, optimizer: Any, *arguments: Any, **named: Any):
        name = type(self).__name__
        settings = _settings(name, self.ARGUMENTS, arguments, named)
        document = {"train_batch_size": 1, "scheduler": {"type": name, "params": settings}}
        config = _C.Config.load_text(json.dumps(document), 1, "", name)
        self._core = _C.make_schedule(config)
        self.optimizer = _torch_optimizer(optimizer)
        start = config.value_json("scheduler.params.last_batch_iteration")
        self.last_batch_iteration = json.loads(start)
        self._base_lr = [float(group["lr"]) for group in self.optimizer.param_groups]
        values = self._core.values(self.last_batch_iteration, self._base_lr)
        self._moves_betas = bool(values[1]) and "betas" in self.optimizer.defaults
        if values[1] and not self._moves_betas:
            log(f"{name}: cycle_momentum has no effect, since the optimizer has no betas")
        if self.last_batch_iteration == -1:
            self._apply()

    def step(self, last_batch_iteration: int | None = None) -> None:
        """Moves to the next iteration, or to the given one, and sets the groups' values."""
        if last_batch_iteration is None:
            last_batch_iteration = self.last_batch_iteration + 1
        self.last_batch_iteration = _iteration(last_batch_iteration)
        self._apply()

    def get_lr(self) -> list[float]:
        """The learning rate of each group at the present iteration."""
        return self._core.values(self.last_batch_iteration, self._base_lr)[0]

    def get_last_lr(self) -> list[float]:
        """The learning rate that each group has now."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, int]:
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Goes to the saved iteration and sets the groups' values for it."""
        self.step(state_dict["last_batch_iteration"])

    def _apply(self) -> None:
        joined = self.optimizer.param_groups[len(self._base_lr) :]
        self._base_lr += [float(group["lr"]) for group in joined]
        rates, momenta = self._core.values(self.last_batch_iteration, self._base_lr)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            is_tensor = isinstance(group["lr"], torch.Tensor)
            group["lr"] = torch.full_like(group["lr"], rate) if is_tensor else rate
        if self._moves_betas:
            for group, momentum in zip(self.optimizer.param_groups, momenta, strict=True):
                group["betas"] = (momentum, _C.ONE_CYCLE_SECOND_BETA)


class WarmupLR(Schedule):
    """Rises from the least to the largest learning rate and stays there."""

    ARGUMENTS = (
        "warmup_min_lr",
        "warmup_max_lr",
        "warmup_num_steps",
        "warmup_type",
        "last_batch_iteration",
    )


class WarmupDecayLR(Schedule):
    """Rises like ``WarmupLR``, then falls in a straight line to 0 at ``total_num_steps``."""

    ARGUMENTS = ("total_num_steps", *WarmupLR.ARGUMENTS)


class WarmupCosineLR(Schedule):
    """Rises to the optimizer's learning rate, then falls along a cosine to a share of it."""

    ARGUMENTS = (
        "total_num_steps",
        "warmup_min_ratio",
        "warmup_num_steps",
        "cos_min_ratio",
        "warmup_type",
        "last_batch_iteration",
    )


class OneCycle(Schedule):
    """Up and down once, the first beta of Adam against it; then a decay."""

    ARGUMENTS = (
        "cycle_min_lr",
        "cycle_max_lr",
        "decay_lr_rate",
        "cycle_first_step_size",
        "cycle_second_step_size",
        "cycle_first_stair_count",
        "cycle_second_stair_count",
        "decay_step_size",
        "cycle_momentum",
        "cycle_min_mom",
        "cycle_max_mom",
        "decay_mom_rate",
        "last_batch_iteration",
    )

    def step(self, batch_iteration: int | None = None) -> None:
        super().step(batch_iteration)

    def get_mom(self) -> list[tuple[float, float]] | None:
        """The betas of each group at the present iteration; None where they are left alone."""
        if not self._moves_betas:
            return None
        momenta = self._core.values(self.last_batch_iteration, self._base_lr)[1]
        return [(momentum, _C.ONE_CYCLE_SECOND_BETA) for momentum in momenta]


class LRRangeTest(Schedule):
    """Grows without end, to find the largest learning rate that works."""

    ARGUMENTS = (
        "lr_range_test_min_lr",
        "lr_range_test_step_size",
        "lr_range_test_step_rate",
        "lr_range_test_staircase",
        "last_batch_iteration",
    )

    def step(self, batch_iteration: int | None = None) -> None:
        super().step(batch_iteration)


def needed_arguments(scheduler: Any) -> list[str]:
    """What ``scheduler.step`` cannot be called without."""
    try:
        parameters = inspect.signature(scheduler.step).parameters.values()
    except (AttributeError, TypeError, ValueError):  # none, or not written in Python
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variable]


def from_config(config: _C.Config, optimizer: Any) -> Schedule | None:
    """The schedule that a validated configuration names, or None."""
    name = json.loads(config.value_json("scheduler.type"))
    if name is None:
        return None
    classes = (WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest)
    chosen = next(kind for kind in classes if kind.__name__ == name)
    params = json.loads(config.value_json("scheduler.params"))
    return chosen(optimizer, **{name: params[name] for name in chosen.ARGUMENTS})


def _settings(
    name: str, known: tuple[str, ...], arguments: tuple[Any, ...], named: dict[str, Any]
) -> dict[str, Any]:
    twice = [key for key in known[: len(arguments)] if key in named]
    if len(arguments) > len(known) or twice:
        what = f"{', '.join(twice)} twice" if twice else f"{len(arguments)} arguments"
        raise _C.UsageError(f"{name}() got {what}; it takes {', '.join(known)}")
    return {**dict(zip(known, arguments, strict=False)), **named}


def _torch_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    inner = optimizer
    if not isinstance(inner, torch.optim.Optimizer):
        inner = getattr(optimizer, "optimizer", None)
    if not isinstance(inner, torch.optim.Optimizer):
        raise _C.UsageError(
            f"a schedule needs a torch optimizer, but got a {type(optimizer).__name__}"
        )
    return inner


def _iteration(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and -1 <= value < 2**62:
        return value
    raise _C.UsageError(f"last_batch_iteration must be an integer >= -1, but it is {value!r}")
