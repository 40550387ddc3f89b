"""Training whose masters, gradients and, if asked, optimizer states are 16-bit.

The rule computes in fp32 and each stored number is rounded once, to nearest even. So one step of
torch.optim in fp32 from the engine's stored numbers, moved up and down by the tolerance that the
fp32 rules have, and rounded, encloses what the engine stores: rounding keeps order. The interval is
one 16-bit number but for the rare value that lies at the middle between two.
"""

import sys
from pathlib import Path

import native_front
import parity
import pytest
import rules
import torch
from parity import Case, make_engine
from steps import STAGES
from test_optimizers import CONFIGURED, rule_config, torch_arguments
from torch import nn

STEPS = 4
RULES = {
    **{name: CONFIGURED[name] for name in ("Adam", "AdamW", "Lion", "Adagrad")},
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1}),
}
STATES = {
    "Adam": ("exp_avg", "exp_avg_sq"),
    "AdamW": ("exp_avg", "exp_avg_sq"),
    "Lion": ("exp_avg",),
    "Adagrad": ("sum",),
    "SGD": ("momentum_buffer",),
}
MODES = {
    "bf16": {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}},
    "bf16 states": {
        "bf16": {
            "enabled": True,
            "bf16_master_weights_and_grads": True,
            "bf16_optimizer_states": True,
        }
    },
    "fp16": {
        "fp16": {"enabled": True, "fp16_master_weights_and_grads": True, "initial_scale_power": 8}
    },
}


# With fp32 masters, to compare ways of holding shards.
WIDE = {"fp32": {}, "mixed": {"bf16": {"enabled": True}}}


def settings_of(mode, stage, kind, offload="none", **more):
    settings = rule_config(stage, "fp32", {"type": kind, "params": RULES[kind][1]})
    settings["zero_optimization"]["offload_optimizer"] = {"device": offload}
    return {**settings, **(MODES | WIDE)[mode], **more}


def stored(engine, kind):
    """Master and states of each parameter."""
    from shardwise.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    found = {}
    for name, parameter in engine.module.named_parameters():
        found[name] = {"master": safe_get_full_fp32_param(parameter)}
        for state in STATES[kind]:
            found[name][state] = safe_get_full_optimizer_state(parameter, state)
        assert all(value.dtype == torch.float32 for value in found[name].values())
    return found


def trace_of(mode, stage, kind, offload="none", early=False, **more):
    """What is stored before the first step and after each; the report of the memory."""
    import shardwise

    settings = settings_of(mode, stage, kind, offload, **more)
    if early:
        with shardwise.zero.Init(config_dict_or_path=settings):
            model = rules.ExactGradients()
    else:
        model = rules.ExactGradients()
    with make_engine(model, settings) as engine:
        trace = [stored(engine, kind)]
        for step in range(STEPS):
            engine.backward(engine(step))
            engine.step()
            assert engine.was_step_applied()
            trace.append(stored(engine, kind))
        weights = engine.state_dict()  # {} but on rank 0
        for name, weight in weights.items():
            assert torch.equal(weight, trace[-1][name]["master"].to(weight.dtype)), name
        return trace, engine.memory_report()


def rank_traces(mode, stage):
    return {kind: trace_of(mode, stage, kind)[0] for kind in RULES}


def plain_step(kind, before, gradient, step):
    """Master and states after one fp32 step of torch from stored ones."""
    make, options = RULES[kind]
    parameter = nn.Parameter(before["master"].clone())
    optimizer = make([parameter], **torch_arguments(options))
    state = optimizer.state[parameter]
    if step > 0 or kind == "Adagrad":
        state.update({name: before[name].clone() for name in STATES[kind]})
    if kind in ("Adam", "AdamW", "Adagrad") and state:
        state["step"] = torch.tensor(float(step))
    parameter.grad = gradient
    optimizer.step()
    return {"master": parameter.detach(), **{name: state[name] for name in STATES[kind]}}


def check_step(kind, mode, before, after, index, step):
    master = torch.float16 if mode == "fp16" else torch.bfloat16
    states = torch.bfloat16 if mode == "bf16 states" else torch.float32
    gradient = rules.numbers(before["master"].shape, step, index)
    exact = 0
    for name, value in plain_step(kind, before, gradient, step).items():
        slack = 2e-6 * value.abs().max()  # as for the fp32 rules in test_optimizers.py
        stored_as = master if name == "master" else states
        low, high = ((value + side * slack).to(stored_as).float() for side in (-1, 1))
        assert bool(((low <= after[name]) & (after[name] <= high)).all()), (kind, name, index, step)
        exact += int((low == high).sum())
    return exact


@pytest.mark.parametrize("mode", MODES)
@STAGES
def test_each_step_is_torchs_rounded_once(stage, mode, pool):
    for traces in pool.run(rank_traces, mode, stage, ranks=2):
        exact = total = 0
        for kind, trace in traces.items():
            for step in range(STEPS):
                for index, name in enumerate(trace[step]):
                    before, after = trace[step][name], trace[step + 1][name]
                    exact += check_step(kind, mode, before, after, index, step)
                    # An update that is lost to rounding everywhere would prove nothing.
                    moved = (before["master"] != after["master"]).float().mean()
                    assert before["master"].numel() < 8 or moved > 0.5, (kind, name, step)
                    total += before["master"].numel()
        assert exact > 0.8 * total, "the intervals are too wide to say anything"


def same(one, other):
    return all(
        torch.equal(one[step][name][kind], other[step][name][kind])
        for step in range(STEPS + 1)
        for name in one[step]
        for kind in one[step][name]
    )


@pytest.mark.parametrize(
    "mode,stage,kind",
    [
        ("bf16 states", 3, "AdamW"),
        ("bf16", 1, "Lion"),
        ("fp16", 2, "SGD"),
        ("fp32", 3, "Adagrad"),
        ("mixed", 3, "Adam"),
        ("mixed", 1, "AdamW"),
    ],
)
def test_ways_of_holding_shards_change_no_bit(mode, stage, kind, pool):
    """Host memory, hybrid shards, both, and a model built in shards against whole parameters."""
    expected, report = pool.run(trace_of, mode, 0, kind, ranks=1)[0]
    count = sum(value["master"].numel() for value in expected[0].values())
    states = (2 if mode == "bf16 states" else 4) * len(STATES[kind]) * count
    own = 4 * count if mode == "mixed" else 0  # masters besides the parameters
    on_host = (4 if mode in WIDE else 2) * count
    # Each parameter and each rank's share may be padded to 128 bytes of parameters.
    padding = 64 * (len(expected[0]) + 4) * (4 + 4 * len(STATES[kind]))
    assert states + own <= report["device"]["optimizer"] <= states + own + padding
    hybrid = {"hybrid_shard_size": 2, "poison_released": True}
    for offload in ("none", "cpu"):
        for more in ({}, {"shardwise": hybrid}):
            arguments = {"offload": offload, "early": bool(more) and stage == 3, **more}
            for found, held in pool.run(trace_of, mode, stage, kind, ranks=4, **arguments):
                assert same(found, expected), arguments
                shards = 2 if more else 4
                tier, other, least = "device", "pinned_host", (states + own) / shards
                if offload == "cpu":
                    tier, other, least = other, tier, (states + on_host) / shards
                assert held[other]["optimizer"] == 0
                assert least <= held[tier]["optimizer"] <= least + padding


class TwoNumbers(nn.Module):
    """Gradient 256, then 1: their sum is 257, which is 256 in bf16 and 257 in fp32 and fp16."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, first):
        return (self.weight.float() * (512.0 if first else 2.0)).sum()


def rank_accumulated(stage, dtype):
    from shardwise.utils import safe_get_full_grad

    more = {"gradient_accumulation_steps": 2, "data_types": {"grad_accum_dtype": dtype}}
    with make_engine(TwoNumbers(), settings_of("bf16", stage, "SGD", **more)) as engine:
        engine.backward(engine(True))
        engine.step()
        engine.backward(engine(False))
        return safe_get_full_grad(engine.module.weight).float(), engine.memory_report()


@STAGES
def test_gradients_are_summed_in_16_bits_unless_told_otherwise(stage, pool):
    for dtype, expected in ((None, 256.0), ("fp32", 257.0)):
        for gradient, report in pool.run(rank_accumulated, stage, dtype, ranks=2):
            assert gradient.tolist() == [expected] * 3
            assert report["device"]["gradients"] == (128 if dtype is None else 256) * (
                1 if stage >= 2 else 2
            )


def rank_access(mode, stage, offload):
    from shardwise.utils import (
        safe_get_full_fp32_param,
        safe_get_local_fp32_param,
        safe_set_full_fp32_param,
        safe_set_full_optimizer_state,
        safe_set_local_fp32_param,
    )

    dtype = torch.float16 if mode == "fp16" else torch.bfloat16
    model = rules.ExactGradients()
    with make_engine(model, settings_of(mode, stage, "AdamW", offload)) as engine:
        part = model.parts[7]
        value = torch.linspace(-1, 1, part.numel()).reshape(rules.SHAPES[7])
        safe_set_full_fp32_param(part, value)
        assert torch.equal(safe_get_full_fp32_param(part), value.to(dtype).float())
        local = safe_get_local_fp32_param(part)
        assert local.dtype == torch.float32
        safe_set_local_fp32_param(part, local + 1)
        expected = (value.to(dtype).float() + 1).to(dtype).float()
        assert torch.equal(safe_get_full_fp32_param(part), expected)
        safe_set_full_optimizer_state(part, torch.full(value.shape, 0.3), "exp_avg")
        before = stored(engine, "AdamW")[f"parts.{7}"]
        kept = torch.tensor(0.3).to(torch.bfloat16 if mode == "bf16 states" else torch.float32)
        assert bool((before["exp_avg"] == kept.float()).all())
        if (
            stage == 0 and offload == "none"
        ):  # the parameter is the master: a change in place counts
            with torch.no_grad():
                part.fill_(0.5)
            before["master"].fill_(0.5)
        engine.backward(engine(0))
        engine.step()
        after = stored(engine, "AdamW")[f"parts.{7}"]
        assert torch.equal(
            engine.full_tensor(engine._wiring.index[id(part)], "parameter").float(), after["master"]
        )
        return before, after


@pytest.mark.parametrize(
    "mode,stage,offload",
    [
        ("bf16", 0, "none"),
        ("bf16 states", 2, "cpu"),
        ("bf16 states", 3, "none"),
        ("fp16", 1, "none"),
    ],
)
def test_masters_and_states_are_read_and_set(mode, stage, offload, pool):
    for before, after in pool.run(rank_access, mode, stage, offload, ranks=2):
        gradient = rules.numbers(before["master"].shape, 0, 7)
        make, options = RULES["AdamW"]
        parameter = nn.Parameter(before["master"].clone())
        optimizer = make([parameter], **torch_arguments(options))
        optimizer.state[parameter].update(
            step=torch.tensor(0.0), exp_avg=before["exp_avg"], exp_avg_sq=before["exp_avg_sq"]
        )
        parameter.grad = gradient
        optimizer.step()
        torch.testing.assert_close(
            after["master"], parameter.detach(), rtol=2**-8 if mode != "fp16" else 2**-11, atol=1e-6
        )


def rank_changed_in_place():
    model = rules.ExactGradients()
    with make_engine(model, settings_of("bf16", 1, "SGD", "cpu")) as engine:
        with torch.no_grad():
            model.parts[3].add_(1)
        engine.backward(engine(0))
        with pytest.raises(RuntimeError, match="parts.3 was changed in place"):
            engine.step()


def test_a_change_in_place_that_a_master_in_host_memory_would_undo(pool):
    pool.run(rank_changed_in_place, ranks=2)


def rank_refused():
    def refused(error, match, settings, **arguments):
        with pytest.raises(error, match=match):
            make_engine(rules.ExactGradients(), settings, **arguments)

    lamb = {**settings_of("bf16", 2, "SGD"), "optimizer": {"type": "Lamb"}}
    refused(ValueError, '"Lamb" does not go with bf16.*work with Adam', lamb)
    amsgrad = {**settings_of("fp16", 2, "SGD")}
    amsgrad["optimizer"] = {"type": "Adam", "params": {"amsgrad": True}}
    refused(ValueError, "params.amsgrad: true does not go with.*without amsgrad", amsgrad)
    alone = {
        **settings_of("bf16", 2, "SGD"),
        "bf16": {"enabled": True, "bf16_optimizer_states": True},
    }
    refused(ValueError, "bf16_optimizer_states: true needs bf16 masters", alone)


def test_what_does_not_go_together(pool):
    pool.run(rank_refused, ranks=1)


# ---- real models, both fronts

MODELS = [
    Case(3, "llama", "bf16", ranks=2, masters="16-bit with states"),
    Case(2, "gpt2", "fp16", ranks=2, clip=True, masters="16-bit"),
]


@pytest.fixture(scope="module")
def truth(reference):
    return parity.Truth(reference)


@pytest.mark.parametrize("case", MODELS, ids=str)
def test_models_train_as_in_plain_torch(case, pool, truth):
    parity.check(case, pool.run(parity.train, case, ranks=case.ranks), truth)


def test_the_cpp_front(tmp_path, truth):
    for case, record in native_front.run(MODELS, tmp_path).items():
        native_front.check(case, record, truth)


def test_hybrid_shards_in_the_cpp_front(tmp_path, truth):
    """Four processes in groups of two."""
    cases = [
        Case(3, "llama", "bf16", ranks=4, masters="16-bit with states"),
        Case(2, "gpt2", accumulation=4, ranks=4, clip=True),
    ]
    program = Path(sys.executable).parent / "shardwise"
    launcher = (program, "launch", "-n", "4")
    records = native_front.run(cases, tmp_path, launcher, {"hybrid_shard_size": 2})
    for case, record in records.items():
        native_front.check(case, record, truth)
