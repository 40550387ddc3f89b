"""Sends scalars to the monitors that the configuration turns on."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch.distributed as dist

from shardwise import _C, config_source
from shardwise.console import log
from shardwise.monitor.sinks import check_packages, make_sink

SECTIONS = ("csv_monitor", "tensorboard", "wandb")


class MonitorMaster:
    """All monitors of a configuration; rank 0 writes, other ranks do nothing.

    ``config``, a dict or the path of a file, has the sections ``csv_monitor``, ``tensorboard``,
    ``wandb`` in DeepSpeed's form: ``{"csv_monitor": {"enabled": True, "output_path": "logs"}}``.

    Attributes: ``enabled``, whether any is on (the same on every rank).
    """

    def __init__(self, config: Any):
        settings = config_source.sections(config, SECTIONS)
        enabled = [section for section in SECTIONS if settings[section]["enabled"]]
        check_packages(enabled)
        self.enabled = bool(enabled)
        self._sinks: list[Any] = []
        if not dist.is_initialized() or dist.get_rank() == 0:
            with ExitStack() as undo:
                undo.callback(self.close)
                for section in enabled:
                    self._sinks.append(_opened(section, settings[section]))
                undo.pop_all()

    def write_events(self, event_list: Iterable[tuple[str, Any, int]]) -> None:
        """Writes ``(name, value, x)`` each; the engine's own x is the number of samples so far.

        A value is a number or a tensor of one element, which is waited for.
        """
        events = [_checked(event) for event in event_list] if self._sinks else []
        for sink in list(self._sinks):
            self._guarded(sink, lambda sink=sink: sink.write(events))

    def close(self) -> None:
        """Ends the monitors; later events go nowhere."""
        while self._sinks:
            sink = self._sinks[-1]
            self._guarded(sink, sink.close)
            self._sinks = [other for other in self._sinks if other is not sink]

    def _guarded(self, sink: Any, action: Callable[[], None]) -> None:
        """A monitor that fails (a full disk, a lost connection) ends; training goes on."""
        try:
            action()
        except Exception as error:  # of any library
            self._sinks = [other for other in self._sinks if other is not sink]
            log(f"{type(sink).__name__} failed and writes no more: {type(error).__name__}: {error}")


def _opened(section: str, settings: dict[str, Any]) -> Any:
    try:
        return make_sink(section, settings)
    except _C.ConfigError:
        raise
    except Exception as error:  # of any library
        raise _C.ConfigError(
            f"{section} cannot begin ({type(error).__name__}: {error}); set {section}.enabled to "
            f"false to go without it"
        ) from error


def _checked(event: Any) -> tuple[str, float, int]:
    try:
        name, value, x = event
        return str(name), float(value), int(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _C.UsageError(
            f"an event is (name, value, x) with numbers as value and x, but it is {event!r}"
        ) from error
