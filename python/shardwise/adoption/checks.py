"""Which modules may be adopted: what must be as transformers made it."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
# Modules with parameters of their own that our forward reads instead of calling.
LINEAR = ("torch.nn.modules.linear", "Linear")
CONV1D = ("transformers.pytorch_utils", "Conv1D")
LAYER_NORM = ("torch.nn.modules.normalization", "LayerNorm")
EMBEDDING = ("torch.nn.modules.sparse", "Embedding")
DROPOUT = ("torch.nn.modules.dropout", "Dropout")
# Names of our activation by the class that transformers chose.
ACTIVATIONS = {
    "SiLUActivation": "silu",
    "SiLU": "silu",
    "GELUActivation": "gelu",
    "NewGELUActivation": "gelu_tanh",
    "GELUTanh": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
}
FLOATING = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Refused(Exception):
    """Why a module keeps its own forward."""


def kind_of(module: Any) -> tuple[str, str]:
    return type(module).__module__, type(module).__qualname__


def check_untouched(module: nn.Module, name: str) -> None:
    """The module's forward is that of its class, and its class that of its package."""
    own = vars(module).get("forward")
    # A pickled module may come back with its class's forward on the object.
    if own is not None and getattr(own, "__func__", None) is not type(module).forward:
        raise Refused(f"{name} has a forward of its own")
    if type(module).forward.__module__ != type(module).__module__:
        raise Refused(
            f"the forward of {type(module).__name__} comes from {type(module).forward.__module__}"
        )
    if getattr(module, "_compiled_call_impl", None) is not None:
        raise Refused(f"{name} is compiled")


def check_unhooked(module: nn.Module, name: str) -> None:
    """Nobody waits for calls that will not come."""
    if any(getattr(module, hooks) for hooks in HOOKS):
        raise Refused(f"{name} has hooks")


def part(block: nn.Module, path: str, kind: tuple[str, str]) -> nn.Module:
    """The module at ``path``, which must be an untouched one of this class without hooks."""
    try:
        module = block.get_submodule(path)
    except AttributeError:
        raise Refused(f"there is no {path}") from None
    if kind_of(module) != kind:
        raise Refused(f"{path} is a {'.'.join(kind_of(module))}")
    check_untouched(module, path)
    check_unhooked(module, path)
    return module


def check_only(block: nn.Module, paths: set[str]) -> None:
    """No modules but these: none that somebody put in."""
    for path, _ in block.named_modules():
        if path and path not in paths:
            raise Refused(f"it has a module {path}, which is not known")


def check_parameters(module: nn.Module) -> torch.dtype:
    """Plain floating-point parameters of one dtype on one device; returns the dtype."""
    found = {}
    for name, parameter in module.named_parameters():
        if type(parameter.data) is not torch.Tensor or parameter.dtype not in FLOATING:
            raise Refused(f"{name} is a {type(parameter.data).__name__} of {parameter.dtype}")
        found.setdefault((parameter.dtype, parameter.device), name)
    if len(found) != 1:
        listed = ", ".join(f"{name} {dtype}" for (dtype, _), name in found.items())
        raise Refused(f"its parameters differ in dtype or device: {listed}")
    return next(iter(found))[0]


def mixed_biases(layers: tuple[nn.Module, ...]) -> str:
    """Why linear layers of one input are no single product; "" where all or none have a bias."""
    without = [layer.bias is None for layer in layers]
    if all(without) or not any(without):
        return ""
    return "only some of the layers of one product (q, k, v; gate, up) have a bias"


def check_biases(layers: tuple[nn.Module, ...]) -> None:
    reason = mixed_biases(layers)
    if reason:
        raise Refused(reason)


def activation_name(module: nn.Module) -> str:
    """Our name of an activation; transformers' own classes and torch's SiLU."""
    name = ACTIVATIONS.get(type(module).__name__)
    package = type(module).__module__.split(".")[0]
    if name is None or package not in ("torch", "transformers"):
        raise Refused(f"the activation {type(module).__name__} is none of silu, gelu, gelu_tanh")
    check_untouched(module, "the activation")
    check_unhooked(module, "the activation")
    return name


def argument_names(block: nn.Module) -> tuple[str, ...]:
    """The arguments of the block's forward behind the hidden states, which may come by position.

    Refuses a version of transformers whose blocks return something else than one tensor.
    """
    signature = inspect.signature(type(block).forward)
    if signature.return_annotation not in (torch.Tensor, "torch.Tensor"):
        raise Refused(f"this version of transformers returns {signature.return_annotation}")
    plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [p.name for p in signature.parameters.values() if p.kind == plain]
    return tuple(names[2:])


def checkpoints_itself(block: nn.Module) -> bool:
    """Whether gradient checkpointing is in the class's forward, and so not around ours."""
    code = getattr(type(block).forward, "__code__", None)
    return code is not None and code.co_name == "forward_with_checkpointing"


def own_forward(block: nn.Module) -> Any:
    """The forward of the block's class, without the checkpointing around it."""
    forward = type(block).forward
    return forward.__wrapped__ if checkpoints_itself(block) else forward


def hook_tables(block: nn.Module) -> tuple[dict, ...]:
    """The tables of hooks of all modules below the block: all empty, or somebody looks inside."""
    return tuple(
        getattr(module, hooks) for module in block.modules() if module is not block
        for hooks in HOOKS
    )  # fmt: skip


def places(block: nn.Module) -> tuple[tuple[dict, str, nn.Module], ...]:
    """Where the modules below the block are registered, under which name, and which they are."""
    return tuple(
        (parent._modules, name, module)
        for parent in block.modules()
        for name, module in parent.named_children()
    )


def still_there(found: tuple[tuple[dict, str, nn.Module], ...]) -> bool:
    """Whether nobody replaced one of these modules since, or its forward."""
    for table, name, module in found:
        if table.get(name) is not module or "forward" in module.__dict__:
            return False
    return True


def foreign_hooks(tables: tuple[dict, ...]) -> bool:
    """Whether hooks came since that are not transformers' own, which only record when asked to."""
    return any(
        getattr(hook, "__module__", "") != "transformers.utils.output_capturing"
        for hook in _all(tables)
    )


def _all(tables: tuple[dict, ...]) -> Iterator[Any]:
    for table in tables:
        yield from table.values()
