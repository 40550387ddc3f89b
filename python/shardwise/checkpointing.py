"""Activation checkpointing: a function's activations are computed again in backward, not kept.

``shardwise.checkpointing.checkpoint(layer, x, mask)`` instead of ``layer(x, mask)``, as with
DeepSpeed; ``shardwise.activation_checkpointing`` in the configuration does it for every block of a
model. Both rest on ``torch.utils.checkpoint``: random numbers are the same in both runs
of a function, those of ``get_cuda_rng_tracker()`` too.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils import checkpoint as torch_checkpoint

from shardwise import _C, config_source
from shardwise.host_copies import HostCopies

SECTION = "activation_checkpointing"
MODEL_PARALLEL_RNG = "model-parallel-rng"
# DeepSpeed's (and Megatron's) distance between the seeds of ranks that share a model.
SEED_OFFSET = 2718


class RandomStates:
    """Named states of the random generator, beside its own: of the GPU where there is one."""

    def __init__(self) -> None:
        self._states: dict[str, torch.Tensor] = {}

    def reset(self) -> None:
        """Forgets all states."""
        self._states = {}

    def get_states(self) -> dict[str, torch.Tensor]:
        """A copy of all states."""
        return dict(self._states)

    def set_states(self, states: dict[str, torch.Tensor]) -> None:
        self._states = dict(states)

    def add(self, name: str, seed: int) -> None:
        """Makes a state that starts from ``seed``."""
        if name in self._states:
            raise _C.UsageError(f"there is a random state {name!r} already: call reset() first")
        before = _get_state()
        torch.cuda.manual_seed(seed) if torch.cuda.is_available() else torch.manual_seed(seed)
        self._states[name] = _get_state()
        _set_state(before)

    @contextmanager
    def fork(self, name: str = MODEL_PARALLEL_RNG) -> Iterator[None]:
        """Random numbers inside come from the named state, which moves on."""
        if name not in self._states:
            raise _C.UsageError(f"there is no random state {name!r}: call add() first")
        before = _get_state()
        _set_state(self._states[name])
        try:
            yield
        finally:
            self._states[name] = _get_state()
            _set_state(before)


CudaRNGStatesTracker = RandomStates


def _get_state() -> torch.Tensor:
    return torch.cuda.get_rng_state() if torch.cuda.is_available() else torch.get_rng_state()


def _set_state(state: torch.Tensor) -> None:
    torch.cuda.set_rng_state(state) if torch.cuda.is_available() else torch.set_rng_state(state)


@dataclass
class Inputs:
    """Where the inputs of checkpointed functions are kept."""

    on_host: bool = False
    copies: HostCopies = field(default_factory=HostCopies)


@dataclass
class Settings:
    """What the program set for this process. DeepSpeed's functions know no object to keep it in."""

    configured: bool = False
    inputs: Inputs = field(default_factory=Inputs)
    random_states: RandomStates = field(default_factory=RandomStates)


_SETTINGS = Settings()
# Those of the engine whose forward is running, or whose part is computed again.
_OF_ENGINE: ContextVar[Inputs | None] = ContextVar(
    "inputs of an engine's checkpoints", default=None
)


def configure(
    mpu_: Any = None,
    deepspeed_config: Any = None,
    partition_activations: bool | None = None,
    contiguous_checkpointing: bool | None = None,
    num_checkpoints: int | None = None,
    checkpoint_in_cpu: bool | None = None,
    synchronize: bool | None = None,
    profile: bool | None = None,
) -> None:
    """Sets how ``checkpoint`` works: from ``activation_checkpointing`` of a configuration (a dict
    or a path), then from the arguments that are given.

    ``checkpoint_in_cpu`` keeps the inputs of checkpointed functions in host memory (on a GPU).
    ``contiguous_checkpointing``, ``num_checkpoints`` and ``synchronize`` change nothing here: no
    buffer is needed, and nothing waits. An engine whose own configuration has the section keeps to
    that in its forward; this is for all others.
    """
    on_host, partition = False, False
    if deepspeed_config is not None:
        section = config_source.sections(deepspeed_config, [SECTION])[SECTION]
        on_host, partition = section["cpu_checkpointing"], section["partition_activations"]
    if partition_activations is not None:
        partition = partition_activations
    ranks = _model_parallel_ranks(mpu_)
    if partition and ranks > 1:
        raise _C.UsageError(
            f"partition_activations spreads activations over the {ranks} ranks of a "
            f"tensor-parallel group, which is not available in this version: set it to false"
        )
    if profile:
        raise _C.UsageError(
            "profile is not available in this version: wall_clock_breakdown in the configuration "
            "prints the time of forward and backward"
        )
    _SETTINGS.inputs.on_host = on_host if checkpoint_in_cpu is None else bool(checkpoint_in_cpu)
    _SETTINGS.configured = True


def inputs_of_engine(config: _C.Config) -> Inputs | None:
    """As an engine's configuration says, if it says anything."""
    if config.origin(SECTION) == "default":
        return None
    return Inputs(config_source.sections(config, [SECTION])[SECTION]["cpu_checkpointing"])


@contextmanager
def keeping(inputs: Inputs | None) -> Iterator[None]:
    """Checkpoints inside keep their inputs so; None: as the program configured."""
    before = _OF_ENGINE.set(inputs)
    try:
        yield
    finally:
        _OF_ENGINE.reset(before)


def inputs_in_force() -> Inputs:
    """How a checkpoint at this place keeps its inputs."""
    of_engine = _OF_ENGINE.get()
    return _SETTINGS.inputs if of_engine is None else of_engine


def _model_parallel_ranks(mpu: Any) -> int:
    for name in ("get_tensor_model_parallel_world_size", "get_model_parallel_world_size"):
        if hasattr(mpu, name):
            return getattr(mpu, name)()
    return 1


def is_configured() -> bool:
    """Whether the program called ``configure``."""
    return _SETTINGS.configured


def reset() -> None:
    """Drops copies of earlier passes. Nothing needs it; DeepSpeed's programs call it."""
    _SETTINGS.inputs.copies = HostCopies()


def set_num_layers(nlayers: int) -> None:
    """Accepted; no buffer has to be as large as all layers together."""


def get_cuda_rng_tracker() -> RandomStates:
    """The named random states of this process."""
    return _SETTINGS.random_states


def model_parallel_cuda_manual_seed(seed: int, tp_rank: int = 0) -> None:
    """Seeds the default generator, and ``model-parallel-rng`` differently on each ``tp_rank``."""
    states = _SETTINGS.random_states
    states.reset()
    torch.cuda.manual_seed(seed) if torch.cuda.is_available() else torch.manual_seed(seed)
    states.add(MODEL_PARALLEL_RNG, seed + SEED_OFFSET + tp_rank)


model_parallel_reconfigure_tp_seed = model_parallel_cuda_manual_seed


def checkpoint(function: Callable, *args: Any, **kwargs: Any) -> Any:
    """``function(*args, **kwargs)``, computed again in backward. Reentrant, as DeepSpeed's.

    Arguments and results may be nested in tuples, lists and dicts; gradients reach all tensors in
    them. At least one argument must require a gradient, else nothing trains (torch warns): use
    ``non_reentrant_checkpoint`` where the first layers are frozen.
    """
    leaves, structure = pytree.tree_flatten((args, kwargs))
    shape_of_result = None

    def run(*flat: Any) -> tuple:
        nonlocal shape_of_result
        inner_args, inner_kwargs = pytree.tree_unflatten(flat, structure)
        outputs, shape_of_result = pytree.tree_flatten(function(*inner_args, **inner_kwargs))
        return tuple(outputs)

    with _inputs_on_host():
        outputs = torch_checkpoint.checkpoint(_repeatable(run), *leaves, use_reentrant=True)
    return pytree.tree_unflatten(list(outputs), shape_of_result)


def non_reentrant_checkpoint(function: Callable, *args: Any, **kwargs: Any) -> Any:
    """``function(*args, **kwargs)``, computed again in backward; any argument may be frozen."""
    return recomputed(function, args, kwargs, torch_checkpoint.noop_context_fn)


def recomputed(function: Callable, args: tuple, kwargs: dict, contexts: Callable) -> Any:
    """``non_reentrant_checkpoint`` whose two runs take place in the two ``contexts()``."""
    names, positional = tuple(kwargs), len(args)  # `run` must not hold on to the arguments

    def run(*flat: Any) -> Any:
        keywords = dict(zip(names, flat[positional:], strict=True))
        return function(*flat[:positional], **keywords)

    with _inputs_on_host():
        return torch_checkpoint.checkpoint(
            _repeatable(run), *args, *kwargs.values(), use_reentrant=False, context_fn=contexts
        )


def _inputs_on_host() -> AbstractContextManager[None]:
    """What torch saves inside, the inputs of a checkpoint, is kept in host memory if so set."""
    inputs = inputs_in_force()
    if not inputs.on_host or not torch.cuda.is_available():
        return nullcontext()
    copies = inputs.copies
    copies.begin_group()
    return torch.autograd.graph.saved_tensors_hooks(copies.pack, copies.unpack)


def _repeatable(function: Callable) -> Callable:
    """The function, whose later runs, in backward, have the surroundings of its first: the named
    random states that it starts from, and the settings of its engine."""
    states, inputs = _SETTINGS.random_states, _OF_ENGINE.get()
    at_start = states.get_states()
    if not at_start and inputs is None:
        return function
    is_first = [True]

    def run(*args: Any, **kwargs: Any) -> Any:
        if is_first[0]:
            is_first[0] = False
            return function(*args, **kwargs)
        present = states.get_states()
        states.set_states({**present, **at_start})
        try:
            with keeping(inputs):
                return function(*args, **kwargs)
        finally:
            states.set_states(present)

    return run
