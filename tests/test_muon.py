"""Muon: whole matrices from shards, against torch.optim.Muon and a plain reference in fp64."""

from contextlib import nullcontext

import models
import parity
import pytest
import rules
import torch
from parity import Case, make_engine
from test_optimizers import masters_of, rule_config
from torch import nn

# Wide, tall, square, a stack of matrices, a filter, one row; and what Adam moves.
SHAPES = ((9, 33), (33, 9), (16, 16), (5, 4, 3), (6, 2, 3, 2), (1, 40), (7,), (), (64,))
PARAMS = {"muon_lr": 0.05, "adam_lr": 0.01, "momentum": 0.9, "weight_decay": 0.1}
STEPS = 4
# The polynomial of the iteration changes by at most 3.9 times the change of a singular value in
# [0, 1.2], so five steps carry an error on by up to 3.9^5. The error of a step comes from two
# products of up to 33 terms each, whose roundings of eps / 2 add up as in a random walk.
SLACK = 3.9**5 * 2 * 33**0.5 * torch.finfo(torch.float32).eps / 2


def plain_muon():
    """Reference side, in fp64: weights and momenta."""
    model = rules.ExactGradients(SHAPES).double()
    matrices = [p for p in model.parts if p.dim() >= 2]
    rest = [p for p in model.parts if p.dim() < 2]
    for p in matrices:
        p.use_muon = True
    decay = PARAMS["weight_decay"]
    optimizers = [
        rules.Muon(matrices, lr=PARAMS["muon_lr"], weight_decay=decay, momentum=0.9),
        torch.optim.AdamW(
            rest, lr=PARAMS["adam_lr"], betas=(0.9, 0.95), eps=1e-10, weight_decay=decay
        ),
    ]
    for step in range(STEPS):
        model(step).backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
    momenta = [optimizers[0].state[p]["momentum_buffer"] for p in matrices]
    return [p.detach() for p in model.parts], momenta


def rank_muon(stage, dtype="fp32", zero=None, params=PARAMS, steps=STEPS, early=False, **more):
    """Masters, momenta (None for parameters of Adam) and the memory report.

    `early`: of a model that is built in shards.
    """
    from shardwise.utils import safe_get_full_optimizer_state

    import shardwise

    settings = {**rule_config(stage, dtype, {"type": "Muon", "params": params}), **more}
    settings["zero_optimization"].update(zero or {})
    with shardwise.zero.Init() if early else nullcontext():
        model = rules.ExactGradients(SHAPES)
    assert early == any(hasattr(p, "_shardwise_early") for p in model.parameters())
    with make_engine(model, settings) as engine:
        for step in range(steps):
            engine.backward(engine(step))
            engine.step()
        parts = engine.module.parts
        momenta = [safe_get_full_optimizer_state(p, "momentum_buffer") for p in parts]
        assert safe_get_full_optimizer_state(parts[0], "exp_avg") is None
        assert safe_get_full_optimizer_state(parts[6], "exp_avg_sq").shape == (7,)
        return list(masters_of(engine).values()), momenta, engine.memory_report()


@pytest.fixture(scope="module")
def whole(pool):
    """One rank without shards."""
    return pool.run(rank_muon, 0)[0]


def test_muon_is_the_published_rule(whole, reference):
    weights, momenta = reference.run(plain_muon)[0]
    for shape, found, expected in zip(SHAPES, whole[0], weights, strict=True):
        if len(shape) < 2:
            torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=1e-7)
            continue
        step = PARAMS["muon_lr"] * max(1.0, shape[-2] / shape[-1]) ** 0.5
        error = float((found - expected).abs().max())
        assert error <= STEPS * step * SLACK, f"{shape}: {error:.1e}"
    assert whole[1][len(momenta) :] == [None] * 3
    for found, expected in zip(whole[1], momenta, strict=False):
        torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=1e-7)


def same_bits(found, expected):
    for shape, one, other in zip(SHAPES, found, expected, strict=True):
        assert (one is None) == (other is None), shape
        assert one is None or torch.equal(one, other), f"{shape}: {(one - other).abs().max():.1e}"


HYBRID = {"shardwise": {"hybrid_shard_size": 2, "poison_released": True}}
OFFLOAD = {"offload_optimizer": {"device": "cpu"}}


@pytest.mark.parametrize(
    ("stage", "dtype", "ranks", "zero", "more"),
    [
        (0, "bf16", 3, None, {}),
        (1, "fp32", 3, None, {}),
        (2, "fp16", 4, None, {"fp16": {"enabled": True, "initial_scale_power": 8}}),
        (3, "fp32", 2, None, {}),
        (3, "bf16", 1, None, {}),
        (0, "fp32", 2, OFFLOAD, {}),
        (2, "bf16", 2, OFFLOAD, {}),
        (1, "fp32", 4, None, HYBRID),
        (3, "bf16", 4, OFFLOAD, HYBRID),
    ],
)
def test_masters_do_not_depend_on_the_cut(stage, dtype, ranks, zero, more, pool, whole):
    """Exact gradients, and whole matrices however many ranks hold them: the same bits."""
    for weights, momenta, _ in pool.run(rank_muon, stage, dtype, zero, ranks=ranks, **more):
        same_bits(weights, whole[0])
        same_bits(momenta, whole[1])


@pytest.mark.parametrize(
    ("stage", "dtype", "ranks", "zero", "more"),
    [
        (3, "fp32", 2, None, {}),
        (3, "bf16", 3, OFFLOAD, {}),
        (2, "bf16", 2, None, {}),
        (3, "fp32", 4, None, HYBRID),
    ],
)
def test_models_that_are_built_in_shards(stage, dtype, ranks, zero, more, pool, whole):
    for weights, momenta, _ in pool.run(
        rank_muon, stage, dtype, zero, early=True, ranks=ranks, **more
    ):
        same_bits(weights, whole[0])
        same_bits(momenta, whole[1])


# ---- more than one round of exchanges

ROUND = 1 << 25  # elements that a rank takes in one round, as in zero/muon.cpp


class Rounds(nn.Module):
    """Two ranks: the first takes the matrix that costs most, the second both others, which are
    more than it may hold at once. Gradients are exact."""

    def __init__(self):
        super().__init__()
        shapes = ((2, ROUND // 2), (512, 512), (64, 64))
        self.parts = nn.ParameterList(nn.Parameter(torch.ones(shape)) for shape in shapes)

    def forward(self, step):
        loss = 0.0
        for part in self.parts:
            rows = part.shape[0]
            pattern = (torch.arange(64 * rows).reshape(rows, 64) ** 2 + step) % 61 / 8.0
            loss = loss + (part.view(rows, -1, 64) * pattern[:, None]).sum()
        return loss


def rank_rounds():
    """The same weights with whole matrices and with shards; the exchanges of the step."""
    params = {"lr": 0.05, "momentum": 0.9}
    weights = []
    for stage in (0, 2):
        settings = rule_config(stage, "fp32", {"type": "Muon", "params": params})
        with make_engine(Rounds(), settings) as engine:
            engine.reset_comm_counters()
            engine.backward(engine(step=1))
            engine.step()
            counters = engine.comm_counters()
            weights.append(engine.state_dict())
    whole, sharded = weights
    for name, value in whole.items():
        assert (value != 1).any()
        assert torch.equal(sharded[name], value), name
    return counters["all_to_all"]["calls"]


def test_several_rounds(pool):
    """Each round sends updates to their owners and back."""
    assert pool.run(rank_rounds, ranks=2) == [2 * 2] * 2


def test_momentum_takes_its_share(pool):
    """fp32: one state for matrices and two for the rest, cut in two but for the padding."""
    numels = [torch.Size(shape).numel() for shape in SHAPES]
    expected = 4 * (sum(numels[:6]) + 2 * sum(numels[6:])) / 2
    padding = 3 * len(SHAPES) * 128
    for _, _, report in pool.run(rank_muon, 3, ranks=2):
        assert expected <= report["device"]["optimizer"] <= expected + padding


# ---- torch.optim.Muon

TORCH = {
    "defaults": {},
    "plain": {"lr": 0.05, "momentum": 0.8, "nesterov": False, "weight_decay": 0.0},
    "adjusted": {"lr": 0.05, "adjust_lr_fn": "match_rms_adamw", "eps": 1e-3, "ns_steps": 3},
    "coefficients": {"lr": 0.05, "ns_coefficients": (2.0, -1.5, 0.5)},
}


def torch_groups(model):
    matrices = [p for p in model.parts if p.dim() == 2]
    return [{"params": matrices[:2]}, {"params": matrices[2:], "lr": 0.2, "momentum": 0.5}]


def plain_torch_muon():
    weights = {}
    for name, arguments in TORCH.items():
        model = rules.ExactGradients(SHAPES)
        optimizer = torch.optim.Muon(torch_groups(model), **arguments)
        for step in range(STEPS):
            model(step).backward()
            optimizer.step()
            model.zero_grad()
        weights[name] = [p.detach() for p in model.parts]
    return weights


def rank_torch_muon(stage, dtype):
    weights = {}
    for name, arguments in TORCH.items():
        model = rules.ExactGradients(SHAPES)
        optimizer = torch.optim.Muon(torch_groups(model), **arguments)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        settings = rule_config(stage, dtype)
        with make_engine(model, settings, optimizer=optimizer, lr_scheduler=schedule) as engine:
            for step in range(STEPS):
                engine.backward(engine(step))
                engine.step()
            weights[name] = list(masters_of(engine).values())
    return weights


@pytest.mark.parametrize(
    ("stage", "dtype", "ranks"), [(0, "fp32", 2), (1, "bf16", 3), (3, "fp32", 4)]
)
def test_torch_muon_has_the_same_bits(stage, dtype, ranks, pool, reference):
    """The same operations on the same whole matrices in bf16, and elementwise ones on pieces."""
    plain = reference.run(plain_torch_muon)[0]
    for weights in pool.run(rank_torch_muon, stage, dtype, ranks=ranks):
        for name, expected in plain.items():
            same_bits(weights[name], expected)


# ---- which parameters, which rates


class Names(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(8, 4)
        self.embed_positions = nn.Linear(4, 4)
        self.conv = nn.Conv1d(4, 4, 3)
        self.up = nn.Linear(4, 6)
        self.lm_head = nn.Linear(6, 8, bias=False)


MATRICES = {"conv.weight", "up.weight"}


def rank_choices():
    import shardwise

    model = Names()
    shardwise.set_optimizer_flags({"optimizer": {"type": "AdamW"}}, model)
    assert not hasattr(model.up.weight, "use_muon")
    shardwise.set_optimizer_flags({"optimizer": {"type": "muon"}}, model)
    assert {n for n, p in model.named_parameters() if p.use_muon} == MATRICES

    def groups(params, given=None, **tags):
        model = Names()
        for name, tag in tags.items():
            getattr(model, name).weight.use_muon = tag
        settings = rule_config(1, "fp32", {"type": "Muon", "params": params})
        chosen = given(model) if given else None
        with make_engine(model, settings, model_parameters=chosen) as engine:
            names = {id(p): n for n, p in model.named_parameters()}
            return [
                (
                    {names[id(p)] for p in group["params"]},
                    group["use_muon"],
                    group["lr"],
                    group["weight_decay"],
                )
                for group in engine.optimizer.param_groups
            ]

    rest = {n for n, _ in model.named_parameters()} - MATRICES
    assert groups({}) == [(MATRICES, True, 0.02, 0.0), (rest, False, 3e-4, 0.0)]
    assert [g[2] for g in groups({"lr": 0.1})] == [0.1, 0.1]
    assert [g[2] for g in groups({"lr": 0.1, "muon_lr": None, "adam_lr": 0.2})] == [0.1, 0.2]
    assert groups({}, conv=False)[0][0] == {"up.weight"}
    own = groups(
        {"weight_decay": 0.5, "muon_lr": 0.1},
        lambda m: [
            {"params": [m.up.weight, m.conv.weight, m.tok.weight]},
            {"params": [m.up.bias], "weight_decay": 0.0, "lr": 0.3},
        ],
    )
    assert own == [
        (MATRICES, True, 0.1, 0.5),
        ({"tok.weight"}, False, 3e-4, 0.5),
        ({"up.bias"}, False, 0.3, 0.0),
    ]


def test_parameters_and_rates(pool):
    pool.run(rank_choices)


# ---- groups that join, wrong use


def rank_joins(stage):
    model = rules.ExactGradients(SHAPES)
    parts = list(model.parts)
    settings = rule_config(stage, "fp32", {"type": "Muon", "params": PARAMS})
    with make_engine(model, settings, model_parameters=[*parts[:3], *parts[6:]]) as engine:
        start = masters_of(engine)
        with pytest.raises(RuntimeError, match="takes 1 of the 2 parameters"):
            engine.optimizer.add_param_group({"params": [parts[3], model.parts[7]]})
        engine.optimizer.add_param_group({"params": parts[3:6], "weight_decay": 0.0})
        for step in range(STEPS):
            engine.backward(engine(step, skip=(4,)))
            engine.step()
        masters = masters_of(engine)
        assert torch.equal(masters["parts.4"], start["parts.4"]), "unused on every rank"
        first = engine.optimizer.param_groups[0]
        engine.backward(engine(0))
        first["ns_method"] = "fast"
        with pytest.raises(RuntimeError, match=r"'ns_method'\] is 'fast'.*gram.*standard"):
            engine.step()
        first.update(ns_method="gram", use_muon=False, betas=(0.9, 0.95))
        engine.backward(engine(0))
        with pytest.raises(RuntimeError, match="'use_muon' is false.*set it back"):
            engine.step()
        return masters


def test_groups_join_and_bad_ones_are_refused(pool):
    one, two = (pool.run(rank_joins, stage, ranks=ranks)[0] for stage, ranks in ((0, 1), (3, 3)))
    assert all(torch.equal(one[name], two[name]) for name in one)


def rank_strangers():
    """A tensor that is not the model's; groups with names, and of an iterator."""
    settings = rule_config(1, "fp32", {"type": "Muon"})
    stranger = nn.Parameter(torch.ones(4, 4))
    for given in ([stranger], [{"params": [stranger]}], [{"params": iter([stranger])}]):
        with pytest.raises(RuntimeError, match=r"\(4, 4\), is no parameter of the model"):
            make_engine(models.build("mlp"), settings, model_parameters=given)
    for make in (None, lambda groups: torch.optim.Muon(groups)):
        model = rules.ExactGradients(SHAPES)
        named = list(model.named_parameters())[:3]
        given = [{"params": iter(named[:2])}]
        with make_engine(model, settings, optimizer=make, model_parameters=given) as engine:
            with pytest.raises(RuntimeError, match=r"\(4, 4\) is no parameter of the engine"):
                engine.optimizer.add_param_group({"params": [("stranger", stranger)]})
            with pytest.raises(RuntimeError, match="class int is no parameter of the engine"):
                engine.optimizer.add_param_group({"params": [3]})
            engine.optimizer.add_param_group({"params": named[2:]})
            start = masters_of(engine)
            engine.backward(engine(0))
            engine.step()
            moved = [bool((start[n] != w).any()) for n, w in masters_of(engine).items()]
            assert moved == [True] * 3 + [False] * (len(SHAPES) - 3)


def test_strangers_are_named_and_names_are_taken(pool):
    pool.run(rank_strangers)


def rank_refused():
    model = models.build("mlp")
    model.blocks[0].norm.weight.use_muon = True
    settings = rule_config(1, "fp32", {"type": "Muon"})
    with pytest.raises(RuntimeError, match=r"blocks.0.norm.weight has use_muon.*no matrix"):
        make_engine(model, settings)
    settings = rule_config(2, "bf16", {"type": "Muon"})
    settings["bf16"]["bf16_master_weights_and_grads"] = True
    with pytest.raises(ValueError, match='type: "Muon" does not go with bf16.*choose one'):
        make_engine(models.build("mlp"), settings)
    for params, message in (
        ({"ns_method": "fast"}, "ns_method.*gram"),
        ({"nesterov": True}, "nesterov is not a setting of Muon"),
    ):
        settings = rule_config(1, "fp32", {"type": "Muon", "params": params})
        with pytest.raises(ValueError, match=message):
            make_engine(models.build("mlp"), settings)


def test_bad_settings_are_refused(pool):
    pool.run(rank_refused)


# ---- parity of a model with filters, whose storage is not in the order of its indices


def train_channels_last(case):
    build = models.BUILDERS["cnn"]
    models.BUILDERS["cnn"] = lambda: build().to(memory_format=torch.channels_last)
    try:
        return parity.train(case)
    finally:
        models.BUILDERS["cnn"] = build


@pytest.mark.parametrize("train", [parity.train, train_channels_last])
def test_filters(train, pool, reference):
    case = Case(3, "cnn", ranks=3, optimizer="Muon")
    parity.check(case, pool.run(train, case, ranks=3), parity.Truth(reference))
