"""The profile of one training step that the configuration asks for.

FLOPs are counted in ``profile_step``, which counting slows down; the time is that of the whole step
after it: forward, backward, communication, update and whatever the program does in between.
"""

import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from shardwise import _C
from shardwise.console import log
from shardwise.profiling.flops_profiler.counter import Counter
from shardwise.profiling.flops_profiler.peak import peak_flops
from shardwise.profiling.flops_profiler.profiler import profile_text, write
from shardwise.profiling.flops_profiler.report import Totals


class StepProfile:
    """Counts one step of an engine and prints it on rank 0."""

    def __init__(self, module: nn.Module, settings: dict[str, Any], device: torch.device):
        self._module = module
        self._settings = settings
        self._device = device
        self._step = max(settings["profile_step"], 1)
        self._counter: Counter | None = None
        self._active = False
        self._counted_until = 0.0

    def check_output(self) -> None:
        """ConfigError where the file of the table cannot be written. For rank 0."""
        name = self._settings["output_file"]
        try:
            if name is not None:
                Path(name).open("a").close()
        except (OSError, ValueError) as error:
            raise _C.ConfigError(
                f"flops_profiler.output_file: {name!r} cannot be written ({error}); name another "
                f"file, or set flops_profiler.output_file to null to have the table printed"
            ) from error

    def begin(self, step: int) -> None:
        """A forward or backward of this step is about to run."""
        if step == self._step and self._counter is None:
            self._counter = Counter(self._module)
            self._counter.__enter__()
            self._active = True

    def end_counting(self) -> bool:
        """The last backward of a window has run, or failed. Whether it was counted."""
        counted, self._active = self._active, False
        if counted:
            self._counter.__exit__(None, None, None)
        return counted

    def end_step(self, step: int, dtype: torch.dtype) -> bool:
        """After each step; prints after the one that follows the profiled one. True at the end."""
        if self._counter is None or step < self._step:
            return False
        if step == self._step:
            self._counted_until = self._now()
            return False
        self._report(self._now() - self._counted_until, dtype)
        return True

    def close(self, dtype: torch.dtype) -> None:
        """Training is over; prints what was counted if no step came after it."""
        self.end_counting()
        if self._counted_until:
            self._report(0.0, dtype)

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def _report(self, seconds: float, dtype: torch.dtype) -> None:
        if dist.get_rank() != 0:
            return
        totals = Totals(
            parameters=sum(p.numel() for p in self._module.parameters()),
            forward=self._counter.total("forward"),
            backward=self._counter.total("backward"),
            recomputed=self._counter.total("recomputed"),
            seconds=seconds,
            what=f"step {self._step + 1}",
            peak=peak_flops(self._device, dtype),
        )
        title = f"step {self._step}, rank 0 of {dist.get_world_size()}"
        text = profile_text(self._counter, self._module, totals, self._settings, title)
        try:
            write(text, self._settings["output_file"])
        except OSError as error:  # a full disk; training goes on
            log(f"the FLOPs profile was not written: {error}")
