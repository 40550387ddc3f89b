"""Cases of ranks that wait for each other: what their reports say, and what stays behind."""

import gc
import re
import threading
import time

import models
import parity
import pytest
import torch
import torch.distributed as dist
from parity import Case, make_engine
from steps import config, engine_of, samples, train_step

TIMEOUT = 5


# DG: reports about ranks that wait


def rank_misbehaves(how):
    """Rank 3 leaves a block out, or rank 1 sleeps."""
    model = models.build("mlp")
    engine = make_engine(model, config(3, shardwise={"timeout_seconds": TIMEOUT}))
    train_step(engine, 0)
    if how == "skips" and dist.get_rank() == 3:
        model.blocks[3].forward = lambda x: x  # never reached: the block is left out
        skipped = model.blocks
        model.blocks = torch.nn.ModuleList(b for i, b in enumerate(skipped) if i != 3)
    start = time.monotonic()
    try:
        for step in range(1, 4):
            if how == "sleeps" and dist.get_rank() == 1:
                time.sleep(3 * TIMEOUT)
            train_step(engine, step)
    except RuntimeError as error:
        return time.monotonic() - start, str(error)
    return None


@pytest.mark.parametrize("how", ["skips", "sleeps"])
def test_DG_01_the_report_says_who_is_missing(how, own_pool):
    odd = {"skips": 3, "sleeps": 1}[how]
    stopped = [odd] if how == "sleeps" else []
    outcomes = own_pool(4).outcomes(rank_misbehaves, how, ranks=4, timeout=60, stopped=stopped)
    for rank, outcome in enumerate(outcomes):
        if rank == odd and how == "sleeps":
            continue
        assert outcome.kind == "value" and outcome.value is not None, outcome.describe()
        seconds, message = outcome.value
        assert seconds < TIMEOUT + 5
        if how == "sleeps":
            assert "blocks." in message, message
            assert "rank 1: in no collective" in message, message
            assert "rank_misbehaves()" in message, "the line of the rank that is stuck"
            for other in (0, 2, 3):
                assert f"rank {other}: in all_gather for " in message, message
        else:
            assert "blocks.3" in message and "rank 3" in message, message


def rank_reports():
    """Shard groups of two; the clock of rank 3's machine is an hour ahead."""
    from types import SimpleNamespace

    from shardwise import whereabouts

    if dist.get_rank() == 3:
        whereabouts.time = SimpleNamespace(
            time=lambda: time.time() + 3600,
            monotonic=lambda: time.monotonic() + 3600,
            sleep=time.sleep,
        )
    try:
        with engine_of(3, shardwise={"hybrid_shard_size": 2}, **FOUR_RANKS) as engine:
            train_step(engine)
            report = engine._wiring.whereabouts.report([])
            dist.barrier()
            return report
    finally:
        whereabouts.time = time


FOUR_RANKS = {"train_micro_batch_size_per_gpu": 12}


def test_DG_02_ranks_of_other_shards_and_clocks(pool):
    for report in pool.run(rank_reports, ranks=4):
        ranks = [line.split(":")[0].strip() for line in report[1:]]
        assert ranks == ["rank 0", "rank 1", "rank 2", "rank 3"]
        for line in report[1:]:
            assert "said nothing" not in line and "silent" not in line, line
            seconds = int(re.search(r" for (\d+) s", line).group(1))
            assert seconds < 60, line


def rank_of_another_size():
    """Rank 2 accumulates: in bf16 its gradients are fp32 then, and come half as often."""
    settings = parity.config_of(Case(1, dtype="bf16", ranks=4))
    settings["shardwise"]["timeout_seconds"] = TIMEOUT
    engine = make_engine(models.build("mlp"), settings)
    if dist.get_rank() == 2:
        engine.set_train_batch_size(2 * engine.train_batch_size())
    start = time.monotonic()
    try:
        for step in range(6):
            engine.backward(engine(**{k: v.bfloat16() for k, v in samples(step).items()}))
            engine.step()
    except RuntimeError as error:
        return time.monotonic() - start, str(error)
    return None


def test_DG_01_another_size_on_one_rank(own_pool):
    outcomes = own_pool(4).outcomes(rank_of_another_size, ranks=4, timeout=60)
    for rank, outcome in enumerate(outcomes):
        assert outcome.kind == "value" and outcome.value is not None, outcome.describe()
        seconds, message = outcome.value
        assert seconds < TIMEOUT + 5
        assert f"rank {rank}" in message and "blocks." in message, message


def rank_dropped(stage):
    """Engines that are deleted without destroy(): threads before and after."""

    def threads():
        return sum(t.name == "shardwise-whereabouts" for t in threading.enumerate())

    for _ in range(3):
        engine = engine_of(stage)
        train_step(engine)
        del engine
        gc.collect()
    deadline = time.monotonic() + TIMEOUT
    while threads() and time.monotonic() < deadline:
        time.sleep(0.1)
    return threads()


@pytest.mark.parametrize("stage", [0, 3])
def test_LC_01_deleted_engines_leave_no_thread(stage, pool):
    assert pool.run(rank_dropped, stage, ranks=2) == [0, 0]
