"""Optimizers and schedules behind the engine, against the same ones in plain PyTorch."""

import warnings

import models
import pytest
import torch
from parity import make_engine
from steps import STAGES, config, samples, train_step
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR


def rank_schedule(kind):
    torch_model = models.build("mlp")
    torch_optimizer = torch.optim.AdamW(torch_model.parameters(), lr=0.01)
    make = {
        "lambda": lambda o: LambdaLR(o, lambda step: 1 / (1 + step)),
        "cosine": lambda o: CosineAnnealingLR(o, T_max=5),
    }[kind]
    expected_schedule = make(torch_optimizer)
    model = models.build("mlp")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    settings = config(2, accumulation=2)
    del settings["optimizer"]
    import shardwise

    engine, wrapped, loader, schedule = shardwise.initialize(
        model=model, optimizer=optimizer, lr_scheduler=make(optimizer), config=settings
    )
    assert loader is None
    assert engine.optimizer is wrapped
    assert engine.lr_scheduler is schedule
    with engine:
        for _ in range(4):
            expected = [group["lr"] for group in torch_optimizer.param_groups]
            assert engine.get_lr() == expected
            for _ in range(2):
                train_step(engine)
            torch_optimizer.step()
            expected_schedule.step()


@pytest.mark.parametrize("kind", ["lambda", "cosine"])
def test_torch_scheduler_object(kind, pool):
    pool.run(rank_schedule, kind, ranks=2)


def rank_scheduler_callable():
    with warnings.catch_warnings():
        engine = make_engine(
            models.build("mlp"),
            config(3),
            lr_scheduler=lambda optimizer: LambdaLR(optimizer, lambda step: 0.5**step),
        )
    with engine:
        start = engine.get_lr()[0]
        for step in range(3):
            assert engine.get_lr() == [start * 0.5**step]
            train_step(engine)


def test_scheduler_made_by_a_function(pool):
    pool.run(rank_scheduler_callable, ranks=2)


def rank_learning_rate_acts(stage):
    """SGD without momentum: the step is lr times the gradient, with the lr that get_lr shows."""
    from shardwise.utils import safe_get_full_grad

    settings = config(stage)
    settings["optimizer"] = {"type": "SGD", "params": {"lr": 1.0}}
    schedule = {"lr_scheduler": lambda o: LambdaLR(o, lambda step: (step + 1) / 10)}
    with make_engine(models.build("mlp"), settings, **schedule) as engine:
        for step in range(3):
            before = engine.state_dict()
            engine.backward(engine(**samples(step)))
            lr = engine.get_lr()[0]
            assert lr == pytest.approx((step + 1) / 10)
            named = list(engine.module.named_parameters())
            grads = {n: safe_get_full_grad(p).cpu() for n, p in named}
            engine.step()
            for name, after in engine.state_dict().items():
                torch.testing.assert_close(after, before[name] - lr * grads[name])


@STAGES
def test_first_steps_use_the_schedule(stage, pool):
    pool.run(rank_learning_rate_acts, stage, ranks=2)


def torch_groups(model):
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": decay, "weight_decay": 0.5}, {"params": rest, "lr": 0.02}]


TORCH_OPTIMIZERS = {
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda groups: torch.optim.Adam(groups, lr=0.01, eps=1e-4, weight_decay=0.1),
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.01, eps=1e-4, betas=(0.8, 0.9)),
}


def plain_training(kind, steps=4):
    """Reference side: the same optimizer with two parameter groups in plain PyTorch."""
    model = models.build("mlp")
    optimizer = TORCH_OPTIMIZERS[kind](torch_groups(model))
    for step in range(steps):
        model(**models.batch("mlp", step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {n: p.detach() for n, p in model.named_parameters()}


def rank_torch_optimizer(kind, stage, how, steps=4):
    model = models.build("mlp")
    settings = config(stage)
    del settings["optimizer"]
    if how == "object":
        arguments = {"optimizer": TORCH_OPTIMIZERS[kind](torch_groups(model))}
    else:
        arguments = {
            "optimizer": TORCH_OPTIMIZERS[kind],
            "model_parameters": torch_groups(model),
        }
    with make_engine(model, settings, **arguments) as engine:
        assert len(engine.optimizer.param_groups) == 2
        for step in range(steps):
            train_step(engine, step)
        return engine.state_dict()


@pytest.mark.parametrize("stage,how", [(0, "object"), (2, "callable"), (3, "object")])
@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_torch_optimizers_with_groups(kind, stage, how, pool, reference):
    plain = reference.run(plain_training, kind)[0]
    weights = pool.run(rank_torch_optimizer, kind, stage, how, ranks=2)[0]
    for name, value in plain.items():
        error = (weights[name] - value).abs().max() / value.abs().max()
        assert error <= 1e-5, f"{name}: {error:.1e}"


def rank_refused_optimizer():
    model = models.build("mlp")
    settings = config(1)
    del settings["optimizer"]
    with pytest.raises(RuntimeError, match="RMSprop"):
        make_engine(model, settings, optimizer=torch.optim.RMSprop(model.parameters(), lr=0.1))


def test_an_unknown_rule_is_refused_by_name(pool):
    pool.run(rank_refused_optimizer, ranks=1)


def rank_lr_set_by_hand():
    settings = config(1)
    settings["optimizer"] = {"type": "SGD", "params": {"lr": 1.0}}
    with make_engine(models.build("mlp"), settings) as engine:
        for group in engine.optimizer.param_groups:
            group["lr"] = 0.0
        before = engine.state_dict()
        train_step(engine)
        after = engine.state_dict()
        assert engine.get_lr() == [0.0]
        assert all(torch.equal(before[n], after[n]) for n in after)


def test_param_groups_can_be_edited(pool):
    pool.run(rank_lr_set_by_hand, ranks=2)


def rank_only_given_parameters_train():
    model = models.build("mlp")
    given = list(model.blocks[0].parameters())
    with make_engine(model, config(3), model_parameters=given) as engine:
        before = engine.state_dict()
        for step in range(2):
            train_step(engine, step)
        after = engine.state_dict()
        for name in after:
            assert torch.equal(before[name], after[name]) != name.startswith("blocks.0."), name


def test_model_parameters_choose_what_trains(pool):
    pool.run(rank_only_given_parameters_train, ranks=2)
