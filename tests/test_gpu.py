"""The engine on CUDA with NCCL. One process with forced collectives, two where two GPUs exist."""

import json
import os
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import models
import native_front
import parity
import pytest
import reference
import torch
from pairwise import pairwise
from parity import Case
from rank_pool import RankPool

pytestmark = pytest.mark.gpu
DEVICES = torch.cuda.device_count()
one_gpu = pytest.mark.skipif(DEVICES < 1, reason="no CUDA device")
two_gpus = pytest.mark.skipif(DEVICES < 2, reason=f"needs two CUDA devices, found {DEVICES}")

FACTORS = {
    "stage": [0, 1, 2, 3],
    "dtype": ["fp32", "bf16", "fp16"],
    "model": ["mlp", "gpt2", "llama"],
    "accumulation": [1, 4],
    "clip": [False, True],
    "optimizer": ["SGD", "AdamW"],
}
FORCED = {"force_communication": True}
EVERY_STAGE_AND_DTYPE = list(product([0, 1, 2, 3], ["fp32", "bf16", "fp16"]))


@pytest.fixture(scope="module")
def gpu_pool():
    pool = RankPool(max(DEVICES, 1), backend="nccl")
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def truth():
    process = RankPool(1, backend="nccl")
    yield parity.Truth(process, device="cuda")
    process.close()


def check(case, pool, truth):
    records = pool.run(parity.train, case, None, FORCED, "cuda", ranks=case.ranks, timeout=240)
    parity.check(case, records, truth)


def cases(ranks):
    return [Case(**row, ranks=ranks) for row in pairwise(FACTORS)]


@one_gpu
@pytest.mark.parametrize("case", cases(1), ids=str)
def test_parity_on_one_gpu(case, gpu_pool, truth):
    check(case, gpu_pool, truth)


@one_gpu
@pytest.mark.parametrize("stage,dtype", EVERY_STAGE_AND_DTYPE)
def test_every_stage_and_dtype(stage, dtype, gpu_pool, truth):
    check(Case(stage, "gpt2", dtype, 1, 1, True), gpu_pool, truth)


def program():
    """`shardwise` of the environment, or carried along with the test programs."""
    own = Path(sys.executable).parent / "shardwise"
    return own if own.exists() else native_front.PROGRAMS / "shardwise"


def native(ranks, folder, truth):
    """The native front with one process a GPU."""
    rows = pairwise({**FACTORS, "model": ["gpt2", "llama"]})
    cover = [Case(**row, ranks=ranks) for row in rows]
    records = native_front.run(cover, folder, (program(), "launch", "-n", str(ranks)), FORCED)
    for case, record in records.items():
        native_front.check(case, record, truth)


def train_losses(folder, accelerator, ranks):
    """Losses of steps and evaluations of `shardwise train`; on the CPU or on GPUs."""
    out = folder / f"{accelerator}{ranks}"
    command = [program(), "train", folder / "job.json", "--ranks", str(ranks)]
    done = subprocess.run(
        [*command, "--set", f"training.output={out}"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "DS_ACCELERATOR": accelerator},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert ("on CPU" if accelerator == "cpu" else "on GPU") in done.stdout
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert (out / "model" / "model.safetensors").exists()
    assert [row["kind"] for row in log[-2:]] == ["sample", "end"]
    steps = [row["step"] for row in log if row["kind"] == "step"]
    assert steps == list(range(1, len(steps) + 1)), "each step is reported once, in order"
    return [row["loss"] for row in log if row["kind"] in ("step", "evaluation")]


@one_gpu
def test_train_program_gives_the_losses_of_the_cpu(tmp_path):
    """With evaluations between steps, a sample and saved weights; on two GPUs where they exist."""
    (tmp_path / "text.txt").write_text("".join(f"{i} squared is {i * i}.\n" for i in range(2000)))
    job = {
        "model": {
            "config": {
                "model_type": "llama",
                "vocab_size": 256,
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "tie_word_embeddings": True,
                "max_position_embeddings": 64,
            }
        },
        "data": {"files": ["text.txt"], "sequence_length": 32, "held_out": 0.1},
        "training": {"steps": 6, "evaluate_every": 2, "sample_prompt": "7", "sample_tokens": 20},
        "train_batch_size": 16,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        "shardwise": FORCED,
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    expected = train_losses(tmp_path, "cpu", 1)
    assert len(expected) == 9
    for ranks in range(1, min(DEVICES, 2) + 1):
        # fp32 sums in another order, as everywhere between devices: 1e-5 after six steps.
        assert train_losses(tmp_path, "cuda", ranks) == pytest.approx(expected, rel=1e-5)


@one_gpu
def test_native_front_on_one_gpu(tmp_path, truth):
    native(1, tmp_path, truth)


@two_gpus
def test_native_front_on_two_gpus(tmp_path, truth):
    native(2, tmp_path, truth)


@two_gpus
@pytest.mark.parametrize("case", cases(2), ids=str)
def test_parity_on_two_gpus(case, gpu_pool, truth):
    check(case, gpu_pool, truth)


# A steady loop


STEADY_STEPS = 5


def rank_steady(stage, dtype, steps=STEADY_STEPS):
    """Runs warm steps under sync-debug mode; allocations by the engine's and by a plain loop.

    The model is the MLP: masks of Hugging Face models synchronise by themselves.
    """
    kind = reference.DTYPES[dtype]
    micro = models.micro_batches("mlp", 0, 1, "cuda", kind)[0]
    plain = models.build("mlp").to("cuda", kind)

    def plain_step():
        models.loss_of(plain(**micro)).backward()
        plain.zero_grad(set_to_none=True)

    config = parity.config_of(
        Case(stage, "mlp", dtype, ranks=1, clip=True),
        shardwise={"force_communication": True, "poison_released": False},
    )
    with parity.make_engine(models.build("mlp"), config) as engine:

        def engine_step():
            engine.backward(models.loss_of(engine(**micro)))
            engine.step()

        result = {
            "plain": allocations(plain_step, steps),
            "engine": allocations(engine_step, steps),
        }
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(steps):
                engine_step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        result["applied"] = engine.global_steps - engine.skipped_steps
        result["host_times"] = engine.host_times()
        return result


def allocations(step, count):
    """Growth over `count` steps after warm-up: blocks asked for, driver segments, bytes held."""
    for _ in range(4):
        step()
    torch.cuda.synchronize()
    keys = ("allocation.all.allocated", "segment.all.allocated", "allocated_bytes.all.current")
    before = torch.cuda.memory_stats()
    for _ in range(count):
        step()
    after = torch.cuda.memory_stats()
    return [after[key] - before[key] for key in keys]


@one_gpu
@pytest.mark.parametrize("stage,dtype", EVERY_STAGE_AND_DTYPE)
def test_a_steady_loop_neither_syncs_nor_allocates(stage, dtype, gpu_pool):
    result = gpu_pool.run(rank_steady, stage, dtype, ranks=1)[0]
    asked, segments, held = result["engine"]
    # fp16: the scaled loss and its gradient, one number each.
    allowed = result["plain"][0] + (2 * STEADY_STEPS if dtype == "fp16" else 0)
    assert asked <= allowed, "the engine allocates on top of forward and backward"
    assert segments == 0, "device memory was asked of the driver in a steady loop"
    assert held == 0, "memory held by the device grew"
    assert result["applied"] > 0
    print(f"stage {stage} {dtype}: host time of the engine, microseconds: {result['host_times']}")


def take_and_free(module, *_):
    """Memory of many sizes that is written and free again: what is freed too early is lost."""
    for size in (1 << 10, 1 << 16, 1 << 20, 1 << 22):
        torch.full((size,), torch.nan, device="cuda", dtype=torch.bfloat16)


def rank_weights_with(zero):
    world = torch.distributed.get_world_size()
    case = Case(zero.pop("stage"), "llama", "bf16", ranks=world)
    model = models.build(case.model)
    for module in model.modules():
        module.register_forward_hook(take_and_free)
        module.register_full_backward_hook(take_and_free)
    with parity.make_engine(model, parity.config_of(case, zero, FORCED)) as engine:
        for step in range(4):
            parity.accumulate(engine, case, step, "cuda")
            engine.step()
        return {name: weight.cpu() for name, weight in engine.state_dict().items()}


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=one_gpu), pytest.param(2, marks=two_gpus)])
@pytest.mark.parametrize("stage", [2, 3])
def test_bucket_and_prefetch_settings_on_the_gpu(stage, ranks, gpu_pool):
    """Reuse of buffers across streams: small and large buckets, with and without overlap."""
    found = [
        gpu_pool.run(
            rank_weights_with,
            {
                "stage": stage,
                "reduce_bucket_size": size,
                "stage3_prefetch_bucket_size": size,
                "overlap_comm": overlap,
            },
            ranks=ranks,
        )[0]
        for size in (1, 10**9)
        for overlap in (True, False)
    ]
    for weights in found[1:]:
        assert all(torch.equal(weights[n], w) for n, w in found[0].items())


def rank_weights_behind_a_sleep(zero, own, matrices_alone):
    """The update runs long after the host has launched the gathers of the next forward.

    `matrices_alone`: only matrices are trained, by Muon, so that no kernel updates elements.
    """
    case = Case(3, "llama", "bf16", optimizer="Muon" if matrices_alone else "AdamW")
    config = parity.config_of(case, zero, {**FORCED, **own})
    model = models.build(case.model)
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.dim() == 2 or not matrices_alone)
    with parity.make_engine(model, config) as engine:
        for step in range(4):
            parity.accumulate(engine, case, step, "cuda")
            torch.cuda._sleep(100_000_000)  # cycles
            engine.step()
        return {name: weight.cpu() for name, weight in engine.state_dict().items()}


@one_gpu
@pytest.mark.parametrize("matrices_alone", [False, True])
def test_gathers_beside_an_update_wait_for_what_they_send(matrices_alone, gpu_pool):
    settings = [({"stage3_prefetch_bucket_size": 0}, {}), ({}, {}), ({}, {"max_ctas": 4})]
    late, *others = [
        gpu_pool.run(rank_weights_behind_a_sleep, *setting, matrices_alone, ranks=1)[0]
        for setting in settings
    ]
    for weights in others:
        assert all(torch.equal(weights[name], weight) for name, weight in late.items())


def rank_contexts():
    """Devices on which this process has a context, once every thread has had time to make one."""
    case = Case(3, "mlp", "bf16", ranks=2)
    with parity.make_engine(models.build("mlp"), parity.config_of(case)) as engine:
        for step in range(2):
            parity.accumulate(engine, case, step, "cuda")
            engine.step()
            time.sleep(2)
        return [torch._C._cuda_hasPrimaryContext(device) for device in range(2)]


@two_gpus
def test_no_thread_makes_a_context_on_the_gpu_of_another_rank(gpu_pool):
    assert gpu_pool.run(rank_contexts, ranks=2) == [[True, False], [False, True]]


# A rank that stays away


def rank_that_stalls(seconds):
    """Rank 1 stops taking part; what rank 0 is told, and when."""
    rank = torch.distributed.get_rank()
    config = parity.config_of(
        Case(3, "mlp", "bf16", ranks=2), shardwise={"timeout_seconds": seconds}
    )
    micro = models.micro_batches("mlp", 0, 2, "cuda", torch.bfloat16)[rank]
    engine = parity.make_engine(models.build("mlp"), config)

    def step():
        engine.backward(models.loss_of(engine(**micro)))
        engine.step()

    step()
    torch.cuda.synchronize()
    start = time.monotonic()
    if rank == 1:
        time.sleep(4 * seconds)
        return "stalled", 0.0
    try:
        while time.monotonic() - start < 4 * seconds:
            step()
            torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001  (its kind and text are the result)
        return f"{type(error).__name__}: {error}", time.monotonic() - start
    return "no error", time.monotonic() - start


@two_gpus
def test_a_stalled_rank_is_reported_before_nccl_ends_the_process():
    pool = RankPool(2, backend="nccl")
    try:
        (message, seconds), _ = pool.run(rank_that_stalls, 4, ranks=2, timeout=90)
    finally:
        pool.close()
    assert "rank 0 of 2" in message and "has not finished after 4 s" in message, message
    assert seconds < 12
