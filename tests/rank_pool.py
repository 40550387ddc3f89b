"""A persistent pool of rank processes, so that a test need not start any.

A job is a function of an importable module, called on each of the first `ranks` processes inside a
fresh process group. Results, exceptions and what the rank printed come back to the caller.
"""

import multiprocessing
import os
import pickle
import signal
import tempfile
import time
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path

import rank_worker

# Ranks are forked from a server that has imported what they need, and nothing of ours: several
# seconds each. Not with a GPU: these modules may ask for it, and who has asked cannot be forked.
HEAVY = [
    "torch._dynamo",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
]
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch.distributed", *(HEAVY if not Path("/dev/nvidia0").exists() else [])]
)
GRACE_SECONDS = 20  # how long the other ranks may still answer once one has failed or died


@dataclass
class Outcome:
    """What one rank reported: kind is "value", "error", "died" or "silent" (no answer in time)."""

    rank: int
    kind: str
    value: object = None
    log: str = ""
    seconds: float = 0.0

    def describe(self) -> str:
        return f"rank {self.rank} {self.kind}: {self.value}\n{self.log[-6000:]}"


class JobFailed(AssertionError):
    """At least one rank of a job did not return a value."""


class RankPool:
    """`size` rank processes over `backend`; started by the first job, restarted after a failure."""

    def __init__(self, size: int, backend: str = "gloo", env: dict | None = None):
        self.size = size
        self.backend = backend
        self.env = env or {}
        self.workers: list[_Worker] = []

    def run(self, function, *args, ranks: int = 1, timeout: float = 120, **kwargs) -> list:
        """Calls function(*args, **kwargs) on `ranks` processes; the values in rank order."""
        outcomes = self.outcomes(function, *args, ranks=ranks, timeout=timeout, **kwargs)
        bad = [o for o in outcomes if o.kind != "value"]
        if bad:
            # A rank that raised on its own explains more than one that lost its peer.
            bad.sort(key=lambda o: (o.kind == "silent", o.seconds))
            raise JobFailed("\n".join(o.describe() for o in bad))
        return [o.value for o in outcomes]

    def outcomes(self, function, *args, ranks=1, timeout: float = 120, stopped=(), **kwargs):
        """As run, but reports each rank's outcome instead of raising.

        Nothing waits for the ranks of `stopped`, which the job is expected to bring to a halt.
        """
        if not 1 <= ranks <= self.size:
            raise ValueError(f"{ranks} ranks asked of a pool of {self.size}")
        self._start()
        with tempfile.TemporaryDirectory(prefix="ranks") as folder:
            job = (function.__module__, function.__qualname__, args, kwargs)
            for rank in range(ranks):
                self.workers[rank].send((ranks, f"{folder}/store", job))
            outcomes = self._collect(ranks, timeout, set(stopped))
        if any(o.kind != "value" for o in outcomes):
            self.close()
        return outcomes

    def close(self):
        for worker in self.workers:
            worker.kill()
        self.workers = []

    def _start(self):
        if not all(w.process.is_alive() for w in self.workers):
            self.close()
        if not self.workers:
            self.workers = [_Worker(r, self.backend, self.env) for r in range(self.size)]

    def _collect(self, ranks, timeout, stopped):
        start = time.monotonic()
        deadline = start + timeout
        waiting = {self.workers[r].channel: r for r in range(ranks)}
        found = {}
        while set(waiting.values()) - stopped and time.monotonic() < deadline:
            for channel in connection.wait(list(waiting), deadline - time.monotonic()):
                rank = waiting.pop(channel)
                found[rank] = self.workers[rank].receive(time.monotonic() - start)
                if found[rank].kind != "value":
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        for rank in waiting.values():
            self.workers[rank].say_where()
            text = f"no answer within {time.monotonic() - start:.0f} s"
            found[rank] = Outcome(rank, "silent", text, self.workers[rank].log())
        return [found[r] for r in range(ranks)]


class _Worker:
    """One rank process and the pipe that jobs and results travel through."""

    def __init__(self, rank: int, backend: str, env: dict):
        self.rank = rank
        self.output = tempfile.NamedTemporaryFile(prefix="rank")  # noqa: SIM115 - closed by kill
        self.channel, theirs = CONTEXT.Pipe()
        arguments = (theirs, rank, backend, env, self.output.name)
        self.process = CONTEXT.Process(target=rank_worker.main, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.log_start = 0

    def send(self, job):
        self.log_start = os.fstat(self.output.fileno()).st_size
        self.channel.send_bytes(pickle.dumps(job))

    def receive(self, seconds: float) -> Outcome:
        try:
            kind, value = pickle.loads(self.channel.recv_bytes())
        except (EOFError, ConnectionResetError):
            self.process.join(10)
            code = self.process.exitcode
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return Outcome(self.rank, "died", how, self.log(), seconds)
        return Outcome(self.rank, kind, value, self.log(), seconds)

    def say_where(self):
        """The stacks of its threads go to its log. A stopped process says nothing."""
        os.kill(self.process.pid, signal.SIGUSR1)
        time.sleep(0.2)

    def log(self) -> str:
        """What the rank has printed since the job began."""
        size = os.fstat(self.output.fileno()).st_size
        return os.pread(self.output.fileno(), size, self.log_start).decode(errors="replace")

    def kill(self):
        self.process.kill()  # ends a stopped process too
        self.process.join()
        self.channel.close()
        self.output.close()
