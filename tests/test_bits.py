"""Settings that only move time and memory must not move a bit, for a fixed number of processes."""

from itertools import product

import parity
import pytest
import torch
from parity import Case

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
