"""Bytes that operations made and that are still held: what a forward keeps for backward."""

from collections.abc import Callable

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Storages(TorchDispatchMode):
    """Counts the storages that operations inside make, forward and backward, on the CPU.

    C++ code of this thread is seen too. Storages that existed before are not counted.
    """

    def __init__(self):
        super().__init__()
        self._made = {}  # by address, which a weak reference keeps from being used again
        self.peak = 0

    def alive(self) -> int:
        """Bytes that are held now."""
        self._made = {k: v for k, v in self._made.items() if not v[0].expired()}
        return sum(size for _, size in self._made.values())

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        given = {reference.cdata for reference in map(_reference, _tensors((args, kwargs)))}
        for tensor in _tensors(result):
            reference = _reference(tensor)
            if reference.cdata not in given:
                self._made.setdefault(
                    reference.cdata, (reference, tensor.untyped_storage().nbytes())
                )
        self.peak = max(self.peak, self.alive())
        return result


def _tensors(tree) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _reference(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def kept_bytes(forward: Callable[[], torch.Tensor]) -> int:
    """Bytes that are held while the result of ``forward`` is, the result included."""
    with Storages() as storages:
        result = forward()
        kept = storages.alive()
    del result
    return kept
