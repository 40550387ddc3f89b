"""``shardwise.initialize``: from a model and a configuration to an engine."""

import gc
import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import IterableDataset

from shardwise import _C, config_source, schedules
from shardwise.console import log
from shardwise.data import DistributedLoader
from shardwise.engine import Engine
from shardwise.optimizer_choice import make_optimizer
from shardwise.optimizers import ShardedOptimizer
from shardwise.ownership import owner_of
from shardwise.process_groups import choose_device, count_ranks, join
from shardwise.wiring import EngineParts


def initialize(
    args: Any = None,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | Callable | None = None,
    model_parameters: Any = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    distributed_port: int = 29500,
    mpu: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Callable | None = None,
    config: Any = None,
    mesh_param: Any = None,
    config_params: Any = None,
) -> tuple[Engine, ShardedOptimizer | None, DistributedLoader | None, Any]:
    """Wraps a model for training. Collective: every rank calls it with the same model.

    Args:
        args: may carry ``deepspeed_config``, a path, where ``config`` is not given.
        model: any ``nn.Module``. The engine takes its parameters over.
        optimizer: a new torch optimizer whose rule treats each element by itself, or a function
            from parameters to one; without it the configuration names one.
        model_parameters: parameters or groups to train; all of the model without it. Frozen ones
            train once they are unfrozen.
        training_data: a dataset; the returned loader gives this rank's micro-batches.
        lr_scheduler: a torch schedule, or a function from the optimizer to one; without it the
            configuration may name one.
        config: dict, path of a JSON or HJSON file, or base64; ``config_params`` is its old name.

    Returns:
        engine, optimizer, loader (None without ``training_data``), schedule (None without one).

    Raises:
        ConfigError, UsageError: with what to change.
    """
    if not isinstance(model, nn.Module):
        raise _C.UsageError(
            f"initialize() needs model=, a torch.nn.Module, but got {type(model).__name__}"
        )
    for name, value in (("mpu", mpu), ("mesh_param", mesh_param)):
        if value is not None:
            raise _C.UsageError(f"{name} is not available in this version of shardwise")
    if _belongs_to_an_engine(model):
        gc.collect()  # an engine that was dropped lives on until its cycles are collected
    if _belongs_to_an_engine(model):
        raise _C.UsageError("the model belongs to an engine already: call engine.destroy() first")
    _check_weights_are_there(model)
    _check_dataset(training_data)
    source = _choose_config(args, config, config_params)
    resolved = config_source.load(source, count_ranks(), "the process group")
    patience = json.loads(resolved.value_json("shardwise.timeout_seconds"))
    join(patience, dist_init_required=dist_init_required)
    if lr_scheduler is not None and json.loads(resolved.value_json("scheduler.type")):
        raise _C.ConfigError(
            "the schedule is given twice, as lr_scheduler= and as scheduler in the configuration: "
            "give one of them"
        )
    for note in resolved.notes:
        log(note)
    engine = _make_engine(model, optimizer, model_parameters, resolved)
    with ExitStack() as undo:
        undo.callback(engine.destroy)  # the model gets its weights back
        if lr_scheduler is not None:
            engine.lr_scheduler = _make_schedule(lr_scheduler, engine.optimizer)
        elif engine.optimizer is not None:
            engine.lr_scheduler = schedules.from_config(resolved, engine.optimizer)
        if training_data is not None:
            engine.training_dataloader = DistributedLoader(
                training_data,
                engine.train_micro_batch_size_per_gpu(),
                dist.get_rank(),
                dist.get_world_size(),
                collate_fn,
                engine.config_value("dataloader_drop_last"),
            )
        undo.pop_all()
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler


def _belongs_to_an_engine(model: nn.Module) -> bool:
    return any(owner_of(parameter)[0] is not None for parameter in model.parameters())


def _check_weights_are_there(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "_shardwise") and parameter.numel():
            try:
                parameter.data_ptr()
            except RuntimeError as error:
                raise _C.UsageError(
                    f"the engine that held the shards of {name} is gone without destroy(), and the "
                    f"weights with it: build the model anew, or call destroy() before"
                ) from error


def _check_dataset(training_data: Any) -> None:
    indexed = hasattr(training_data, "__getitem__") and hasattr(training_data, "__len__")
    if training_data is not None and not indexed and not isinstance(training_data, IterableDataset):
        raise _C.UsageError(
            f"training_data must be a torch Dataset with __getitem__ and __len__, or an "
            f"IterableDataset, but it is a {type(training_data).__name__}"
        )


def _choose_config(args: Any, config: Any, config_params: Any) -> Any:
    given = [
        (name, value)
        for name, value in (
            ("config", config),
            ("config_params", config_params),
            ("args.deepspeed_config", getattr(args, "deepspeed_config", None)),
        )
        if value is not None
    ]
    if len(given) > 1:
        names = " and ".join(name for name, _ in given)
        raise _C.ConfigError(f"the configuration is given twice, as {names}: give one of them")
    if not given:
        raise _C.ConfigError(
            "no configuration was given: pass config= (a dict or the path of a JSON file), or "
            "--deepspeed_config on the command line"
        )
    return given[0][1]


def _make_engine(
    model: nn.Module, optimizer: Any, model_parameters: Any, resolved: _C.Config
) -> Engine:
    made = make_optimizer(optimizer, model_parameters, model, resolved)
    device = choose_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if json.loads(resolved.value_json("shardwise.deterministic")):
        _C.make_deterministic(device)
    return Engine(EngineParts(model, resolved, device, made))


def _make_schedule(lr_scheduler: Any, optimizer: ShardedOptimizer | None) -> Any:
    if hasattr(lr_scheduler, "step") and not isinstance(lr_scheduler, type):
        return lr_scheduler
    if not callable(lr_scheduler):
        raise _C.UsageError(
            f"lr_scheduler must be a torch schedule or a function from the optimizer to one, but "
            f"it is a {type(lr_scheduler).__name__}"
        )
    return lr_scheduler(optimizer)
