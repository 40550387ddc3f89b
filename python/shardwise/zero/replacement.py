"""Parameters exchanged for others before training, as when a vocabulary grows."""

from torch import nn

from shardwise import _C
from shardwise.ownership import is_cut
from shardwise.units import EXTERNAL, external_parameters
from shardwise.zero.construction import active_construction
from shardwise.zero.init import Init


def replace_parameter(module: nn.Module, old: nn.Parameter, new: nn.Parameter) -> None:
    """Puts ``new`` wherever ``module`` and those inside it hold ``old``, tied places included.

    ``new`` keeps what ``old`` was: trainable or frozen, registered as external, and cut into shards
    if it was (rank 0's values count then). Before ``initialize``. Collective where it cuts.
    """
    if getattr(old, "_shardwise", None) is not None:
        raise _C.UsageError(
            "the parameter belongs to an engine: replace it before initialize(), or destroy() the "
            "engine, replace it, and initialize() anew"
        )
    places = [
        (owner, name)
        for owner in module.modules()
        for name, parameter in owner._parameters.items()
        if parameter is old
    ]
    if not places:
        raise _C.UsageError(
            f"the module has no parameter like the old one, of shape {tuple(old.shape)}"
        )
    new.requires_grad_(old.requires_grad)
    for owner, name in places:
        owner._parameters[name] = new
    for owner in module.modules():
        registered = external_parameters(owner)
        if any(parameter is old for parameter in registered):
            owner.__dict__[EXTERNAL] = [new if p is old else p for p in registered]
    if active_construction() is not None or is_cut(old):
        owner, name = places[0]
        with Init():
            active_construction().note(owner, name, new)
