"""Saved activations in host memory.

They leave the GPU while forward goes on, and the next ones come back while backward goes on.

Copies run on a stream of their own, to and from pinned memory, ordered by events; the host waits
for none of them. Backward takes the last copy first, so fetching one starts the one before it.
"""

import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from shardwise import _C


@dataclass(eq=False)
class Copy:
    """A tensor in pinned memory."""

    host: torch.Tensor
    device: torch.device
    left: torch.cuda.Event  # it is on the host
    fetched: torch.Tensor | None = None
    arrived: torch.cuda.Event | None = None


class HostCopies:
    """``pack`` and ``unpack`` for ``torch.autograd.graph.saved_tensors_hooks``.

    Floating-point tensors of a GPU are copied; parameters and all others stay where they are.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._leaving: deque[tuple[torch.Tensor, int, torch.cuda.Event]] = deque()
        self._order: list[weakref.ref[Copy]] = []

    def pack(self, tensor: torch.Tensor) -> Any:
        """Starts the copy. The tensor is kept until it has left."""
        self._let_go()
        moves = tensor.is_cuda and tensor.is_floating_point() and tensor.numel() > 0
        if not moves or isinstance(tensor, nn.Parameter):
            return tensor
        source = tensor.detach()
        host = torch.empty_like(source, device="cpu", pin_memory=True)
        stream = self._stream(source.device)
        stream.wait_stream(torch.cuda.current_stream(source.device))
        with torch.cuda.stream(stream):
            host.copy_(source, non_blocking=True)
            left = torch.cuda.Event()
            left.record()
        self._leaving.append((source, source._version, left))
        copy = Copy(host, source.device, left)
        self._order.append(weakref.ref(copy))
        return copy

    def unpack(self, packed: Any) -> torch.Tensor:
        """The tensor on its device, for use on the current stream."""
        if not isinstance(packed, Copy):
            return packed
        self._let_go()
        self._fetch(packed)
        before = self._before(packed)
        if before is not None:
            self._fetch(before)
        tensor, packed.fetched = packed.fetched, None
        current = torch.cuda.current_stream(packed.device)
        current.wait_event(packed.arrived)
        tensor.record_stream(current)
        return tensor

    def _fetch(self, copy: Copy) -> None:
        if copy.fetched is not None:
            return
        with torch.cuda.stream(self._stream(copy.device)):
            copy.fetched = copy.host.to(copy.device, non_blocking=True)
            copy.arrived = torch.cuda.Event()
            copy.arrived.record()

    def _before(self, copy: Copy) -> Copy | None:
        """The copy that was made before this one and is still wanted."""
        while self._order and self._order[-1]() is not copy:
            self._order.pop()
        if self._order:
            self._order.pop()
        while self._order and self._order[-1]() is None:
            self._order.pop()
        return self._order[-1]() if self._order else None

    def _let_go(self) -> None:
        """Drops the tensors that have left."""
        while self._leaving and self._leaving[0][2].query():
            tensor, version, _ = self._leaving.popleft()
            if tensor._version != version:
                raise _C.UsageError(
                    "an input of a checkpointed function was changed in place while it was kept "
                    "for backward: change a copy of it instead"
                )

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]
