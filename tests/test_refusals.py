"""What cannot work is refused before anything changes, on every rank, with the mend in the text."""

import gc
import pickle
import sys
import threading
import time

import models
import pytest
import torch
import torch.distributed as dist
from parity import make_engine
from steps import STAGES, config, engine_of, samples, train_step
from torch import nn

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


# Learning rates by hand, and other small things


def rank_bad_rates(stage):
    with engine_of(stage) as engine:
        before = engine.state_dict()
        engine.backward(engine(**samples()))
        group = engine.optimizer.param_groups[0]
        good = group["lr"]
        for bad in (-1.0, "x", None, float("nan"), torch.tensor(-0.1)):
            group["lr"] = bad
            assert "param_groups[0]['lr']" in message_of(engine.step, shardwise.UsageError)
        group["lr"] = good
        assert all(torch.equal(v, before[k]) for k, v in engine.state_dict().items())
        engine.step()
        assert engine.global_steps == 1 and engine.was_step_applied()


@STAGES
def test_learning_rates_that_are_none(stage, pool):
    pool.run(rank_bad_rates, stage, ranks=2)


@pytest.mark.parametrize("wrong", [None, 3, [None], ["head.weight"]])
def test_gathered_parameters_of_nothing(wrong):
    def enter():
        with shardwise.zero.GatheredParameters(wrong):
            pass

    assert "takes a parameter or an iterable" in message_of(enter, shardwise.UsageError)


def rank_pickles(stage):
    """A pickled module belongs to nobody; where its weights are elsewhere it says so."""
    model = models.build("mlp")
    with make_engine(model, config(stage)) as engine:
        train_step(engine)
        if stage == 3:
            assert "GatheredParameters" in message_of(lambda: pickle.dumps(engine.module))
            with shardwise.zero.GatheredParameters(model.parameters()):
                copied = pickle.loads(pickle.dumps(engine.module))
        else:
            copied = pickle.loads(pickle.dumps(engine.module))
        expected = engine(**samples(5)).item()
        assert copied(**samples(5)).item() == pytest.approx(expected, rel=1e-6)


@STAGES
def test_a_module_is_pickled(stage, pool):
    pool.run(rank_pickles, stage, ranks=2)


# Compiled blocks that are to be computed again


def rank_compiled(stage):
    full = config(stage, shardwise={"activation_checkpointing": "full"})
    for what in ("block", "model"):
        model = models.build("mlp")
        if what == "block":
            model.blocks[1].compile(backend="aot_eager")
            given = model
        else:
            given = torch.compile(model, backend="aot_eager")
        message = message_of(lambda m=given: make_engine(m, full), shardwise.ConfigError)
        assert "activation_checkpointing" in message and "torch.compile" in message
    model = models.build("mlp")
    model.blocks[1].up.compile(backend="aot_eager")
    with make_engine(model, full) as engine:
        train_step(engine)


@pytest.mark.parametrize("stage", [0, 3])
def test_checkpoints_around_compiled_blocks(stage, pool):
    pool.run(rank_compiled, stage, ranks=2)


# Loading


def rank_loads(stage):
    """What does not fit on one rank is an error on both, and nothing is loaded."""
    with engine_of(stage) as engine:
        states = [{k: v + 1 for k, v in engine.state_dict().items()}]
        dist.broadcast_object_list(states, 0)
        before = engine.state_dict()
        mine = dict(states[0])
        for wrong in (torch.zeros(7, 7), None):
            if dist.get_rank() == 1:
                mine["head.weight"] = wrong
            message = message_of(lambda: engine.load_state_dict(mine), shardwise.UsageError)
            assert "head.weight has shape" in message, message
        assert ("rank 1" in message) == (dist.get_rank() == 0)
        assert all(torch.equal(v, before[k]) for k, v in engine.state_dict().items())
        engine.load_state_dict(states[0])
        assert all(torch.equal(v, states[0][k]) for k, v in engine.state_dict().items())


@STAGES
def test_a_state_that_does_not_fit_on_one_rank(stage, pool):
    pool.run(rank_loads, stage, ranks=2)


def rank_loads_other_values(stage):
    """Ranks that are given different states load nothing; the same state fits afterwards."""
    with engine_of(stage) as engine:
        states = [engine.state_dict()]
        dist.broadcast_object_list(states, 0)
        same = states[0]
        turned = {**same, "head.weight": same["head.weight"].flip(0)}
        without = {k: v for k, v in same.items() if k != "head.weight"}
        for other in (turned, without, {}):
            mine = other if dist.get_rank() == 1 else same
            message = message_of(
                lambda m=mine: engine.load_state_dict(m, strict=False), shardwise.UsageError
            )
            assert "on rank 1 than on rank 0" in message, message
            assert ("head.weight" in message) == (len(other) > 0), message
        after = engine.state_dict()
        assert all(torch.equal(v, same[k]) for k, v in after.items())
        engine.load_state_dict(without, strict=False)
        train_step(engine)


@STAGES
def test_a_state_with_other_values_on_one_rank(stage, pool):
    pool.run(rank_loads_other_values, stage, ranks=2)


class Counting(nn.Linear):
    """A module that keeps something beside tensors."""

    kept = 0

    def get_extra_state(self):
        return {"kept": self.kept}

    def set_extra_state(self, state):
        self.kept = state["kept"]


def rank_loads_extra_states(stage):
    model = nn.Sequential(Counting(4, 4), nn.Linear(4, 4))
    with make_engine(model, config(stage)) as engine:
        states = [engine.state_dict()]
        dist.broadcast_object_list(states, 0)
        states[0]["0._extra_state"] = {"kept": 7}
        engine.load_state_dict(states[0])
        assert model[0].kept == 7


@STAGES
def test_states_beside_tensors_are_loaded(stage, pool):
    pool.run(rank_loads_extra_states, stage, ranks=2)
