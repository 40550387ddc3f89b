"""torch.distributed under the names that DeepSpeed scripts use."""

import torch.distributed as _dist
from torch.distributed import (
    ReduceOp,
    all_gather_object,
    broadcast_object_list,
    destroy_process_group,
    get_rank,
    get_world_size,
    is_available,
    is_initialized,
    new_group,
)

from shardwise import _C
from shardwise.comm.log import (
    configure,
    get_comm_operation_count,
    get_logged_comm_ops,
    has_comm_data,
    log_summary,
    logged,
    reset_log,
)
from shardwise.process_groups import init_distributed

all_gather = logged(_dist.all_gather)
all_gather_into_tensor = logged(_dist.all_gather_into_tensor)
all_reduce = logged(_dist.all_reduce)
all_to_all_single = logged(_dist.all_to_all_single)
barrier = logged(_dist.barrier)
broadcast = logged(_dist.broadcast)
reduce = logged(_dist.reduce)
reduce_scatter_tensor = logged(_dist.reduce_scatter_tensor)

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
    "configure",
    "destroy_process_group",
    "get_comm_operation_count",
    "get_local_rank",
    "get_logged_comm_ops",
    "get_rank",
    "get_world_group",
    "get_world_size",
    "has_comm_data",
    "init_distributed",
    "is_available",
    "is_initialized",
    "log_summary",
    "new_group",
    "reduce",
    "reduce_scatter_tensor",
    "reset_log",
]


def get_local_rank() -> int:
    """Rank among the processes of this machine."""
    return _C.launch_environment()["local_rank"]


def get_world_group() -> _dist.ProcessGroup:
    return _dist.group.WORLD
