"""torch's own optimizers, and the user's, on shards of the parameters."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from shardwise import _C
from shardwise.optimizers import ShardedOptimizer

# Rules that treat each element by itself: a shard is as good as the whole.
ELEMENTWISE = (
    torch.optim.Adadelta,
    torch.optim.Adagrad,
    torch.optim.Adam,
    torch.optim.Adamax,
    torch.optim.AdamW,
    torch.optim.ASGD,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.SGD,
)
# Rules that need a parameter as a whole, and the reason.
NOT_ELEMENTWISE = {
    torch.optim.Adafactor: "it keeps sums over the rows and columns of a matrix",
    torch.optim.LBFGS: "it needs dot products over all parameters and a closure",
    torch.optim.Muon: "it orthogonalises whole matrices",
    torch.optim.SparseAdam: "it updates the rows that a sparse gradient names",
}
UNTESTED = "zero_allow_untested_optimizer"


class ShardedTorchOptimizer(ShardedOptimizer):
    """Runs another optimizer's own ``step`` on this rank's pieces of the parameters.

    During the step its groups hold the pieces, fp32, whose ``grad`` is the reduced gradient, ready
    to apply, or None where no rank used the parameter. A piece is flat, at stage 0 the whole
    parameter in its own shape.
    """

    def __init__(self, optimizer: torch.optim.Optimizer):
        start = constant_states(optimizer)
        super().__init__(optimizer.param_groups, optimizer.defaults, _C.OUTSIDE_RULE)
        # The same group objects, so that a schedule made for the user's object moves ours.
        self.param_groups = optimizer.param_groups
        self.state = optimizer.state
        self._optimizer = optimizer
        self._start = start
        self._pieces: dict[int, nn.Parameter] = {}

    def connect(self, core: _C.Engine, index: dict[int, int]) -> None:
        super().connect(core, index)
        self._start = {index[id(parameter)]: states for parameter, states in self._start.items()}
        self.state.clear()
        self._find_pieces()
        update = weakref.WeakMethod(self._update)
        core.set_outside_update(lambda gradients: update()(gradients))

    def _find_pieces(self) -> None:
        """Pieces of parameters that train; those known keep their objects, and so their states."""
        pieces = self._core().pieces()
        known = self._pieces
        self._pieces = {n: known[n] if n in known else nn.Parameter(data) for n, data in pieces}
        for number in self._pieces.keys() & self._start.keys():
            piece, states = self._pieces[number], self._start.pop(number)
            self.state[piece] = {name: _like(piece, name, v) for name, v in states.items()}

    def full_state(self, core: _C.Engine, number: int, name: str) -> torch.Tensor | None:
        return core.assemble(number, self._state_of(number, name))

    def local_state(self, core: _C.Engine, number: int, name: str) -> torch.Tensor | None:
        value = self._state_of(number, name)
        return None if value is None else value.flatten().clone()

    def set_state(
        self, core: _C.Engine, number: int, name: str, value: torch.Tensor, whole: bool
    ) -> bool:
        held = self._state_of(number, name)
        if held is None or held.numel() != value.numel():
            kind = type(self._optimizer).__name__
            raise _C.UsageError(
                f"the state {name!r} belongs to {kind}, whose step() runs on this rank's pieces: "
                f"set it with safe_set_local_optimizer_state, on ranks that hold elements of the "
                f"parameter, after the first step"
            )
        held.copy_(value.reshape(held.shape))
        return True

    def _state_of(self, number: int, name: str) -> torch.Tensor | None:
        """The state of this rank's piece of a parameter, of the piece's shape."""
        piece = self._pieces.get(number)
        value = None if piece is None else self.state.get(piece, {}).get(name)
        fits = isinstance(value, torch.Tensor) and value.shape == piece.shape
        return value if fits else None

    def _update(self, gradients: list[torch.Tensor | None]) -> None:
        if len(gradients) != len(self._pieces):
            self._find_pieces()  # parameters were unfrozen
        pieces = list(self._pieces.values())
        for piece, gradient in zip(pieces, gradients, strict=True):
            piece.grad = gradient
        try:
            with self._groups_of_pieces(), torch.no_grad():
                self._optimizer.step()
        finally:
            for piece in pieces:
                piece.grad = None

    @contextmanager
    def _groups_of_pieces(self) -> Iterator[None]:
        whole = [group["params"] for group in self.param_groups]
        try:
            for group in self.param_groups:
                numbers = [self._index[id(parameter)] for parameter in group["params"]]
                group["params"] = [self._pieces[n] for n in numbers if n in self._pieces]
            yield
        finally:
            for group, parameters in zip(self.param_groups, whole, strict=True):
                group["params"] = parameters


def check_runs_on_shards(optimizer: torch.optim.Optimizer, config: Any) -> None:
    """Refuses rules that need whole parameters, and unknown ones that nobody vouches for.

    Args:
        config: the value of a configuration key by its path.
    """
    kind, name = type(optimizer), type(optimizer).__name__
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise _C.UsageError(f"{name}(differentiable=True) does not work on shards; set it False")
    needs_closure = isinstance(optimizer, (torch.optim.LBFGS, torch.optim.SparseAdam))
    if kind in ELEMENTWISE or (config("zero_optimization.stage") == 0 and not needs_closure):
        return
    for known, reason in NOT_ELEMENTWISE.items():
        if isinstance(optimizer, known):
            stage_0 = "" if needs_closure else ", or zero_optimization.stage 0: nothing is sharded"
            raise _C.UsageError(
                f"the optimizer {name} cannot run on shards of parameters: {reason}. Use an "
                f"optimizer that treats each element by itself, such as AdamW{stage_0}"
            )
    if not config(UNTESTED):
        raise _C.UsageError(
            f"the optimizer {name} is none of torch's, so that nobody here knows whether its rule "
            f'treats each element by itself; if it does, write "{UNTESTED}": true, and its step() '
            f"runs on shards of the parameters (or use zero_optimization.stage 0)"
        )


def constant_states(optimizer: torch.optim.Optimizer) -> dict[Any, dict[str, Any]]:
    """States that the optimizer made in its constructor, which must not depend on the element."""
    for states in optimizer.state.values():
        for name, value in states.items():
            tensor = isinstance(value, torch.Tensor) and value.numel() > 1
            varies = tensor and bool((value != value.flatten()[0]).any())
            if varies or (name == "step" and float(value) != 0):
                raise _C.UsageError(
                    f"the {type(optimizer).__name__} object has states already (it has been "
                    f"stepped or loaded); pass a new one"
                )
    return dict(optimizer.state)


def _like(piece: torch.Tensor, name: str, value: Any) -> Any:
    """A state of a whole parameter, all of one value, for a piece of it."""
    if isinstance(value, torch.Tensor) and name != "step":
        return torch.full_like(piece, float(value.flatten()[0]))
    return value
