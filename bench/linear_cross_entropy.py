"""The head with its loss at the size of Llama-3.2-1B: time beside its matrix products, memory.

python bench/linear_cross_entropy.py [--tokens 16384] [--chunk-rows 0]
"""

import argparse

import torch

import shardwise  # noqa: F401  registers the ops

WIDTH, VOCABULARY = 2048, 128256


def milliseconds(work, repeats=5):
    """Mean over a run after a warm-up."""
    for _ in range(2):
        work()
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        work()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / repeats


def products(hidden, weight, rows):
    """The three products of the chunks alone."""
    sums = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
    for part in hidden.split(rows):
        logits = part @ weight.t()
        logits @ weight
        sums = torch.addmm(sums, logits.t(), part, out_dtype=torch.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--chunk-rows", type=int, default=0)
    options = parser.parse_args()
    kind = {"device": "cuda", "dtype": torch.bfloat16}
    hidden = torch.randn(options.tokens, WIDTH, **kind, requires_grad=True)
    weight = (torch.randn(VOCABULARY, WIDTH, **kind) * 0.02).requires_grad_()
    targets = torch.randint(0, VOCABULARY, (options.tokens,), device="cuda")

    def step():
        hidden.grad = weight.grad = None
        loss = torch.ops.shardwise.linear_cross_entropy(
            hidden, weight, targets, chunk_rows=options.chunk_rows
        )
        loss.backward()
        return loss

    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    taken = milliseconds(step)
    peak = torch.cuda.max_memory_allocated() - before
    with torch.no_grad():
        limit = milliseconds(lambda: products(hidden, weight, options.chunk_rows or 4096))
    logits = torch.nn.functional.linear(hidden[:2048].detach(), weight.detach()).float()
    loss = torch.ops.shardwise.linear_cross_entropy(hidden[:2048], weight, targets[:2048])
    plain = torch.nn.functional.cross_entropy(logits, targets[:2048])
    print(f"loss and gradients {taken:.2f} ms, products alone {limit:.2f} ms")
    print(f"memory above the inputs {peak / 2**30:.2f} GiB, all logits in bf16 would be", end=" ")
    print(f"{2 * options.tokens * VOCABULARY / 2**30:.2f} GiB")
    print(f"loss of 2048 tokens {loss.item():.6f}, plain PyTorch {plain.item():.6f}")


if __name__ == "__main__":
    main()
