"""The log of collectives: counts, bytes and times by operation. See ``comms_logger`` in
``docs/engine.md``."""

import functools
import inspect
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from shardwise import config_source
from shardwise.console import log

SECTION = "comms_logger"
# Bytes on the busiest link for each byte of payload, as NCCL's tests count them.
BUS_FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_gather_into_tensor": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "reduce_scatter_tensor": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "all_to_all_single": lambda n: (n - 1) / n,
}


@dataclass
class Record:
    """Calls of one operation on this rank; ``bytes`` of payload, ``seconds`` until it was done."""

    calls: int = 0
    bytes: float = 0.0
    seconds: float = 0.0

    def add(self, other: "Record") -> None:
        self.calls += other.calls
        self.bytes += other.bytes
        self.seconds += other.seconds

    @property
    def bandwidth(self) -> float:
        """Algorithm bandwidth: payload bytes a second."""
        return self.bytes / self.seconds if self.seconds else 0.0


@dataclass
class LogSettings:
    """What to log."""

    enabled: bool = False
    verbose: bool = False
    prof_all: bool = True
    prof_ops: tuple[str, ...] = ()
    debug: bool = False

    def change(self, **settings: Any) -> None:
        for name, value in settings.items():
            if value is not None:
                setattr(self, name, tuple(value) if name == "prof_ops" else value)

    def names(self, operation: str) -> bool:
        return self.prof_all or operation in self.prof_ops

    def wants(self, operation: str, asked: bool = False) -> bool:
        return self.enabled and (asked or self.names(operation))


class CommsLog:
    """What was logged in this process, and who wants what: the program and each engine.

    Attributes: ``settings``, the program's own.
    """

    def __init__(self) -> None:
        self.settings = LogSettings()
        self.records: dict[str, Record] = defaultdict(Record)
        self._engines: dict[int, tuple[weakref.ref[Any], LogSettings]] = {}

    def who_wants(self, operation: str, asked: bool = False) -> list[LogSettings]:
        of_engines = [settings for engine, settings in self._engines.values() if engine()]
        everyone = [self.settings, *of_engines]
        return [settings for settings in everyone if settings.wants(operation, asked)]

    def watch(self, engine: Any, settings: LogSettings) -> None:
        """The engine's own collectives belong to the summary from now on."""
        self._engines[id(engine)] = weakref.ref(engine), settings

    def leave(self, engine: Any) -> None:
        """The engine ends; its numbers stay."""
        _, settings = self._engines.pop(id(engine), (None, None))
        if settings is not None:
            for name, record in engine_records(engine, settings).items():
                self.records[name].add(record)

    def all_records(self) -> dict[str, Record]:
        """By operation; those of engines are called "engine: all_gather" and so on."""
        found = {name: Record(r.calls, r.bytes, r.seconds) for name, r in self.records.items()}
        for reference, settings in self._engines.values():
            engine = reference()
            records = {} if engine is None else engine_records(engine, settings)
            for name, record in records.items():
                found.setdefault(name, Record()).add(record)
        return {name: r for name, r in sorted(found.items()) if r.calls}

    def reset(self) -> None:
        self.records.clear()
        for reference, _ in self._engines.values():
            if (engine := reference()) is not None:
                engine.reset_comm_counters()


def engine_records(engine: Any, settings: LogSettings) -> dict[str, Record]:
    if engine.device.type == "cuda":
        torch.cuda.synchronize(engine.device)  # times are those of collectives that have ended
    return {
        f"engine: {name}": Record(int(c["calls"]), c["payload_bytes"], c["seconds"])
        for name, c in engine.comm_counters().items()
        if settings.names(name)
    }


LOG = CommsLog()


def watch_engine(engine: Any, core: Any) -> None:
    """Does what ``comms_logger`` of the engine's configuration says."""
    settings = LogSettings()
    settings.change(**engine.config_value(SECTION))
    if settings.enabled:
        LOG.watch(engine, settings)
        core.measure_collectives(True)


def configure(
    deepspeed_config: Any = None,
    enabled: bool | None = None,
    prof_all: bool | None = None,
    prof_ops: list[str] | None = None,
    verbose: bool | None = None,
    debug: bool | None = None,
) -> None:
    """Turns the program's log of ``shardwise.comm``'s functions on or off.

    From ``comms_logger`` of a configuration (a dict or a path), then from the arguments that are
    given. An engine whose configuration has the section wants a log of its own while it lives.
    """
    if deepspeed_config is not None:
        LOG.settings.change(**config_source.sections(deepspeed_config, [SECTION])[SECTION])
    LOG.settings.change(
        enabled=enabled, prof_all=prof_all, prof_ops=prof_ops, verbose=verbose, debug=debug
    )


def logged(function: Callable) -> Callable:
    """The function with DeepSpeed's extra arguments; each call is timed where the log is on.

    A call that is timed waits for the device before and after, asynchronous ones too.
    """
    name = function.__name__

    @functools.wraps(function)
    def call(
        *args: Any, prof: bool = False, log_name: str | None = None, debug: str | None = None, **kw
    ) -> Any:
        wanted_by = LOG.who_wants(name, prof)
        if not wanted_by:
            return function(*args, **kw)
        values = (*args, *kw.values())
        _synchronize(values)
        began = time.perf_counter()
        result = function(*args, **kw)
        if hasattr(result, "wait"):
            result.wait()
        _synchronize(values)
        record = Record(1, _payload(args, kw), time.perf_counter() - began)
        LOG.records[log_name or name].add(record)
        verbose = [settings for settings in wanted_by if settings.verbose]
        if verbose:
            debug_too = any(settings.debug for settings in verbose)
            caller = f", called by {inspect.stack()[1].function}" if debug_too else ""
            log(
                f"{log_name or name}: {record.bytes:.0f} bytes, {1e3 * record.seconds:.3f} ms, "
                f"{_rate(record.bandwidth)}{caller}"
            )
        return result

    return call


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _payload(args: tuple, keywords: dict[str, Any]) -> int:
    """Bytes of the largest argument: the whole of what is gathered, scattered or reduced."""
    sizes = [0]
    for value in (*args, *keywords.values()):
        sizes.append(sum(tensor.nbytes for tensor in _tensors([value])))
    return max(sizes)


def _synchronize(values: tuple) -> None:
    if any(tensor.is_cuda for tensor in _tensors(values)):
        torch.cuda.synchronize()


def log_summary(show_straggler: bool = False, return_dict: bool = False) -> dict | None:
    """Prints on rank 0 what was logged on it: calls, bytes, time and bandwidths by operation.

    With ``show_straggler`` (collective) also how much longer than the fastest rank it took: time
    that was spent waiting for others.
    """
    records = LOG.all_records()
    waits = _waits(records) if show_straggler else {}
    if dist.is_initialized() and dist.get_rank() == 0:
        for line in _table(records, waits):
            log(line)
    if not return_dict:
        return None
    return {
        name: {
            "count": record.calls,
            "bytes": record.bytes,
            "seconds": record.seconds,
            "algorithm_bandwidth": record.bandwidth,
            **({"straggler_seconds": waits[name]} if show_straggler else {}),
        }
        for name, record in records.items()
    }


def _waits(records: dict[str, Record]) -> dict[str, float]:
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, {name: r.seconds for name, r in records.items()})
    return {
        name: record.seconds - min(other.get(name, record.seconds) for other in everyone)
        for name, record in records.items()
    }


def _table(records: dict[str, Record], waits: dict[str, float]) -> Iterator[str]:
    ranks = dist.get_world_size()
    wait_title = f"{'behind (ms)':>12}" if waits else ""
    yield (
        f"{'collective':<28}{'calls':>8}{'bytes':>16}{'time (ms)':>12}{'algorithm':>14}"
        f"{'bus':>14}{wait_title}"
    )
    for name, record in records.items():
        factor = BUS_FACTORS.get(name.removeprefix("engine: "), lambda n: 1.0)(ranks)
        wait = f"{1e3 * waits[name]:>12.3f}" if waits else ""
        yield (
            f"{name:<28}{record.calls:>8}{record.bytes:>16.0f}{1e3 * record.seconds:>12.3f}"
            f"{_rate(record.bandwidth):>14}{_rate(factor * record.bandwidth):>14}{wait}"
        )


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.3f} GB/s"


def reset_log() -> None:
    """Forgets what was logged."""
    LOG.reset()


def has_comm_data() -> bool:
    """Whether anything was logged."""
    return bool(LOG.all_records())


def get_comm_operation_count() -> int:
    """Calls that were logged."""
    return sum(record.calls for record in LOG.all_records().values())


def get_logged_comm_ops() -> list[str]:
    """Operations that were logged."""
    return list(LOG.all_records())
