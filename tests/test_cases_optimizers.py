"""Cases that other trainers got wrong, about optimizers. Each test names its case."""

import models
import pytest
import rules
import torch
from parity import make_engine
from test_optimizers import masters_of, rule_config
from torch import nn

STAGES_1_TO_3 = pytest.mark.parametrize("stage", [1, 2, 3])


def worst(found, expected):
    """Largest difference of any element, and the parameter it is in."""
    errors = {n: float((found[n] - v).abs().max()) for n, v in expected.items() if v.numel()}
    name = max(errors, key=errors.get)
    return errors[name], name


# ---- CP-01: one count of steps per parameter, whatever the parameters are cut into


class TwoLarge(nn.Module):
    """Two parameters whose gradient is 1."""

    def __init__(self, size=200_000):
        super().__init__()
        self.a = nn.Parameter(torch.linspace(-1, 1, size))
        self.b = nn.Parameter(torch.linspace(2, -2, size))

    def forward(self):
        return self.a.sum() + self.b.sum()


def plain_two_large():
    model = TwoLarge()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=0.01)
    for _ in range(100):
        model().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {n: p.detach() for n, p in model.named_parameters()}


def adam(offload, **params):
    return {
        "optimizer": {"type": "Adam", "params": {"adam_w_mode": False, **params}},
        "zero_optimization": {
            "stage": 3,
            "stage3_param_persistence_threshold": 0,
            "offload_optimizer": {"device": "cpu" if offload else "none"},
        },
    }


def rank_two_large(offload):
    settings = {**rule_config(3, "fp32"), **adam(offload, lr=1e-3, weight_decay=0.01)}
    with make_engine(TwoLarge(), settings) as engine:
        for _ in range(100):
            engine.backward(engine())
            engine.step()
        return masters_of(engine)


@pytest.mark.parametrize("offload", [False, True])
def test_CP_01_a_two_large_parameters_in_one_group(offload, pool, reference):
    expected = reference.run(plain_two_large)[0]
    for found in pool.run(rank_two_large, offload, ranks=2):
        assert worst(found, expected)[0] <= 1e-6, worst(found, expected)


def rank_vector_tails(offload, shapes):
    settings = {**rule_config(3, "fp32"), **adam(offload, lr=0.1, weight_decay=0.1)}
    with make_engine(rules.ExactGradients(shapes), settings) as engine:
        for step in range(6):
            engine.backward(engine(step))
            engine.step()
        return masters_of(engine)


def plain_vector_tails(shapes):
    model = rules.ExactGradients(shapes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.1)
    for step in range(6):
        model(step).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {n: p.detach() for n, p in model.named_parameters()}


@pytest.mark.parametrize("offload", [False, True])
def test_CP_01_c_sizes_that_end_in_the_middle_of_a_vector(offload, pool, reference):
    shapes = ((1,), (7,), (8,), (63,), (64,), (65,))
    expected = reference.run(plain_vector_tails, shapes)[0]
    found = pool.run(rank_vector_tails, offload, shapes, ranks=1)[0]
    assert worst(found, expected)[0] <= 1e-6, worst(found, expected)


def betas_at(step):
    return (0.9, 0.999) if step < 3 else (0.5, 0.9)


def plain_changing_betas():
    model = rules.ExactGradients()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(6):
        optimizer.param_groups[0]["betas"] = betas_at(step)
        model(step, skip=(4,) if step in (1, 2, 3) else ()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {n: p.detach() for n, p in model.named_parameters()}


def rank_changing_betas(offload):
    settings = {**rule_config(3, "fp32"), **adam(offload, lr=0.1)}
    settings["optimizer"] = {"type": "AdamW", "params": {"lr": 0.1, "weight_decay": 0.01}}
    with make_engine(rules.ExactGradients(), settings) as engine:
        for step in range(6):
            engine.optimizer.param_groups[0]["betas"] = betas_at(step)
            engine.backward(engine(step, skip=(4,) if step in (1, 2, 3) else ()))
            engine.step()
        return masters_of(engine)


@pytest.mark.parametrize("offload", [False, True])
def test_CP_01_d_betas_change_and_counts_differ(offload, pool, reference):
    expected = reference.run(plain_changing_betas)[0]
    found = pool.run(rank_changing_betas, offload, ranks=2)[0]
    assert worst(found, expected)[0] <= 1e-6, worst(found, expected)


# ---- CP-03: gradients that come and go


def skip_every_second(step):
    return (2, 6) if step % 2 else ()


def plain_intermittent():
    return rules.plain(lambda p: torch.optim.AdamW(p, lr=0.1), 7, skip_every_second)


class KeepsSomeInFp32(rules.ExactGradients):
    _keep_in_fp32_modules = ["1", "6"]


def rank_intermittent(stage, dtype):
    settings = rule_config(stage, dtype)
    settings["optimizer"] = {"type": "AdamW", "params": {"lr": 0.1, "weight_decay": 0.01}}
    with make_engine(KeepsSomeInFp32(), settings) as engine:
        kinds = {p.dtype for p in engine.module.parameters()}
        assert len(kinds) == (1 if dtype == "fp32" else 2), "one group holds both dtypes"
        for step in range(7):
            engine.backward(engine(step, skip_every_second(step)))
            engine.step()
        return masters_of(engine)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", [0, 3])
def test_CP_03_each_parameter_counts_its_own_steps(stage, dtype, pool, reference):
    expected = reference.run(plain_intermittent)[0]
    found = pool.run(rank_intermittent, stage, dtype, ranks=2)[0]
    assert worst(found, expected)[0] <= 1e-6, worst(found, expected)


# ---- LR-05: groups do not change anything by themselves


def rank_groups(groups):
    model = models.build("mlp")
    parameters = list(model.parameters())
    half = len(parameters) // 2
    chosen = parameters
    if groups == 2:
        chosen = [{"params": parameters[:half]}, {"params": parameters[half:]}]
    settings = rule_config(2, "fp32")
    settings["train_micro_batch_size_per_gpu"] = 24
    settings["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-2}}
    with make_engine(model, settings, model_parameters=chosen) as engine:
        assert len(engine.optimizer.param_groups) == groups
        for step in range(10):
            micros = models.micro_batches("mlp", step, 2, "cpu", torch.float32)
            engine.backward(engine(**micros[torch.distributed.get_rank()]))
            engine.step()
        return engine.state_dict()


def test_LR_05_two_groups_train_as_one_does(pool):
    one, two = (pool.run(rank_groups, groups, ranks=2)[0] for groups in (1, 2))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


# ---- LR-07: frozen layers


def rank_frozen(stage, given):
    from shardwise.utils import safe_get_full_optimizer_state

    model = models.build("mlp")
    for block in model.blocks[:3]:
        block.requires_grad_(False)
    parameters = list(model.parameters())
    chosen = {
        "all": parameters,
        "trainable": [p for p in parameters if p.requires_grad],
        "group of frozen": [
            {"params": [p for p in parameters if p.requires_grad]},
            {"params": [p for p in parameters if not p.requires_grad], "weight_decay": 0.5},
        ],
    }[given]
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    settings = rule_config(stage, "fp32")
    settings["train_micro_batch_size_per_gpu"] = 24
    settings["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}}
    with make_engine(model, settings, model_parameters=chosen) as engine:
        for step in range(2):
            micros = models.micro_batches("mlp", step, 2, "cpu", torch.float32)
            engine.backward(engine(**micros[torch.distributed.get_rank()]))
            engine.step()
        for name, parameter in model.named_parameters():
            state = safe_get_full_optimizer_state(parameter, "exp_avg")
            assert (state is None) == (not parameter.requires_grad), name
        trainable = sum(p.numel() for p in parameters if p.requires_grad)
        # Two fp32 moments a parameter, sharded; at most 128 bytes of padding a rank and segment.
        held = engine.memory_report()["device"]["optimizer"]
        assert held <= 8 * (trainable / 2 + 32 * 12 * 2)
        after = engine.state_dict()
    for name, value in after.items():
        assert torch.equal(value, before[name]) == name.startswith(
            ("blocks.0.", "blocks.1.", "blocks.2.")
        ), name


@pytest.mark.parametrize("given", ["all", "trainable", "group of frozen"])
@STAGES_1_TO_3
def test_LR_07_frozen_layers_stay_and_have_no_state(stage, given, pool):
    pool.run(rank_frozen, stage, given, ranks=2)
