"""Process groups and devices: made here, or taken over from whoever made them before."""

import atexit
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from shardwise import _C
from shardwise.console import log

# NCCL's own watchdog kills the process without a word about units, so it waits longer than we do.
NCCL_MARGIN_SECONDS = 60
LOST_THE_OTHERS = 75  # EX_TEMPFAIL, as native programs end with a CommunicationError


def choose_device() -> torch.device:
    """The GPU of this process where there is one, else the CPU."""
    environment = _C.launch_environment()
    if environment["accelerator"] == "cuda" and not torch.cuda.is_available():
        raise _C.ConfigError("DS_ACCELERATOR is cuda but torch finds no GPU: unset it, or use cpu")
    if environment["accelerator"] == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if dist.is_initialized() and "nccl" not in dist.get_backend():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    local_rank = environment["local_rank"]
    if local_rank >= count:
        raise _C.UsageError(
            f"LOCAL_RANK is {local_rank} but this machine has {count} GPU(s): start at most "
            f"{count} processes here, or set DS_ACCELERATOR=cpu"
        )
    return torch.device(
        "cuda", local_rank if environment["present"] else torch.cuda.current_device()
    )


def _why(device: torch.device) -> str:
    if _C.launch_environment()["accelerator"]:
        return f"DS_ACCELERATOR is {device.type}"
    return f"torch finds {torch.cuda.device_count() or 'no'} GPU(s)"


def count_ranks() -> int:
    """The ranks of torch's process group, or of the one that the launcher describes."""
    return dist.get_world_size() if dist.is_initialized() else _C.launch_environment()["world_size"]


def init_distributed(
    dist_backend=None,
    auto_mpi_discovery=True,
    distributed_port=29500,
    verbose=True,
    timeout=None,
    init_method=None,
    dist_init_required=None,
    config=None,
    rank=-1,
    world_size=-1,
):
    """Joins the process group of the launcher; a process that was started alone is a group of one.

    Does nothing if torch.distributed is initialised already. ``timeout`` is a timedelta: how long
    to wait for the other ranks, and for the group's collectives.
    Raises CommunicationError, which names the missing ranks, when they do not meet in time.
    """
    joining = (timeout or default_pg_timeout).total_seconds()
    join(joining, dist_backend, timeout, init_method, dist_init_required, rank, world_size)


def join(
    patience_seconds: float,
    dist_backend: str | None = None,
    timeout: timedelta | None = None,
    init_method: str | None = None,
    dist_init_required: bool | None = None,
    rank: int = -1,
    world_size: int = -1,
) -> None:
    """What ``init_distributed`` does, with a time-out of its own for the meeting of the ranks."""
    if dist.is_initialized():
        return
    if dist_init_required is False:
        raise _C.UsageError(
            "dist_init_required is False but torch.distributed is not initialised: call "
            "torch.distributed.init_process_group() first, or leave dist_init_required out"
        )
    environment = _C.launch_environment()
    device = choose_device()
    backend = dist_backend or ("nccl" if device.type == "cuda" else "gloo")
    options = {"backend": backend}
    if timeout is not None:
        options["timeout"] = timeout
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if init_method is not None:
        options.update(init_method=init_method)
        if rank >= 0:
            options.update(rank=rank, world_size=world_size)
    else:
        options.update(rank=environment["rank"], world_size=environment["world_size"])
    try:
        if init_method is None:
            options["store"] = _meet(patience_seconds, timeout or default_pg_timeout)
        dist.init_process_group(**options)
        if backend == "gloo":
            dist.barrier()  # a rank that leaves at once would break off others' connecting
        log(f"{dist.get_world_size()} rank(s) on {device.type} over {backend}: {_why(device)}")
    finally:  # behind torch's own hook, which holds back what earlier ones print
        sys.excepthook = partial(_end_with_exit_code, sys.excepthook)
    atexit.register(_leave)


def _meet(patience_seconds: float, timeout: timedelta) -> dist.Store:
    if count_ranks() == 1:
        return dist.HashStore()
    store = _C.meet_ranks(patience_seconds)
    store.set_timeout(timeout)
    return store


def _end_with_exit_code(previous: Callable, kind: type, error: BaseException, trace: Any) -> None:
    """Ranks that only lost the others say so by their exit code; launchers look for the cause."""
    previous(kind, error, trace)
    if issubclass(kind, _C.CommunicationError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(LOST_THE_OTHERS)  # leaving the group in order would wait for them


def _leave() -> None:
    """Leaves the group at a normal end. After an error others may hang, and waiting would too."""
    if dist.is_initialized() and not hasattr(sys, "last_type"):
        dist.destroy_process_group()


def nccl_options(timeout: timedelta, max_ctas: int) -> Any:
    """For one group: torch writes its ranks and name into them."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    options.config.max_ctas = max_ctas
    return options


def make_groups(
    device: torch.device, timeout_seconds: float, shard_size: int, max_ctas: int = 0
) -> dict[str, dist.ProcessGroup]:
    """This rank's communicators by what they are for. Collective.

    ``shard_size`` neighbouring ranks shard the model states (0: all); ranks with equal places in
    their groups hold replicas. ``max_ctas``: thread blocks of a collective (0: as NCCL likes).
    """
    cuda = device.type == "cuda"
    timeout = timedelta(seconds=timeout_seconds + (NCCL_MARGIN_SECONDS if cuda else 0))
    world, rank = dist.get_world_size(), dist.get_rank()
    shard_size = shard_size or world

    def new_group(ranks: list[int]) -> dist.ProcessGroup:
        options = nccl_options(timeout, max_ctas) if cuda and max_ctas else None
        backend = "nccl" if cuda else "gloo"
        return dist.new_group(ranks, backend=backend, timeout=timeout, pg_options=options)

    def make(ranks_of_groups: list[list[int]]) -> dist.ProcessGroup:
        """Every rank takes part in making every group, and keeps its own."""
        made = [new_group(ranks) for ranks in ranks_of_groups]
        return next(
            group for group, ranks in zip(made, ranks_of_groups, strict=True) if rank in ranks
        )

    shards = [list(range(first, first + shard_size)) for first in range(0, world, shard_size)]
    groups = {"gather": make(shards), "reduce": make(shards)}
    if len(shards) > 1:
        groups["replicate"] = make([list(ranks) for ranks in zip(*shards, strict=True)])
        groups["world"] = make([list(range(world))])
    return groups
