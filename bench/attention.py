"""cuDNN's attention beside flash attention, forward and backward, by shape; one table.

python bench/attention.py [--tokens 16384] [--length 4096] [--repeats 20]

32 query and 8 key heads in bf16. "ours" is ``torch.ops.shardwise.causal_attention``, which chooses.
cuDNN's for documents is what torch offers, ``_cudnn_attention_forward``; "host" is the time until a
call of it returns.
"""

import argparse
import time

import torch

import shardwise  # noqa: F401  registers the ops

aten = torch.ops.aten
HEADS, KEY_HEADS = 32, 8


def milliseconds(work, repeats):
    """(of the device, of the host) a call; the message of a refusal in the place of both."""
    try:
        for _ in range(3):
            work()
    except RuntimeError as error:
        return str(error).splitlines()[0][:40], ""
    torch.cuda.synchronize()
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun = time.perf_counter()
    start.record()
    for _ in range(repeats):
        work()
    stop.record()
    host = (time.perf_counter() - begun) / repeats * 1e3
    stop.synchronize()
    return start.elapsed_time(stop) / repeats, host


def mixed_lengths(length):
    """Documents of a row, from a sixteenth of it to a half."""
    parts = [length // 2, length // 4, length // 16, length // 16]
    return [*parts, length - sum(parts)]


class Shape:
    """Rows of documents with these lengths, and every way to attend in them."""

    def __init__(self, rows, documents, window, size):
        self.lengths, self.window, self.size = documents * rows, window, size
        self.rows, self.length = rows, sum(documents)
        kind = {"device": "cuda", "dtype": torch.bfloat16}
        self.fused = torch.randn(
            rows, self.length, (HEADS + 2 * KEY_HEADS) * size, **kind, requires_grad=True
        )
        self.gradient = torch.randn(rows, self.length, HEADS * size, **kind)
        ends = torch.tensor([0, *self.lengths], device="cuda")
        self.offsets = ends.cumsum(0, dtype=torch.int32)
        self.longest = max(documents)

    def heads(self):
        """q, k, v [rows, length, heads, size], views of the fused rows."""
        parts = self.fused.unflatten(-1, (-1, self.size))
        return parts.split((HEADS, KEY_HEADS, KEY_HEADS), 2)

    def run(self, attend):
        def work():
            self.fused.grad = None
            attend().reshape(self.gradient.shape).backward(self.gradient)

        return work

    def ours(self):
        heads = (part.transpose(1, 2) for part in self.heads())
        packed = (self.offsets, self.longest) if len(self.lengths) > self.rows else ()
        scale = self.size**-0.5
        return torch.ops.shardwise.causal_attention(*heads, scale, 0.0, self.window, *packed)

    def flash(self):
        limits = {"window_size_left": self.window - 1, "window_size_right": 0}
        options = (0.0, True, False)
        if len(self.lengths) == self.rows:
            sizes = (None, None, self.length, self.length)
            heads = self.heads()
        else:
            sizes = (self.offsets, self.offsets, self.longest, self.longest)
            heads = [part.flatten(0, 1) for part in self.heads()]
        limits = limits if self.window else {}
        return aten._flash_attention_forward(*heads, *sizes, *options, **limits)[0]

    def cudnn_rows(self):
        """Documents of one length as rows of a larger batch."""
        heads = [
            part.flatten(0, 1).unflatten(0, (len(self.lengths), -1)).transpose(1, 2)
            for part in self.heads()
        ]
        out = aten._scaled_dot_product_cudnn_attention(*heads, None, True, 0.0, True)[0]
        return out.transpose(1, 2)

    def cudnn_documents(self):
        heads = [part.flatten(0, 1).contiguous() for part in self.heads()]
        sizes = (self.offsets, self.offsets, self.longest, self.longest)
        return aten._cudnn_attention_forward(*heads, None, *sizes, True, 0.0, True)[0]

    def ways(self):
        found = {"ours": self.ours, "flash": self.flash}
        if not self.window and len(set(self.lengths)) == 1:
            found["cuDNN"] = self.cudnn_rows
        if not self.window and len(self.lengths) > self.rows:
            found["cuDNN, documents"] = self.cudnn_documents
        return found


def gigaflops(lengths, window, size):
    """Of the pairs that see each other: two products forward, five backward with the one again."""
    pairs = 0
    for length in lengths:
        reach = min(window or length, length)
        pairs += reach * (reach + 1) // 2 + (length - reach) * reach
    return 7 * 2 * pairs * HEADS * size / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    if not 16 <= options.length <= options.tokens:
        parser.error(
            f"--length {options.length}: at least 16, and at most --tokens {options.tokens}, of "
            "which it makes whole rows"
        )
    rows, length = options.tokens // options.length, options.length
    kinds = {
        "causal": ([length], 0),
        f"documents 8 x {length // 8}": ([length // 8] * 8, 0),
        "documents of mixed lengths": (mixed_lengths(length), 0),
        f"window {length // 4}": ([length], length // 4),
        f"mixed documents, window {length // 16}": (mixed_lengths(length), length // 16),
    }
    print(f"{rows} x {length} tokens on {torch.cuda.get_device_name()}, torch {torch.__version__}")
    print("| shape | head size | by | ms | TFLOP/s | host ms |")
    print("|---|---|---|---|---|---|")
    for size in (64, 128):
        for name, (documents, window) in kinds.items():
            shape = Shape(rows, documents, window, size)
            work = gigaflops(shape.lengths, window, size)
            for way, attend in shape.ways().items():
                device, host = milliseconds(shape.run(attend), options.repeats)
                if isinstance(device, str):
                    print(f"| {name} | {size} | {way} | refused: {device} | | |")
                    continue
                print(
                    f"| {name} | {size} | {way} | {device:.3f} | {work / device:.0f} | {host:.3f} |"
                )


if __name__ == "__main__":
    main()
