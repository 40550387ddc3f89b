"""Lines for people."""

import sys

import torch.distributed as dist


def log(message: str) -> None:
    """One line on standard error of rank 0."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(f"[shardwise] {message}", file=sys.stderr, flush=True)
