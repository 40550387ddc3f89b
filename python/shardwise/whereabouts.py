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
from shardwise.divergence import different_calls
from shardwise.units import Unit

# How often a rank says where it is. Small against any time-out, and nothing against a step.
EVERY_SECONDS = 0.5
# A rank that says nothing for so long is stopped, dead, or at its end.
SILENCE_SECONDS = 4 * EVERY_SECONDS
# Places that are not the user's program.
OTHERS = (os.path.dirname(__file__), os.path.dirname(torch.__file__), os.path.dirname(os.__file__))


class Whereabouts:
    """Publishes what this rank does, beside the training, and reads what the others do.

    A thread writes to the store that the ranks met in: the micro-batch, the collectives under way
    and the line of the user's program. It costs training nothing but that thread. Clocks of two
    machines are never compared: each rank says how long it has been where it is, and counts what it
    says, so that two looks tell whether it still says something.

    ``group`` is the same one on all ranks; ``device`` that of the engine.
    """

    def __init__(self, core: _C.Engine, group: dist.ProcessGroup, device: torch.device):
        self._store = dist.PrefixStore(f"whereabouts/{group.group_name}", _get_default_store())
        self._recorder = _C.FlightRecorder(core)
        self._device = device
        self._core = weakref.ref(core)
        self._thread_of_user = threading.get_ident()
        self._stop = threading.Event()
        self._state: Any = None
        self._since = 0.0  # on this rank's own clock
        self._count = 0
        self.unfrozen: list[str] = []  # parameters that are to join the training in this window
        self._publish()
        thread = threading.Thread(target=self._run, name="shardwise-whereabouts", daemon=True)
        thread.start()
        # At the end of the program too: a thread must not be in the store when Python goes.
        self.stop = weakref.finalize(self, _end, self._stop, thread)

    def report(self, units: list[Unit]) -> list[str]:
        """A line for each rank, and which of ``units`` some ranks ran more often than others.

        Nothing where the store is gone, with the rank that kept it.
        """
        try:
            said, alive = self._listen()
        except dist.DistError:
            return []
        lines = [_line(rank, said[rank], alive[rank]) for rank in range(len(said))]
        # A rank that waits in no collective is not in the forward of the others.
        calls = [one[0]["calls"] if one and one[0]["under_way"] else None for one in said]
        parts = ["Where the ranks are:", *(f"  {line}" for line in lines)]
        return [*parts, *filter(None, [different_calls(calls, units)])]

    def _listen(self) -> tuple[list[list[Any] | None], list[bool]]:
        """What each rank says, once it has said two things more, or has been silent for long."""
        first = said = self._read_all()
        deadline = time.monotonic() + SILENCE_SECONDS
        while True:
            alive = [_news(before, now) > 1 for before, now in zip(first, said, strict=True)]
            if all(alive) or time.monotonic() > deadline:
                return said, alive
            time.sleep(EVERY_SECONDS / 5)
            try:
                said = self._read_all()
            except dist.DistError:  # the store went meanwhile: nobody can be called silent
                return said, [True] * len(said)

    def _run(self) -> None:
        if self._device.type == "cuda":  # or events would be asked in a context on the first GPU
            torch.cuda.set_device(self._device)
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
            "unfrozen": self.unfrozen,
        }
        del core
        if self._state != state:
            self._state, self._since = state, time.monotonic()
        self._count += 1
        said = [state, time.monotonic() - self._since, self._count]
        self._store.set(str(dist.get_rank()), json.dumps(said))

    def _read_all(self) -> list[list[Any] | None]:
        keys = [str(rank) for rank in range(dist.get_world_size())]
        return [
            json.loads(self._store.get(key)) if self._store.check([key]) else None for key in keys
        ]


def _end(stop: threading.Event, thread: threading.Thread) -> None:
    stop.set()
    # This thread itself ends here where it was the last to hold an engine that was dropped.
    if thread is not threading.current_thread():
        thread.join(4 * EVERY_SECONDS)  # longer only where the store has lost its other end


def _frame_of_user(frame: Any) -> str:
    """The innermost line of the user's program."""
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(OTHERS):
            return f"{os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_name}()"
        frame = frame.f_back
    return "nowhere in Python"


def _news(before: list[Any] | None, now: list[Any] | None) -> int:
    """How many things a rank has said between two looks."""
    return (now[2] if now else 0) - (before[2] if before else 0)


def _line(rank: int, said: list[Any] | None, alive: bool) -> str:
    if said is None:
        return f"rank {rank}: has said nothing yet"
    state, seconds, _ = said
    place = f"at {state['at']}, after {state['micro_steps']} micro-batches"
    if state["unfrozen"]:
        first, *others = state["unfrozen"]
        more = f" and {len(others)} more" if others else ""
        place += f"; it has unfrozen {first}{more}, which every rank must do before the same step"
    if not alive:
        silence = f"silent for more than {SILENCE_SECONDS:.0f} s (stopped or dead)"
        return f"rank {rank}: {silence}; it was {place}"
    for_seconds = f"for {seconds:.0f} s"
    if state["under_way"]:
        waits = ", ".join(state["under_way"])
        return f"rank {rank}: in {waits} {for_seconds}, {place}"
    last = f"; its last was {state['last']}" if state["last"] else ""
    return (
        f"rank {rank}: in no collective {for_seconds}{last}; it left the loop at micro-step "
        f"{state['micro_steps']}, or is busy, {place}"
    )
