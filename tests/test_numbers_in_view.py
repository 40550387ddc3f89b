"""What an engine tells of itself: step log, monitors, times, collectives, FLOPs."""

import contextlib
import csv
import io
import re
import shutil
import sys
import types

import models
import pytest
import torch
import torch.distributed as dist
from parity import make_engine
from torch import nn

MICRO = 4


def config_of(accumulation=1, **more):
    return {
        "train_micro_batch_size_per_gpu": MICRO,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        **more,
    }


def train(engine, steps, model="mlp"):
    """Trains on the same samples; losses of forward, by step."""
    dtype = next(engine.module.parameters()).dtype
    batch = {key: value[:MICRO] for key, value in models.batch(model, 0).items()}
    batch = {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items()}
    losses = []
    for _ in range(steps):
        window = []
        for _ in range(engine.gradient_accumulation_steps()):
            loss = models.loss_of(engine(**batch))
            window.append(loss.item())
            engine.backward(loss)
            engine.step()
        losses.append(sum(window) / len(window))
    return losses


@contextlib.contextmanager
def logged(config, model="mlp"):
    """An engine, and what it prints on standard error and output."""
    text = io.StringIO()
    with (
        contextlib.redirect_stderr(text),
        contextlib.redirect_stdout(text),
        make_engine(models.build(model), config) as engine,
    ):
        yield engine, text


# The step log


def rank_step_log():
    schedule = {
        "type": "WarmupLR",
        "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 4, "warmup_type": "linear"},
    }
    config = config_of(2, steps_per_print=2, scheduler=schedule)
    rates = []
    with logged(config) as (engine, text):
        losses = []
        for step in range(5):
            rates.append(engine.get_lr()[0])
            losses += train(engine, 1)
            if step == 2:
                engine.log("temperature", torch.tensor(0.5))
    lines = [line for line in text.getvalue().splitlines() if "] step " in line]
    if dist.get_rank() != 0:
        assert lines == []
        return
    assert [re.search(r"step (\d+),", line)[1] for line in lines] == ["2", "4"]
    for line, step in zip(lines, (1, 3), strict=True):
        assert f"loss {losses[step]:.6g} (rank 0), lr {rates[step]:.3e}, gradient norm" in line
        assert re.search(r"skipped 0, [\d.e+]+ samples/s, memory \d+\.\d\d GiB", line)
        assert "loss scale" not in line
    assert "temperature 0.5" in lines[1]
    assert "temperature" not in lines[0]


def test_the_step_log(pool):
    pool.run(rank_step_log, ranks=2)


def rank_tokens_per_second():
    with logged(config_of(2, steps_per_print=2), "llama") as (engine, text):
        length = next(iter(models.batch("llama", 0).values())).shape[1]
        train(engine, 4, "llama")
    return length, re.findall(r"([\d.e+]+) samples/s, ([\d.e+]+) tokens/s, memory", text.getvalue())


def test_the_step_log_counts_tokens(pool):
    length, found = pool.run(rank_tokens_per_second, ranks=2)[0]
    assert len(found) == 2
    for samples, tokens in found:  # four digits each
        assert float(tokens) == pytest.approx(length * float(samples), rel=1e-3)


def rank_quiet(every):
    with logged(config_of(steps_per_print=every)) as (engine, text):
        train(engine, 3)
    return "] step " in text.getvalue()


@pytest.mark.parametrize("every", [None, 0, "inf", 4])
def test_no_line_before_its_time(every, pool):
    assert pool.run(rank_quiet, every, ranks=1) == [False]


def rank_undivided(accumulation):
    """The caller divides the loss itself, as transformers' Trainer does."""
    config = config_of(accumulation, steps_per_print=1)
    with logged(config) as (engine, text):
        batch = {key: value[:MICRO] for key, value in models.batch("mlp", 0).items()}
        for _ in range(accumulation):
            loss = engine(**batch)
            engine.backward(loss / accumulation, scale_wrt_gas=False)
            engine.step()
    return f"loss {loss.item():.6g}," in text.getvalue()


@pytest.mark.parametrize("accumulation", [1, 4])
def test_a_loss_that_the_caller_divides(accumulation, pool):
    assert pool.run(rank_undivided, accumulation, ranks=1) == [True]


# Monitors


def rank_no_tokens():
    """The second of two micro-batches has no target: its mean is NaN, the step's loss is not."""
    config = config_of(2, steps_per_print=1, shardwise={"token_weighted_loss": True})
    with logged(config, "gpt2") as (engine, text):
        ids = models.batch("gpt2", 0)["input_ids"][:MICRO]
        first = engine(input_ids=ids, labels=ids).loss
        engine.backward(first)
        engine.step()
        second = engine(input_ids=ids, labels=torch.full_like(ids, -100)).loss
        assert bool(second.isnan())
        engine.backward(second)
        engine.step()
        assert engine.was_step_applied()
        printed = float(re.search(r"step 1, loss (\S+),", text.getvalue())[1])
        assert printed == pytest.approx(first.item(), rel=1e-5)


def test_micro_batches_without_targets_do_not_spoil_the_loss(pool):
    pool.run(rank_no_tokens, ranks=1)


def rank_monitors(folder):
    sections = {
        name: {"enabled": True, "output_path": folder, "job_name": name}
        for name in ("csv_monitor", "tensorboard")
    }
    fp16 = {"enabled": True, "initial_scale_power": 4, "loss_scale_window": 2, "hysteresis": 1}
    with logged(config_of(2, fp16=fp16, **sections)) as (engine, _):
        scales, norms = [], []
        losses = []
        for _ in range(4):
            scales.append(engine.loss_scale)
            losses += train(engine, 1)
            norms.append(engine.get_global_grad_norm())
        assert engine.monitor.enabled
        engine.monitor.write_events([("mine/value", torch.tensor(2.5), 7)])
        with pytest.raises(RuntimeError, match="an event is") if dist.get_rank() == 0 else NOTHING:
            engine.monitor.write_events([("mine/value", "high", 7)])
    return losses, scales, norms


NOTHING = contextlib.nullcontext()


def test_csv_and_tensorboard(pool, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    losses, scales, norms = pool.run(rank_monitors, str(tmp_path), ranks=2)[0]
    assert scales[0] != scales[-1], "the scale has to change in the test"
    x = [2 * 2 * MICRO * (step + 1) for step in range(4)]
    expected = {
        "train_loss": losses,
        "lr": [1e-3] * 4,
        "loss_scale": scales,
        "grad_norm": norms,
    }
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    for name, values in expected.items():
        rows = list(csv.reader((tmp_path / f"csv_monitor/Train_Samples_{name}.csv").open()))
        assert rows[0] == ["step", name]
        assert [int(row[0]) for row in rows[1:]] == x
        assert [float(row[1]) for row in rows[1:]] == pytest.approx(values, rel=1e-6)
        scalars = events.Scalars(f"Train/Samples/{name}")
        assert [scalar.step for scalar in scalars] == x
        assert [scalar.value for scalar in scalars] == pytest.approx(values, rel=1e-6)
    assert (tmp_path / "csv_monitor/mine_value.csv").read_text().split() == ["step,value", "7,2.5"]


def rank_wandb():
    calls = []
    fake = types.ModuleType("wandb")
    fake.run = None
    fake.init = lambda **options: calls.append(("init", options))
    fake.log = lambda values, step: calls.append((step, values))
    fake.finish = lambda: calls.append("finish")
    sys.modules["wandb"] = fake
    try:
        section = {"enabled": True, "team": "t", "project": "p"}
        with logged(config_of(wandb=section)) as (engine, _):
            losses = train(engine, 2)
    finally:
        del sys.modules["wandb"]
    return calls, losses


def test_wandb(pool):
    (calls, losses), (others, _) = pool.run(rank_wandb, ranks=2)
    assert others == []
    assert calls[0] == ("init", {"project": "p", "group": None, "entity": "t"})
    assert calls[-1] == "finish"
    seen = [call for call in calls[1:-1] if "Train/Samples/train_loss" in call[1]]
    assert [step for step, _ in seen] == [2 * MICRO, 4 * MICRO]
    values = [call["Train/Samples/train_loss"] for _, call in seen]
    assert values == pytest.approx(losses, rel=1e-6)


def rank_missing(section):
    sys.modules[section] = None
    try:
        with pytest.raises(ValueError, match=f"pip install {section}"):
            make_engine(models.build("mlp"), config_of(**{section: {"enabled": True}}))
    finally:
        del sys.modules[section]
    with pytest.raises(ValueError, match="comet.enabled.*not available.*csv_monitor"):
        make_engine(models.build("mlp"), config_of(comet={"enabled": True}))


@pytest.mark.parametrize("section", ["tensorboard", "wandb"])
def test_a_missing_package_is_named(section, pool):
    pool.run(rank_missing, section, ranks=1)


def test_a_monitor_without_an_engine(tmp_path):
    from shardwise.monitor.monitor import MonitorMaster

    from shardwise import ConfigError

    section = {"enabled": True, "output_path": str(tmp_path), "job_name": "j"}
    for value in (1.5, 2.5):  # a run that goes on appends
        monitor = MonitorMaster({"csv_monitor": section, "train_batch_size": 8})
        monitor.write_events([("a/b c", value, 3)])
        monitor.close()
    assert (tmp_path / "j/a_b_c.csv").read_text().split() == ["step,b", "c", "3,1.5", "3,2.5"]
    assert not MonitorMaster({}).enabled
    with pytest.raises(ConfigError, match="output_path"):
        MonitorMaster({"csv_monitor": {"output_pth": "x"}})


# Times


def rank_times(folder, every):
    monitor = {"enabled": True, "output_path": folder, "job_name": "j"}
    config = config_of(3, wall_clock_breakdown=True, csv_monitor=monitor, **every)
    with logged(config) as (engine, text):
        with torch.no_grad():
            engine(**models.batch("mlp", 0))  # an evaluation is no part of a step
        train(engine, 2)
    return [line for line in text.getvalue().splitlines() if "time of a step" in line]


@pytest.mark.parametrize("every,lines", [({}, 2), ({"steps_per_print": 2}, 1)], ids=str)
def test_wall_clock_breakdown(every, lines, pool, tmp_path):
    printed = pool.run(rank_times, str(tmp_path), every, ranks=1)[0]
    assert len(printed) == lines
    for line in printed:
        found = re.search(
            r"forward ([\d.]+) ms \(3 × ([\d.]+)\), backward ([\d.]+) ms \(3 × [\d.]+\), "
            r"step ([\d.]+) ms \(1 × ([\d.]+)\)",
            line,
        )
        assert float(found[1]) == pytest.approx(3 * float(found[2]), abs=0.02)
        assert found[4] == found[5]
    assert (tmp_path / "j/Train_Samples_elapsed_time_ms_backward.csv").exists()


# Collectives


def rank_comms():
    from shardwise import comm

    config = config_of(
        comms_logger={"enabled": True},
        zero_optimization={"stage": 2},
    )
    try:
        comm.reset_log()  # of other engines of this process
        with logged(config) as (engine, text):
            engine.reset_comm_counters()
            train(engine, 2)
            counters = engine.comm_counters()
            comm.all_reduce(torch.ones(1000))
            comm.all_reduce(torch.ones(500), async_op=True).wait()
            parts = [torch.empty(10) for _ in range(2)]
            comm.all_gather(parts, torch.ones(10), log_name="parts")
            found = comm.log_summary(return_dict=True, show_straggler=True)
            ended = engine
        assert comm.has_comm_data()
        after = comm.log_summary(return_dict=True)
        assert after["engine: all_gather"]["count"] >= found["engine: all_gather"]["count"]
        del ended
        comm.reset_log()
        assert not comm.has_comm_data()
        assert comm.get_comm_operation_count() == 0
        comm.configure({"comms_logger": {"enabled": True, "prof_all": False}})
        comm.configure(prof_ops=["broadcast"])
        comm.all_reduce(torch.ones(3))
        comm.broadcast(torch.ones(3), 0)
        assert comm.get_logged_comm_ops() == ["broadcast"]
    finally:
        comm.configure(enabled=False, prof_all=True, prof_ops=[])
        comm.reset_log()
    comm.all_reduce(torch.ones(3))
    assert not comm.has_comm_data()
    return found, counters, text.getvalue()


def test_the_log_of_collectives(pool):
    results = pool.run(rank_comms, ranks=2)
    found, counters, text = results[0]
    assert found["all_reduce"]["count"] == 2
    assert found["all_reduce"]["bytes"] == 6000
    assert found["parts"] == {**found["parts"], "count": 1, "bytes": 80}
    for name in ("all_gather", "reduce_scatter"):
        record = found[f"engine: {name}"]
        assert record["count"] == counters[name]["calls"]
        # comm_counters() counts what travels: half of the payload on two ranks
        assert record["bytes"] == 2 * counters[name]["bytes"] > 0
    for record in found.values():
        assert record["seconds"] > 0
        assert record["algorithm_bandwidth"] == record["bytes"] / record["seconds"]
        assert record["straggler_seconds"] >= 0
    assert "algorithm" in text
    assert "engine: reduce_scatter" in text
    assert "algorithm" not in results[1][2], "rank 1 prints"


STAGE_2 = {"zero_optimization": {"stage": 2}}


def rank_two_logs():
    """What is logged: with both engines, with the first alone, and with none."""
    from shardwise import comm

    def log_of(*operations):
        return {"enabled": True, "prof_all": False, "prof_ops": list(operations)}

    def call_both():
        comm.broadcast(torch.ones(3), 0)
        comm.all_reduce(torch.ones(3))
        return comm.get_logged_comm_ops()

    seen = []
    first = config_of(comms_logger=log_of("reduce_scatter", "broadcast"), **STAGE_2)
    second = config_of(comms_logger=log_of("all_gather", "all_reduce"), **STAGE_2)
    with logged(first) as (one, _):
        with logged(second) as (two, _):
            train(one, 1)
            train(two, 1)
            seen.append(call_both())
            counted = comm.log_summary(return_dict=True)["engine: all_gather"]["count"]
            assert counted == two.comm_counters()["all_gather"]["calls"]
        comm.reset_log()
        train(one, 1)
        seen.append(call_both())
    comm.reset_log()
    seen.append(call_both())
    assert not comm.has_comm_data()
    return seen


def test_each_engine_has_its_own_log_of_collectives(pool):
    both, first, none = pool.run(rank_two_logs, ranks=2)[0]
    of_first = ["broadcast", "engine: reduce_scatter"]
    assert first == of_first
    # The first engine broadcast its weights before the log was reset.
    assert both == sorted([*of_first, "engine: broadcast", "all_reduce", "engine: all_gather"])
    assert none == []


# FLOPs


class Layers(nn.Module):
    def __init__(self, widths):
        super().__init__()
        pairs = list(zip(widths[:-1], widths[1:], strict=True))
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairs)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


WIDTHS = (8, 16, 32, 4)
PRODUCTS = [i * o for i, o in zip(WIDTHS[:-1], WIDTHS[1:], strict=True)]


def test_flops_of_an_mlp():
    from shardwise.profiling.flops_profiler import FlopsProfiler, get_model_profile

    model, batch = Layers(WIDTHS), 5
    profiler = FlopsProfiler(model)
    profiler.start_profile()
    model(torch.randn(batch, WIDTHS[0])).sum().backward()
    profiler.stop_profile()
    totals = profiler.totals()
    assert totals.forward == 2 * batch * sum(PRODUCTS)
    # Two products for each of forward's, but none for the gradient of the model's input.
    assert totals.backward == 2 * batch * (2 * sum(PRODUCTS) - PRODUCTS[0])
    assert totals.recomputed == 0
    assert totals.parameters == sum(PRODUCTS) + sum(WIDTHS[1:])
    assert profiler.get_total_flops() == totals.forward
    assert profiler.get_total_macs() == totals.forward // 2
    assert totals.mfu is None, "a CPU has no known peak"
    counter = profiler._counted()
    for index, product in enumerate(PRODUCTS):
        name = f"layers.{index}"
        assert counter.flops["forward"][name] == 2 * batch * product
        factor = 1 if index == 0 else 2
        assert counter.flops["backward"][name] == 2 * batch * product * factor
    shape = (batch, WIDTHS[0])
    got = get_model_profile(model, shape, print_profile=False, as_string=False)
    assert got == (totals.forward, totals.forward // 2, totals.parameters)


def gpt2_forward(samples):
    """Closed form: 24·T·h² a block, 4·T·s·h for attention, 2·T·h·V for the head."""
    config = models.build("gpt2").config
    tokens, width = samples * models.LENGTH, config.n_embd
    block = 24 * tokens * width**2
    attention = 4 * tokens * models.LENGTH * width
    return config.n_layer, block, attention, 2 * tokens * width * models.VOCABULARY


def rank_gpt2_profile(setting, folder):
    profiler = {"enabled": True, "profile_step": 2, "output_file": f"{folder}/{setting}.txt"}
    config = config_of(
        2,
        flops_profiler=profiler,
        shardwise={"activation_checkpointing": setting},
        zero_optimization={"stage": 3, "stage3_param_persistence_threshold": 0},
    )
    hooks = len(torch.nn.modules.module._global_forward_hooks)
    with logged(config, "gpt2") as (engine, _):
        train(engine, 4, "gpt2")
    assert len(torch.nn.modules.module._global_forward_hooks) == hooks


def flops_in(text, label):
    number, unit = re.search(rf"^ *{label} +([\d.]+) (\w*)FLOPs", text, re.M).groups()
    return float(number) * {"": 1, "K": 1e3, "M": 1e6}[unit]


@pytest.mark.parametrize("setting", ["off", "selective", "full"])
def test_flops_of_a_training_step_of_gpt2(setting, pool, tmp_path):
    pool.run(rank_gpt2_profile, setting, str(tmp_path), ranks=1)
    text = (tmp_path / f"{setting}.txt").read_text()
    layers, block, attention, head = gpt2_forward(2 * MICRO)
    forward = layers * (block + attention) + head
    assert flops_in(text, "forward") == pytest.approx(forward, rel=0.005)
    assert flops_in(text, "backward") == pytest.approx(2 * forward, rel=0.005)
    assert flops_in(text, "model FLOPs") == pytest.approx(3 * forward, rel=0.005)
    recomputed = flops_in(text, "recomputed")
    # torch ends a recomputation once backward has what it needs: before the block's last product
    last = 8 * MICRO * models.LENGTH * 2 * models.WIDTH**2
    expected = layers * (block + attention - last) if setting == "full" else 0
    assert recomputed == pytest.approx(expected, rel=0.005)
    lines = re.findall(r"transformer\.h\.\d +.* ([\d.]+) MFLOPs +([\d.]+) MFLOPs", text)
    assert len(lines) == layers
    for its_forward, its_backward in lines:
        assert 1e6 * float(its_forward) == pytest.approx(block + attention, rel=0.005)
        assert 1e6 * float(its_backward) == pytest.approx(2 * (block + attention), rel=0.005)
    assert "step 2, rank 0 of 1" in text
    assert "time of step 3" in text
    assert "MFU                 unknown" in text


def rank_failed_profile():
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    with logged(config_of(flops_profiler={"enabled": True})) as (engine, text):
        with pytest.raises(RuntimeError):
            engine(torch.ones(2, 3), torch.ones(2, 3))
        assert _get_current_dispatch_mode() is None
        train(engine, 2)
    assert "given up" in text.getvalue()
    assert "FLOPs profile:" not in text.getvalue()


def test_flops_of_flash_attention():
    """Closed form: two products of n² pairs forward and four backward, for each head."""
    from shardwise.profiling.flops_profiler.counter import ATTENTION

    aten = torch.ops.aten
    forward = ATTENTION[aten._flash_attention_forward]
    backward = ATTENTION[aten._flash_attention_backward]
    offsets = torch.tensor([0, 3, 10], dtype=torch.int32)
    for query, places, pairs in (
        (torch.empty(10, 4, 8), offsets, 3 * 3 + 7 * 7),
        (torch.empty(2, 5, 4, 8), None, 2 * 5 * 5),
    ):
        key = query[..., :2, :]
        assert forward(query, key, key, places, places, 7, 7) == 4 * pairs * 4 * 8
        assert backward(query, query, key, key, query, None, places, places) == 8 * pairs * 4 * 8


def test_a_step_that_fails_ends_its_profile(pool):
    pool.run(rank_failed_profile, ranks=1)


def test_mfu_is_model_flops_by_time_and_peak():
    from shardwise.profiling.flops_profiler.report import Totals, summary

    totals = Totals(10, forward=100, backward=200, recomputed=100, seconds=2.0, peak=1000.0)
    assert totals.mfu == pytest.approx(300 / 2 / 1000)
    assert "15.00% = model FLOPs / time / peak of 1.00 KFLOPs/s" in summary(totals, "x")[-1]


def test_a_hundred_profiles_leave_nothing():
    from shardwise.profiling.flops_profiler import FlopsProfiler
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    from shardwise import UsageError

    model = Layers(WIDTHS)
    profiler = FlopsProfiler(model)
    tables = (
        torch.nn.modules.module._global_forward_hooks,
        torch.nn.modules.module._global_forward_pre_hooks,
        *(module._forward_hooks for module in model.modules()),
    )
    before = [len(table) for table in tables]
    x = torch.randn(5, WIDTHS[0])
    for _ in range(100):
        profiler.start_profile()
        model(x).sum().backward()
        profiler.stop_profile()
        assert profiler.get_total_flops() == 10 * sum(PRODUCTS)
        profiler.end_profile()
    assert [len(table) for table in tables] == before
    assert _get_current_dispatch_mode() is None
    with pytest.raises(UsageError, match="start_profile"):
        profiler.get_total_flops()


def rank_failing_monitor(folder):
    """The folder of a monitor vanishes in mid-training."""
    section = {"enabled": True, "output_path": str(folder), "job_name": "run"}
    with logged(config_of(csv_monitor=section)) as (engine, text):
        train(engine, 1)
        if dist.get_rank() == 0:
            shutil.rmtree(folder / "run")
        train(engine, 3)
        assert engine.global_steps == 4
    return text.getvalue().count("CsvSink failed and writes no more: FileNotFoundError")


def test_a_monitor_that_fails_does_not_end_training(pool, tmp_path):
    assert pool.run(rank_failing_monitor, tmp_path, ranks=2) == [1, 0]
