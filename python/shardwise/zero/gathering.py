"""Parameters made whole for a while: ``GatheredParameters``."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
import torch.distributed as dist

from shardwise import _C
from shardwise.ownership import is_cut, owner_of
from shardwise.wiring import READ_ONLY
from shardwise.zero.construction import active_construction


@contextmanager
def GatheredParameters(  # noqa: N802  (DeepSpeed's name)
    params: torch.Tensor | Iterable[torch.Tensor],
    modifier_rank: int | None = None,
    fwd_module: object = None,
    enabled: bool = True,
) -> Iterator[None]:
    """Inside, the parameters are whole and can be read on every rank. Collective.

    With ``modifier_rank`` that rank may change them: on leaving, its values become those of all
    ranks, shards and fp32 masters included. Without it a change is an error on leaving. Contexts
    may be nested, also around the same parameters. Parameters that nobody shards are left alone.
    ``fwd_module`` is accepted and not needed.

    Raises UsageError for a ``modifier_rank`` that is no rank, for two modifiers of one parameter,
    and for changes that nobody was named for.
    """
    is_one = isinstance(params, torch.Tensor) or not isinstance(params, Iterable)
    chosen = [params] if is_one else list(params)
    for parameter in chosen:
        if not isinstance(parameter, torch.Tensor):
            raise _C.UsageError(
                f"GatheredParameters() takes a parameter or an iterable of parameters, but "
                f"got {type(parameter).__name__}"
            )
    if modifier_rank is not None and dist.is_initialized():
        _check_rank(modifier_rank)
    with ExitStack() as stack:
        if enabled:
            for shard in _early_shards(chosen):
                shard.open(READ_ONLY if modifier_rank is None else modifier_rank)
                stack.push(partial(_close, shard))
            for engine, units in _units_by_engine(chosen):
                stack.enter_context(engine.gathered(units, modifier_rank))
        yield


def _early_shards(params: list[torch.Tensor]) -> list[_C.EarlyShard]:
    """Of parameters that ``zero.Init`` has cut and no engine has taken over yet, each once."""
    construction = active_construction()
    if construction is not None:
        construction.cut_all()
    shards = [parameter._shardwise_early for parameter in params if is_cut(parameter)]
    return list(dict.fromkeys(shards))


def _close(shard: _C.EarlyShard, kind: object, error: object, trace: object) -> None:
    shard.close(kind is not None)


def _check_rank(modifier_rank: int) -> None:
    size = dist.get_world_size()
    whole = isinstance(modifier_rank, int) and not isinstance(modifier_rank, bool)
    if not whole or not 0 <= modifier_rank < size:
        raise _C.UsageError(
            f"GatheredParameters(modifier_rank={modifier_rank!r}): there is no such rank; give one "
            f"of 0 to {size - 1}, or None for reading"
        )


def _units_by_engine(params: list[torch.Tensor]) -> list[tuple]:
    found: dict[int, tuple] = {}
    for parameter in params:
        engine, number = owner_of(parameter)
        if engine is not None:
            units = found.setdefault(id(engine), (engine, set()))[1]
            units.add(engine.unit_of(number))
    return [(engine, sorted(units)) for engine, units in found.values()]
