"""Dtypes of travel and of buffers: torch_autocast.lower_precision_safe_modules, buffer_dtype."""

import copy
from functools import partial

import models
import pytest
import torch
from parity import make_engine
from test_optimizers import rule_config
from torch import nn

STAGES_0_2_3 = pytest.mark.parametrize("stage", [0, 2, 3])
WIDTH = 64


class Half(nn.Linear):
    """A class of the user's own."""


class Net(nn.Module):
    """Weights and inputs that bf16 cannot hold; each layer reports the weight that it sees."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.own = Half(WIDTH, WIDTH, bias=False)
        self.register_buffer("mean", torch.linspace(0, 1, WIDTH))
        self.register_buffer("count", torch.tensor(3))
        self.seen = {}
        for name, layer in self.named_children():
            layer.register_forward_pre_hook(partial(self.note, name))

    def note(self, name, layer, inputs):
        for part, value in layer.named_parameters():
            self.seen[f"{name}.{part}"] = value.detach().clone()

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):  # autocast itself would round, too
            return self.own(self.norm(self.first(x)) - self.mean.float()).square().mean()


def settings_of(stage, modules=None, **more):
    settings = rule_config(stage, "fp32", {"type": "SGD", "params": {"lr": 0.1}})
    settings["torch_autocast"] = {"enabled": True, "dtype": "bf16"}
    if modules is not None:
        settings["torch_autocast"]["lower_precision_safe_modules"] = modules
    return {**settings, **more}


def sample(rank):
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(rank))


def rank_travel(stage, modules, more):
    from shardwise.utils import safe_get_full_grad

    model = Net()
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    with make_engine(model, settings_of(stage, modules, **more)) as engine:
        engine.backward(engine(sample(torch.distributed.get_rank())))
        seen = model.seen
        gradients = {n: safe_get_full_grad(p) for n, p in model.named_parameters()}
        traffic = engine.comm_counters()
        state = engine.state_dict()
    for name, value in state.items():
        if name in start:
            assert torch.equal(value, start[name]), f"{name} is fp32 for everybody but forward"
    return seen, gradients, start, traffic


def plain_gradients(rounded, stage):
    """The mean of two ranks' gradients, as it comes from sums of what was sent."""
    each = []
    for rank in range(2):
        model = Net()
        with torch.no_grad():
            for name, value in model.named_parameters():
                if stage == 3 and name in rounded:
                    value.copy_(value.bfloat16())
        model(sample(rank)).backward()
        each.append({n: p.grad for n, p in model.named_parameters()})
    sent = [
        {n: g.bfloat16().float() if n in rounded else g for n, g in one.items()} for one in each
    ]
    return {n: (sent[0][n] + sent[1][n]) / 2 for n in sent[0]}


LINEAR, OWN = "torch.nn.Linear", f"{Half.__module__}.Half"
CHOICES = [
    (None, {}, {"first.weight"}),
    ([LINEAR, OWN], {}, {"first.weight", "own.weight"}),
    (["torch.nn.LayerNorm"], {}, {"norm.weight", "norm.bias"}),
    ([], {}, set()),
    (None, {"communication_data_type": "fp32"}, set()),
]


def in_order(value):
    """The same name in every process, of sets too."""
    return str(sorted(value) if isinstance(value, set) else value)


@pytest.mark.parametrize("modules,more,rounded", CHOICES, ids=in_order)
@STAGES_0_2_3
def test_classes_travel_in_the_dtype_of_autocast(stage, modules, more, rounded, pool):
    ranks = pool.run(rank_travel, stage, modules, more, ranks=2)
    for seen, gradients, start, _ in ranks:
        for name, value in start.items():
            through = value.bfloat16().float() if stage == 3 and name in rounded else value
            assert torch.equal(seen[name], through), name
        for name, value in plain_gradients(rounded, stage).items():
            # Stage 0 gets the sum back in bf16; the rest is the order of sums in fp32.
            eps = 2**-8 if stage == 0 and name in rounded else 1e-6
            error = (gradients[name] - value).abs().max() / value.abs().max()
            assert error <= eps, f"{name}: {error:.1e}"
            changed = not torch.equal(gradients[name], gradients[name].bfloat16().float())
            assert changed == (name not in rounded or stage > 0), name


def rank_tied_head(stage):
    """Loss and gradient of the table that GPT-2's head shares, and plain autocast's."""
    from shardwise.utils import safe_get_full_grad

    model = models.build("gpt2")
    assert model.lm_head.weight is model.transformer.wte.weight
    plain = copy.deepcopy(model)
    micros = models.micro_batches("gpt2", 0, 2, "cpu", torch.float32)
    right = []
    for micro in micros:
        with torch.autocast("cpu", torch.bfloat16):
            right.append(plain(**micro).loss)
        (right[-1] / 2).backward()
    with make_engine(model, settings_of(stage, shardwise={"fused_layers": False})) as engine:
        loss = engine(**micros[torch.distributed.get_rank()]).loss
        engine.backward(loss)
        gradient = safe_get_full_grad(model.lm_head.weight)
    assert torch.equal(loss, right[torch.distributed.get_rank()])
    return gradient, plain.lm_head.weight.grad


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_weight_that_is_an_embedding_too_travels_in_fp32(stage, pool):
    for gradient, expected in pool.run(rank_tied_head, stage, ranks=2):
        error = (gradient - expected).abs().max() / expected.abs().max()
        assert error <= 1e-6, f"{error:.1e}"


def test_bytes_on_the_wire_are_half(pool):
    small, full = (
        pool.run(rank_travel, 3, names, {}, ranks=2)[0][3]
        for names in ([LINEAR, OWN, "torch.nn.LayerNorm"], [])
    )
    assert 2 * small["reduce_scatter"]["bytes"] == full["reduce_scatter"]["bytes"]


def rank_unknown_class():
    def refused(name, match):
        with pytest.raises(ValueError, match=match):
            make_engine(Net(), settings_of(2, [name]))

    refused("torch.nn.Linaer", "'torch.nn.Linaer'.*such as.*torch.nn")
    refused("Half", f"'Half'.*full name, such as {OWN}")
    refused("torch.nn.functional.relu", "no class of modules")


def test_unknown_classes_are_named(pool):
    pool.run(rank_unknown_class, ranks=1)


def rank_buffers(dtype):
    settings = settings_of(1, data_types={"buffer_dtype": dtype})
    with make_engine(Net(), settings) as engine:
        engine.backward(engine(sample(0)))
        engine.step()
        buffers = engine.memory_report()["device"]["buffers"]
        return engine.module.mean.clone(), engine.module.count.dtype, buffers


def test_buffers_are_cast_when_asked(pool):
    expected = torch.linspace(0, 1, WIDTH)
    for dtype, kind in ((None, torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        for mean, count, held in pool.run(rank_buffers, dtype, ranks=2):
            assert mean.dtype == kind and torch.equal(mean, expected.to(kind))
            assert count == torch.int64
            assert held == WIDTH * kind.itemsize + 8
