"""Saved activations in host memory.

They leave the GPU while forward goes on, and the next ones come back while backward goes on.

Copies run on a stream of their own, to and from pinned memory, ordered by events; the host waits
for none of them. Backward takes the last checkpoint first, so fetching what one has kept starts the
one before it. A tensor that is changed in place meanwhile is noticed by torch, as without copies.

Note [Memory that is free at once]
The host runs far ahead of the GPU, so memory that is free "once an event has passed" would pile up.
All device memory here belongs to the compute stream instead, which waits for the copy stream before
a tensor is let go: what it allocates next may take its place. LEAVING copies may lag behind. What
was fetched for a graph that is gone by then is let go the same way, when the next tensor comes.
"""

import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

LEAVING = 2


@dataclass(eq=False)
class Copy:
    """A tensor in pinned memory. Copies of one checkpoint have the same ``group``."""

    host: torch.Tensor
    device: torch.device
    group: int


def _compute_waits(fetched: dict[Any, tuple[torch.Tensor, torch.cuda.Event]]) -> None:
    for tensor, arrived in fetched.values():
        torch.cuda.current_stream(tensor.device).wait_event(arrived)


class HostCopies:
    """``pack`` and ``unpack`` for ``torch.autograd.graph.saved_tensors_hooks``.

    Floating-point tensors of a GPU are copied; parameters and all others stay where they are.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._leaving: deque[tuple[torch.Tensor, torch.cuda.Event]] = deque()
        self._fetched: dict[weakref.ref[Copy], tuple[torch.Tensor, torch.cuda.Event]] = {}
        self._groups: dict[int, list[weakref.ref[Copy]]] = {}
        self._group = 0
        # The last graph may take this object along.
        weakref.finalize(self, _compute_waits, self._fetched).atexit = False

    def begin_group(self) -> None:
        """What is packed from now on belongs to another checkpoint."""
        self._group += 1

    def pack(self, tensor: torch.Tensor) -> Any:
        """Starts the copy. The tensor is kept until others follow it."""
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
        self._leaving.append((source, left))
        self._let_go(LEAVING)
        copy = Copy(host, source.device, self._group)
        self._groups.setdefault(self._group, []).append(weakref.ref(copy))
        return copy

    def unpack(self, packed: Any) -> torch.Tensor:
        """The tensor on its device, for use on the current stream."""
        if not isinstance(packed, Copy):
            return packed
        self._let_go(0)
        self._fetch(packed)
        self._fetch_ahead(packed.group)
        tensor, arrived = self._fetched.pop(weakref.ref(packed))
        torch.cuda.current_stream(packed.device).wait_event(arrived)
        return tensor

    def _fetch(self, copy: Copy) -> None:
        reference = weakref.ref(copy)
        if reference in self._fetched:
            return
        stream = self._stream(copy.device)
        tensor = torch.empty_like(copy.host, device=copy.device)
        stream.wait_stream(torch.cuda.current_stream(copy.device))
        with torch.cuda.stream(stream):
            tensor.copy_(copy.host, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        self._fetched[reference] = (tensor, arrived)

    def _fetch_ahead(self, group: int) -> None:
        """Once a group: the rest of it, and the one before it that is still wanted."""
        if group not in self._groups:
            return
        for later in [number for number in self._groups if number > group]:
            del self._groups[later]
        wanted = self._groups.pop(group)
        while self._groups:
            before = max(self._groups)
            if any(reference() is not None for reference in self._groups[before]):
                wanted += self._groups[before]
                break
            del self._groups[before]
        for reference in wanted:
            if (copy := reference()) is not None:
                self._fetch(copy)

    def _let_go(self, lagging: int) -> None:
        """Drops all tensors that left but the last ``lagging``, and all that came for a graph that
        is gone; the compute stream waits for their copies.
        """
        while len(self._leaving) > lagging:
            tensor, left = self._leaving.popleft()
            torch.cuda.current_stream(tensor.device).wait_event(left)
        unwanted = [reference for reference in self._fetched if reference() is None]
        _compute_waits({reference: self._fetched.pop(reference) for reference in unwanted})

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]
