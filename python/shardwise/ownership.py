"""Who holds the values of a parameter."""

import copy
import weakref
from collections.abc import Callable
from typing import Any

import torch


class Mark:
    """What a parameter of an engine carries. None in pickled copies, which belong to nobody."""

    def __init__(self, engine: weakref.ref, number: int):
        self.engine = engine
        self.number = number

    def __reduce__(self) -> tuple:
        return type(None), ()


class EngineHook:
    """A hook of an engine on a module. Copies of the module, pickled ones too, belong to nobody:
    theirs does nothing."""

    def __init__(self, run: Callable):
        self._run = run

    def __call__(self, *arguments: Any) -> Any:
        return self._run(*arguments)

    def __deepcopy__(self, memo: dict) -> Callable:
        return no_hook

    def __reduce__(self) -> tuple:
        return copy.copy, (no_hook,)


def no_hook(*arguments: Any) -> None:
    """Leaves a module's inputs and outputs as they are."""


def owner_of(parameter: torch.Tensor) -> tuple[Any, int] | tuple[None, None]:
    """The engine that holds the parameter, and the parameter's number in it; or two times None."""
    mark = getattr(parameter, "_shardwise", None)
    engine = mark.engine() if mark else None
    return (None, None) if engine is None else (engine, mark.number)


def is_cut(parameter: torch.Tensor) -> bool:
    """Whether the parameter's storage is one that ``zero.Init`` released."""
    early = getattr(parameter, "_shardwise_early", None)
    return early is not None and early.holds(parameter)
