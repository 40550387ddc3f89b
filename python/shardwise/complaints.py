"""What one rank finds wrong, every rank raises: none is left waiting for the others."""

import torch.distributed as dist


def complaint_of_all(mine: str, group: dist.ProcessGroup | None) -> str:
    """The same text on every rank: that of the first rank which has one; "" for no complaint.

    ``group``: of all ranks; None where this is the only one. Collective.
    """
    if group is None:
        return mine
    said: list[str] = [""] * group.size()
    dist.all_gather_object(said, mine, group)
    first = next((rank for rank, text in enumerate(said) if text), None)
    if first is None:
        return ""
    return said[first] if said[first] == mine else f"rank {first}: {said[first]}"
