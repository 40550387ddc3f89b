"""XP-07: what the first step must be, for each instruction set, dtype and device.

The golden values are those of plain fp32 PyTorch on the CPU: logits, loss and all gradients. The
loops of our own kernels give the same bits at every level (``src/shardwise/kernels/*_test.cpp``);
torch's differ, and are chosen by ATEN_CPU_CAPABILITY before the first operation.
"""

from pathlib import Path

import models
import parity
import pytest
import torch
from parity import make_engine
from reference import DTYPES

LEVELS = ["default", "avx2", "avx512"]
MODEL = "gpt2"


def plain_first_step(dtype):
    """Logits, loss and gradients, flat by name, of plain PyTorch in this dtype."""
    model = models.build(MODEL).to(DTYPES[dtype])
    out = model(**models.batch(MODEL, 0))
    out.loss.backward()
    gradients = {n: p.grad.float() for n, p in model.named_parameters()}
    return {"logits": out.logits.detach().float(), "loss": out.loss.detach().float(), **gradients}


def golden_weights():
    """Random numbers differ by level: one bias in 128 rounds to its neighbour at another one."""
    return models.build(MODEL).state_dict()


def rank_first_step(weights, dtype, device="cpu", shardwise=None):
    """The same by the engine; the level that torch runs at, or the name of the device."""
    case = parity.Case(3, MODEL, dtype, ranks=1, power=0)
    model = models.build(MODEL)
    model.load_state_dict(weights)
    with make_engine(model, parity.config_of(case, None, shardwise)) as engine:
        micro = models.micro_batches(MODEL, 0, 1, device, DTYPES[dtype])[0]
        out = engine(**micro)
        engine.backward(out.loss)
        found = {"logits": out.logits, "loss": out.loss, **parity.full_gradients(engine)}
        where = torch.backends.cpu.get_cpu_capability() if device == "cpu" else device
        return where, {n: v.detach().float().cpu() for n, v in found.items()}


GOLDEN = ((plain_first_step, "fp32"), (golden_weights,))


def check_table(found, golden, plain, dtype):
    """The largest error of each tensor; the first one beyond its tolerance is named.

    fp32: as in the parity table. 16-bit: twice the error of plain PyTorch in that dtype, at least
    one rounding of the tensor's largest element.
    """
    assert found.keys() == golden.keys()
    errors = parity.relative_errors(found, {"all": golden}, "all")
    if dtype == "fp32":
        allowed = {n: 1e-6 if n == "loss" else 1e-5 for n in golden}
    else:
        of_plain = parity.relative_errors(plain, {"all": golden}, "all")
        allowed = {n: max(2 * e, torch.finfo(DTYPES[dtype]).eps) for n, e in of_plain.items()}
    table = "\n".join(f"{n:40} {errors[n]:.1e} of {allowed[n]:.1e}" for n in golden)
    bad = next((n for n in golden if errors[n] > allowed[n]), None)
    assert bad is None, f"{bad} is the first that is wrong\n{table}"


@pytest.mark.parametrize("level", LEVELS)
def test_XP_07_first_step_at_every_level(level, own_pool, reference):
    if level not in "default " + Path("/proc/cpuinfo").read_text():
        pytest.skip(f"this machine lacks {level}")
    pool = own_pool(1, env={"ATEN_CPU_CAPABILITY": level})
    golden, weights = (reference.run(f, *a)[0] for f, *a in GOLDEN)
    for dtype in DTYPES:
        plain = reference.run(plain_first_step, dtype)[0]
        where, found = pool.run(rank_first_step, weights, dtype)[0]
        assert where.lower() == level
        check_table(found, golden, plain, dtype)


def test_XP_07_the_table_names_what_is_wrong(reference):
    golden = reference.run(plain_first_step, "fp32")[0]
    name = "transformer.h.1.mlp.c_fc.weight"
    wrong = {**golden, name: golden[name] * 1.01}
    with pytest.raises(AssertionError, match=f"{name} is the first that is wrong"):
        check_table(wrong, golden, None, "fp32")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_XP_07_first_step_on_a_gpu(own_pool, reference):
    pool = own_pool(1, backend="nccl")
    golden, weights = (reference.run(f, *a)[0] for f, *a in GOLDEN)
    for dtype in DTYPES:
        plain = reference.run(plain_first_step, dtype)[0]
        where, found = pool.run(
            rank_first_step, weights, dtype, "cuda", {"force_communication": True}
        )[0]
        assert where == "cuda"
        check_table(found, golden, plain, dtype)
