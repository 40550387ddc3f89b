"""Settings that only move time and memory must not move a bit, for a fixed number of processes."""

import time
from itertools import product

import models
import parity
import pytest
import torch
import torch.distributed as dist
from parity import Case, make_engine
from reference import DTYPES
from steps import config

BUCKETS = [1, 5000, 10**9]
PREFETCH = [0, 3000, 10**9]
LIVE = [1, 10**9]
STAGE_2 = [{"reduce_bucket_size": b} for b in BUCKETS]
STAGE_3 = [
    {
        "reduce_bucket_size": BUCKETS[(i + j) % 3],
        "stage3_prefetch_bucket_size": prefetch,
        "stage3_max_live_parameters": live,
    }
    for i, prefetch in enumerate(PREFETCH)
    for j, live in enumerate(LIVE)
] + [{"stage3_param_persistence_threshold": 10**5}, {"overlap_comm": False}]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("stage,dtype", [(1, "bf16"), *product([2, 3], ["fp32", "bf16"])])
def test_settings_do_not_change_bits(stage, ranks, dtype, pool):
    case = Case(stage, "gpt2", dtype, ranks=ranks, clip=True)
    settings = STAGE_3 if stage == 3 else STAGE_2
    for rank in pool.run(train_with_all, case, settings, ranks=ranks):
        first = rank[0]
        for setting, record in zip(settings[1:], rank[1:], strict=True):
            for kind in ("losses", "norms"):
                assert record[kind] == first[kind], f"{setting} changes {kind}"
            for kind in ("gradients", "weights"):
                for name, value in first[kind].items():
                    same = torch.equal(record[kind][name], value)
                    assert same, f"{setting} changes the {kind} of {name}"


def train_with_all(case, settings):
    return [parity.train(case, zero=setting, steps=2) for setting in settings]


def train_deterministically(case):
    try:
        return [parity.train(case, shardwise={"deterministic": True}, steps=2) for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("train", [train_with_all, train_deterministically])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_two_runs_are_equal(stage, train, pool):
    case = Case(stage, "llama", "bf16", ranks=3, accumulation=4, clip=True)
    settings = [[{}, {}]] if train is train_with_all else []
    for first, second in pool.run(train, case, *settings, ranks=3):
        for kind in ("losses", "norms"):
            assert first[kind] == second[kind]
        for kind in ("gradients", "weights"):
            assert all(torch.equal(first[kind][n], w) for n, w in second[kind].items())


# XP-05: the deterministic mode


def engine_for(dtype, deterministic):
    settings = config(3, gradient_clipping=0.05, shardwise={"deterministic": deterministic})
    if dtype != "fp32":
        settings[dtype] = {"enabled": True}
    return make_engine(models.build("gpt2"), settings)


def rank_deterministic(dtype):
    with engine_for(dtype, True) as engine:
        record = []
        batches = [models.micro_batches("gpt2", i, 24, "cpu", DTYPES[dtype]) for i in range(5)]
        for step in range(50):
            micro = batches[step % 5][dist.get_rank()]  # two samples
            loss = engine(**micro).loss
            engine.backward(loss)
            engine.step()
            record.append((loss.item(), engine.get_global_grad_norm()))
        assert torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(False)
        return record, engine.state_dict()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_XP_05_two_runs_are_equal(dtype, pool):
    first, second = (pool.run(rank_deterministic, dtype, ranks=4) for _ in range(2))
    for (record, weights), (again, weights_again) in zip(first, second, strict=True):
        assert record == again
        assert all(torch.equal(weights_again[name], value) for name, value in weights.items())


def rank_cost(dtype, turns, burden=0.0):
    """Least processor seconds of a step without and with the mode, by turns. `burden`: seconds that
    are wasted in each step with it."""
    count = dist.get_world_size()
    micro = models.micro_batches("gpt2", 0, count, "cpu", DTYPES[dtype])[dist.get_rank()]
    least = [float("inf")] * 2
    with engine_for(dtype, False) as usual, engine_for(dtype, True) as deterministic:
        for turn in range(2 * turns):
            mode = turn % 2
            torch.use_deterministic_algorithms(bool(mode))
            engine = (usual, deterministic)[mode]
            start = time.process_time()
            engine.backward(engine(**micro).loss)
            engine.step()
            while mode and time.process_time() - start < burden:
                pass
            least[mode] = min(least[mode], time.process_time() - start)
        torch.use_deterministic_algorithms(False)
    return least


def cost_of_the_mode(pool, dtype, rounds, allowed, burden=0.0):
    """The share of a step that the mode costs, on the busiest rank.

    Processor time, not that of the wall, since other programs run here, too. They still make it
    longer, never shorter: each side counts with its least step, and more are taken, up to `rounds`
    times twenty, while the share seems to be above what is allowed.
    """
    least = [[float("inf")] * 2] * 2
    for _ in range(rounds):
        found = pool.run(rank_cost, dtype, 20, burden, ranks=2)
        least = [list(map(min, *pair)) for pair in zip(least, found, strict=True)]
        share = max(mode / usual for usual, mode in least) - 1
        if share < allowed:
            break
    return share


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_XP_05_the_mode_costs_little(dtype, pool):
    assert cost_of_the_mode(pool, dtype, rounds=10, allowed=0.15) < 0.15


def test_XP_05_a_mode_that_costs_much_is_seen(pool):
    usual = min(least for least, _ in pool.run(rank_cost, "fp32", 20, ranks=2))
    assert cost_of_the_mode(pool, "fp32", 2, 0.15, burden=1.5 * usual) > 0.15
