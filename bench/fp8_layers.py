"""Forward and backward of layers of Llama-8B's shape in fp8 against bf16, under the engine.

python bench/fp8_layers.py [--tokens 4096 8192 16384] [--layers 4] [--stage 0]

The update is left out of the time. Rounds of the settings take turns, so that they share the
device's clock.
"""

import argparse
import statistics

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import shardwise

SETTINGS = ("off", "tensorwise", "rowwise")
LENGTH = 4096


def make_engine(fp8, layers, stage):
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=LENGTH,
        use_cache=False,
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    return shardwise.initialize(
        model=model.train(),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": stage},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
            "shardwise": {"fp8": fp8},
        },
    )[0]


def step(engine, tokens):
    """Milliseconds of forward and backward, and the loss."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    loss = engine(input_ids=tokens, labels=tokens).loss
    engine.backward(loss)
    end.record()
    engine.step()
    end.synchronize()
    return begin.elapsed_time(end), loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 8192, 16384])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--stage", type=int, default=0)
    options = parser.parse_args()
    engines = {fp8: make_engine(fp8, options.layers, options.stage) for fp8 in SETTINGS}
    for count in options.tokens:
        tokens = torch.randint(0, 8192, (max(count // LENGTH, 1), min(count, LENGTH))).cuda()
        times = {fp8: [] for fp8 in SETTINGS}
        losses = {}
        for turn in range(12):
            for fp8, engine in engines.items():
                taken, losses[fp8] = step(engine, tokens)
                if turn >= 2:
                    times[fp8].append(taken)
        middle = {fp8: statistics.median(taken) for fp8, taken in times.items()}
        for fp8, taken in middle.items():
            print(
                f"{tokens.numel():6d} tokens, {options.layers} layers, fp8 {fp8:10s} "
                f"{taken:8.2f} ms  x {middle['off'] / taken:.3f}  loss {losses[fp8]:.4f}",
                flush=True,
            )
    skipped = {fp8: engine.skipped_steps for fp8, engine in engines.items()}
    assert not any(skipped.values()), skipped


if __name__ == "__main__":
    main()
