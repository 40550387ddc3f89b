"""Fixtures: the rank pool, pools of a test's own, the reference process."""

import os
import pickle

import pytest
from rank_pool import RankPool

# For the test process, and for the server that ranks are forked from.
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")


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


class Reference:
    """A process that never imports shardwise and trains with plain PyTorch; asked only once."""

    def __init__(self):
        self.pool = RankPool(1)
        self.known = {}

    def run(self, function, *args, **kwargs) -> list:
        key = pickle.dumps((function, args, kwargs))
        if key not in self.known:
            self.known[key] = self.pool.run(function, *args, **kwargs)
        return self.known[key]


@pytest.fixture(scope="session")
def reference():
    reference = Reference()
    yield reference
    reference.pool.close()
