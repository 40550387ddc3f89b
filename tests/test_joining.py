"""Ranks that cannot find each other: processes end in time, and say why."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_train import PROGRAM, job_of

PYTHON = """
import os, sys
from datetime import timedelta
import shardwise
if sys.argv[1] == "init":
    shardwise.init_distributed(timeout=timedelta(seconds=1))
else:
    import torch
    settings = {"train_batch_size": 2, "shardwise": {"timeout_seconds": 1}}
    shardwise.initialize(model=torch.nn.Linear(2, 2), config=settings)
"""


def end_of(command, rank: int, port: int, folder: Path) -> str:
    """What a rank of two says that fails to join the other; it must end with the code for that."""
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    start = time.monotonic()
    done = subprocess.run(
        command,
        env={**os.environ, **place, "MASTER_PORT": str(port)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 75, done.stderr
    assert time.monotonic() - start < 30
    assert f"rank {rank} of 2" in done.stderr and f"127.0.0.1:{port}" in done.stderr
    assert "frame #" not in done.stderr
    return done.stderr


def native(folder: Path) -> list:
    return [PROGRAM, "train", job_of(folder), "--set", "shardwise.timeout_seconds=1"]


@pytest.mark.parametrize("front", ["native", "init", "initialize"])
def test_another_program_on_the_port(front, tmp_path):
    command = native(tmp_path) if front == "native" else [sys.executable, "-c", PYTHON, front]
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = foreign.getsockname()[1]
        assert "another program has the port" in end_of(command, 1, port, tmp_path)
        if front != "initialize":
            assert "in use by another program" in end_of(command, 0, port, tmp_path)


@pytest.mark.parametrize("front", ["native", "init"])
def test_a_rank_that_never_comes(front, tmp_path):
    command = native(tmp_path) if front == "native" else [sys.executable, "-c", PYTHON, front]
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    text = end_of(command, 0, port, tmp_path)
    assert "for rank 1; there: 0." in text and "WORLD_SIZE=2" in text
