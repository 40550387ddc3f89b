"""Memory that a process uses."""

import os
from pathlib import Path

import torch

GIB = 2**30


def memory_in_use(device: torch.device) -> str:
    """Tensors on a GPU and their peak, or the resident memory of the process on the CPU."""
    if device.type == "cuda":
        now, peak = (
            read(device) / GIB
            for read in (torch.cuda.memory_allocated, torch.cuda.max_memory_allocated)
        )
        return f"{now:.2f} GiB (peak {peak:.2f})"
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return f"{pages * os.sysconf('SC_PAGE_SIZE') / GIB:.2f} GiB"
