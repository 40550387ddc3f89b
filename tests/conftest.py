"""Fixtures: the rank pool, pools of a test's own, the reference process."""

import pytest
from rank_pool import RankPool


@pytest.fixture(scope="session")
def pool():
    """Four CPU ranks over Gloo, shared by all tests that end well."""
    pool = RankPool(4)
    yield pool
    pool.close()


@pytest.fixture
def own_pool():
    """Makes pools for tests that kill or stop their ranks."""
    pools = []

    def make(size, **options):
        pools.append(RankPool(size, **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture(scope="session")
def reference():
    """A process that never imports shardwise and trains with plain PyTorch."""
    pool = RankPool(1)
    yield pool
    pool.close()
