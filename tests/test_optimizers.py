"""Optimizers and schedules behind the engine, against the same ones in plain PyTorch."""

import functools
import warnings

import models
import pytest
import rules
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


# ---- rules, with exact gradients

CONFIGURED = {
    "Adam": (torch.optim.Adam, {"lr": 0.1, "weight_decay": 0.1, "adam_w_mode": False}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.1, "betas": [0.8, 0.9], "weight_decay": 0.1}),
    "Lion": (rules.Lion, {"lr": 0.01, "betas": [0.8, 0.95], "weight_decay": 0.1}),
    "Adagrad": (
        torch.optim.Adagrad,
        {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.01, "initial_accumulator_value": 0.1},
    ),
    "Lamb": (
        rules.Lamb,
        {"lr": 0.1, "betas": [0.8, 0.9], "weight_decay": 0.1, "max_coeff": 1.5, "min_coeff": 0.5},
    ),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.01, "alpha": 0.9, "momentum": 0.5, "centered": True}),
    "NAdam": (torch.optim.NAdam, {"lr": 0.01, "decoupled_weight_decay": True, "weight_decay": 0.1}),
    "RAdam": (torch.optim.RAdam, {"lr": 0.01, "betas": [0.5, 0.6]}),
    "Adamax": (torch.optim.Adamax, {"lr": 0.01, "weight_decay": 0.1}),
    "Adadelta": (torch.optim.Adadelta, {"lr": 0.5, "rho": 0.8}),
    "ASGD": (torch.optim.ASGD, {"lr": 0.1, "t0": 1, "lambd": 0.01}),
    "Rprop": (torch.optim.Rprop, {"lr": 0.01, "etas": [0.4, 1.3], "step_sizes": [1e-4, 0.5]}),
}
# With their defaults, for those of DeepSpeed that torch has under other ones.
DEFAULTS = {
    "Lion": lambda p: rules.Lion(p, lr=1e-4, betas=(0.9, 0.99), weight_decay=0),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0),
    "Lamb": rules.Lamb,
    **{n: getattr(torch.optim, n) for n in CONFIGURED if n not in ("Lion", "Lamb", "AdamW")},
    "Adam": lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0),
}
FLAGGED = {
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "maximize": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, maximize=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5),
    "adagrad-maximize": lambda p: torch.optim.Adagrad(
        p, lr=0.1, initial_accumulator_value=0.5, maximize=True
    ),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
}
RULE_STEPS = 5


def torch_arguments(options):
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    return {k: v for k, v in options.items() if k != "adam_w_mode"}


def plain_rules():
    """Reference side: weights after RULE_STEPS with each optimizer."""
    weights = {}
    for name, (kind, options) in CONFIGURED.items():
        make = functools.partial(kind, **torch_arguments(options))
        weights[name] = rules.plain(make, RULE_STEPS)
    for name, make in DEFAULTS.items():
        weights[f"default {name}"] = rules.plain(make, RULE_STEPS)
    for name, make in FLAGGED.items():
        weights[name] = rules.plain(make, RULE_STEPS)
    return weights


def rule_config(stage, dtype, optimizer=None):
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "shardwise": {"poison_released": True},
        **({"optimizer": optimizer} if optimizer else {}),
        **({} if dtype == "fp32" else {dtype: {"enabled": True}}),
    }


def masters_of(engine):
    from shardwise.utils import safe_get_full_fp32_param

    return {n: safe_get_full_fp32_param(p) for n, p in engine.module.named_parameters()}


def masters_after(settings, make=None, steps=RULE_STEPS):
    model = rules.ExactGradients()
    arguments = {"optimizer": make(model.parameters())} if make else {}
    with make_engine(model, settings, **arguments) as engine:
        for step in range(steps):
            engine.backward(engine(step))
            engine.step()
        return masters_of(engine)


def rank_rules(stage, dtype):
    jobs = {
        name: ({"type": name, "params": options}, None) for name, (_, options) in CONFIGURED.items()
    }
    jobs |= {f"default {name}": ({"type": name}, None) for name in DEFAULTS}
    jobs |= {name: (None, make) for name, make in FLAGGED.items()}
    return {
        name: masters_after(rule_config(stage, dtype, optimizer), make)
        for name, (optimizer, make) in jobs.items()
    }


@pytest.fixture(scope="module")
def rule_weights(reference):
    return reference.run(plain_rules)[0]


@pytest.mark.parametrize(
    "stage,dtype,ranks",
    [(0, "fp32", 2), (1, "bf16", 2), (2, "fp32", 4), (3, "bf16", 4), (3, "fp32", 1)],
)
def test_rules_are_those_of_torch(stage, dtype, ranks, pool, rule_weights):
    """Masters as in plain PyTorch, from the configuration, with its defaults, and as objects."""
    for record in pool.run(rank_rules, stage, dtype, ranks=ranks):
        assert record.keys() == rule_weights.keys()
        for name, expected in rule_weights.items():
            for parameter, value in expected.items():
                error = (record[name][parameter] - value).abs().max() / value.abs().max()
                assert error <= 2e-6, f"{name}, {parameter}: {error:.1e}"


class Signs(torch.optim.Optimizer):
    """A user's own rule, with a state of the piece's size and one of a number."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    state["seen"] = state.get("seen", torch.zeros_like(p)) + p.grad.abs()
                    state["count"] = state.get("count", 0) + 1
                    p -= group["lr"] * p.grad.sign()


def check_states_on_pieces(parameter):
    """Reads and sets this rank's part of a state, which the user's own rule keeps."""
    from shardwise import utils

    whole = utils.safe_get_full_optimizer_state(parameter, "seen")
    mine = utils.safe_get_local_optimizer_state(parameter, "seen")
    if mine is None:  # no elements here
        with pytest.raises(RuntimeError, match="safe_set_local_optimizer_state, on ranks that"):
            utils.safe_set_local_optimizer_state(parameter, torch.zeros(3), "seen")
    else:
        utils.safe_set_local_optimizer_state(parameter, 2 * mine, "seen")
    assert torch.equal(utils.safe_get_full_optimizer_state(parameter, "seen"), 2 * whole)
    if mine is not None:
        utils.safe_set_local_optimizer_state(parameter, mine, "seen")


def rank_own_class(stage):
    from shardwise.utils import safe_get_full_optimizer_state

    settings = rule_config(stage, "bf16")
    model = rules.ExactGradients()
    if stage > 0:
        with pytest.raises(RuntimeError, match='"zero_allow_untested_optimizer": true'):
            make_engine(model, settings, optimizer=Signs(model.parameters(), lr=0.5))
        settings["zero_allow_untested_optimizer"] = True
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = Signs(model.parameters(), lr=0.5)
    schedule = LambdaLR(optimizer, lambda step: 1.0 if step == 0 else 0.5)
    with make_engine(model, settings, optimizer=optimizer, lr_scheduler=schedule) as engine:
        assert engine.optimizer.param_groups[0]["params"][2] is model.parts[2]
        for step in range(3):
            if step == 2:
                engine.optimizer.param_groups[0]["lr"] = 2.0
            engine.backward(engine(step, skip=(3,)))
            engine.step()
        masters = masters_of(engine)
        seen = {n: safe_get_full_optimizer_state(p, "seen") for n, p in model.named_parameters()}
        check_states_on_pieces(model.parts[2])
        assert safe_get_full_optimizer_state(model.parts[2], "nothing") is None
        assert safe_get_full_optimizer_state(model.parts[3], "seen") is None
    for index, (name, value) in enumerate(start.items()):
        grads = [rules.numbers(value.shape, step, index) for step in range(3)]
        if index == 3:  # unused on every rank
            assert torch.equal(masters[name], value)
            continue
        moved = value - 0.5 * grads[0].sign() - 0.25 * grads[1].sign() - 2.0 * grads[2].sign()
        torch.testing.assert_close(masters[name], moved, rtol=0, atol=1e-6)
        assert torch.equal(seen[name], sum(g.abs() for g in grads))


@STAGES
def test_a_class_of_the_users(stage, pool):
    pool.run(rank_own_class, stage, ranks=2)


def rank_refused_rules():
    model = models.build("mlp")
    settings = config(1)
    del settings["optimizer"]
    refused = {
        "Adafactor": (torch.optim.Adafactor, "rows and columns"),
        "LBFGS": (torch.optim.LBFGS, "closure"),
        "SparseAdam": (torch.optim.SparseAdam, "sparse"),
    }
    for name, (kind, reason) in refused.items():
        with pytest.raises(RuntimeError, match=f"{name}.*{reason}"):
            make_engine(model, settings, optimizer=kind(model.parameters()))
    matrices = [p for p in model.parameters() if p.dim() == 2]
    with pytest.raises(RuntimeError, match="Own cannot run on shards.*whole matrices"):
        own = type("Own", (torch.optim.Muon,), {})
        make_engine(model, settings, optimizer=own(matrices))
    stepped = torch.optim.NAdam(model.parameters())
    model(**models.batch("mlp", 0)).backward()
    stepped.step()
    with pytest.raises(RuntimeError, match="NAdam object has states already"):
        make_engine(model, settings, optimizer=stepped)
    with pytest.raises(RuntimeError, match="differentiable"):
        optimizer = torch.optim.Adam(model.parameters(), differentiable=True)
        make_engine(model, settings, optimizer=optimizer)
    for kind in ("Adafactor", "LBFGS", "SparseAdam"):
        with pytest.raises(ValueError, match=f"{kind}.*whole parameters"):
            make_engine(model, {**settings, "optimizer": {"type": kind}})
    with pytest.raises(ValueError, match="alpha is not a setting of Lion"):
        lion = {"type": "Lion", "params": {"alpha": 1}}
        make_engine(model, {**settings, "optimizer": lion})


def test_rules_that_need_whole_parameters_are_refused(pool):
    pool.run(rank_refused_rules, ranks=1)


# ---- groups that join, and groups that are edited


def plain_joined():
    model = rules.ExactGradients()
    parts = list(model.parts)
    optimizer = torch.optim.AdamW(parts[:4], lr=0.1, weight_decay=0.1)
    for step in range(6):
        if step == 2:
            optimizer.add_param_group({"params": parts[4:7], "lr": 0.3, "betas": (0.5, 0.6)})
        if step == 4:
            optimizer.param_groups[1]["weight_decay"] = 0.5
            optimizer.param_groups[0]["lr"] = 0.01
        model(step).backward()
        optimizer.step()
        model.zero_grad()
    return {n: p.detach() for n, p in model.named_parameters()}


def rank_joined(stage, how):
    model = rules.ExactGradients()
    parts = list(model.parts)
    settings = rule_config(stage, "fp32")
    arguments = {"model_parameters": parts[:4]}
    if how == "configuration":
        settings["optimizer"] = {"type": "AdamW", "params": {"lr": 0.1, "weight_decay": 0.1}}
    else:
        make = functools.partial(torch.optim.AdamW, lr=0.1, weight_decay=0.1, amsgrad=False)
        settings["zero_allow_untested_optimizer"] = True
        arguments["optimizer"] = (
            type("Own", (torch.optim.AdamW,), {})(parts[:4], lr=0.1, weight_decay=0.1)
            if how == "own class"
            else make
        )
    with make_engine(model, settings, **arguments) as engine:
        optimizer = engine.optimizer
        for step in range(6):
            if step == 2:
                optimizer.add_param_group({"params": parts[4:7], "lr": 0.3, "betas": (0.5, 0.6)})
            if step == 4:
                optimizer.param_groups[1]["weight_decay"] = 0.5
                optimizer.param_groups[0]["lr"] = 0.01
            engine.backward(engine(step))
            engine.step()
        with pytest.raises(ValueError, match="more than one"):
            optimizer.add_param_group({"params": parts[4:5]})
        with pytest.raises(RuntimeError, match="no parameter of the engine"):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})
        assert len(optimizer.param_groups) == 2
        return masters_of(engine)


@pytest.mark.parametrize(
    "stage,how",
    [(0, "configuration"), (1, "object"), (2, "own class"), (3, "configuration"), (3, "own class")],
)
def test_groups_join_and_are_edited(stage, how, pool, reference):
    expected = reference.run(plain_joined)[0]
    for found in pool.run(rank_joined, stage, how, ranks=2):
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=2e-6, msg=name)


# ---- offload


def rank_offload(stage, dtype, kind):
    """Masters, weights and the memory report with and without offload."""
    records = []
    for device in ("none", "cpu"):
        settings = rule_config(stage, dtype, {"type": kind, "params": CONFIGURED[kind][1]})
        settings["train_micro_batch_size_per_gpu"] = 24
        settings["gradient_clipping"] = 0.05
        zero = settings["zero_optimization"]
        zero["offload_optimizer"] = {"device": device, "pin_memory": True}
        model = models.build("mlp")
        dtype_of = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
        with make_engine(model, settings) as engine:
            for step in range(3):
                micros = models.micro_batches("mlp", step, 2, "cpu", dtype_of)
                engine.backward(engine(**micros[torch.distributed.get_rank()]))
                engine.step()
            if kind != "RMSprop":
                engine.load_state_dict(models.build("mlp", seed=1).state_dict())
                engine.backward(engine(**micros[torch.distributed.get_rank()]))
                engine.step()
            report = engine.memory_report()
            records.append((masters_of(engine), engine.state_dict(), report))
    return records


@pytest.mark.parametrize(
    "stage,dtype,kind",
    [
        (0, "bf16", "AdamW"),
        (1, "fp32", "Lion"),
        (1, "fp16", "AdamW"),
        (2, "bf16", "Adagrad"),
        (3, "fp32", "AdamW"),
        (3, "bf16", "RMSprop"),
        (2, "bf16", "Lamb"),
    ],
)
def test_offload_changes_no_bit(stage, dtype, kind, pool):
    for (masters, weights, report), (other_masters, other_weights, other_report) in pool.run(
        rank_offload, stage, dtype, kind, ranks=2
    ):
        assert all(torch.equal(masters[n], other_masters[n]) for n in masters)
        assert all(torch.equal(weights[n], other_weights[n]) for n in weights)
        assert report["pinned_host"]["optimizer"] == 0
        assert other_report["device"]["optimizer"] == 0
        # fp32 parameters have no master of their own on the device.
        elements = sum(master.numel() for master in masters.values()) / (1 if stage == 0 else 2)
        states = {"AdamW": 2, "Lion": 1, "Adagrad": 1, "RMSprop": 0, "Lamb": 2}[kind]
        assert other_report["pinned_host"]["optimizer"] >= 4 * (1 + states) * elements
        assert other_report["pinned_host"]["optimizer"] <= 4 * (1 + states) * elements * 1.1
