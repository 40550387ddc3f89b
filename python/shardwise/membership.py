"""Whether the model still has the parameters that the engine took over."""

import operator
from itertools import chain

from torch import nn

# The cheap look costs some 50 ns for each module and parameter; this makes it one a step or so.
LOOK_EVERY = 64


class Membership:
    """Sees parameters that were put into a model after ``initialize``: nobody trains those.

    ``module`` is as the engine takes it over.
    """

    def __init__(self, module: nn.Module):
        self._module = module
        self._known = {id(parameter): parameter for parameter in module.parameters()}
        self._held = _held_by(module)

    def strangers(self) -> list[str]:
        """Names of the trainable parameters that came later."""
        return [
            name
            for name, parameter in self._module.named_parameters()
            if parameter.requires_grad and id(parameter) not in self._known
        ]

    def strangers_at(self, step: int) -> list[str]:
        """As ``strangers``, but looks at some steps only, and mostly finds nothing changed."""
        if step % LOOK_EVERY and step & (step - 1):  # 0, 1, 2, 4, 8, ...
            return []
        tables, held = self._held
        now = list(chain.from_iterable(map(dict.values, tables)))
        if len(now) == len(held) and all(map(operator.is_, now, held)):
            return []
        self._held = _held_by(self._module)
        return self.strangers()


def _held_by(module: nn.Module) -> tuple[list[dict], list]:
    """The modules' own tables of what they hold, and what stands in them now."""
    tables = [t for part in module.modules() for t in (part._modules, part._parameters) if t]
    return tables, list(chain.from_iterable(map(dict.values, tables)))


def about_strangers(names: list[str]) -> str:
    """What to tell of them; "" where there are none."""
    if not names:
        return ""
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return (
        f"parameter {names[0]}{more} was put into the model after initialize(): the engine does "
        f"not train it, and ranks may differ in it. Change values in place (inside "
        f"shardwise.zero.GatheredParameters, or with engine.load_state_dict()), or end the engine "
        f"with destroy() and call initialize() with the changed model"
    )
