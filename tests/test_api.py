"""The Python front as DeepSpeed's users know it, held against plain PyTorch or arithmetic."""

import copy
import json
import math
import warnings
from datetime import timedelta

import models
import parity
import pytest
import torch
import torch.distributed as dist
from parity import make_engine
from steps import STAGES, config, engine_of, samples, train_step

# Counters and boundaries


def rank_boundaries(stage):
    with engine_of(stage, accumulation=4) as engine:
        assert engine.gradient_accumulation_steps() == 4
        assert engine.train_micro_batch_size_per_gpu() == models.SAMPLES // 8
        assert engine.train_batch_size() == models.SAMPLES
        assert engine.zero_optimization_stage() == stage
        assert engine.get_global_grad_norm() is None
        boundaries, applied, steps, micro = [], [], [], []
        for _ in range(8):
            loss = engine(**samples())
            engine.backward(loss)
            boundaries.append(engine.is_gradient_accumulation_boundary())
            engine.step()
            applied.append(engine.was_step_applied())
            steps.append(engine.global_steps)
            micro.append(engine.micro_steps)
        assert boundaries == applied == [False, False, False, True] * 2
        assert steps == [0, 0, 0, 1, 1, 1, 1, 2]
        assert micro == list(range(1, 9))
        assert engine.global_samples == 2 * models.SAMPLES
        assert engine.skipped_steps == 0


@STAGES
def test_boundaries_and_counters(stage, pool):
    pool.run(rank_boundaries, stage, ranks=2)


def rank_manual_boundary(stage):
    """accelerate drives the boundary itself before every backward."""
    with engine_of(stage, accumulation=2) as engine:
        applied = []
        for boundary in (False, False, True):
            engine.set_gradient_accumulation_boundary(boundary)
            engine.backward(engine(**samples()))
            assert engine.is_gradient_accumulation_boundary() == boundary
            engine.step()
            applied.append(engine.was_step_applied())
        assert applied == [False, False, True]


@STAGES
def test_manual_boundary(stage, pool):
    pool.run(rank_manual_boundary, stage, ranks=2)


def rank_batch_sizes():
    with engine_of(2, accumulation=4) as engine:
        micro = engine.train_micro_batch_size_per_gpu()
        engine.set_train_batch_size(2 * micro * 3)
        assert engine.gradient_accumulation_steps() == 3
        assert engine.train_micro_batch_size_per_gpu() == micro
        assert engine.get_batch_info() == (2 * micro * 3, micro, 3)
        boundaries = []
        for _ in range(3):
            engine.backward(engine(**samples()))
            boundaries.append(engine.is_gradient_accumulation_boundary())
            engine.step()
        assert boundaries == [False, False, True]
        with pytest.raises(ValueError, match="train_batch_size"):
            engine.set_train_batch_size(2 * micro * 3 + 1)


def test_set_train_batch_size(pool):
    pool.run(rank_batch_sizes, ranks=2)


def rank_loss_is_untouched(accumulation):
    """What forward returns is the mean loss; what the caller passes to backward stays as it was."""
    with engine_of(1, accumulation=accumulation) as engine:
        loss = engine(**samples())
        before = loss.item()
        returned = engine.backward(loss)
        assert loss.item() == before
        assert returned.item() == pytest.approx(before / accumulation)
        return before


def test_accumulation_does_not_change_the_loss_shown(pool):
    assert pool.run(rank_loss_is_untouched, 1, ranks=2) == pool.run(
        rank_loss_is_untouched, 4, ranks=2
    )


def rank_no_sync(stage, use):
    """Three micro-steps, wrapped as frameworks wrap them; the weights afterwards."""
    with engine_of(stage, accumulation=3) as engine, warnings.catch_warnings(record=True):
        for micro in range(3):
            if use and micro < 2:
                with engine.no_sync():
                    engine.backward(engine(**samples(micro)))
                engine.step()
            else:
                engine.backward(engine(**samples(micro)))
                engine.step()
        assert engine.global_steps == 1
        return engine.state_dict()


@STAGES
def test_no_sync_gives_the_same_weights(stage, pool):
    plain = pool.run(rank_no_sync, stage, False, ranks=2)[0]
    wrapped = pool.run(rank_no_sync, stage, True, ranks=2)[0]
    for name, value in plain.items():
        assert torch.equal(value, wrapped[name]), name


def rank_no_sync_sends_nothing():
    with engine_of(1, accumulation=3) as engine:
        engine.reset_comm_counters()
        with engine.no_sync():
            engine.backward(engine(**samples()))
        assert sum(c["bytes"] for c in engine.comm_counters().values()) == 0
        with pytest.raises(RuntimeError, match="no_sync"), engine.no_sync():
            engine.step()
        with pytest.raises(RuntimeError, match="no_sync"), engine.no_sync(), engine.no_sync():
            pass


def test_no_sync_rules(pool):
    pool.run(rank_no_sync_sends_nothing, ranks=2)


# Data


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, index):
        return {"index": index, "x": torch.full((models.WIDTH,), float(index))}


def rank_loader():
    import shardwise

    settings = config(0, train_micro_batch_size_per_gpu=6)
    engine, _, loader, _ = shardwise.initialize(
        model=models.build("mlp"), config=settings, training_data=Numbers()
    )
    with engine:
        batches = list(loader)
        assert len(batches) == len(loader)
        assert engine.training_dataloader is loader
        assert all(b["x"].shape[1:] == (models.WIDTH,) for b in batches)
        assert all(len(b["index"]) == 6 for b in batches[:-1])
        return torch.cat([b["index"] for b in batches]).tolist()


def test_training_data_is_split_over_the_ranks(pool):
    first, second = pool.run(rank_loader, ranks=2)
    assert len(first) == len(second) == 25
    assert set(first) | set(second) == set(range(50))


def collate_lengths(items):
    return len(items)


def rank_collate():
    import shardwise

    settings = config(0, train_micro_batch_size_per_gpu=6, dataloader_drop_last=True)
    engine, _, loader, _ = shardwise.initialize(
        model=models.build("mlp"),
        config=settings,
        training_data=Numbers(),
        collate_fn=collate_lengths,
    )
    with engine:
        return list(loader)


def test_collate_function_and_drop_last(pool):
    assert pool.run(rank_collate, ranks=2) == [[6, 6, 6, 6]] * 2


# The module behind the engine


def rank_module(stage):
    model = models.build("mlp")
    model.note = "served by the module"
    with make_engine(model, config(stage)) as engine:
        assert engine.module is model
        assert engine.note == "served by the module"
        assert engine.blocks is model.blocks
        with pytest.raises(AttributeError, match="no_such_name"):
            _ = engine.no_such_name
        assert engine.device == torch.device("cpu")
        assert (engine.world_size, engine.global_rank) == (2, dist.get_rank())
        assert engine.eval() is None
        assert not model.training
        assert engine.train() is None
        assert model.training
        assert engine.train(False) is None
        assert not model.training


@STAGES
def test_module_attributes_and_modes(stage, pool):
    pool.run(rank_module, stage, ranks=2)


def rank_eval(stage):
    """Forward in eval mode and under no_grad between training steps gives the module's values."""
    plain = models.build("mlp")
    with engine_of(stage) as engine:
        for step in range(3):
            train_step(engine, step)
            weights = engine.state_dict()
            weights = [weights]
            dist.broadcast_object_list(weights)
            plain.load_state_dict(weights[0])
            engine.eval()
            with torch.no_grad():
                value = engine(**samples(9))
                assert value.item() == plain(**samples(9)).item()
            with torch.inference_mode():
                assert engine(**samples(9)).item() == value.item()
            engine.train()


@STAGES
def test_evaluation_between_steps(stage, pool):
    pool.run(rank_eval, stage, ranks=2)


def rank_state_dict(stage, dtype):
    import shardwise

    settings = config(stage)
    if dtype != "fp32":
        settings[dtype] = {"enabled": True}
    plain = models.build("gpt2")
    with make_engine(models.build("gpt2"), settings) as engine:
        state = engine.state_dict()
        if dist.get_rank():
            assert state == {}
        else:
            assert state.keys() == plain.state_dict().keys()
            for name, value in plain.state_dict().items():
                assert state[name].device.type == "cpu"
                assert torch.equal(state[name].float(), value), name
        with shardwise.zero.GatheredParameters(list(engine.module.parameters())):
            for name, p in engine.module.named_parameters():
                assert torch.equal(p.float(), plain.get_parameter(name)), name


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@STAGES
def test_state_dict_and_gathering(stage, dtype, pool):
    pool.run(rank_state_dict, stage, dtype, ranks=2)


def rank_full_state(stage):
    """Masters and moments after one AdamW step, against the formula."""
    from shardwise.utils import (
        safe_get_full_fp32_param,
        safe_get_full_grad,
        safe_get_full_optimizer_state,
    )

    settings = config(stage, bf16={"enabled": True})
    settings["optimizer"] = {
        "type": "AdamW",
        "params": {"lr": 0.01, "betas": [0.9, 0.99], "eps": 1e-4, "weight_decay": 0.0},
    }
    with make_engine(models.build("mlp"), settings) as engine:
        named = list(engine.module.named_parameters())
        before = {n: safe_get_full_fp32_param(p).clone() for n, p in named}
        micro = {k: v.bfloat16() for k, v in samples().items()}
        engine.backward(engine(**micro))
        grads = {n: safe_get_full_grad(p).float().clone() for n, p in named}
        engine.step()
        for name, p in named:
            master = safe_get_full_fp32_param(p)
            first = safe_get_full_optimizer_state(p, "exp_avg")
            second = safe_get_full_optimizer_state(p, "exp_avg_sq")
            assert master.dtype == first.dtype == second.dtype == torch.float32
            assert master.shape == first.shape == p.shape
            g = grads[name]
            torch.testing.assert_close(first, 0.1 * g)
            torch.testing.assert_close(second, 0.01 * g * g)
            torch.testing.assert_close(master, before[name] - 0.01 * g / (g.abs() + 1e-4))


@STAGES
def test_full_masters_and_moments(stage, pool):
    pool.run(rank_full_state, stage, ranks=2)


def rank_grad_attribute(stage):
    """Stages 0-1: .grad is there after backward until step; stages 2-3: None."""
    with engine_of(stage) as engine:
        engine.backward(engine(**samples()))
        grads = [p.grad for p in engine.module.parameters()]
        assert all((g is None) == (stage >= 2) for g in grads)
        engine.step()
        assert all(p.grad is None for p in engine.module.parameters())


@STAGES
def test_grad_attribute(stage, pool):
    pool.run(rank_grad_attribute, stage, ranks=2)


def rank_zero_grad(stage):
    """Gradients thrown away half-way do not count."""
    with engine_of(stage, accumulation=2) as engine:
        engine.backward(engine(**samples(5)))
        engine.step()
        engine.zero_grad()
        engine.backward(engine(**samples(0)))
        grads = parity.full_gradients(engine)
        engine.step()
    with engine_of(stage, accumulation=2) as engine:
        engine.backward(engine(**samples(0)))
        engine.step()
        engine.backward(engine(**samples(0)))
        twice = parity.full_gradients(engine)
    for name in grads:
        torch.testing.assert_close(2 * grads[name], twice[name])


@STAGES
def test_zero_grad(stage, pool):
    pool.run(rank_zero_grad, stage, ranks=2)


def rank_destroy(stage):
    """After the engine the module is an ordinary one: full weights, no hooks, trainable."""
    model = models.build("gpt2")
    batch = models.batch("gpt2", 0)
    with make_engine(model, config(stage)) as engine:
        engine.backward(engine(**models.micro_batches("gpt2", 0, 2, "cpu", torch.float32)[0]).loss)
        engine.step()
        state = [engine.state_dict()]
        dist.broadcast_object_list(state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[0][name]), name
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    copied = copy.deepcopy(model)
    copied(**batch).loss.backward()
    assert all(p.grad is not None for p in copied.parameters())
    with pytest.raises(RuntimeError, match="destroy"):
        engine.backward(engine(**batch).loss)
    with pytest.raises(RuntimeError, match="destroy"):
        engine.step()


@STAGES
def test_destroy_gives_the_module_back(stage, pool):
    pool.run(rank_destroy, stage, ranks=2)


def rank_two_engines():
    """Two engines of different stage and accumulation, alternating, do not disturb each other."""
    alone = []
    for stage, gas in ((2, 1), (3, 2)):
        with engine_of(stage, gas) as engine:
            alone.append([train_step(engine, s) for s in range(4)])
    with engine_of(2, 1) as first, engine_of(3, 2) as second:
        together = [(train_step(first, s), train_step(second, s)) for s in range(4)]
    assert [list(run) for run in zip(*together, strict=True)] == alone


def test_two_engines_in_one_process(pool):
    pool.run(rank_two_engines, ranks=2)


# Parameters that take no part


def rank_used_on_one_rank(stage):
    """A block that only rank 0 uses trains, by half its gradient, alike on both ranks."""
    model = models.build("mlp")
    forward = models.Mlp.forward

    def skipping(self, x, y):
        if dist.get_rank() == 1:
            for index in (0, 1, 3, 4):
                x = self.blocks[index](x)
            return models.mse(self.head(x), y)
        return forward(self, x, y)

    model.forward = skipping.__get__(model)
    plain = models.build("mlp")
    micros = models.micro_batches("mlp", 0, 2, "cpu", torch.float32)
    plain(**micros[0]).backward()
    expected = plain.blocks[2].up.weight.grad / 2
    with make_engine(model, config(stage)) as engine:
        for _ in range(3):
            engine.backward(engine(**micros[dist.get_rank()]))
            if engine.global_steps == 0:
                got = parity.full_gradients(engine)["blocks.2.up.weight"]
                torch.testing.assert_close(got, expected)
            engine.step()


@pytest.mark.parametrize("stage", [0, 1, 2])  # stage 3 gathers: see test_wrong_use
def test_block_used_on_one_rank(stage, pool):
    pool.run(rank_used_on_one_rank, stage, ranks=2, timeout=60)


def intermittent(model, step):
    return [b for i, b in enumerate(model.blocks) if i != 1 or step % 2 == 0]


def plain_intermittent(steps):
    model = models.build("mlp")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4, weight_decay=0.1)
    for step in range(steps):
        batch = models.batch("mlp", step)
        x = batch["x"]
        for block in intermittent(model, step):
            x = block(x)
        models.mse(model.head(x), batch["y"]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {n: p.detach() for n, p in model.named_parameters()}


def rank_intermittent(stage, steps):
    model = models.build("mlp")
    current = [0]

    def forward(self, x, y):
        for block in intermittent(self, current[0]):
            x = block(x)
        return models.mse(self.head(x), y)

    model.forward = forward.__get__(model)
    settings = config(stage)
    settings["optimizer"] = {
        "type": "AdamW",
        "params": {"lr": 0.01, "eps": 1e-4, "weight_decay": 0.1},
    }
    with make_engine(model, settings) as engine:
        for step in range(steps):
            current[0] = step
            train_step(engine, step)
        return engine.state_dict()


@STAGES
def test_block_used_every_second_step(stage, pool, reference):
    """Each parameter has its own step count: bias correction follows the steps it took part in."""
    plain = reference.run(plain_intermittent, 5)[0]
    weights = pool.run(rank_intermittent, stage, 5, ranks=2)[0]
    for name, value in plain.items():
        error = (weights[name] - value).abs().max() / value.abs().max()
        assert error <= 1e-5, f"{name}: {error:.1e}"


# Configuration and reports


def test_config_from_a_file(pool, tmp_path):
    path = tmp_path / "config.json"
    path.write_text("// comments are fine\n" + json.dumps(config(3)))
    pool.run(rank_config_from_file, str(path), ranks=2)


def rank_config_from_file(path):
    with make_engine(models.build("mlp"), path) as engine:
        assert engine.zero_optimization_stage() == 3
        train_step(engine)


def rank_args_config(path):
    import argparse

    import shardwise

    parser = shardwise.add_config_arguments(argparse.ArgumentParser())
    args = parser.parse_args(["--deepspeed", "--deepspeed_config", path])
    with shardwise.initialize(args=args, model=models.build("mlp"))[0] as engine:
        train_step(engine)


def test_config_from_arguments(pool, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config(2)))
    pool.run(rank_args_config, str(path), ranks=2)


def rank_starts_equal(stage):
    """Each rank seeds its model differently; all train rank 0's, and one warning says so."""
    with make_engine(models.build("mlp", seed=dist.get_rank()), config(stage)) as engine:
        expected = models.build("mlp", seed=0)
        state = engine.state_dict()
        for name, value in state.items():
            assert torch.equal(value, expected.state_dict()[name])
        return train_step(engine)


@STAGES
def test_ranks_start_equal(stage, pool):
    outcomes = pool.outcomes(rank_starts_equal, stage, ranks=2)
    assert [o.kind for o in outcomes] == ["value", "value"], outcomes
    assert any("blocks.0.norm.weight" in o.log for o in outcomes)


def rank_host_times():
    with engine_of(3) as engine:
        for step in range(5):
            train_step(engine, step)
        return engine.host_times()


def test_host_times_are_reported(pool):
    """Microseconds per unit and direction: finite, and something was counted."""
    times = pool.run(rank_host_times, ranks=2)[0]
    flat = list(numbers(times))
    assert flat
    assert all(math.isfinite(t) and t >= 0 for t in flat)
    assert any(t > 0 for t in flat)


def numbers(value):
    if isinstance(value, dict):
        for part in value.values():
            yield from numbers(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from numbers(part)
    elif not isinstance(value, str):
        yield value


def rank_norm_and_clipping(stage):
    """SGD with lr 1: after clipping to 0.5 the weights move by exactly 0.5 in norm."""
    settings = config(stage, gradient_clipping=0.5)
    settings["optimizer"] = {"type": "SGD", "params": {"lr": 1.0}}
    with make_engine(models.build("mlp"), settings) as engine:
        before = engine.state_dict()
        loss = engine(**samples()) * 1000
        engine.backward(loss)
        engine.step()
        after = engine.state_dict()
        assert engine.get_global_grad_norm() > 100
        if after:
            moved = sum(float((after[n] - before[n]).double().pow(2).sum()) for n in after) ** 0.5
            assert moved == pytest.approx(0.5, rel=1e-4)


@STAGES
def test_clipping_bounds_the_step(stage, pool):
    pool.run(rank_norm_and_clipping, stage, ranks=2)


# Process groups


def test_groups_on_gpus_with_few_thread_blocks():
    from shardwise.process_groups import nccl_options

    if not dist.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    options = nccl_options(timedelta(seconds=5), max_ctas=8)
    assert options.config.max_ctas == 8
    assert options._timeout == timedelta(seconds=5)
