"""The loader for ``training_data=``."""

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data.distributed import DistributedSampler


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
