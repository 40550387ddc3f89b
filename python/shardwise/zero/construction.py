"""Building models in shards: ``zero.Init``.

Note [Construction in shards]. Inside the context hooks of torch see every parameter that a module
gets. Parameters of the module that was given one last stay whole, because its ``__init__`` is
probably still running; as soon as another module gets a parameter, or the context ends, they become
rank 0's on all ranks, each rank keeps a slice, and the storage is released. Later code of the
model may touch released parameters (``init_weights``, ``tie_weights``, ``weight.data[0].zero_()``):
a ``TorchFunctionMode`` sees every torch function, gathers the parameters among its arguments, and
cuts them again once parameters of another module are touched.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from shardwise import _C
from shardwise.ownership import is_cut
from shardwise.units import is_plain

SOURCE = 0  # the rank whose values count
# Functions that look at a tensor's form and not at its elements. Reading an attribute does too.
FORM_ONLY = frozenset(
    [
        "__get__",
        "__hash__",
        "__len__",
        "dim",
        "numel",
        "nelement",
        "ndimension",
        "size",
        "stride",
        "storage_offset",
        "element_size",
        "is_contiguous",
        "is_floating_point",
        "is_complex",
        "is_signed",
        "is_same_size",
        "requires_grad_",
        "get_device",
        "is_shared",
        "is_pinned",
        "has_names",
        "result_type",
        "can_cast",
        "register_hook",
        "untyped_storage",
        "_is_view",
        "_has_compatible_shallow_copy_type",
        "register_post_accumulate_grad_hook",
    ]
)


def active_construction() -> "ShardedConstruction | None":
    """The construction whose context is active in this thread."""
    modes = _get_current_function_mode_stack()
    return next((mode for mode in modes if isinstance(mode, ShardedConstruction)), None)


@dataclass
class CutParameter:
    """A parameter's shard, the module that got it, and its place in the order of cutting."""

    shard: _C.EarlyShard
    owner: int
    number: int


class ShardedConstruction(TorchFunctionMode):
    """What happens to parameters while the outermost ``zero.Init`` is active."""

    def __init__(self, channel: _C.Channel, device: torch.device, dtype: torch.dtype | None):
        super().__init__()
        self._channel, self._device, self._dtype = channel, device, dtype
        self._hooks: list[Any] = []
        self._fresh: dict[int, tuple[nn.Parameter, str]] = {}  # whole, by id
        self._newest: nn.Module | None = None  # the module that got a parameter last
        self._cut_parameters: dict[int, CutParameter] = {}  # by their storage
        self._opened: list[int] = []  # storages that a function was given, in that order

    def __enter__(self) -> "ShardedConstruction":
        self._hooks = [
            register_module_parameter_registration_hook(self._on_parameter),
            register_module_module_registration_hook(self._on_module),
        ]
        return super().__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        for hook in self._hooks:
            hook.remove()
        if kind is None:
            self.cut_all()
            return
        for storage in reversed(self._opened):  # the other ranks may not come by: no communication
            self._cut_parameters[storage].shard.close(True)
        self._opened = []

    def cut_module(self, module: nn.Module) -> None:
        """Cuts all parameters of a module that was built before."""
        for child in module.modules():
            for name, parameter in child._parameters.items():
                self._on_parameter(child, name, parameter)
        self.cut_all()

    def _on_parameter(self, module: nn.Module, name: str, parameter: Any) -> None:
        if not isinstance(parameter, nn.Parameter):
            return
        if module is not self._newest:
            self.cut_all()
            self._newest = module
        self.note(module, name, parameter)

    def _on_module(self, module: nn.Module, name: str, submodule: nn.Module | None) -> None:
        """Copies of modules get their parameters without a call of the other hook."""
        for child in submodule.modules() if submodule is not None else ():
            for name, parameter in child._parameters.items():
                if parameter is not None:
                    self.note(child, name, parameter)

    def note(self, module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        """The parameter ``name`` of ``module`` is cut when its time comes."""
        if not (parameter.is_meta or is_cut(parameter)) and is_plain(parameter):
            self._fresh[id(parameter)] = (parameter, f"{name} of a {type(module).__name__}")

    def cut_all(self) -> None:
        """Cuts what is whole: the newest module's parameters, and what functions were given."""
        self._close(but_of=set())
        fresh, self._fresh = list(self._fresh.values()), {}
        with torch._C.DisableTorchFunction():
            for parameter, name in fresh:
                self._cut(parameter, f"{name} {tuple(parameter.shape)}")

    def _cut(self, parameter: nn.Parameter, name: str) -> None:
        dtype = self._dtype or parameter.dtype
        shard = _C.EarlyShard(self._channel, self._device, parameter, dtype, name)
        parameter._shardwise_early = shard
        self._remember(parameter, _storage_of(parameter), owner=id(self._newest))

    def _remember(self, parameter: torch.Tensor, storage: int | None, owner: int) -> None:
        number = len(self._cut_parameters)
        self._cut_parameters[storage] = CutParameter(parameter._shardwise_early, owner, number)

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__set__":
            return self._assign(func, args)
        touched = set(self._touched((args, kwargs)))
        if name not in FORM_ONLY:
            self._open(touched)
        return func(*args, **kwargs)

    def _touched(self, value: Any) -> Iterator[int]:
        """The storages of cut parameters among the tensors in a function's arguments."""
        if isinstance(value, torch.Tensor):
            storage = _storage_of(value)
            if storage not in self._cut_parameters and is_cut(value):  # by an earlier context
                self._remember(value, storage, owner=id(value))
            if storage in self._cut_parameters:
                yield storage
        elif isinstance(value, (tuple, list)):
            for item in value:
                yield from self._touched(item)
        elif isinstance(value, dict):
            yield from self._touched(tuple(value.values()))

    def _open(self, wanted: set[int]) -> None:
        if not wanted:
            return
        self._close(but_of={self._cut_parameters[storage].owner for storage in wanted})
        new = [storage for storage in wanted if not self._cut_parameters[storage].shard.is_open()]
        for storage in sorted(new, key=lambda one: self._cut_parameters[one].number):
            self._cut_parameters[storage].shard.open(SOURCE)
            self._opened.append(storage)

    def _close(self, but_of: set[int]) -> None:
        """Cuts what is open again, but for the parameters of these modules."""
        kept = []
        for storage in self._opened:
            if self._cut_parameters[storage].owner in but_of:
                kept.append(storage)
            else:
                self._cut_parameters[storage].shard.close(False)
        self._opened = kept

    def _assign(self, func: Callable, args: tuple) -> Any:
        """``parameter.data = tensor``: a cut parameter that gets a new storage is whole again."""
        target = args[0]
        self._open(set(self._touched(args[1:])))
        result = func(*args)
        early = getattr(target, "_shardwise_early", None)
        if early is not None and not early.holds(target):
            storage = next(s for s, cut in self._cut_parameters.items() if cut.shard is early)
            if storage in self._opened:
                self._opened.remove(storage)
                early.close(True)
            del target._shardwise_early
            self._fresh[id(target)] = (target, "the new data")
        return result


def _storage_of(tensor: torch.Tensor) -> int | None:
    if tensor.layout != torch.strided or type(tensor.data) is not torch.Tensor:
        return None
    return tensor.untyped_storage()._cdata
