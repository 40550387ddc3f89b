"""The test harness itself: results, failures, death and silence of a rank are all reported."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from pairwise import pairs_of, pairwise
from rank_pool import JobFailed


def sum_of_ranks():
    value = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(value)
    return value.item(), dist.get_world_size()


def fail_on(rank):
    if dist.get_rank() == rank:
        raise ValueError("broken on purpose")
    return os.getpid()


def die_on(rank):
    if dist.get_rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def sleep(seconds):
    time.sleep(seconds)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_groups_of_every_size_share_the_pool(pool, ranks):
    total = sum(range(ranks))
    assert pool.run(sum_of_ranks, ranks=ranks) == [(total, ranks)] * ranks


def test_ranks_that_leave_at_once_do_not_disturb_the_meeting(pool):
    for _ in range(10):
        pool.run(os.getpid, ranks=4)


def test_an_exception_names_rank_and_cause(own_pool):
    with pytest.raises(JobFailed, match="rank 1 error: ValueError: broken on purpose"):
        own_pool(2).run(fail_on, 1, ranks=2)


def test_death_is_noticed_at_once_and_the_pool_recovers(own_pool):
    pool = own_pool(2)
    pool.run(sum_of_ranks, ranks=2)
    start = time.monotonic()
    outcomes = pool.outcomes(die_on, 1, ranks=2, timeout=60)
    assert time.monotonic() - start < 10
    assert (outcomes[1].kind, outcomes[1].value) == ("died", "SIGKILL")
    assert outcomes[0].kind == "error"
    assert pool.run(sum_of_ranks, ranks=2)[0] == (1, 2)


def test_a_silent_rank_is_given_up(own_pool):
    outcomes = own_pool(1).outcomes(sleep, 30, ranks=1, timeout=6)
    assert outcomes[0].kind == "silent"


def test_pairwise_meets_every_pair():
    factors = {"a": [0, 1, 2, 3], "b": "xyz", "c": [True, False], "d": [1, 4]}
    rows = [tuple(row.values()) for row in pairwise(factors)]
    met = set().union(*map(pairs_of, rows))
    wanted = 4 * 3 + 4 * 2 + 4 * 2 + 3 * 2 + 3 * 2 + 2 * 2
    assert len(met) == wanted
    assert len(rows) <= 16
