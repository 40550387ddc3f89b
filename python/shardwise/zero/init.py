"""``zero.Init``: the context in which models are built in shards."""

import json
import weakref
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from shardwise import _C, config_source
from shardwise.process_groups import NCCL_MARGIN_SECONDS, choose_device, init_distributed
from shardwise.zero.construction import ShardedConstruction, active_construction

TIMEOUT_SECONDS = 300  # as shardwise.timeout_seconds


def Init(  # noqa: N802  (DeepSpeed's name)
    module: nn.Module | None = None,
    data_parallel_group: Any = None,
    mem_efficient_linear: bool = True,
    remote_device: str | None = None,
    pin_memory: bool = False,
    config_dict_or_path: Any = None,
    config: Any = None,
    enabled: bool = True,
    dtype: torch.dtype | None = None,
    mpu: Any = None,
    zero_param_parallel_group: Any = None,
    zero_quantized_weights: bool = False,
    zero_quantized_nontrainable_weights: bool = False,
    sequence_data_parallel_group: Any = None,
    param_swapper: Any = None,
    tensor_overrides: Any = None,
) -> "InitContext":
    """Modules built inside are cut into shards, so that a model may be larger than one process.

    ``with shardwise.zero.Init(): model = Model()`` gives parameters of their true shape whose
    values are those of rank 0 and equal what the same code makes outside. Reading one after the
    context needs ``GatheredParameters``; ``initialize`` takes such a model over, at any stage.
    Buffers, integer parameters and those on the meta device stay as they are. Shards lie where the
    parameters were made. Collective, and so is all that touches a parameter inside.

    Args:
        module: cuts an existing module instead; no context is needed.
        config_dict_or_path: the configuration; only ``shardwise.timeout_seconds`` is used here.
            ``config`` is its old name.
        enabled: False does nothing.
        dtype: floating-point parameters are converted to it when they are cut.
        mem_efficient_linear: no effect: no layer is replaced.
        remote_device: where shards lie; "cpu" or None.

    The other arguments are DeepSpeed's, and an error unless they have their default.
    """
    groups = {
        "data_parallel_group": data_parallel_group,
        "zero_param_parallel_group": zero_param_parallel_group,
        "sequence_data_parallel_group": sequence_data_parallel_group,
    }
    _refuse(
        mpu=mpu,
        pin_memory=pin_memory,
        zero_quantized_weights=zero_quantized_weights,
        zero_quantized_nontrainable_weights=zero_quantized_nontrainable_weights,
        param_swapper=param_swapper,
        tensor_overrides=tensor_overrides,
        **{name: None if _is_world(group) else group for name, group in groups.items()},
    )
    _check_device(remote_device)
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise _C.UsageError(f"zero.Init(dtype={dtype!r}): give a floating-point torch dtype")
    if config is not None and config_dict_or_path is not None:
        raise _C.ConfigError(
            "zero.Init got the configuration twice, as config and as config_dict_or_path: give "
            "one of them"
        )
    context = InitContext(config_dict_or_path if config is None else config, dtype, enabled)
    if module is not None:
        context.cut(module)
    return context


class InitContext:
    """What ``Init`` returns: does nothing unless ``enabled`` and no other one is active."""

    def __init__(self, config: Any, dtype: torch.dtype | None, enabled: bool):
        self._config, self._dtype, self._enabled = config, dtype, enabled
        self._construction: ShardedConstruction | None = None

    def cut(self, module: nn.Module) -> None:
        """Cuts a module that exists."""
        if self._enabled:
            (active_construction() or self._make_construction()).cut_module(module)

    def __enter__(self) -> "InitContext":
        if self._enabled and active_construction() is None:
            self._construction = self._make_construction()
            self._construction.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        construction, self._construction = self._construction, None
        if construction is not None:
            construction.__exit__(kind, error, trace)

    def _make_construction(self) -> ShardedConstruction:
        init_distributed()
        timeout = self._timeout()
        device = choose_device()
        group = _make_group(device, timeout) if dist.get_world_size() > 1 else None
        channel = _C.Channel(group, device, timeout)
        if group is not None:
            weakref.finalize(channel, _leave, group)
        return ShardedConstruction(channel, device, self._dtype)

    def _timeout(self) -> float:
        if self._config is None:
            return TIMEOUT_SECONDS
        if isinstance(self._config, Mapping):  # may hold "auto" until training begins
            own = self._config.get("shardwise") or {}
            return own.get("timeout_seconds", TIMEOUT_SECONDS)
        resolved = config_source.load(self._config, dist.get_world_size(), "the process group")
        return json.loads(resolved.value_json("shardwise.timeout_seconds"))


def _make_group(device: torch.device, timeout_seconds: float) -> dist.ProcessGroup:
    cuda = device.type == "cuda"
    timeout = timedelta(seconds=timeout_seconds + (NCCL_MARGIN_SECONDS if cuda else 0))
    return dist.new_group(backend="nccl" if cuda else "gloo", timeout=timeout)


def _leave(group: dist.ProcessGroup) -> None:
    if dist.is_initialized() and group in dist.distributed_c10d._world.pg_map:
        dist.destroy_process_group(group)


def _is_world(group: Any) -> bool:
    is_group = isinstance(group, dist.ProcessGroup) and dist.is_initialized()
    return is_group and dist.get_world_size(group) == dist.get_world_size()


def _refuse(**arguments: Any) -> None:
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise _C.UsageError(
                f"zero.Init({name}=...) is not available in this version of shardwise: parameters "
                f"are cut over all ranks, as they are; leave {name} out"
            )


def _check_device(remote_device: Any) -> None:
    if remote_device not in (None, "none", "cpu"):
        raise _C.UsageError(
            f"zero.Init(remote_device={remote_device!r}) is not available in this version of "
            f"shardwise: shards lie where parameters are made; give None or 'cpu'"
        )
