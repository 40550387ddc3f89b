"""The loader for ``training_data=``, and loaders of unequal length."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from shardwise.process_groups import choose_device


class DistributedLoader:
    """Micro-batches of this rank's part of a dataset, reshuffled in each epoch.

    An ``IterableDataset`` cannot be split from outside: it must yield this rank's samples itself.

    Attributes: ``dataset``, ``batch_size`` (the micro-batch), ``len()`` in micro-batches.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        rank: int,
        world_size: int,
        collate_fn: Callable | None = None,
        drop_last: bool = False,
    ):
        self.dataset = dataset
        self.batch_size = batch_size
        self.epoch = 0
        self._sampler = None
        if not isinstance(dataset, IterableDataset):
            self._sampler = DistributedSampler(
                dataset, num_replicas=world_size, rank=rank, drop_last=drop_last
            )
        self._loader = DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=self._sampler,
            collate_fn=collate_fn,
            drop_last=drop_last,
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        if self._sampler is not None:
            self._sampler.set_epoch(self.epoch)
        self.epoch += 1
        return iter(self._loader)


def joined(batches: Iterable[Any]) -> Iterator[Any]:
    """This rank's batches for as long as every rank has one, so that no rank waits for another.

    What is left on the longer ranks is dropped; ``engine.flush_accumulation()`` after the loop uses
    an accumulation window that the end has cut. Collective: every rank iterates to the end or
    leaves at the same batch. Costs an all-reduce of one number a batch, which waits for a GPU.
    """
    device = choose_device()
    end = object()
    iterator = iter(batches)
    while True:
        batch = next(iterator, end)
        there = torch.tensor([int(batch is not end)], device=device)
        if dist.is_initialized():
            dist.all_reduce(there, dist.ReduceOp.MIN)
        if not there.item():
            return
        yield batch
