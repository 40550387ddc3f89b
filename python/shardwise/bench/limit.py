"""The least time of a step: its matrix products and attention alone, one after the other."""

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from shardwise.bench.shapes import Shape

HEAD_ROWS = 2048  # of the chunks in which the head's products run
BACKENDS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH)


def milliseconds(work: Callable[[], Any], warmup: int = 3, count: int = 10) -> float:
    """The median over `count` runs."""
    for _ in range(warmup):
        work()
    times = []
    for _ in range(count):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def step_limit(shape: Shape) -> dict[str, float]:
    """Milliseconds of a training step's products and attention in bf16, forward and backward."""
    config = shape.config()
    hidden, layers = config.hidden_size, config.num_hidden_layers
    heads = config.num_attention_heads
    if config.model_type == "gpt2":
        kv_heads, inner = heads, 4 * hidden
        sizes = [(hidden, 3 * hidden), (hidden, hidden), (hidden, inner), (inner, hidden)]
    else:
        kv_heads, inner = config.num_key_value_heads, config.intermediate_size
        kv = kv_heads * (hidden // heads)
        sizes = [(hidden, hidden + 2 * kv), (hidden, hidden), (hidden, 2 * inner), (inner, hidden)]
    products = sum(_product(shape.tokens, inputs, outputs) for inputs, outputs in sizes)
    rows = min(HEAD_ROWS, shape.tokens)
    # A vocabulary that is no multiple of 8 would be measured at its slowest.
    vocabulary = -(-config.vocab_size // 64) * 64
    head = _product(rows, hidden, vocabulary) * shape.tokens / rows
    attention = _attention(shape, heads, kv_heads, hidden // heads)
    return {
        "products": products * layers + head,
        "attention": attention * layers,
        "total": (products + attention) * layers + head,
    }


def _product(rows: int, inputs: int, outputs: int) -> float:
    def random(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, device="cuda", dtype=torch.bfloat16)

    x, weight, gradient = random(rows, inputs), random(outputs, inputs), random(rows, outputs)
    forms = (lambda: x @ weight.t(), lambda: gradient @ weight, lambda: gradient.t() @ x)
    return sum(milliseconds(form) for form in forms)


def _attention(shape: Shape, heads: int, kv_heads: int, size: int) -> float:
    """With the fastest of torch's kernels that takes the shape."""

    def random(count: int) -> torch.Tensor:
        sizes = (shape.sequences, count, shape.length, size)
        return torch.randn(sizes, device="cuda", dtype=torch.bfloat16).requires_grad_()

    q, k, v, gradient = random(heads), random(kv_heads), random(kv_heads), random(heads)
    best = float("inf")
    for backend in BACKENDS:
        with sdpa_kernel(backend):

            def run() -> torch.Tensor:
                return functional.scaled_dot_product_attention(
                    q, k, v, is_causal=True, enable_gqa=heads != kv_heads
                )

            try:
                out = run()
                backward = milliseconds(
                    lambda out=out: torch.autograd.grad(
                        out, (q, k, v), gradient.detach(), retain_graph=True
                    )
                )
                best = min(best, milliseconds(run) + backward)
            except RuntimeError:  # does not take the shape, or not enough memory for its scores
                continue
        if best < float("inf") and backend != SDPBackend.CUDNN_ATTENTION:
            break
    return best
