"""Numbers of a running engine: the step log, monitors, times. See ``docs/engine.md``."""

from shardwise.monitor.monitor import MonitorMaster

__all__ = ["MonitorMaster"]
