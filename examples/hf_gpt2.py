"""GPT-2 of Hugging Face under ZeRO-2 in fp16: a DeepSpeed script with only the import changed.

    shardwise launch -n 2 examples/hf_gpt2.py

Random weights and a made-up task, so nothing is downloaded. On a GPU the model is the full
124 M-parameter GPT-2, on a CPU a small one.
"""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import shardwise as deepspeed  # was: import deepspeed

DS_CONFIG = {
    "train_batch_size": 32,
    "gradient_accumulation_steps": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
    "fp16": {"enabled": True},
    "zero_optimization": {"stage": 2, "allgather_bucket_size": 5e8},
}


class Counting(torch.utils.data.Dataset):
    """Sequences that count up from a random start, modulo the vocabulary."""

    def __init__(self, size: int, length: int, vocabulary: int):
        starts = torch.randint(0, vocabulary, (size, 1), generator=torch.Generator().manual_seed(0))
        self.sequences = (starts + torch.arange(length)) % vocabulary

    def __len__(self):
        return len(self.sequences)

    def __getitem__(self, index):
        return self.sequences[index]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--steps", type=int, default=30)
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args()

    full = torch.cuda.is_available()
    size = {} if full else {"vocab_size": 256, "n_embd": 128, "n_layer": 2, "n_head": 4}
    torch.manual_seed(0)
    config = GPT2Config(bos_token_id=0, eos_token_id=0, use_cache=False, **size)
    model = GPT2LMHeadModel(config)
    data = Counting(32 * args.steps, 512 if full else 32, config.vocab_size)

    engine, _, loader, _ = deepspeed.initialize(
        args=args,
        model=model,
        model_parameters=model.parameters(),
        training_data=data,
        config=None if args.deepspeed_config else DS_CONFIG,
    )
    total = 0.0
    for batch in loader:
        ids = batch.to(engine.device)
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        total += loss.item() / engine.gradient_accumulation_steps()
        boundary = engine.is_gradient_accumulation_boundary()
        engine.step()
        if boundary:
            if engine.global_rank == 0:
                note = "" if engine.was_step_applied() else "  (fp16 overflow, step skipped)"
                print(f"step {engine.global_steps}  loss {total:.4f}{note}", flush=True)
            total = 0.0


if __name__ == "__main__":
    main()
