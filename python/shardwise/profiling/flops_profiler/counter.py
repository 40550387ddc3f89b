"""Counts FLOPs by module and phase, on torch's own counter and its formulas.

A multiplication and an addition are two FLOPs. Only matrix products, convolutions and attention
count; elementwise work does not, as in the usual definition of model FLOPs.
"""

import math
import time
from collections import defaultdict
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.hooks import RemovableHandle

from shardwise import _C  # noqa: F401  registers torch.ops.shardwise
from shardwise.units import canonical

PHASES = ("forward", "backward", "recomputed")
TOTAL = "in all"
aten = torch.ops.aten
own = torch.ops.shardwise


def attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    """Query by key and weights by value, whether or not the mask leaves parts of them out. A head
    of keys that several heads of queries share counts for each."""
    heads = query[:2]
    return flop_counter.sdpa_flop_count(query, (*heads, *key[2:]), (*heads, *value[2:]))


def attention_backward(grad: Any, query: Any, key: Any, value: Any, *args: Any, **kw: Any) -> int:
    """Two products for each of forward's: fused kernels also recompute one, which is not model
    work."""
    return 2 * attention(query, key, value)


def flash_attention(
    query: Any,
    key: Any,
    value: Any,
    offsets: Any,
    *args: Any,
    window_size_left: int | None = None,
    **kwargs: Any,
) -> int:
    """Of rows [batch, seq, heads, size], or of documents [tokens, heads, size] at ``offsets``: each
    token by those of its row, its document and its window, whether or not it comes after them."""
    *rows, heads, size = query.shape
    reach = math.inf if window_size_left is None else window_size_left + 1
    if offsets is None:
        pairs = rows[0] * rows[1] * min(rows[1], reach)
    else:
        lengths = offsets.diff().tolist()
        pairs = sum(length * min(length, reach) for length in lengths)
    return 4 * pairs * heads * size


def flash_attention_backward(grad: Any, query: Any, *args: Any, **kwargs: Any) -> int:
    """See ``attention_backward``; ``out`` and ``logsumexp`` are before the offsets."""
    return 2 * flash_attention(query, None, None, args[4], **kwargs)


for formula in (flash_attention, flash_attention_backward):
    formula._get_raw = True  # torch hands over tensors, not their shapes


def joined_product(x: Any, weights: Any, *args: Any, **kwargs: Any) -> int:
    """One input by several weights."""
    return 2 * math.prod(x) * sum(weight[0] for weight in weights)


def joined_product_input(gradient: Any, weights: Any, *args: Any, **kwargs: Any) -> int:
    """The gradient of the input: the gradient by all weights."""
    return 2 * math.prod(gradient) * weights[0][1]


def scaled_product(left: Any, right: Any, *args: Any, **kwargs: Any) -> int:
    """[rows, n] by [columns, n] transposed, in fp8."""
    return 2 * math.prod(left) * right[0]


def head_with_loss(hidden: Any, weight: Any, *args: Any, **kwargs: Any) -> int:
    """The logits."""
    return 2 * math.prod(hidden) * weight[0]


# Our own operations.
OWN = {
    own.joined_linear_forward: joined_product,
    own.joined_linear_backward_input: joined_product_input,
    own.linear_cross_entropy_forward: head_with_loss,
    own.scaled_product: scaled_product,
}
# Fused attention that torch's table lacks, counts with the product that backward recomputes, or
# takes for heads of equal number alone.
ATTENTION = {
    aten._scaled_dot_product_flash_attention: attention,
    aten._scaled_dot_product_flash_attention_for_cpu: attention,
    aten._scaled_dot_product_efficient_attention: attention,
    aten._scaled_dot_product_cudnn_attention: attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward,
    aten._scaled_dot_product_flash_attention_backward: attention_backward,
    aten._scaled_dot_product_efficient_attention_backward: attention_backward,
    aten._scaled_dot_product_cudnn_attention_backward: attention_backward,
    aten._flash_attention_forward: flash_attention,
    aten._flash_attention_backward: flash_attention_backward,
}


class RunningModules:
    """Which modules of one model are running; modules outside of it are left alone.

    Attributes: ``names`` of all modules; ``parents``, those running now and those around them.
    """

    def __init__(self, root: nn.Module):
        self.root = type(root).__name__
        self.names = {
            module: canonical(name) if name else self.root for name, module in root.named_modules()
        }
        self.parents: set[str] = set()
        self._running: list[str] = []
        self._recomputing = False
        self._begun: list[tuple[str, Any]] = []
        self._spans: list[tuple[str, Any, Any]] = []
        self._on_gpu = any(p.is_cuda for p in root.parameters())
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> "RunningModules":
        self._hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave),
        ]
        return self

    def __exit__(self, *error: Any) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def forward_seconds(self) -> dict[str, float]:
        """By module, of forward passes outside of backward; waits for a GPU."""
        total: dict[str, float] = defaultdict(float)
        for name, begin, end in self._spans:
            if self._on_gpu:
                end.synchronize()
            total[name] += begin.elapsed_time(end) / 1e3 if self._on_gpu else end - begin
        return total

    def around(self, name: str) -> set[str]:
        """The module and those that hold it."""
        parts = name.split(".")
        return {self.root, *(".".join(parts[:end]) for end in range(1, len(parts) + 1))}

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        name = self.names.get(module)
        if name is None:
            return
        # A recomputation that torch ends early leaves by exception: no module is left.
        if inside_backward():
            self._recomputing = True
            self._running = [other for other in self._running if other in self.around(name)]
        elif self._recomputing:
            self._recomputing = False
            self._running = []
        if not inside_backward():
            self._begun.append((name, self._now()))
        self._running.append(name)
        self._collect_parents()

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        name = self.names.get(module)
        if name is None or name not in self._running:
            return
        while self._running.pop() != name:
            pass
        self._collect_parents()
        while self._begun and not inside_backward():
            begun, at = self._begun.pop()
            if begun == name:
                self._spans.append((name, at, self._now()))
                break

    def _collect_parents(self) -> None:
        self.parents = set().union(*(self.around(name) for name in self._running))

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def inside_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


class Counter(FlopCounterMode):
    """FLOPs while it is active; ``with Counter(model) as counter:``.

    Attributes: ``flops[phase][module name]``; work inside of a backward that records a graph is
    recomputed forward, of activation checkpointing.

    Backward belongs to the module whose forward made the graph node that runs, which its sequence
    number tells. Threads count those numbers separately: what a reentrant checkpoint recomputes on
    a GPU may be booked to another module, never to another phase.
    """

    def __init__(self, root: nn.Module):
        super().__init__(display=False, custom_mapping=ATTENTION | OWN)
        self.mod_tracker = RunningModules(root)
        self.flops: dict[str, dict[str, int]] = {phase: defaultdict(int) for phase in PHASES}
        self._makers: dict[int, set[str]] = {}  # of a graph node, by its sequence number

    def total(self, phase: str) -> int:
        return self.flops[phase].get(TOTAL, 0)

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        formula = self.flop_registry.get(func_packet)
        if formula is None:
            return out
        phase, modules = "forward", self.mod_tracker.parents
        if inside_backward():
            phase = "recomputed" if torch.is_grad_enabled() else "backward"
        if phase == "backward":
            modules = self._makers.get(torch._C._current_autograd_node()._sequence_nr(), set())
        else:
            self._makers[torch.autograd._get_sequence_nr() - 1] = modules
        count = formula(*args, **kwargs, out_val=out)
        for name in (TOTAL, *modules):
            self.flops[phase][name] += count
            if func_packet is own.linear_cross_entropy_forward:  # makes its gradients at once
                self.flops["backward"][name] += count * sum(map(bool, args[-2:]))
        return out
