"""Options of the engine on CUDA, where they run other code than on the CPU."""

import models
import parity
import pytest
import reference
import torch
from parity import Case
from test_gpu import DEVICES, FORCED, gpu_pool, one_gpu, truth, two_gpus  # noqa: F401

pytestmark = pytest.mark.gpu
OFFLOAD = {"offload_optimizer": {"device": "cpu", "pin_memory": True}}


def check(case, pool, truth, zero=None, **shardwise):  # noqa: F811
    shardwise = {**FORCED, **shardwise}
    records = pool.run(parity.train, case, zero, shardwise, "cuda", ranks=case.ranks, timeout=240)
    parity.check(case, records, truth)


@one_gpu
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_states_in_host_memory(stage, dtype, gpu_pool, truth):  # noqa: F811
    ranks = min(DEVICES, 2)
    check(Case(stage, "gpt2", dtype, ranks=ranks, clip=True), gpu_pool, truth, OFFLOAD)


@one_gpu
@pytest.mark.parametrize("optimizer", ["Adagrad", "RMSprop", "Muon"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_other_optimizers(stage, optimizer, gpu_pool, truth):  # noqa: F811
    """One of the kernels', one that runs torch's own step on pieces, one for whole matrices."""
    case = Case(stage, "mlp", "bf16", 4, min(DEVICES, 2), True, optimizer)
    check(case, gpu_pool, truth)


@two_gpus
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_replicas(stage, gpu_pool, truth):  # noqa: F811
    case = Case(stage, "llama", "bf16", 4, 2, True)
    check(case, gpu_pool, truth, hybrid_shard_size=1)


def rank_ways(stage):
    """Norms and losses of three ways to one gradient: LAMB, bf16 on the wire, deterministic."""
    settings = parity.config_of(Case(stage, "gpt2", accumulation=2, ranks=1), shardwise=FORCED)
    settings["optimizer"] = {"type": "Lamb", "params": {"lr": 1e-3}}
    settings["communication_data_type"] = "bf16"
    settings["shardwise"]["deterministic"] = True
    norms, losses = [], []
    for way in ("engine", "direct", "flush"):
        with parity.make_engine(models.build("gpt2"), settings) as engine:
            for step in range(2):
                (micro,) = models.micro_batches("gpt2", step, 1, "cuda", torch.float32)
                loss = engine(**micro).loss
                (loss.backward if way == "direct" else lambda: engine.backward(loss))()  # noqa: B023
                if way != "flush" or step == 0:
                    engine.step()
            if way == "flush":
                assert engine.flush_accumulation()
            norms.append(engine.get_global_grad_norm())
            losses.append(engine(**micro).loss.item())
    torch.use_deterministic_algorithms(False)
    return norms, losses


@one_gpu
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_ways_of_accumulating(stage, gpu_pool):  # noqa: F811
    norms, losses = gpu_pool.run(rank_ways, stage)[0]
    # Dividing a gradient by 2 is exact, before or after backward; so the bits are the same.
    assert norms[0] == norms[1] == norms[2]
    assert losses[0] == losses[1] == losses[2]


def rank_construction(stage):
    """Losses of a model built in shards, and of one built whole; then one rank changes weights."""
    import shardwise

    settings = parity.config_of(Case(stage, "gpt2", ranks=1), shardwise=FORCED)
    losses = []
    for in_shards in (True, False):
        with shardwise.zero.Init(enabled=in_shards):
            model = models.BUILDERS["gpt2"]()
        engine = parity.make_engine(model, settings)
        with engine:
            if in_shards:
                start = engine.state_dict()
            else:
                engine.load_state_dict(start)
            for step in range(reference.STEPS):
                (micro,) = models.micro_batches("gpt2", step, 1, "cuda", torch.float32)
                loss = engine(**micro).loss
                engine.backward(loss)
                engine.step()
                losses.append(loss.item())
            first = next(engine.module.parameters())
            with torch.no_grad(), shardwise.zero.GatheredParameters(first, modifier_rank=0):
                first.zero_()
            with shardwise.zero.GatheredParameters(first):
                assert not first.any()
    half = len(losses) // 2
    return losses[:half], losses[half:]


@one_gpu
@pytest.mark.parametrize("stage", [0, 3])
def test_construction_in_shards(stage, gpu_pool):  # noqa: F811
    in_shards, whole = gpu_pool.run(rank_construction, stage)[0]
    assert in_shards == pytest.approx(whole, rel=1e-6)
