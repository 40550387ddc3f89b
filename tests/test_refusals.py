"""What cannot work is refused before anything changes, on every rank, with the mend in the text."""

import gc
import sys
import threading
import time

from steps import config, engine_of, samples, train_step


# The end of an engine


def rank_forgets_engines():
    """What Python complains of when the thread beside an engine is the last that knows it."""
    complaints = []
    old, sys.unraisablehook = sys.unraisablehook, lambda event: complaints.append(repr(event))
    try:
        for _ in range(2):
            engine = engine_of(1)
            train_step(engine)
            del engine
            gc.collect()
            deadline = time.monotonic() + 10
            while "shardwise-whereabouts" in [thread.name for thread in threading.enumerate()]:
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        sys.unraisablehook = old
    return complaints


def test_a_forgotten_engine_ends_in_silence(pool):
    assert pool.run(rank_forgets_engines, ranks=2) == [[], []]
