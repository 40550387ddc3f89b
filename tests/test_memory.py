"""Bytes held by a rank: the report against the formulas of ZeRO, and against the process itself."""

import ctypes
import gc
import os

import models
import parity
import pytest
import torch
import torch.distributed as dist

RANKS = 4
LAYERS, WIDTH = 6, 192
MEBI = 2**20


def expected_bytes(stage, dtype, fp32_gradients, count, ranks=RANKS):
    """{parameters, gradients, optimizer} in bytes for `count` parameters."""
    held = 4 if dtype == "fp32" else 2
    gradient = 4 if dtype == "fp32" or fp32_gradients else 2
    optimizer = 8 if dtype == "fp32" else 12  # two moments, and a master for 16-bit parameters
    return {
        "parameters": held * count / (ranks if stage >= 3 else 1),
        "gradients": gradient * count / (ranks if stage >= 2 else 1),
        "optimizer": optimizer * count / (ranks if stage >= 1 else 1),
    }


def config(stage, dtype, accumulation=1, bucket=10**6):
    case = parity.Case(stage, "blocks", dtype, accumulation, RANKS)
    zero = {"reduce_bucket_size": bucket}
    return parity.config_of(case, zero, {"poison_released": False})


def on_device(engine) -> dict:
    """The report of the only tier that is in use without offload."""
    device, *others = engine.memory_report().values()
    assert all(not any(kinds.values()) for kinds in others)
    return device


def report(stage, dtype, accumulation):
    model = models.BlocksOnly(LAYERS, WIDTH)
    shapes = [p.numel() for p in model.parameters()]
    with parity.make_engine(model, config(stage, dtype, accumulation)) as engine:
        for _ in range(2 * accumulation):
            x = torch.randn(3, WIDTH, dtype=parity.reference.DTYPES[dtype])
            engine.backward(engine(x, x))
            engine.step()
        return on_device(engine), shapes


@pytest.mark.parametrize("dtype,accumulation", [("fp32", 1), ("bf16", 1), ("bf16", 4)])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_report_follows_the_formulas(stage, dtype, accumulation, pool):
    for held, shapes in pool.run(report, stage, dtype, accumulation, ranks=RANKS):
        count = sum(shapes)
        # Every parameter may be padded to 128 bytes and every block's segment to 128 per rank;
        # in elements of the smallest type.
        padding = 64 * len(shapes) + 64 * RANKS * LAYERS
        assert padding < 0.02 * count, "the model is too small to say anything"
        fp32_gradients = accumulation > 1
        for kind, exact in expected_bytes(stage, dtype, fp32_gradients, count).items():
            most = expected_bytes(stage, dtype, fp32_gradients, count + padding)[kind]
            assert exact <= held[kind] <= most, f"{kind}: {held[kind]}, expected {exact:.0f}"


@pytest.mark.parametrize("stage", [2, 3])
def test_ring_and_flying_gradients_are_listed_apart(stage, pool):
    for held, shapes in pool.run(report, stage, "fp32", 1, ranks=RANKS):
        unit = 4 * sum(shapes) / LAYERS
        assert held["gradients_in_flight"] >= unit
        assert (held["ring"] >= unit) == (stage == 3)
        assert held["ring"] < 4 * sum(shapes), "the ring must not hold the whole model"


def rank_rounds(stage, offload, rounds, device="cpu", shardwise=None):
    """After each engine's life: threads, open files, resident bytes, bytes of tensors and, on a
    GPU, of its allocator. The hooks are gone each time, and the module trains on."""
    found = []
    case = parity.Case(stage, "gpt2", ranks=dist.get_world_size())
    zero = {"offload_optimizer": {"device": "cpu" if offload else "none"}}
    for _ in range(rounds):
        model = models.build("gpt2")
        with parity.make_engine(model, parity.config_of(case, zero, shardwise)) as engine:
            for step in range(2):
                parity.accumulate(engine, case, step, device)
                engine.step()
        hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
        assert sum(hooks) == 0, "hooks were left"
        micro = models.micro_batches("gpt2", 0, 24, device, torch.float32)[0]
        model(**micro).loss.backward()
        del engine, model, micro
        threads, files = (len(os.listdir(f"/proc/self/{d}")) for d in ("task", "fd"))
        held = resident()
        allocated = torch.cuda.memory_allocated() if device == "cuda" else 0
        found.append((threads, files, held, tensor_bytes(), allocated))
    return found


def tensor_bytes() -> int:
    """Bytes behind all tensors that Python can reach."""
    storages = {}
    for value in gc.get_objects():
        if type(value) in (torch.Tensor, torch.nn.Parameter):
            storage = value.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


def check_rounds(rounds):
    (threads, files, held, tensors, allocated), last = rounds[2], rounds[-1]
    assert last[0] <= threads, "threads were left"
    assert last[1] <= files, "open files were left"
    assert last[2] - held < 4 * MEBI, "memory grew"
    assert last[3] <= tensors, "tensors were left"
    assert last[4] <= allocated, "device memory was left"


@pytest.mark.parametrize(
    "stage,offload", [(0, False), (1, True), (2, False), (3, False), (3, True)]
)
def test_LC_01_engines_leave_nothing_behind(stage, offload, own_pool):
    for rounds in own_pool(2).run(rank_rounds, stage, offload, 10, ranks=2):
        check_rounds(rounds)


# The model of the resident-memory test: 12 blocks of 8.4 M, 100.8 M parameters.
BIG = {"layers": 12, "width": 1024, "hidden": 4096}


def resident() -> int:
    """Bytes of this process in RAM, after handing free heap memory back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def resident_growth(stage, dtype):
    """Bytes that the process gained by model, engine and two steps; the report; the count."""
    parity.train(parity.Case(stage, "mlp", dtype, 1, RANKS), steps=2)  # loads what is loaded once
    dist.barrier()
    before = resident()
    model = models.BlocksOnly(**BIG)
    count = sum(p.numel() for p in model.parameters())
    unit = count // BIG["layers"]
    with parity.make_engine(model, config(stage, dtype, bucket=unit)) as engine:
        x = torch.randn(2, BIG["width"], dtype=parity.reference.DTYPES[dtype])
        for _ in range(2):
            engine.backward(engine(x, x))
            engine.step()
        return resident() - before, on_device(engine), count


@pytest.mark.parametrize(
    "stage,dtype",
    [(3, "bf16")]
    + [
        pytest.param(s, d, marks=pytest.mark.full)
        for s in range(4)
        for d in ("fp32", "bf16")
        if (s, d) != (3, "bf16")
    ],
)
def test_resident_memory_of_100m_parameters(stage, dtype, own_pool):
    pool = own_pool(RANKS)
    for grown, held, count in pool.run(resident_growth, stage, dtype, ranks=RANKS, timeout=500):
        formula = sum(expected_bytes(stage, dtype, False, count).values())
        extra = held["ring"] + held["gradients_in_flight"] + held["buffers"]
        # Gloo's staging of one unit's payload, autograd's gradients of one unit, and 40 MiB for
        # code pages and small allocations that first steps touch.
        slack = 2 * 4 * count / BIG["layers"] + 40 * MEBI
        assert formula * 0.97 <= grown <= formula + extra + slack, (
            f"grew by {grown / MEBI:.0f} MiB; formula {formula / MEBI:.0f}, "
            f"ring and buffers {extra / MEBI:.0f}, slack {slack / MEBI:.0f}"
        )
