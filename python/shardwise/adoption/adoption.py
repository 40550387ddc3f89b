"""Finds what may be adopted in a model, says so, and gives everything back again."""

import functools
from collections import Counter
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from torch import nn

from shardwise import _C
from shardwise.adoption import block, checks, embedding, gpt2, head, inner, llama
from shardwise.adoption.checks import Refused, kind_of
from shardwise.adoption.layers import Common, fits_fp8
from shardwise.console import log

STATE = "_shardwise_fused"
FORWARDS = frozenset(
    forward.__code__
    for forward in (
        block.forward,
        embedding.forward,
        gpt2.forward,
        head.forward,
        inner.forward,
        llama.forward,
    )
)
# Classes of blocks; of models, with their embedding, blocks and last norm; of models with a head,
# with the model inside and the class of outputs.
BLOCKS: dict[tuple[str, str], Callable[[nn.Module, Common], block.FusedBlock]] = {
    (gpt2.PACKAGE, "GPT2Block"): gpt2.FusedGpt2Block,
    **{(p, f + "DecoderLayer"): llama.FusedLlamaBlock for p, f in llama.FAMILIES.items()},
}
MODELS = {
    (gpt2.PACKAGE, "GPT2Model"): ("wte", "h", "ln_f"),
    **{(p, f + "Model"): ("embed_tokens", "layers", "norm") for p, f in llama.FAMILIES.items()},
}
HEADS = {
    (gpt2.PACKAGE, "GPT2LMHeadModel"): ("transformer", "CausalLMOutputWithCrossAttentions"),
    **{
        (package, family + "ForCausalLM"): ("model", "CausalLMOutputWithPast")
        for package, family in llama.FAMILIES.items()
    },
}


class Adoption:
    """The adopted modules of a model, until ``undo``."""

    def __init__(self, common: Common):
        self.common = common
        self._adopted: list[nn.Module] = []
        self._refused: list[tuple[str, str]] = []

    def __len__(self) -> int:
        return len(self._adopted)

    def heads(self) -> list[tuple[nn.Module, head.FusedHead]]:
        """The adopted models with a head."""
        states = [(module, vars(module).get(STATE)) for module in self._adopted]
        return [(module, state) for module, state in states if isinstance(state, head.FusedHead)]

    def check_fp8(self, model: nn.Module) -> None:
        """Refuses a model without a product that ``shardwise.fp8`` acts on; says which run in it.

        Where a matrix fits, so does all that it is joined with, or o where only q fits.
        """
        blocks = {
            id(module): module
            for module in self._adopted
            if isinstance(vars(module).get(STATE), block.FusedBlock)
        }
        if not blocks:
            raise _C.ConfigError(
                f'shardwise.fp8: "{self.common.fp8}" acts on the blocks that our operations carry '
                f'out, and this model has none ({self.report()}); set it to "off"'
            )
        fits = {
            f"{name}.{path}": fits_fp8(parameter)
            for name, module in model.named_modules()
            if id(module) in blocks
            for path, parameter in module.named_parameters()
            if parameter.dim() == 2
        }
        misfits = [name for name, fit in fits.items() if not fit]
        _C.check_some_fit_float8(self.common.fp8, any(fits.values()))
        log(_C.describe_fp8(self.common.fp8, misfits))

    def undo(self) -> None:
        """Every module has the forward of its class again."""
        while self._adopted:
            give_back(self._adopted.pop())

    def try_one(
        self, name: str, module: nn.Module, forward: Callable, make: Callable[[], Any]
    ) -> Any:
        """Adopts a module, or notes why not. Returns what ``make`` gave the module to keep."""
        try:
            checks.check_untouched(module, "it")
            state = make()
        except Refused as refusal:
            self._refused.append((name, str(refusal)))
            return None
        if state is not None:
            setattr(module, STATE, state)
        module.forward = MethodType(_in_the_place_of(type(module).forward, forward), module)
        self._adopted.append(module)
        return state

    def report(self) -> str:
        """One line: what was adopted, and what not and why."""
        counts = Counter(type(module).__name__ for module in self._adopted)
        adopted = ", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing"
        reasons = Counter(reason for _, reason in self._refused)
        first: dict[str, str] = {}
        for name, reason in self._refused:
            first.setdefault(reason, name or "the model")
        refused = [
            f"{first[reason]}{f' and {count - 1} more' if count > 1 else ''} ({reason})"
            for reason, count in reasons.items()
        ]
        rest = f"; own forward: {', '.join(refused)}" if refused else ""
        return f"fused_layers: our operations carry out {adopted}{rest}"

    @property
    def empty(self) -> bool:
        return not self._adopted and not self._refused

    def visit(self, name: str, module: nn.Module) -> None:
        kind = kind_of(module)
        if kind in BLOCKS:
            self.try_one(name, module, block.forward, lambda: BLOCKS[kind](module, self.common))
        elif kind in HEADS:
            names = HEADS[kind]
            self.try_one(
                name, module, head.forward, lambda: head.FusedHead(module, *names, self.common)
            )
        elif kind in MODELS:
            self._visit_model(name, module, *MODELS[kind])
        else:
            self._note_subclass(name, module)

    def _note_subclass(self, name: str, module: nn.Module) -> None:
        known = [
            base.__name__
            for base in type(module).__mro__[1:]
            if (base.__module__, base.__qualname__) in (*BLOCKS, *HEADS)
        ]
        if known:
            self._refused.append((name, f"it is a subclass of {known[0]}"))

    def _visit_model(self, name: str, model: nn.Module, table: str, blocks: str, norm: str) -> None:
        prefix = f"{name}." if name else ""
        rows = getattr(model, table)
        if kind_of(rows) == checks.EMBEDDING:
            self.try_one(prefix + table, rows, embedding.forward, lambda: embedding.check(rows))
        last = getattr(model, norm)
        forward = gpt2.forward if kind_of(model)[0] == gpt2.PACKAGE else llama.forward
        if kind_of(last) in (checks.LAYER_NORM, _rms_norm(model)):
            self.try_one(prefix + norm, last, forward, lambda: None)
        for number, layer in enumerate(getattr(model, blocks)):
            if STATE not in vars(layer):  # it may be at several places
                self.visit(f"{prefix}{blocks}.{number}", layer)
        layers = list(getattr(model, blocks))
        self._link(layers, last)
        if all(layer in self._adopted for layer in layers):
            self.try_one(name, model, inner.forward, lambda: inner.FusedModel(blocks))

    def _link(self, blocks: list[nn.Module], last: nn.Module) -> None:
        """Tells each block what comes next."""
        states = [vars(layer).get(STATE) for layer in blocks]
        for number, state in enumerate(states):
            if state is None:
                continue
            if number + 1 == len(blocks):
                state.following = (last, last) if last in self._adopted else None
            elif states[number + 1] is not None:
                state.following = (blocks[number + 1], states[number + 1].first_norm)


def _rms_norm(model: nn.Module) -> tuple[str, str]:
    package = type(model).__module__
    return package, llama.FAMILIES.get(package, "") + "RMSNorm"


def _in_the_place_of(original: Callable, forward: Callable) -> Callable:
    """``forward`` with the name and signature of the original. transformers reads from it what a
    model takes; pickle looks up a method by its name, and so finds that of the class."""
    twin = FunctionType(forward.__code__, forward.__globals__, argdefs=forward.__defaults__)
    return functools.update_wrapper(twin, original)


def give_back(module: nn.Module) -> None:
    """The module has the forward of its class again, if the one it has is ours."""
    function = getattr(vars(module).get("forward"), "__func__", None)
    if getattr(function, "__code__", None) in FORWARDS:
        del module.forward
    vars(module).pop(STATE, None)


def adopt(model: nn.Module, wanted: bool, says_nothing: bool, common: Common) -> Adoption:
    """Adopts what it can in a model where ``wanted``, and logs one line.

    ``says_nothing``: no line where the model has no module of a known family.
    """
    adoption = Adoption(common)
    for module in model.modules():  # what a copy of an adopted module brought along
        give_back(module)
    if not wanted:
        return adoption
    seen: set[int] = set()
    for name, module in model.named_modules():
        if id(module) not in seen and STATE not in vars(module):
            adoption.visit(name, module)
        if kind_of(module) in MODELS:
            seen.update(id(inner) for inner in module.modules())
    if not (adoption.empty and says_nothing):
        log(adoption.report())
    return adoption
