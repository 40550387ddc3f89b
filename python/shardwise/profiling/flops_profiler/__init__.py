"""Counts the floating-point operations of a model. See ``docs/engine.md``."""

from shardwise.profiling.flops_profiler.profiler import FlopsProfiler, get_model_profile

__all__ = ["FlopsProfiler", "get_model_profile"]
