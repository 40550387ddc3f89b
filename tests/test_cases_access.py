"""Situations that users of sharded training report, each with the outcome that is right."""

import re
import time

import models
import parity
import pytest
import reference
import torch
import torch.distributed as dist
from parity import make_engine
from steps import STAGES, config, samples, train_step
from torch import nn

TIMEOUT = 5


def assert_close(got: dict, plain: dict, tolerance=1e-5):
    for name, value in plain.items():
        error = (got[name] - value).abs().max() / value.abs().max().clamp(min=1e-30)
        assert error <= tolerance, f"{name}: {error:.1e}"


# Experts that get no token on some ranks, and modules called more often on some ranks


class Experts(nn.Module):
    """Every sample goes to the expert that its rank is given; the gate learns all the same."""

    def __init__(self, count=4):
        super().__init__()
        self.gate = nn.Linear(models.WIDTH, count)
        self.experts = nn.ModuleList(models.MlpBlock() for _ in range(count))

    def forward(self, x, chosen):
        weight = self.gate(x).softmax(-1)
        out = torch.zeros_like(x)
        for index in chosen:
            out = out + weight[:, index : index + 1] * self.experts[index](x)
        return out


class Mixture(nn.Module):
    def __init__(self, layers=1):
        super().__init__()
        self.first = nn.Linear(models.WIDTH, models.WIDTH)
        self.layers = nn.ModuleList(Experts() for _ in range(layers))
        self.head = nn.Linear(models.WIDTH, models.WIDTH)

    def forward(self, x, y, chosen):
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x, chosen)
        return models.mse(self.head(x), y)


def rank_mixture(stage, layers, steps, how="mark"):
    from shardwise.utils import set_z3_leaf_modules

    torch.manual_seed(0)
    model = Mixture(layers)
    settings = config(stage)
    if how == "mark":
        set_z3_leaf_modules(model, [Experts])
    elif how == "config":
        settings["zero_optimization"]["leaf_module"] = {"classes": ["Experts"]}
    chosen = [0] if dist.get_rank() == 0 else [3]
    with make_engine(model, settings) as engine:
        start = engine.state_dict()
        losses = []
        for step in range(steps):
            loss = engine(**samples(step), chosen=chosen)
            engine.backward(loss)
            if step == 0:
                unused = parity.full_gradients(engine)["layers.0.experts.1.up.weight"]
                assert unused.abs().max() == 0
            engine.step()
            losses.append(loss.item())
        return losses, engine.state_dict(), start


@pytest.mark.parametrize("layers,how", [(1, "mark"), (2, "mark"), (1, "config")])
def test_Z3_13_experts_without_tokens(layers, how, pool):
    """Four experts, one used by each of two ranks: ten steps equal those of stage 0."""
    plain = pool.run(rank_mixture, 0, layers, 10, how, ranks=2)
    found = pool.run(rank_mixture, 3, layers, 10, how, ranks=2)
    for rank in range(2):
        assert found[rank][0] == pytest.approx(plain[rank][0], rel=1e-6)
    assert_close(found[0][1], plain[0][1])
    for name, value in found[0][2].items():  # used by nobody: not moved
        if ".experts.1." in name or ".experts.2." in name:
            assert torch.equal(found[0][1][name], value), name


class Heads(models.Mlp):
    """The second head runs as often as it is told, and not at all for 0."""

    def __init__(self):
        super().__init__(layers=2)
        self.second = nn.Sequential(nn.Linear(models.WIDTH, 64), nn.Linear(64, models.WIDTH))

    def forward(self, x, y, times):
        for block in self.blocks:
            x = block(x)
        loss = models.mse(self.head(x), y)
        for _ in range(times):
            x = self.second(x)
        return loss + models.mse(x, y)


def rank_heads(stage, times, leaf, persistence=0):
    from shardwise.utils import set_z3_leaf_modules_by_name

    torch.manual_seed(0)
    model = Heads()
    units = ["blocks.0", "blocks.1", "second"]
    settings = config(stage, shardwise={"units": units, "timeout_seconds": TIMEOUT})
    settings["zero_optimization"]["stage3_param_persistence_threshold"] = persistence
    if leaf:
        assert set_z3_leaf_modules_by_name(model, ["second"]) == ([model.second], [])
    engine = make_engine(model, settings)
    start = time.monotonic()
    try:
        for step in range(2):
            engine.backward(engine(**samples(step), times=times[dist.get_rank()]))
            engine.step()
        return engine.state_dict()
    except RuntimeError as error:
        assert time.monotonic() - start < 3 * TIMEOUT
        return type(error).__name__, str(error)


def test_Z3_11_a_module_called_more_often_is_named(own_pool):
    for kind, message in own_pool(2).run(rank_heads, 3, [1, 3], False, ranks=2, timeout=60):
        assert kind == "CommunicationError"
        assert "second" in message and "second.0.weight" in message, message
        assert re.search(r"1 time on rank 0, [23] times on rank 1", message), message
        assert "set_z3_leaf_modules" in message, message


@pytest.mark.parametrize("times", [[1, 3], [0, 2]], ids=str)
@pytest.mark.parametrize("stage,leaf,persistence", [(3, True, 0), (3, False, 10**6), (2, False, 0)])
def test_Z3_11_a_module_called_more_often_works(stage, leaf, persistence, times, pool):
    plain = pool.run(rank_heads, 0, times, False, ranks=2)[0]
    assert_close(pool.run(rank_heads, stage, times, leaf, persistence, ranks=2)[0], plain)


def rank_leaf_functions():
    from shardwise import utils

    model = Mixture(2)
    assert utils.get_z3_leaf_modules(model) == []
    assert utils.set_z3_leaf_modules(model, ["Experts"]) == list(model.layers)
    assert utils.z3_leaf_module(model.layers[0]) and not utils.z3_leaf_module(model.first)
    assert utils.get_z3_leaf_modules(model) == list(model.layers)
    assert utils.unset_z3_leaf_modules(model, [Experts]) == list(model.layers)
    utils.set_z3_leaf_module(model.first, True)
    assert utils.get_z3_leaf_modules(model) == [model.first]
    utils.set_z3_leaf_module(model.first, False)
    found, missing = utils.set_z3_leaf_modules_by_suffix(model, ["gate", "no"], True, False)
    assert found == [layer.gate for layer in model.layers] and missing == ["no"]
    for action in (
        lambda: utils.set_z3_leaf_modules(model, [nn.Conv2d]),
        lambda: utils.set_z3_leaf_modules_by_name(model, ["layer.0"]),
    ):
        with pytest.raises(ValueError, match="Conv2d|layer.0"):
            action()
    assert utils.set_z3_leaf_modules(model, [nn.Conv2d], raise_if_not_found=False) == []
    with make_engine(model, config(3)):
        assert utils.z3_leaf_parameter(model.layers[0].gate.weight)
        assert not utils.z3_leaf_parameter(model.first.weight)


def test_marks_of_leaf_modules(pool):
    pool.run(rank_leaf_functions, ranks=1)


# Weights that depend on weights


def svd_parts(weight, rank=4):
    u, s, v = torch.linalg.svd(weight)
    return (u[:, :rank] * s[:rank]) @ v[:rank]


def rank_svd(stage):
    import shardwise

    model = models.build("mlp")
    plain = models.build("mlp").blocks[1].up.weight.detach()
    low = svd_parts(plain)
    gathered = shardwise.zero.GatheredParameters
    with make_engine(model, config(stage)) as engine:
        weight = model.blocks[1].up.weight
        with gathered(weight, modifier_rank=0):
            if dist.get_rank() == 0:
                weight.data.sub_(svd_parts(weight.data))
        with gathered(weight):
            assert torch.equal(weight, plain - low)
        with gathered(weight, modifier_rank=0), torch.no_grad():
            if dist.get_rank() == 0:  # merged again
                weight.add_(low)
        state = engine.state_dict()
        if dist.get_rank() == 0:
            assert torch.equal(state["blocks.1.up.weight"], plain - low + low)
        train_step(engine)


@STAGES
def test_Z3_07_initialisation_from_a_decomposition(stage, pool):
    pool.run(rank_svd, stage, ranks=2)


# Adapters on a frozen base


def rank_lora(stage):
    """The trained part of the state after two steps."""
    torch.manual_seed(0)
    model = models.lora()
    case = parity.Case(stage, "lora")
    with make_engine(model, parity.config_of(case)) as engine:
        for step in range(2):
            parity.accumulate(engine, case, step, "cpu")
            engine.step()
        trained = {n for n, p in model.named_parameters() if p.requires_grad}
        return {n: v for n, v in engine.state_dict().items() if n in trained}


def test_Z3_05_saved_adapters_have_their_shapes(pool):
    """What is saved of a sharded model loads into a plain one and gives the same logits."""
    state = pool.run(rank_lora, 3, ranks=2)[0]
    torch.manual_seed(0)
    plain = models.lora()
    expected = {n: p.shape for n, p in plain.named_parameters() if p.requires_grad}
    assert {n: v.shape for n, v in state.items()} == expected
    assert all(v.numel() for v in state.values())
    whole = pool.run(rank_lora, 0, ranks=2)[0]
    for values in (state, whole):
        plain.load_state_dict(values, strict=False)
        logits = plain(input_ids=models.batch("lora", 0)["input_ids"]).logits
        if values is state:
            first = logits
    torch.testing.assert_close(first, logits, rtol=1e-5, atol=1e-6)


# Fewer elements than ranks


class Three(nn.Module):
    def __init__(self, scalar):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        if not scalar:
            self.shift = nn.Parameter(torch.tensor([0.25, -0.5]))

    def forward(self, x, y):
        shift = self.shift.sum() if hasattr(self, "shift") else 0
        return models.mse(x * self.scale + shift, y)


def plain_three(scalar, steps):
    model = Three(scalar)
    make, options = reference.OPTIMIZERS["AdamW"]
    optimizer = make(model.parameters(), **options)
    norms = []
    for step in range(steps):
        model(**models.batch("mlp", step)).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), reference.MAX_NORM)))
        optimizer.step()
        optimizer.zero_grad()
    return {n: p.detach() for n, p in model.named_parameters()}, norms


def rank_three(stage, scalar, steps):
    case = parity.Case(stage, "mlp", accumulation=2, ranks=4, clip=True)
    norms = []
    with make_engine(Three(scalar), parity.config_of(case)) as engine:
        for step in range(steps):
            parity.accumulate(engine, case, step, "cpu")
            engine.step()
            norms.append(engine.get_global_grad_norm())
        return engine.state_dict(), norms


@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_PE_03_fewer_elements_than_ranks(stage, scalar, pool, reference):
    weights, norms = reference.run(plain_three, scalar, 3)[0]
    for state, found in pool.run(rank_three, stage, scalar, 3, ranks=4):
        assert found == pytest.approx(norms, rel=1e-6)
        assert_close(state, weights if state else {})
