"""``shardwise bench``: tables and their JSON on the CPU with tiny models, traces, loss curves."""

import contextlib
import importlib.util
import json
import os
import select
import subprocess
import sys
from pathlib import Path

import native_front
import pytest
import torch
from shardwise.bench.shapes import SHAPES

from shardwise.bench import breakdown, results, rows

ROOT = Path(__file__).resolve().parent.parent
LOSS_CURVES = ROOT / "bench" / "loss_curves.py"
one_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def run(*command):
    """Finds the program beside the interpreter, or where the test programs were carried to."""
    path = f"{os.environ['PATH']}:{native_front.PROGRAMS}"
    environment = {**os.environ, "PATH": path}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def bench(*words):
    return run(sys.executable, "-m", "shardwise.bench", *words)


def table_of(file, *words):
    """What a benchmark that ends well writes to its JSON, and what it prints."""
    done = bench(*words, "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    table = json.loads(file.read_text())
    for row in table["rows"]:
        assert any(line.startswith(row["name"]) for line in done.stdout.splitlines())
    return table


SHORT = ("train", "--shape", "tiny", "--steps", "1", "--repeats", "2", "--warmup", "1", "--rows")


def test_a_table_and_its_json(tmp_path):
    table = table_of(tmp_path / "table.json", *SHORT, "native,forced")
    assert [row["name"] for row in table["rows"]] == ["native", "native, stage 3, copies forced"]
    for row in table["rows"]:
        assert row["tokens_per_second"] * row["ms"] == pytest.approx(2 * 128 * 1e3)


def test_rows_in_fp8(tmp_path):
    keys = {"fp8-tensorwise": "native, fp8 tensorwise", "fp8-rowwise": "native, fp8 rowwise"}
    table = table_of(tmp_path / "table.json", *SHORT, ",".join(["native", *keys]))
    losses = {row["name"]: row["loss"] for row in table["rows"]}
    plain = losses.pop("native")
    assert list(losses) == list(keys.values())
    assert all(loss != plain for loss in losses.values())


@pytest.mark.parametrize(
    "words,message",
    [
        (["--warmup", "0"], "argument --warmup: '0' is no number of at least 1"),
        (["--gpus", "two"], "argument --gpus: 'two' is no number of at least 1"),
        (["--rows", "native,zero9"], "there is no row zero9"),
    ],
    ids=str,
)
def test_what_cannot_be_measured_is_said(words, message):
    done = bench("train", "--shape", "tiny", *words)
    assert done.returncode != 0
    assert message in done.stderr


# ---- kernels, collectives, comparison


def test_kernels_beside_a_copy(tmp_path):
    sizes = ("--device", "cpu", "--tokens", "8", "--vocabulary", "512", "--elements", "1")
    table = table_of(tmp_path / "table.json", "kernels", *sizes)
    kernels = {row["name"]: row for row in table["rows"]}
    copies = [row["of_copy"] for name, row in kernels.items() if name.startswith("copy")]
    assert max(copies) == 1.0
    adam = kernels["Adam, fp32"]  # reads four arrays of fp32 and writes three
    assert adam["gigabytes_per_second"] * adam["microseconds"] == pytest.approx(7 * 4 * 2**20 / 1e3)
    fastest = max(row["gigabytes_per_second"] for n, row in kernels.items() if n.startswith("copy"))
    assert adam["of_copy"] == pytest.approx(adam["gigabytes_per_second"] / fastest)
    assert all(row["microseconds"] > 0 for row in kernels.values())


def test_collectives_between_three_processes(tmp_path):
    sizes = ("--device", "cpu", "--gpus", "3", "--sizes", "1")
    table = table_of(tmp_path / "table.json", "comm", *sizes)
    elements = 2**20 // 4 // 3 * 3  # of fp32, the same number for each rank
    passing = {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2}
    assert [row["name"] for row in table["rows"]] == [f"{kind}, 1 MiB" for kind in passing]
    for row, factor in zip(table["rows"], passing.values(), strict=True):
        traffic = factor * 4 * elements * 2 / 3
        for way in ("", "torch_"):
            speed = row[f"{way}bus_gigabytes_per_second"] * 1e9
            assert speed * row[f"{way}ms"] / 1e3 == pytest.approx(traffic)


def test_tables_are_compared_by_row(tmp_path, capsys):
    before = {"device": "A", "rows": [{"name": "x", "ms": 2.0}, {"name": "y", "microseconds": 4.0}]}
    after = {"device": "B", "rows": [{"name": "y", "microseconds": 3.0}, {"name": "z", "ms": 1.0}]}
    for name, table in (("a", before), ("b", after)):
        (tmp_path / name).write_text(json.dumps(table))
    assert bench_main("compare", str(tmp_path / "a"), str(tmp_path / "b")) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed == "device differs: A, B y 4.00 3.00 0.750"


def bench_main(*words):
    from shardwise.bench.__main__ import main

    return main(list(words))


# ---- traces


def test_a_breakdown_is_the_arithmetic_of_its_trace(tmp_path):
    """Two steps: a product, then attention beside communication, a gap, and communication alone."""
    works = [
        ("kernel", "nvjet_tst_128x256", 0, 100),
        ("kernel", "flash_fprop", 100, 100),
        ("kernel", "ncclDevKernel_AllGather", 150, 100),  # 50 of it behind attention
        ("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 300, 50),
        ("kernel", "void shardwise::kernels::adam", 310, 20),  # inside the copy
        ("kernel", "ncclDevKernel_ReduceScatter", 390, 10),
        ("cpu_op", "aten::mm", 0, 1000),
        ("gpu_user_annotation", "nccl:all_gather", 0, 1000),
    ]
    events = [
        {"ph": "X", "cat": cat, "name": name, "ts": 7000 + begin, "dur": length}
        for cat, name, begin, length in works
    ]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": [{"ph": "M", "name": "process_name"}, *events]}))
    found = breakdown.breakdown(file, steps=2)
    assert found["ms"] == pytest.approx(0.4 / 2)
    assert found["busy"] == pytest.approx(310 / 400)
    assert found["exposed_communication"] == pytest.approx(60 / 2e3)
    kinds = {"products": 100, "attention": 100, "communication": 110, "copies": 50, "ours": 20}
    kinds = {kind: pytest.approx(length / 2e3) for kind, length in kinds.items()}
    assert found["kinds"] == {**kinds, "other": 0}
    assert found["kernels"][0] == ["nvjet_tst_128x256", pytest.approx(0.05), 0.5]


def operations(trace, name):
    """How often an operation was called in a trace."""
    events = json.loads(trace.read_text())["traceEvents"]
    return sum(event.get("name") == name and event.get("cat") == "cpu_op" for event in events)


def test_a_job_records_the_steps_it_is_asked_for(tmp_path):
    options = {
        "stage": 3,
        "force": False,
        "keep": True,
        "recompute": False,
        "fp8": "off",
        "gpus": 2,
    }
    job = rows.native_job(SHAPES["tiny"], options, tmp_path, steps=5)
    job["shardwise"]["trace"] = {"first_step": 2, "steps": 3, "path": "output/trace.json"}
    (tmp_path / "job.json").write_text(json.dumps(job))
    done = run(results.program(), "train", tmp_path / "job.json", "--ranks", "2")
    assert done.returncode == 0, done.stderr
    # One loss a micro-batch, one micro-batch a step.
    trace = tmp_path / "output" / "trace.json"
    assert operations(trace, "shardwise::linear_cross_entropy_forward") == 3
    with pytest.raises(SystemExit, match="the trace has no work of a GPU"):
        bench_main("trace", str(trace))


def test_the_error_of_a_row_is_its_cause():
    lines = "ValueError: the cause\\nWARNING: later\\n"
    program = f"import sys; sys.stderr.write('{lines}'); sys.exit(1)"
    found = results.results_of([sys.executable, "-c", program], {}, timeout_seconds=60)
    assert found == ([], "ValueError: the cause")


@pytest.mark.parametrize("interrupted", [False, True], ids=["too long", "interrupted"])
def test_nothing_that_a_row_has_started_is_left(interrupted, tmp_path, monkeypatch):
    """A pipe that the row's child writes to ends with the last process that holds it."""
    os.mkfifo(tmp_path / "pipe")
    child = f"import time; pipe = open({str(tmp_path / 'pipe')!r}, 'w'); "
    child += "print('here', file=pipe, flush=True); time.sleep(60)"
    row = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    communicate, pipes = subprocess.Popen.communicate, []

    def once_the_child_runs(process, *inputs, timeout):
        pipes.append(os.open(tmp_path / "pipe", os.O_RDONLY))
        assert os.read(pipes[0], 100) == b"here\n"
        if interrupted:
            raise KeyboardInterrupt
        return communicate(process, *inputs, timeout=timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", once_the_child_runs)
    with pytest.raises(KeyboardInterrupt) if interrupted else contextlib.nullcontext():
        found = results.results_of([sys.executable, "-c", row], {}, timeout_seconds=0.1)
        assert found == ([], "took more than 0.1 s")
    ended, _, _ = select.select(pipes, [], [], 10)
    assert ended and os.read(pipes[0], 100) == b"", "the row's child is still there"
    os.close(pipes[0])


class Cosh(torch.nn.Module):
    """Calls an operation that nothing else does, once a forward."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).cosh().mean()


def rank_record_trace(folder, first_step, steps, accumulation):
    import shardwise

    trace = {"first_step": first_step, "path": f"{folder}/trace.json"}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "shardwise": {"trace": trace},
    }
    engine = shardwise.initialize(model=Cosh(), config=config)[0]
    for _ in range(steps * accumulation):
        engine.backward(engine(torch.ones(1, 4)))
        engine.step()
    engine.destroy()


@pytest.mark.parametrize("first_step,steps,recorded", [(1, 5, 3), (4, 5, 2), (0, 2, None)])
def test_an_engine_records_whole_steps(first_step, steps, recorded, tmp_path, pool):
    """Three by default, each of two micro-batches, fewer where training ends before."""
    pool.run(rank_record_trace, str(tmp_path), first_step, steps, 2, ranks=1)
    trace = tmp_path / "trace.json"
    assert trace.exists() == (recorded is not None)
    if recorded:
        assert operations(trace, "aten::cosh") == 2 * recorded


def test_a_trace_that_cannot_be_written_is_a_warning(tmp_path, pool):
    missing = tmp_path / "none"
    (outcome,) = pool.outcomes(rank_record_trace, str(missing), 1, 2, 1, ranks=1)
    assert outcome.kind == "value", outcome.describe()
    assert f"shardwise.trace.path: {missing}/trace.json cannot be written" in outcome.log


# ---- loss curves


def load_loss_curves():
    spec = importlib.util.spec_from_file_location("loss_curves", LOSS_CURVES)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_curves_that_lie_apart_are_told_from_those_that_do_not():
    curves = load_loss_curves()
    steps = torch.arange(curves.STEPS) / curves.STEPS
    base = 3 - 2 * steps
    names = list(curves.PLAINS)
    given = {names[0]: base, names[1]: base + 0.01, names[2]: base - 0.02 * steps}

    def near(curve):
        return curves.judge({k: v.tolist() for k, v in {**given, "ours": curve}.items()})[1]

    assert near(base + 0.019)  # twice 0.01 in the mean, and less than twice 0.02 at most
    assert not near(base + 0.021)
    assert near(base + 0.03 * steps)
    bump = base.clone()
    bump[50:60] += 0.05  # little in the mean, much in one place
    assert not near(bump)
    assert not near(torch.full_like(base, torch.nan))


def test_loss_curves_of_a_tiny_model_lie_on_plain_pytorchs(tmp_path):
    file = tmp_path / "curves.json"
    done = run(sys.executable, LOSS_CURVES, "--tiny", "--json", file)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    curves = load_loss_curves()
    assert set(found["curves"]) == {*curves.PLAINS, *curves.OURS}
    for curve in found["curves"].values():
        assert len(curve) == curves.STEPS
        assert curve[0] == pytest.approx(torch.tensor(256.0).log().item(), abs=0.1)
        assert sum(curve[-10:]) / 10 < curve[0] - 1.5


def test_attention_of_less_than_a_row_is_refused():
    done = run(sys.executable, ROOT / "bench" / "attention.py", "--tokens", "64")
    assert done.returncode == 2
    assert "--length 4096: at least 16, and at most --tokens 64" in done.stderr


# ---- on a GPU


@pytest.mark.gpu
@one_gpu
def test_kernels_of_a_step_by_kind(tmp_path):
    table = table_of(tmp_path / "table.json", *SHORT, "native,engine", "--breakdown")
    for row in table["rows"]:
        found = row["breakdown"]
        assert all(found["kinds"][kind] > 0 for kind in ("products", "attention", "ours"))
        assert 0 < found["busy"] <= 1
        assert 0 <= found["exposed_communication"] <= found["ms"]


@pytest.mark.gpu
@one_gpu
def test_kernels_on_a_gpu_beside_a_copy(tmp_path):
    table = table_of(tmp_path / "table.json", "kernels", "--elements", "64", "--tokens", "4096")
    assert table["device"] == torch.cuda.get_device_name()
    assert all(row["of_copy"] <= 1.5 for row in table["rows"])  # caches help, but not as much
