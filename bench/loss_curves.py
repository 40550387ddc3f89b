"""Loss curves on real text: ours against plain PyTorch in bf16, on the same weights and batches.

    python bench/loss_curves.py [--tiny] [--json FILE]

Plain PyTorch is the Hugging Face model in bf16 under torch's AdamW on fp32 masters, in a process
that does not import shardwise. What rounding alone does to its curve is measured there and then: by
the same model with another attention and by the same model in fp32. Ours may be as far from plain
PyTorch as twice the farther of these two. Exits with 1 where a curve is farther. The text is
Python's own documentation and library, as bytes. --tiny: a model for the CPU, in less than a
minute.
"""

import argparse
import copy
import json
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch

STEPS = 200
WINDOW = 10  # steps over which curves are averaged before they are compared
ALLOWANCE = 2  # times what rounding does to plain PyTorch; two random walks apart, not one
RATE = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Work:
    """A Llama and its batches."""

    hidden: int
    layers: int
    sequences: int
    length: int
    lr: float

    def config(self) -> dict[str, Any]:
        return {
            "model_type": "llama",
            "vocab_size": 256,
            "hidden_size": self.hidden,
            "intermediate_size": self.hidden * 8 // 3 // 64 * 64,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.hidden // 64 if self.hidden >= 256 else 4,
            "max_position_embeddings": self.length,
        }


WORKS = {False: Work(768, 12, 4, 1024, 3e-4), True: Work(64, 2, 4, 64, 3e-3)}

# What plain PyTorch runs besides bf16 with torch's fused attention: dtype and attention.
PLAIN = "plain PyTorch, bf16"
PLAINS = {
    PLAIN: (torch.bfloat16, "sdpa"),
    "plain PyTorch, bf16, eager attention": (torch.bfloat16, "eager"),
    "plain PyTorch, fp32": (torch.float32, "sdpa"),
}
# Ours: through Python or the program, and what differs from ours() in the configuration.
OURS = {
    "initialize(), fused layers": ("engine", {"fused_layers": True}),
    "native": ("native", {}),
}


# ---- the work


def write_text(work: Work, path: Path) -> None:
    """One sample of `length` bytes behind the other, in the order in which they are trained on."""
    library = Path(sysconfig.get_path("stdlib"))
    parts = [topics[name].encode() for name in sorted(topics)]
    parts += [file.read_bytes() for file in sorted(library.glob("*.py"))]
    data = np.frombuffer(b"\n".join(parts).replace(b"\0", b" "), np.uint8)
    samples = data[: data.size // work.length * work.length].reshape(-1, work.length)
    order = np.random.default_rng(0).permutation(len(samples))
    wanted = np.resize(order, STEPS * work.sequences)  # again from the front where they run out
    path.write_bytes(samples[wanted].tobytes())


def batches(work: Work, folder: Path) -> torch.Tensor:
    data = np.frombuffer((folder / "text.txt").read_bytes(), np.uint8).astype(np.int64)
    return torch.from_numpy(data).view(STEPS, work.sequences, work.length).to(DEVICE)


def load(folder: Path, attention: str = "sdpa") -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        folder / "model", dtype=torch.float32, attn_implementation=attention
    )
    return model.to(DEVICE).train()


def write_model(work: Work, folder: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(use_cache=False, **work.config())
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder / "model")


# ---- curves


def plain(work: Work, folder: Path, dtype: torch.dtype, attention: str) -> list[float]:
    model = load(folder, attention)
    masters = [parameter.detach().clone() for parameter in model.parameters()]
    model.to(dtype)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(masters, lr=work.lr, **RATE)
    losses = []
    for tokens in batches(work, folder):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        for parameter, master in zip(parameters, masters, strict=True):
            master.grad, parameter.grad = parameter.grad.float(), None
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(parameters, masters)
        losses.append(loss.detach())
    return torch.stack(losses).float().tolist()


def ours(work: Work, settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": work.sequences,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": work.lr, **RATE}},
        "gradient_clipping": 1.0,
        "shardwise": settings,
    }


def engine(work: Work, folder: Path, settings: dict[str, Any]) -> list[float]:
    import shardwise

    trained = shardwise.initialize(model=load(folder), config=ours(work, settings))[0]
    losses = []
    for tokens in batches(work, folder):
        loss = trained(input_ids=tokens, labels=tokens).loss
        trained.backward(loss)
        trained.step()
        losses.append(loss.detach())
    return torch.stack(losses).float().tolist()


def native(work: Work, folder: Path, settings: dict[str, Any]) -> list[float]:
    from shardwise.bench.results import program

    data = {"files": "text.txt", "sequence_length": work.length, "shuffle": False}
    job = {
        "model": {"path": "model"},
        "data": {**data, "held_out": 0.0},
        "training": {"steps": STEPS, "output": "output", "save_weights": False},
        **ours(work, settings),
    }
    (folder / "job.json").write_text(json.dumps(job))
    subprocess.run([program(), "train", folder / "job.json"], check=True, stdout=subprocess.DEVNULL)
    lines = map(json.loads, (folder / "output" / "log.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] == "step"]


def run_rows(work: Work, folder: Path, names: list[str]) -> dict[str, list[float]]:
    """In a process of its own: all of PLAINS, or one of OURS."""
    if names == ["plain"]:
        write_model(work, folder)
        return {name: plain(work, folder, *options) for name, options in PLAINS.items()}
    functions = {"engine": engine, "native": native}
    curves = {}
    for name in names:
        function, settings = OURS[name]
        curves[name] = functions[function](work, folder, copy.deepcopy(settings))
    return curves


def in_a_process(tiny: bool, folder: Path, row: str) -> dict[str, list[float]]:
    options = ["--tiny"] * tiny + ["--row", row, "--folder", str(folder)]
    done = subprocess.run([sys.executable, __file__, *options], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


# ---- the verdict


def distance(curve: list[float], other: list[float]) -> tuple[float, float]:
    """The largest and the mean difference of two curves, each smoothed over WINDOW steps."""
    difference = np.abs(
        np.convolve(np.subtract(curve, other), np.full(WINDOW, 1 / WINDOW), "valid")
    )
    return float(difference.max()), float(difference.mean())


def judge(curves: dict[str, list[float]]) -> tuple[list[dict[str, Any]], bool]:
    """One row for each curve but the plain one, and whether all of ours are near enough."""
    rows = []
    for name, curve in curves.items():
        if name != PLAIN:
            largest, mean = distance(curve, curves[PLAIN])
            rows.append({"name": name, "largest": largest, "mean": mean, "last": curve[-1]})
    spread = [row for row in rows if row["name"] in PLAINS]
    for row in rows:
        for kind in ("largest", "mean"):
            allowed = ALLOWANCE * max(known[kind] for known in spread)
            row[f"{kind}_allowed"] = allowed
            # Written so that NaN is not near.
            row["near"] = row.get("near", True) and row[kind] <= allowed
    return rows, all(row["near"] for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", metavar="FILE", help="for the curves and their distances")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    work = WORKS[options.tiny]
    if options.row:
        print(json.dumps(run_rows(work, options.folder, [options.row])))
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(work, folder / "text.txt")
        curves = {}
        for row in ("plain", *OURS):
            curves |= in_a_process(options.tiny, folder, row)
    rows, near = judge(curves)
    begin, end = (np.mean(part) for part in (curves[PLAIN][:WINDOW], curves[PLAIN][-WINDOW:]))
    print(
        f"Llama of width {work.hidden} with {work.layers} layers on {DEVICE}, {STEPS} steps of "
        f"{work.sequences} x {work.length} bytes of text; {PLAIN}: loss {begin:.3f} to {end:.3f}\n"
        f"difference to it, smoothed over {WINDOW} steps{'largest':>12s}  {'mean':>9s}"
    )
    for row in rows:
        verdict = "" if row["near"] else "  TOO FAR"
        print(f"{row['name']:42s}  {row['largest']:9.5f}  {row['mean']:9.5f}{verdict}")
    print(f"{'allowed':42s}  {rows[0]['largest_allowed']:9.5f}  {rows[0]['mean_allowed']:9.5f}")
    if options.json:
        Path(options.json).write_text(json.dumps({"rows": rows, "curves": curves}) + "\n")
    return 0 if near else 1


if __name__ == "__main__":
    sys.exit(main())
