"""One row of the table of ``shardwise bench train``: a process, or one a GPU, prints one line.

    python -m shardwise.bench.rows ROW SHAPE OPTIONS

Every row trains the same shape in bf16 on random tokens with AdamW and clipping; fp32 masters and
moments where it says nothing else. The time is that of whole steps in a row, the device waited for
at the ends alone.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from shardwise.bench.breakdown import breakdown
from shardwise.bench.limit import step_limit
from shardwise.bench.results import present_device as device
from shardwise.bench.results import print_result
from shardwise.bench.shapes import SHAPES, Shape

TRACED_STEPS = 3
RATE = {"lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}


def engine_config(shape: Shape, options: dict[str, Any]) -> dict[str, Any]:
    kept = 10**15 if options["keep"] else 0
    return {
        "train_micro_batch_size_per_gpu": shape.sequences,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": options["stage"],
            "stage3_max_live_parameters": max(kept, 10**9),
        },
        "optimizer": {"type": "AdamW", "params": RATE},
        "gradient_clipping": 1.0,
        "shardwise": {
            "force_communication": options["force"],
            "max_reuse_distance": kept,
            "activation_checkpointing": "full" if options["recompute"] else "off",
            "fp8": options["fp8"],
        },
    }


def timed(step: Callable[[], Any], options: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds a step, the peak of the device's memory in GiB, kernels where asked for."""
    on_gpu = torch.cuda.is_available()
    times = []
    for _ in range(options["warmup"]):
        step()
    for _ in range(options["repeats"]):
        if on_gpu:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(options["steps"]):
            step()
        if on_gpu:
            torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / options["steps"] * 1e3)
    peak = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0
    result = {"ms": statistics.median(times), "peak_gib": peak}
    if options["breakdown"]:
        result["breakdown"] = traced(step)
    return result


def traced(step: Callable[[], Any]) -> dict[str, Any]:
    """Where the time of a few more steps goes."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(TRACED_STEPS):
                step()
            torch.cuda.synchronize()
        profile.export_chrome_trace(str(trace))
        return breakdown(trace, TRACED_STEPS)


def make_model(shape: Shape, options: dict[str, Any], dtype: torch.dtype) -> nn.Module:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with device():
        model = AutoModelForCausalLM.from_config(shape.config(), dtype=dtype)
    if options["recompute"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def make_tokens(shape: Shape) -> torch.Tensor:
    torch.manual_seed(int(os.environ.get("RANK", 0)))
    vocabulary = shape.config().vocab_size
    return torch.randint(0, vocabulary, (shape.sequences, shape.length), device=device())


def check_numbers(loss: float | None, grad_norm: float | None, skipped: bool) -> None:
    """Products of numbers that are not finite, and updates that are left out, are faster."""
    finite = all(value is not None and math.isfinite(value) for value in (loss, grad_norm))
    if skipped or not finite:
        raise RuntimeError(
            f"loss {loss}, gradient norm {grad_norm}, skipped: {skipped}: the time says nothing"
        )


# ---- rows


def limit(shape: Shape, options: dict[str, Any]) -> dict[str, Any]:
    """Matrix products and attention alone."""
    parts = step_limit(shape)
    return {"ms": parts["total"], "peak_gib": 0.0, "parts": parts}


def engine(shape: Shape, options: dict[str, Any]) -> dict[str, Any]:
    """The Hugging Face model through initialize(), its layers carried out by ours."""
    import shardwise

    options = {**options}
    model = make_model(shape, {**options, "recompute": False}, torch.bfloat16)
    config = engine_config(shape, options)
    config["shardwise"]["fused_layers"] = True
    trained = shardwise.initialize(model=model, config=config)[0]
    del model
    tokens = make_tokens(shape)

    def step() -> None:
        nonlocal last
        loss = trained(input_ids=tokens, labels=tokens).loss
        trained.backward(loss)
        trained.step()
        last = loss.detach()

    last = torch.zeros(())
    result = timed(step, options)
    numbers = {"loss": last.item(), "grad_norm": float(trained.get_global_grad_norm())}
    check_numbers(*numbers.values(), skipped=trained.skipped_steps > 0)
    return {**result, **numbers}


def native(shape: Shape, options: dict[str, Any]) -> dict[str, Any]:
    """The program `shardwise train` on a job of the shape."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        steps = options["warmup"] + options["steps"] * options["repeats"]
        traced_steps = TRACED_STEPS if options["breakdown"] else 0
        job = native_job(shape, options, folder, steps + traced_steps)
        if traced_steps:
            trace = {"first_step": steps + 1, "steps": traced_steps, "path": "trace.json"}
            job["shardwise"]["trace"] = trace
        (folder / "job.json").write_text(json.dumps(job))
        program = options["program"]
        ranks = ["--ranks", str(options["gpus"])]
        command = [program, "train", str(folder / "job.json"), *ranks]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = [text for text in done.stderr.splitlines() if text.strip()]
            errors = [text for text in said if "error" in text.lower()]
            raise RuntimeError((errors or said or [f"exit status {done.returncode}"])[-1])
        lines = (folder / "output" / "log.jsonl").read_text().splitlines()
        parts = {}
        if traced_steps:
            parts["breakdown"] = breakdown(folder / "trace.json", traced_steps)
    records = [r for r in map(json.loads, lines) if r["kind"] == "step"]
    records = records[options["warmup"] - 1 : steps]
    for record in records:
        check_numbers(record["loss"], record["grad_norm"], record["skipped"])
    seconds = [record["seconds"] for record in records]
    every = options["steps"]
    times = [(b - a) / every * 1e3 for a, b in zip(seconds, seconds[every:], strict=False)]
    peak = records[-1]["peak_memory"] / 2**30 if torch.cuda.is_available() else 0.0
    return {
        "ms": statistics.median(times[::every]),
        "peak_gib": peak,
        "loss": records[-1]["loss"],
        "grad_norm": records[-1]["grad_norm"],
        **parts,
    }


def native_job(shape: Shape, options: dict[str, Any], folder: Path, steps: int) -> dict[str, Any]:
    config = shape.config()
    samples = (steps + 1) * shape.sequences * options["gpus"]
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, samples * shape.length)
    write_token_file(folder / "random.tokens", tokens, config.vocab_size)
    vocabulary = {f"<{token}>": token for token in range(config.vocab_size)}
    tokenizer = {"model": {"type": "BPE", "vocab": vocabulary, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    data = {"files": ["random.tokens"], "held_out": 0.0, "tokenizer": "tokenizer.json"}
    return {
        "model": {"config": shape.keys},
        "data": {**data, "sequence_length": shape.length},
        "training": {"steps": steps, "output": "output", "save_weights": False},
        **engine_config(shape, options),
    }


def write_token_file(path: Path, tokens: np.ndarray, vocabulary: int) -> None:
    """One document; io/token_file.h describes the layout."""
    header = np.zeros(8, np.uint64)
    header[0] = int.from_bytes(b"SWTOKENS", "little")
    header[1] = 1 + (4 << 32)  # version, bytes a token
    header[2:5] = tokens.size, 1, vocabulary
    padding = np.zeros(tokens.size % 2, np.uint32)
    with path.open("wb") as file:
        for part in (header, tokens.astype(np.uint32), padding, np.uint64([tokens.size])):
            file.write(part.tobytes())


def fsdp2(shape: Shape, options: dict[str, Any]) -> dict[str, Any]:
    """FSDP2 on the Hugging Face model, blocks compiled where asked."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dist.init_process_group("cpu:gloo,cuda:nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    model = make_model(shape, options, torch.float32)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    blocks = model.transformer.h if hasattr(model, "transformer") else model.model.layers
    for block in blocks:
        if options["compile"]:
            block.compile()
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    rate = {**RATE, "betas": tuple(RATE["betas"])}
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, **rate)
    tokens = make_tokens(shape)

    def step() -> None:
        model(input_ids=tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    result = timed(step, options)
    dist.destroy_process_group()
    return result


def compiled(shape: Shape, options: dict[str, Any]) -> dict[str, Any]:
    """The Hugging Face model under torch.compile, bf16 weights without masters; one GPU."""
    model = make_model(shape, options, torch.bfloat16)
    rate = {**RATE, "betas": tuple(RATE["betas"])}
    optimizer = torch.optim.AdamW(model.parameters(), fused=device().type == "cuda", **rate)
    forward = torch.compile(model) if options["compile"] else model
    tokens = make_tokens(shape)

    def step() -> None:
        forward(input_ids=tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return timed(step, options)


def deepspeed(shape: Shape, options: dict[str, Any]) -> dict[str, Any]:
    """DeepSpeed on the Hugging Face model."""
    import deepspeed as peer

    model = make_model(shape, options, torch.bfloat16)
    config = engine_config(shape, options)
    del config["shardwise"]
    trained = peer.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    tokens = make_tokens(shape)

    def step() -> None:
        trained.backward(trained(input_ids=tokens, labels=tokens).loss)
        trained.step()

    return timed(step, options)


ROWS = {row.__name__: row for row in (limit, native, engine, fsdp2, compiled, deepspeed)}


def main(arguments: list[str]) -> int:
    row, shape, options = arguments
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    result = ROWS[row](SHAPES[shape], json.loads(options))
    if int(os.environ.get("RANK", 0)) == 0:
        print_result(result)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
