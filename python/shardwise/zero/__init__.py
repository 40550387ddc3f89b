"""Access to parameters that ZeRO keeps sharded."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch

from shardwise import _C
from shardwise.unavailable import ZERO, missing

__all__ = ["GatheredParameters"]


@contextmanager
def GatheredParameters(  # noqa: N802  (DeepSpeed's name)
    params: torch.Tensor | Iterable[torch.Tensor],
    modifier_rank: int | None = None,
    fwd_module: object = None,
    enabled: bool = True,
) -> Iterator[None]:
    """Inside, the parameters are whole and can be read on every rank. Collective.

    Parameters that no engine manages are left alone. Do not change the others inside: it would be
    lost, or happen on this rank only; ``modifier_rank`` is refused in this version.
    """
    if modifier_rank is not None and enabled:
        raise _C.UsageError(
            "GatheredParameters(modifier_rank=...) is not available in this version of shardwise: "
            "change weights with engine.load_state_dict()"
        )
    chosen = [params] if isinstance(params, torch.Tensor) else list(params)
    with ExitStack() as stack:
        if enabled:
            for engine, units in _units_by_engine(chosen):
                stack.enter_context(engine.gathered(units))
        yield


def _units_by_engine(params: list[torch.Tensor]) -> list[tuple]:
    found: dict[int, tuple] = {}
    for parameter in params:
        owner = getattr(parameter, "_shardwise", None)
        engine = owner[0]() if owner else None
        if engine is not None:
            units = found.setdefault(id(engine), (engine, set()))[1]
            units.add(engine.unit_of(owner[1]))
    return [(engine, sorted(units)) for engine, units in found.values()]


def __getattr__(name: str):
    raise missing(name, ZERO, "shardwise.zero")
