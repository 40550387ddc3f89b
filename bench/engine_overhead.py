"""What the engine itself costs: host time a unit and direction, and a step against plain PyTorch.

    python bench/engine_overhead.py                    one GPU, NCCL, forced collectives
    shardwise launch -n 2 bench/engine_overhead.py     any number of ranks

Runs on the CPU too, with a smaller model; figures there only show that the script works.
"""

import argparse
import copy
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import shardwise


class Block(nn.Module):
    """A transformer block without dropout; attention is torch's."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, vocabulary: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def timed(step, device: torch.device, warmup: int, count: int) -> float:
    """Milliseconds a step."""
    for _ in range(warmup):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / count * 1e3


def plain(model: nn.Module, tokens: torch.Tensor, device: torch.device, steps: tuple) -> dict:
    """bf16 weights and torch's fused AdamW on them: less work than fp32 masters, no engine."""
    model = model.to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")

    def step():
        model(tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return {"name": "plain PyTorch, bf16 weights", "ms": timed(step, device, *steps)}


def engine_row(model: nn.Module, tokens: torch.Tensor, stage: int, steps: tuple) -> dict:
    config = {
        "train_micro_batch_size_per_gpu": tokens.shape[0],
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        "gradient_clipping": 1.0,
        "shardwise": {"force_communication": True},
    }
    engine = shardwise.initialize(model=model, config=config)[0]
    tokens = tokens.to(engine.device)

    def step():
        engine.backward(engine(tokens))
        engine.step()

    ms = timed(step, engine.device, *steps)
    report = engine.memory_report()["device"]
    row = {"name": f"engine, stage {stage}", "ms": ms, **engine.host_times()}
    row["gradients_in_flight_mib"] = report["gradients_in_flight"] / 2**20
    row["ring_mib"] = report["ring"] / 2**20
    engine.destroy(whole=False)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=None)
    parser.add_argument("--length", type=int, default=None)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    shardwise.init_distributed()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    width = arguments.width or (1024 if cuda else 64)
    length = arguments.length or (1024 if cuda else 32)
    torch.manual_seed(0)
    model = Model(arguments.layers, width, width // 64, 32768 if cuda else 512)
    tokens = torch.randint(0, 512, (8 if cuda else 2, length), device=device)
    steps = (5, arguments.steps)
    rows = [plain(copy.deepcopy(model), tokens, device, steps)]
    rows += [engine_row(copy.deepcopy(model), tokens, stage, steps) for stage in (0, 1, 2, 3)]
    if dist.get_rank() == 0:
        for row in rows:
            print(json.dumps(row) if arguments.json else line(row), flush=True)


def line(row: dict) -> str:
    text = f"{row['name']:30s} {row['ms']:9.2f} ms/step"
    if "forward_microseconds" in row:
        text += (
            f"   host {row['forward_microseconds']:6.1f} us forward "
            f"{row['backward_microseconds']:6.1f} us backward a unit"
            f"   ring {row['ring_mib']:.0f} MiB, gradients in flight "
            f"{row['gradients_in_flight_mib']:.0f} MiB"
        )
    return text


if __name__ == "__main__":
    main()
