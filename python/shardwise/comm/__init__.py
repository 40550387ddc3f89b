"""torch.distributed under the names that DeepSpeed scripts use."""

import torch.distributed as _dist
from torch.distributed import (
    ReduceOp,
    all_gather,
    all_gather_into_tensor,
    all_gather_object,
    all_reduce,
    all_to_all_single,
    barrier,
    broadcast,
    broadcast_object_list,
    destroy_process_group,
    get_rank,
    get_world_size,
    is_available,
    is_initialized,
    new_group,
    reduce,
    reduce_scatter_tensor,
)

from shardwise import _C
from shardwise.process_groups import init_distributed

__all__ = [
    "ReduceOp",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "destroy_process_group",
    "get_local_rank",
    "get_rank",
    "get_world_group",
    "get_world_size",
    "init_distributed",
    "is_available",
    "is_initialized",
    "new_group",
    "reduce",
    "reduce_scatter_tensor",
]


def get_local_rank() -> int:
    """Rank among the processes of this machine."""
    return _C.launch_environment()["local_rank"]


def get_world_group() -> _dist.ProcessGroup:
    return _dist.group.WORLD
