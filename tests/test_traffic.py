"""Bytes on the wire: 2, 2, 2, 3 times the parameters a step, and what accumulation saves."""

import models
import parity
import pytest
import torch
from parity import Case

LAYERS, WIDTH = 6, 96


def measured_step(stage, dtype, accumulation, steps):
    """Counters of `steps` whole steps after two warm-up steps; element count; parameter count."""
    model = models.BlocksOnly(LAYERS, WIDTH)
    shapes = [p.numel() for p in model.parameters()]
    config = {
        "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "gradient_clipping": 0,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "shardwise": {"keep_last_unit": False, "poison_released": True},
        "bf16": {"enabled": dtype == "bf16"},
    }
    with parity.make_engine(model, config) as engine:
        for step in range(2 + steps):
            if step == 2:
                engine.reset_comm_counters()
            for _ in range(accumulation):
                x = torch.randn(3, WIDTH, dtype=parity.reference.DTYPES[dtype])
                engine.backward(engine(x, x))
                engine.step()
        return engine.comm_counters(), shapes


def total_bytes(counters):
    return sum(counter["bytes"] for counter in counters.values())


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("stage,factor", [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_traffic_of_a_step(stage, factor, dtype, ranks, pool):
    size = 4 if dtype == "fp32" else 2
    for counters, shapes in pool.run(measured_step, stage, dtype, 1, 1, ranks=ranks):
        count = sum(shapes)
        padding = 64 * len(shapes) + 64 * ranks * LAYERS
        share = size * (ranks - 1) / ranks
        scalars = 4096  # norm, order hash and the bits of used parameters
        least, most = factor * count * share, factor * (count + padding) * share + scalars
        assert padding < 0.08 * count
        assert least <= total_bytes(counters) <= most
        if stage:
            gathers = 2 if stage == 3 else 1
            for name, times in (("reduce_scatter", 1), ("all_gather", gathers)):
                bytes_ = counters[name]["bytes"] / share
                assert times * count <= bytes_ <= times * (count + padding), name


@pytest.mark.parametrize("stage", [0, 1])
def test_accumulation_sends_one_sixteenth(stage, pool):
    accumulated, _ = pool.run(measured_step, stage, "fp32", 16, 1, ranks=2)[0]
    plain, _ = pool.run(measured_step, stage, "fp32", 1, 16, ranks=2)[0]
    assert total_bytes(accumulated) > 0
    assert total_bytes(accumulated) * 16 == total_bytes(plain)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_one_process_sends_nothing(stage, pool):
    counters, _ = pool.run(measured_step, stage, "fp32", 1, 1, ranks=1)[0]
    assert all(number == 0 for counter in counters.values() for number in counter.values())


def test_the_default_keeps_what_it_needs_at_once(pool):
    """The last unit of forward is the first of backward: kept, it saves its second gather."""
    settings = [{}, {"shardwise": {"keep_last_unit": False}}]
    (kept, _), (dropped, _) = pool.run(gathers_with, settings, ranks=2)[0]
    assert kept < dropped


def test_units_that_are_reused_soon_stay_gathered(pool):
    """As far as the distance and the number of gathered elements allow; no number changes."""
    block = sum(p.numel() for p in models.build("mlp").blocks[0].parameters())
    # Of five blocks, those that are gathered ahead where backward begins stay anyway. Six blocks
    # are between the uses of the second one, eight between those of the first.
    distances = [0, 7 * block, 10**9]
    settings = [{"shardwise": {"max_reuse_distance": distance}} for distance in distances]
    limited = {**settings[-1], "zero": {"stage3_max_live_parameters": block}}
    dropping = {"shardwise": {"keep_last_unit": False}}
    runs = pool.run(gathers_with, [*settings, limited, dropping], ranks=2)[0]
    (never, weights), (some, _), (always, _), (few, _), (every_time, _) = runs
    assert always < some < never < every_time
    assert never <= few
    for _, others in runs:
        assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))


def gathers_with(settings):
    """For each of the settings the elements gathered in the last of three steps, and the weights
    then."""
    found = []
    for setting in settings:
        case = Case(3, "mlp")
        with parity.make_engine(models.build("mlp"), parity.config_of(case, **setting)) as engine:
            for step in range(3):
                engine.reset_comm_counters()
                parity.accumulate(engine, case, step, "cpu")
                engine.step()
            gathered = engine.comm_counters()["all_gather"]["elements"]
            found.append((gathered, list(engine.state_dict().values())))
    return found
