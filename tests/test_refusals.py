"""What cannot work is refused before anything changes, on every rank, with the mend in the text."""

import gc
import sys
import threading
import time

import models
import pytest
import torch
import torch.distributed as dist
from parity import make_engine
from steps import config, engine_of, samples, train_step

import shardwise


def message_of(function, error=RuntimeError):
    with pytest.raises(error) as caught:
        function()
    return str(caught.value)


# The end of an engine


def rank_forgets_engines():
    """What Python complains of when the thread beside an engine is the last that knows it."""
    complaints = []
    old, sys.unraisablehook = sys.unraisablehook, lambda event: complaints.append(repr(event))
    try:
        for _ in range(2):
            engine = engine_of(1)
            train_step(engine)
            del engine
            gc.collect()
            deadline = time.monotonic() + 10
            while "shardwise-whereabouts" in [thread.name for thread in threading.enumerate()]:
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        sys.unraisablehook = old
    return complaints


def test_a_forgotten_engine_ends_in_silence(pool):
    assert pool.run(rank_forgets_engines, ranks=2) == [[], []]


# Tokens of a loss


BAD_TOKENS = [-1, float("nan"), float("inf"), 2.5, 10**20, "3", True, torch.tensor(-2.0)]


def rank_bad_tokens():
    weighted = config(0, shardwise={"token_weighted_loss": True})
    model = models.build("mlp")
    with make_engine(model, weighted) as engine:
        before = [p.detach().clone() for p in model.parameters()]
        for tokens in [*BAD_TOKENS, torch.ones(2)]:
            loss = engine(**samples())
            message = message_of(lambda loss=loss, t=tokens: engine.backward(loss, tokens=t))
            assert "tokens=" in message and "number" in message, message
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        for tokens in (3, 3.0, torch.tensor(3), torch.tensor([3.0])):
            engine.backward(engine(**samples()), tokens=tokens)
            engine.step()
        assert engine.global_steps == 4


def test_tokens_that_are_no_count(pool):
    pool.run(rank_bad_tokens, ranks=1)


# Schedules that want more than the engine has


def rank_plateau(stage):
    model = models.build("mlp")
    plain = config(stage)
    del plain["optimizer"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    with make_engine(model, plain, optimizer=optimizer, lr_scheduler=plateau) as engine:
        before = engine.state_dict()
        engine.backward(engine(**samples()))
        message = message_of(engine.step)
        assert "metrics" in message and "lr_kwargs" in message and "without lr_scheduler" in message
        assert all(torch.equal(v, before[k]) for k, v in engine.state_dict().items())
        assert engine.global_steps == 0
        for loss in (1.0, 2.0):
            if loss == 2.0:
                engine.backward(engine(**samples()))
            engine.step(lr_kwargs={"metrics": loss})
        assert engine.global_steps == 2 and engine.get_lr() == [pytest.approx(0.01)]


@pytest.mark.parametrize("stage", [0, 3])
def test_a_schedule_that_needs_an_argument(stage, pool):
    pool.run(rank_plateau, stage, ranks=2)


# Places to write to


def rank_bad_outputs(folder):
    """Only rank 0 writes, but every rank learns that it cannot."""
    file = f"{folder}/file"
    model = models.build("mlp")
    before = [p.detach().clone() for p in model.parameters()]
    for section, settings in (
        ("csv_monitor", {"enabled": True, "output_path": file}),
        ("tensorboard", {"enabled": True, "output_path": file}),
        ("csv_monitor", {"enabled": True, "output_path": "a\0b"}),
        ("flops_profiler", {"enabled": True, "output_file": f"{file}/x"}),
        ("flops_profiler", {"enabled": True, "output_file": str(folder)}),
    ):
        key = section + (".output_file" if section == "flops_profiler" else ".output_path")
        broken = config(3, **{section: settings})
        message = message_of(lambda c=broken: make_engine(model, c), shardwise.ConfigError)
        assert key in message, message
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_outputs_that_cannot_be_written(pool, tmp_path):
    (tmp_path / "file").touch()
    pool.run(rank_bad_outputs, tmp_path, ranks=2)


def rank_full_disk():
    """The table of the profile finds no room; training goes on."""
    profiler = {"enabled": True, "output_file": "/dev/full"}
    with engine_of(1, flops_profiler=profiler) as engine:
        for step in range(4):
            train_step(engine, step)
        assert engine.global_steps == 4


def test_a_profile_without_room(pool):
    outcomes = pool.outcomes(rank_full_disk, ranks=2)
    assert [outcome.kind for outcome in outcomes] == ["value", "value"]
    counts = [outcome.log.count("the FLOPs profile was not written") for outcome in outcomes]
    assert counts == [1, 0]


# Parameters that came later


def rank_strangers(stage, where):
    """A block that one rank or both put into the model after initialize()."""
    model = models.build("mlp")
    every = {"check_replicas_every": 3}
    with make_engine(model, config(stage, shardwise=every)) as engine:
        train_step(engine)
        old = model.blocks[1]
        if where == "both" or dist.get_rank() == 1:
            model.blocks[1] = type(old)()
        train_step(engine, 1)
        assert "blocks.1." in message_of(engine.state_dict, shardwise.UsageError)
        engine.backward(engine(**samples(2)))
        message = message_of(engine.step, shardwise.UsageError)
        assert "after initialize()" in message and "blocks.1." in message, message
        model.blocks[1] = old
        train_step(engine, 3)
        assert engine.global_steps == 3
        engine.state_dict()


@pytest.mark.parametrize(("stage", "where"), [(0, "both"), (3, "both"), (0, "rank 1")])
def test_parameters_that_came_later(stage, where, pool):
    outcomes = pool.outcomes(rank_strangers, stage, where, ranks=2)
    assert [outcome.kind for outcome in outcomes] == ["value"] * 2, outcomes[0].describe()
    assert outcomes[0].log.count("was put into the model") == (where == "both")
