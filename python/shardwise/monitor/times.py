"""Times of forward, backward and step, and numbers of the device that are read later."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch

KINDS = ("forward", "backward", "step")


class LateScalar:
    """A scalar that leaves the device now and is read later: nothing waits in between."""

    def __init__(self, value: torch.Tensor):
        self._host = value
        self._arrived = None
        if value.is_cuda:
            self._host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
            self._host.copy_(value, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def read(self) -> float:
        """The value; waits for the copy alone."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return float(self._host)


class Times:
    """Seconds and calls of each of KINDS since the last ``take()``.

    On a GPU the span between two events of the compute stream, read when they have passed; else
    wall clock.
    """

    def __init__(self, device: torch.device):
        self._on_gpu = device.type == "cuda"
        self._pending: deque[tuple[str, torch.cuda.Event, torch.cuda.Event]] = deque()
        self._seconds = dict.fromkeys(KINDS, 0.0)
        self._calls = dict.fromkeys(KINDS, 0)

    @contextmanager
    def measure(self, kind: str) -> Iterator[None]:
        if not self._on_gpu:
            began = time.perf_counter()
            try:
                yield
            finally:
                self._add(kind, time.perf_counter() - began)
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        try:
            yield
        finally:
            end.record()
            self._pending.append((kind, begin, end))

    def collect(self, wait: bool = False) -> None:
        """Counts the spans whose end has passed; with ``wait``, all."""
        while self._pending and (wait or self._pending[0][2].query()):
            kind, begin, end = self._pending.popleft()
            end.synchronize()
            self._add(kind, begin.elapsed_time(end) / 1e3)

    def take(self) -> dict[str, tuple[float, int]]:
        """Seconds and calls of each kind; begins anew. Waits for a GPU."""
        self.collect(wait=True)
        taken = {kind: (self._seconds[kind], self._calls[kind]) for kind in KINDS}
        self._seconds = dict.fromkeys(KINDS, 0.0)
        self._calls = dict.fromkeys(KINDS, 0)
        return taken

    def _add(self, kind: str, seconds: float) -> None:
        self._seconds[kind] += seconds
        self._calls[kind] += 1
