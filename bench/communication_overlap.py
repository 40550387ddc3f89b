"""What collectives cost the matrix products that run beside them, by the way they are carried out.

    python bench/communication_overlap.py [--blocks N]

Two GPUs or more. Products of a Llama-1B block run one after the other; beside each block one
block's bf16 parameters are gathered, or its gradients reduced and scattered, on a stream of their
own. Prints milliseconds a block: products alone, the collective alone, both, and what the
collective added.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist

HIDDEN, INNER, TOKENS = 2048, 8192, 16384
SIZES = ((HIDDEN, 3072), (HIDDEN, HIDDEN), (HIDDEN, 2 * INNER), (INNER, HIDDEN))
NUMEL = sum(a * b for a, b in SIZES)
WAYS = {
    "default": ("plain", {}),
    "NCCL_MAX_CTAS=4": ("plain", {"NCCL_MAX_CTAS": "4"}),
    "NCCL_MAX_CTAS=8": ("plain", {"NCCL_MAX_CTAS": "8"}),
    "NCCL_MAX_CTAS=16": ("plain", {"NCCL_MAX_CTAS": "16"}),
    "NCCL_MAX_CTAS=32": ("plain", {"NCCL_MAX_CTAS": "32"}),
    "registered": ("registered", {}),
    "registered, symmetric": ("symmetric", {}),
    "symmetric, NCCL_CTA_POLICY=2": ("symmetric", {"NCCL_CTA_POLICY": "2"}),
    "copy engines of symmetric memory": ("copies", {}),
}


def milliseconds(work: Callable[[], None], blocks: int) -> float:
    for _ in range(2):
        work()
    dist.barrier()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(blocks):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / blocks


class Buffers:
    """The flat buffer of a block and this rank's part of it, as the way needs them."""

    def __init__(self, way: str):
        group = dist.group.WORLD
        count, rank = dist.get_world_size(), dist.get_rank()
        self.way, self.part = way, NUMEL // count
        make = lambda n: torch.zeros(n, device="cuda", dtype=torch.bfloat16)  # noqa: E731
        if way in ("registered", "symmetric"):
            backend = group._get_backend(torch.device("cuda"))
            self.pool = torch.cuda.MemPool(backend.mem_allocator)
            with torch.cuda.use_mem_pool(self.pool):
                self.flat, self.shard = make(NUMEL), make(self.part)
            if way == "symmetric":
                backend.register_mem_pool(self.pool, symm=True)
            else:
                backend.register_mem_pool(self.pool)
        elif way == "copies":
            from torch.distributed import _symmetric_memory as symmetric

            self.flat = make(NUMEL)
            self.shared = symmetric.empty(self.part, device="cuda", dtype=torch.bfloat16)
            self.handle = symmetric.rendezvous(self.shared, group.group_name)
            self.shard = self.shared
            self.peers = [
                self.handle.get_buffer(peer, (self.part,), torch.bfloat16) for peer in range(count)
            ]
        else:
            self.flat, self.shard = make(NUMEL), make(self.part)
        self.rank, self.count = rank, count

    def gather(self) -> None:
        if self.way != "copies":
            dist.all_gather_into_tensor(self.flat, self.shard)
            return
        self.handle.barrier(channel=0)
        for step in range(self.count):
            peer = (self.rank + step) % self.count
            self.flat.narrow(0, peer * self.part, self.part).copy_(self.peers[peer])
        self.handle.barrier(channel=0)

    def scatter(self) -> None:
        if self.way == "copies":
            self.gather()  # the same traffic; the sums are made by one more kernel
        else:
            dist.reduce_scatter_tensor(self.shard, self.flat)


def rank_main(way: str, blocks: int) -> None:
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    dist.all_reduce(torch.ones(1, device="cuda"))
    buffers = Buffers(way)
    random = lambda *sizes: torch.randn(*sizes, device="cuda", dtype=torch.bfloat16)  # noqa: E731
    rows = {n: random(TOKENS, n) for n in {n for pair in SIZES for n in pair}}
    weights = [random(outputs, inputs) for inputs, outputs in SIZES]
    side = torch.cuda.Stream()

    def products() -> None:
        for (inputs, outputs), weight in zip(SIZES, weights, strict=True):
            torch.mm(rows[inputs], weight.t())
            torch.mm(rows[outputs], weight)

    def beside(collective: Callable[[], None]) -> Callable[[], None]:
        def work() -> None:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                collective()
            products()
            torch.cuda.current_stream().wait_stream(side)

        return work

    alone = milliseconds(products, blocks)
    line = f"products {alone:6.3f}"
    for name, collective in (("gather", buffers.gather), ("reduce", buffers.scatter)):
        own = milliseconds(collective, blocks)
        both = milliseconds(beside(collective), blocks)
        line += f" | {name} {own:6.3f}, both {both:6.3f}, added {both - alone:6.3f}"
    if dist.get_rank() == 0:
        print(line, flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--way")
    arguments = parser.parse_args()
    if arguments.way:
        rank_main(arguments.way, arguments.blocks)
        return
    ranks = torch.cuda.device_count()
    for name, (way, settings) in WAYS.items():
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={ranks}", __file__, "--way", way]
        command += ["--blocks", str(arguments.blocks)]
        environment = {**os.environ, **settings}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False, timeout=60
            )
        except subprocess.TimeoutExpired:
            print(f"{name:34s} took more than 60 s", flush=True)
            continue
        lines = [text for text in done.stdout.splitlines() if text.startswith("products")]
        errors = [text for text in done.stderr.splitlines() if "Error" in text]
        print(f"{name:34s} {lines[0] if lines else errors[-1:] or done.stderr[-300:]}", flush=True)


if __name__ == "__main__":
    main()
