"""``shardwise bench``: the table and its JSON, on the CPU with a tiny model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).parent / "shardwise"


def bench(*words):
    return subprocess.run([PROGRAM, "bench", *words], capture_output=True, text=True, check=False)


def test_a_table_and_its_json(tmp_path):
    file = tmp_path / "table.json"
    short = ["--steps", "1", "--repeats", "2", "--warmup", "1"]
    done = bench("train", "--shape", "tiny", "--rows", "native", *short, "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    table = json.loads(file.read_text())
    assert [row["name"] for row in table["rows"]] == ["native", "native, stage 3, copies forced"]
    for row in table["rows"]:
        assert row["tokens_per_second"] * row["ms"] == pytest.approx(2 * 128 * 1e3)
        assert any(row["name"] in line for line in done.stdout.splitlines())


@pytest.mark.parametrize("option", ["--warmup", "--steps", "--repeats", "--gpus"])
def test_counts_are_at_least_one(option):
    """The native row takes its first time from the end of the last step of the warm-up."""
    done = bench("train", "--shape", "tiny", "--rows", "native", option, "0")
    assert done.returncode == 2
    assert f"argument {option}: '0' is no number of at least 1" in done.stderr
