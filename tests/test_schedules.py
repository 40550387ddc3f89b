"""DeepSpeed's learning-rate schedules against a second implementation, from their definition."""

import math
import random

import models
import pytest
import torch
from parity import make_engine
from steps import STAGES, config, train_step


def warm_up(n, steps, form):
    """Share of the way up after iteration n; 1 when it is over."""
    steps = max(steps, 2)
    if n >= steps:
        return 1.0
    return math.log(n + 1, steps) if form == "log" else n / steps


def expected_warmup(n, base, low, high, steps, form):
    ends = base if high is None else [high] * len(base)
    return [low + (end - low) * warm_up(max(n, 0), steps, form) for end in ends]


def expected_decay(n, base, low, high, steps, form, total):
    steps = max(steps, 2)
    if n < steps:
        return expected_warmup(n, base, low, high, steps, form)
    left = max(0, total - n) / max(1, total - steps)
    return [low + (high - low) * left for _ in base]


def expected_cosine(n, base, ratio, steps, form, total, last):
    steps = max(steps, 2)
    if n < 0:
        share = 0.0
    elif n < steps:
        share = ratio + (1 - ratio) * warm_up(n, steps, form)
    else:
        angle = math.pi * min(1, (n - steps + 1) / max(1, total - steps))
        share = last + (1 - last) * math.cos(angle / 2) ** 2
    return [rate * share for rate in base]


def triangle(n, up, down):
    """0 at the start and end of a cycle, 1 at its peak, for the 1-based position n."""
    n %= up + down
    return min(n / up, (up + down - n) / down)


def expected_cycle(n, base, low, high, up, down, decay_steps, decay_rate):
    if n < up + down:
        return [low + (high - low) * triangle(n + 1, up, down) for _ in base]
    decays = (n + 1 - up - down) / decay_steps if decay_steps else 0
    return [low / (1 + decay_rate * decays) for _ in base]


def random_case(generator):
    """Name, arguments, and the function from iteration and base rates to the expected rates."""
    pick = generator.choice
    low, high = generator.uniform(0, 0.1), generator.uniform(0.1, 1)
    steps, form = generator.randint(0, 30), pick(["log", "linear"])
    total = generator.randint(1, 80)
    name = pick(["WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest"])
    warmup = {"warmup_num_steps": steps, "warmup_type": form}
    if name == "WarmupLR":
        high = pick([None, high])
        arguments = {**warmup, "warmup_min_lr": low, "warmup_max_lr": high}
        return name, arguments, lambda n, base: expected_warmup(n, base, low, high, steps, form)
    if name == "WarmupDecayLR":
        arguments = {**warmup, "warmup_min_lr": low, "warmup_max_lr": high}
        arguments["total_num_steps"] = total
        return (
            name,
            arguments,
            lambda n, base: expected_decay(n, base, low, high, steps, form, total),
        )
    if name == "WarmupCosineLR":
        arguments = {**warmup, "total_num_steps": total}
        arguments.update(warmup_min_ratio=low, cos_min_ratio=high)
        return (
            name,
            arguments,
            lambda n, base: expected_cosine(n, base, low, steps, form, total, high),
        )
    up, down, decay = generator.randint(1, 20), generator.randint(1, 20), generator.randint(0, 9)
    if name == "OneCycle":
        arguments = {
            "cycle_min_lr": low,
            "cycle_max_lr": high,
            "cycle_first_step_size": up,
            "cycle_second_step_size": down,
            "decay_step_size": decay,
            "decay_lr_rate": 0.5,
        }
        return (
            name,
            arguments,
            lambda n, base: expected_cycle(n, base, low, high, up, down, decay, 0.5),
        )
    stairs = pick([False, True])
    arguments = {
        "lr_range_test_min_lr": low,
        "lr_range_test_step_size": up,
        "lr_range_test_step_rate": high,
        "lr_range_test_staircase": stairs,
    }

    def expected(n, base):
        grown = (n + 1) // up if stairs else (n + 1) / up
        return [low * (1 + high * grown) for _ in base]

    return name, arguments, expected


def optimizer_of(kind=torch.optim.AdamW):
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    groups = [{"params": parameters[:1], "lr": 0.25}, {"params": parameters[1:], "lr": 0.75}]
    return kind(groups, lr=0.5)


def rates(optimizer):
    return [group["lr"] for group in optimizer.param_groups]


def rank_values():
    from shardwise.runtime import lr_schedules

    generator = random.Random(5)
    for _ in range(300):
        name, arguments, expected = random_case(generator)
        optimizer = optimizer_of()
        schedule = getattr(lr_schedules, name)(optimizer, **arguments)
        for iteration in range(-1, 100):
            if iteration >= 0:
                schedule.step()
            wanted = pytest.approx(expected(iteration, [0.25, 0.75]), rel=1e-12, abs=1e-15)
            assert rates(optimizer) == wanted, (name, arguments, iteration)
            assert schedule.get_last_lr() == rates(optimizer) == schedule.get_lr()
            assert schedule.state_dict() == {"last_batch_iteration": iteration}


def test_values_over_many_settings(pool):
    pool.run(rank_values, ranks=1)


def rank_state():
    from shardwise.schedules import WarmupCosineLR, WarmupLR

    first = WarmupCosineLR(optimizer_of(), 50, warmup_num_steps=5)
    for _ in range(20):
        first.step()
    optimizer = optimizer_of()
    second = WarmupCosineLR(optimizer, 50, warmup_num_steps=5)
    second.load_state_dict(first.state_dict())
    assert second.last_batch_iteration == 19
    assert rates(optimizer) == first.get_lr()
    second.step(3)
    assert second.last_batch_iteration == 3
    # One that starts later leaves the rates until its first step.
    optimizer = optimizer_of()
    late = WarmupLR(optimizer, 0, 1, 10, "linear", 4)
    assert rates(optimizer) == [0.25, 0.75]
    late.step()
    assert rates(optimizer) == [0.5, 0.5]


def test_state_is_the_iteration(pool):
    pool.run(rank_state, ranks=1)


def rank_betas():
    from shardwise.schedules import OneCycle

    optimizer = optimizer_of()
    schedule = OneCycle(optimizer, 0.1, 1.0, cycle_first_step_size=4)
    assert [group["betas"] for group in optimizer.param_groups] == [(0.8, 0.99)] * 2
    for momentum in (0.875, 0.85, 0.825, 0.8, 0.825):
        schedule.step()
        for group, betas in zip(optimizer.param_groups, schedule.get_mom(), strict=True):
            assert group["betas"] == betas == (pytest.approx(momentum), 0.99)
    plain = optimizer_of(torch.optim.SGD)
    schedule = OneCycle(plain, 0.1, 1.0, cycle_first_step_size=4)
    schedule.step()
    assert schedule.get_mom() is None
    assert "betas" not in plain.param_groups[0]
    assert rates(plain) == [pytest.approx(0.325)] * 2


def test_one_cycle_moves_the_betas_of_adam(pool):
    pool.run(rank_betas, ranks=1)


def rank_wrong_use():
    from shardwise.schedules import OneCycle, WarmupDecayLR, WarmupLR

    import shardwise

    with pytest.raises(shardwise.ConfigError, match="WarmupLR: scheduler.params.warmup_num_steps"):
        WarmupLR(optimizer_of(), warmup_num_steps=-1)
    with pytest.raises(shardwise.ConfigError, match="3 values for 2 parameter groups"):
        WarmupLR(optimizer_of(), warmup_min_lr=[1, 2, 3])
    with pytest.raises(shardwise.ConfigError, match="total_num_steps is missing; WarmupDecayLR"):
        WarmupDecayLR(optimizer_of())
    with pytest.raises(shardwise.ConfigError, match="did you mean warmup_num_steps"):
        WarmupLR(optimizer_of(), warmup_num_step=5)
    with pytest.raises(shardwise.UsageError, match="got warmup_min_lr twice"):
        WarmupLR(optimizer_of(), 0.1, warmup_min_lr=0.2)
    with pytest.raises(shardwise.UsageError, match="got 6 arguments"):
        WarmupLR(optimizer_of(), 0, 1, 10, "log", -1, 5)
    with pytest.raises(shardwise.UsageError, match="needs a torch optimizer, but got a Linear"):
        OneCycle(torch.nn.Linear(1, 1), 0.1, 1.0)
    with pytest.raises(shardwise.UsageError, match="last_batch_iteration must be an integer"):
        WarmupLR(optimizer_of()).step(1.5)


def test_wrong_use(pool):
    pool.run(rank_wrong_use, ranks=1)


SCHEDULER = {
    "type": "WarmupDecayLR",
    "params": {
        "warmup_max_lr": 0.01,
        "warmup_num_steps": 2,
        "warmup_type": "linear",
        "total_num_steps": 6,
    },
}
# At construction, after the first step, the second, ...
EXPECTED = [0, 0, 0.005, 0.01, 0.0075, 0.005, 0.0025, 0, 0]


def rank_engine(stage):
    import shardwise

    engine, optimizer, _, schedule = shardwise.initialize(
        model=models.build("mlp"), config=config(stage, accumulation=2, scheduler=SCHEDULER)
    )
    with engine:
        assert type(schedule).__name__ == "WarmupDecayLR"
        assert engine.lr_scheduler is schedule
        for expected in EXPECTED:
            assert engine.get_lr() == [pytest.approx(expected)]
            assert rates(optimizer) == engine.get_lr()
            for _ in range(2):
                train_step(engine)


@STAGES
def test_initialize_makes_the_configured_schedule(stage, pool):
    pool.run(rank_engine, stage, ranks=2)


def rank_skipped_steps():
    settings = config(1, scheduler=SCHEDULER)
    with make_engine(models.build("mlp"), settings) as engine:
        for applied in range(3):
            train_step(engine)
            assert engine.lr_scheduler.last_batch_iteration == applied
        before = engine.get_lr()
        parameter = next(engine.module.parameters())
        handle = parameter.register_hook(lambda grad: grad * math.inf)
        train_step(engine)
        handle.remove()
        assert not engine.was_step_applied()
        assert engine.lr_scheduler.last_batch_iteration == 2
        assert engine.get_lr() == before


def test_skipped_steps_do_not_move_it(pool):
    pool.run(rank_skipped_steps, ranks=2)


def rank_two_schedules():
    import shardwise

    with pytest.raises(shardwise.ConfigError, match="the schedule is given twice"):
        make_engine(
            models.build("mlp"),
            config(scheduler=SCHEDULER),
            lr_scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1),
        )


def test_two_schedules_are_an_error(pool):
    pool.run(rank_two_schedules, ranks=1)
