"""Loss curves of a job file in fp32, bf16 and fp8, one beside the other.

python bench/fp8_curves.py job.json [--ranks 1] [--every 50] [--set training.steps=500 ...]

Runs `shardwise train` once for each; the same samples in the same order. Ends with the largest
distance of each curve, averaged over 20 steps, from that of bf16, and the held-out losses.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

from shardwise.bench.results import program

SETTINGS = {
    "fp32": [],
    "bf16": ["bf16.enabled=true"],
    "fp8 tensorwise": ["bf16.enabled=true", "shardwise.fp8=tensorwise"],
    "fp8 rowwise": ["bf16.enabled=true", "shardwise.fp8=rowwise"],
}
WINDOW = 20


def curve(job, settings, ranks, folder):
    """(training losses, the last held-out loss)"""
    words = [word for setting in settings for word in ("--set", setting)]
    command = [program(), "train", job, "--ranks", str(ranks), *words]
    subprocess.run([*command, "--set", f"training.output={folder}"], check=True)
    records = [json.loads(line) for line in (Path(folder) / "log.jsonl").read_text().splitlines()]
    held_out = [record["loss"] for record in records if record["kind"] == "evaluation"]
    losses = [record["loss"] for record in records if record["kind"] == "step"]
    return losses, held_out[-1] if held_out else float("nan")


def smooth(losses):
    return [
        sum(part) / len(part)
        for part in (losses[max(i - WINDOW + 1, 0) : i + 1] for i in range(len(losses)))
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    curves, held_out = {}, {}
    for name, settings in SETTINGS.items():
        with tempfile.TemporaryDirectory() as folder:
            losses, held_out[name] = curve(
                options.job, [*settings, *options.set], options.ranks, folder
            )
        curves[name] = smooth(losses)
    print("  step  " + "  ".join(f"{name:>14s}" for name in curves))
    steps = len(curves["bf16"])
    for step in sorted({*range(options.every - 1, steps, options.every), steps - 1}):
        print(f"{step + 1:6d}  " + "  ".join(f"{c[step]:14.4f}" for c in curves.values()))
    print("held out" + "  ".join(f"{value:14.4f}" for value in held_out.values()))
    for name, found in curves.items():
        far = max(abs(a - b) / b for a, b in zip(found, curves["bf16"], strict=True))
        print(f"{name}: at most {100 * far:.2f} % from bf16")


if __name__ == "__main__":
    main()
