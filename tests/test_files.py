"""Files that are not what they should be while the program runs: pipes, shortened, half-written."""

import os
import signal
import subprocess
import time

import pytest
from test_train import PROGRAM, job_of, rows, run


def wait_until(condition, process):
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("name", ["log.jsonl", "report.html"])
def test_a_pipe_in_the_place_of_an_output_is_refused(name, tmp_path):
    (tmp_path / "out").mkdir()
    os.mkfifo(tmp_path / "out" / name)
    text = run("train", job_of(tmp_path), expect=74, timeout=30)
    assert f"{tmp_path / 'out' / name}: cannot write" in text and "it is a pipe" in text


def test_a_corpus_that_becomes_shorter_is_named(tmp_path):
    job = job_of(tmp_path, training={"steps": 10**6, "output": "out"})
    process = subprocess.Popen(
        [PROGRAM, "train", job], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    log = tmp_path / "out" / "log.jsonl"
    wait_until(lambda: log.exists() and len(rows(tmp_path / "out", "step")) > 3, process)
    os.truncate(tmp_path / "text.txt", 1)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 74, errors
    assert "text.txt: cannot read it any more: it was made shorter" in errors


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_tokenize_leaves_nothing_when_a_signal_ends_it(ending, tmp_path):
    source, output = tmp_path / "a.txt", tmp_path / "a.tokens"
    source.write_text("some words of a line\n" * 400_000)
    arguments = ["data", "tokenize", "--tokenizer", "bytes", "--output", output, "--quiet"]
    process = subprocess.Popen(
        [PROGRAM, *arguments, *[source] * 500],  # 4 GB: it cannot be through before the signal
        stderr=subprocess.PIPE,
        # A shell without job control starts background jobs with the interrupt ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_until(lambda: list(tmp_path.glob("a.tokens.*.tmp")), process)
    process.send_signal(ending)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == -ending, errors
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
