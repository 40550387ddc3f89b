"""Where each rank is, so that an error about ranks that wait can say whom they wait for."""

import json
import os
import sys
import threading
import time
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from shardwise import _C

# How often a rank says where it is. Small against any time-out, and nothing against a step.
EVERY_SECONDS = 0.5
# Places that are not the user's program.
OTHERS = (os.path.dirname(__file__), os.path.dirname(torch.__file__), os.path.dirname(os.__file__))


class Whereabouts:
    """Publishes what this rank does, beside the training, and reads what the others do.

    A thread writes to the store that the ranks met in: the micro-batch, the collectives under way
    and the line of the user's program. It costs training nothing but that thread.
    """

    def __init__(self, core: _C.Engine, group: dist.ProcessGroup):
        self._store = dist.PrefixStore(f"whereabouts/{group.group_name}", _get_default_store())
        self._recorder = _C.FlightRecorder(core)
        self._core = weakref.ref(core)
        self._thread_of_user = threading.get_ident()
        self._stop = threading.Event()
        self._said: Any = None
        self._publish()
        thread = threading.Thread(target=self._run, name="shardwise-whereabouts", daemon=True)
        thread.start()
        # At the end of the program too: a thread must not be in the store when Python goes.
        self.stop = weakref.finalize(self, _end, self._stop, thread)

    def describe(self) -> str:
        """A line for each rank; "" where the store is gone, with the rank that kept it."""
        try:
            self._publish()
            said = self._read_all()
        except dist.DistError:
            return ""
        now = time.time()
        lines = [_line(rank, state, now) for rank, state in enumerate(said)]
        return "Where the ranks are:\n" + "\n".join(f"  {line}" for line in lines)

    def calls(self) -> list[list[int] | None]:
        """How often each rank ran each unit in its last forward, by rank and unit.

        None for a rank that waits in no collective: it is not in the forward of the others.
        """
        time.sleep(2 * EVERY_SECONDS)  # until all have said where they are now
        try:
            said = self._read_all()
        except dist.DistError:
            return [None] * dist.get_world_size()
        waiting = [state is not None and state[0]["under_way"] for state in said]
        return [
            state[0]["calls"] if waits else None for state, waits in zip(said, waiting, strict=True)
        ]

    def _run(self) -> None:
        while not self._stop.wait(EVERY_SECONDS) and self._core() is not None:
            try:
                self._publish()
            except Exception:  # the store is gone: the job ends, and says why elsewhere
                return

    def _publish(self) -> None:
        core = self._core()
        if core is None:
            return
        frame = _frame_of_user(sys._current_frames().get(self._thread_of_user))
        state = {
            "micro_steps": core.window.micro_steps,
            "under_way": self._recorder.under_way(),
            "last": self._recorder.last_finished(),
            "count": self._recorder.count(),
            "at": frame,
            "calls": core.tensors.unit_calls(),
        }
        del core
        if self._said is None or self._said[0] != state:
            self._said = (state, time.time())
        self._store.set(str(dist.get_rank()), json.dumps([*self._said, time.time()]))

    def _read_all(self) -> list[list[Any] | None]:
        keys = [str(rank) for rank in range(dist.get_world_size())]
        return [
            json.loads(self._store.get(key)) if self._store.check([key]) else None for key in keys
        ]


def _end(stop: threading.Event, thread: threading.Thread) -> None:
    stop.set()
    thread.join(4 * EVERY_SECONDS)  # longer only where the store has lost its other end


def _frame_of_user(frame: Any) -> str:
    """The innermost line of the user's program."""
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(OTHERS):
            return f"{os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_name}()"
        frame = frame.f_back
    return "nowhere in Python"


def _line(rank: int, said: list[Any] | None, now: float) -> str:
    if said is None:
        return f"rank {rank}: has said nothing yet"
    state, since, heard = said
    place = f"at {state['at']}, after {state['micro_steps']} micro-batches"
    silence = now - heard
    if silence > 4 * EVERY_SECONDS:
        return f"rank {rank}: silent for {silence:.0f} s (stopped or dead); it was {place}"
    for_seconds = f"for {now - since:.0f} s"
    if state["under_way"]:
        waits = ", ".join(state["under_way"])
        return f"rank {rank}: in {waits} {for_seconds}, {place}"
    last = f"; its last was {state['last']}" if state["last"] else ""
    return (
        f"rank {rank}: in no collective {for_seconds}{last}; it left the loop at micro-step "
        f"{state['micro_steps']}, or is busy, {place}"
    )
