"""Benchmarks: ``shardwise bench train``, or ``python -m shardwise.bench train``."""
