"""The plain module of an engine, for generating text between steps."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from shardwise import _C


@contextmanager
def unwrap_model_for_generation(model: object) -> Iterator[nn.Module]:
    """Inside, the engine's module has whole parameters and none of the engine's hooks.

    So ``generate()`` runs as on the plain model and gathers nothing on the way, and ranks may
    generate different numbers of tokens. Training goes on afterwards. Collective; the whole
    parameters have to fit.
    """
    wiring = getattr(model, "_wiring", None)
    if wiring is None:
        raise _C.UsageError(
            f"unwrap_model_for_generation() takes an engine of shardwise.initialize(), but got "
            f"{type(model).__name__}"
        )
    with wiring.gathered(list(range(len(wiring.units)))), wiring.without_hooks():
        yield model.module
