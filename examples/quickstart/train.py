"""Trains a small GPT from scratch with ZeRO-3 on Python's language reference.

    shardwise launch -n 2 examples/quickstart/train.py

Leaves log.jsonl and loss.svg in the output folder. A full run ends with two checks, and its exit
code says whether they passed.
"""

import argparse
import math
import sys
from pathlib import Path

import torch
from corpus import Corpus
from judge import FULL_RUN, judge
from model import GPT, sample
from report import Log, Progress, loss_curve
from torch.optim.lr_scheduler import LambdaLR

import shardwise

HERE = Path(__file__).resolve().parent
TEMPERATURE = 0.7


def main():
    args = parse_arguments()
    corpus = Corpus()
    torch.manual_seed(args.seed)
    engine, _, _, _ = shardwise.initialize(
        model=GPT(),
        config=str(args.config),
        lr_scheduler=lambda optimizer: LambdaLR(optimizer, warm_up_and_cosine(args.steps)),
    )
    with engine:
        losses = train(engine, corpus, args)
        engine.eval()
        held_out = evaluate(engine, corpus)
        length = 600 if args.steps >= FULL_RUN else 60
        text = sample(engine, b"The ", length, engine.context, TEMPERATURE, args.seed)
        passed = True
        if engine.global_rank == 0:
            passed = show(losses, held_out, text.decode(errors="replace"), corpus, args)
    return 0 if passed else 1


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=FULL_RUN)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--config", type=Path, default=HERE / "config.json")
    parser.add_argument("--output", type=Path, default=HERE / "output" / "python")
    return parser.parse_args()


def warm_up_and_cosine(steps: int):
    """Factor of the learning rate: up over 50 steps, then down to 5 %."""

    def factor(step):
        cosine = 0.5 * (1 + math.cos(math.pi * min(step / steps, 1)))
        return min((step + 1) / 50, 1) * (0.05 + 0.95 * cosine)

    return factor


def train(engine, corpus, args) -> list[float]:
    """Runs all steps; the loss of this process's part of each."""
    generator = torch.Generator().manual_seed(1000 * args.seed + engine.global_rank)
    tokens = engine.train_batch_size() * engine.context
    chief = engine.global_rank == 0
    if chief:
        args.output.mkdir(parents=True, exist_ok=True)
        log, progress = Log(args.output / "log.jsonl"), Progress(args.steps, tokens)
    losses = []
    for step in range(1, args.steps + 1):
        size = engine.train_micro_batch_size_per_gpu()
        inputs, targets = corpus.batch(size, engine.context, generator)
        loss = engine(inputs.to(engine.device), targets.to(engine.device))
        lr = engine.get_lr()[0]
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        if chief:
            progress.update(step, losses[-1])
            log.write(
                step=step,
                loss=losses[-1],
                lr=lr,
                grad_norm=float(engine.get_global_grad_norm()),
                tokens_per_second=round(progress.speed(step)),
            )
    if chief:
        log.close()
    return losses


@torch.no_grad()
def evaluate(engine, corpus) -> float:
    """Mean loss over the whole held-out part. Every rank computes all of it: it is small."""
    total, count = 0.0, 0
    for index in range(len(corpus.held_out)):
        inputs, targets = corpus.held_out_batch(index, engine.context)
        if len(inputs):
            loss = engine(inputs.to(engine.device), targets.to(engine.device))
            total, count = total + loss.item() * inputs.numel(), count + inputs.numel()
    return total / count


def show(losses, held_out, text, corpus, args) -> bool:
    """Prints the sample and the checks, draws the curve. True when every check passed."""
    loss_curve(losses, held_out, args.output / "loss.svg")
    print(f"\nSample, temperature {TEMPERATURE}:\n{text}\n")
    passed = judge(args.steps, held_out, text, corpus)
    print(f"Log and loss curve: {args.output}")
    return passed


if __name__ == "__main__":
    sys.exit(main())
