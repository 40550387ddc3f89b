"""Faults that users of such engines reported, as tests of the right behaviour. Ids name the cases.

Cases of accumulation are in test_accumulation.py, of equal runs in test_bits.py, of optimizers in
test_cases_optimizers.py, of sharded construction and access in test_cases_access.py, of what is
shown in test_cases_view.py, of ranks that wait in test_cases_waiting.py.
"""

import itertools
import json
import math
import time
from dataclasses import replace
from pathlib import Path

import models
import parity
import pytest
import reference
import torch
import torch.distributed as dist
from parity import Case, make_engine
from reference import DTYPES
from steps import STAGES, config, engine_of, samples, train_step
from test_accumulation import check_weights, plain_windows

TIMEOUT = 5


def run_steps(engine, steps):
    """Losses and norms of single-batch steps."""
    losses, norms = [], []
    for step in range(steps):
        losses.append(train_step(engine, step))
        norms.append(engine.get_global_grad_norm())
    return losses, norms


# GA: accumulation, norms, loss scale


def rank_no_sync(stage, use):
    with engine_of(stage, accumulation=4) as engine:
        for micro in range(8):
            if use and (micro + 1) % 4:
                with engine.no_sync():
                    engine.backward(engine(**samples(micro)))
            else:
                engine.backward(engine(**samples(micro)))
            engine.step()
        with pytest.raises(RuntimeError, match="nested"), engine.no_sync(), engine.no_sync():
            pass
        return engine.state_dict()


@pytest.mark.parametrize("stage", [2, 3])
def test_GA_05_no_sync_with_sharded_gradients(stage, pool):
    plain = pool.run(rank_no_sync, stage, False, ranks=2)[0]
    outcomes = pool.outcomes(rank_no_sync, stage, True, ranks=2)
    assert all(torch.equal(value, outcomes[0].value[name]) for name, value in plain.items())
    assert outcomes[0].log.count("no_sync()") == 1, "one warning"


def rank_norms(case, steps):
    with make_engine(models.build(case.model), parity.config_of(case)) as engine:
        norms = []
        for step in range(steps):
            parity.accumulate(engine, case, step, "cpu")
            engine.step()
            norms.append(engine.get_global_grad_norm())
        return norms


def test_GA_07_bf16_norms_agree_over_stages(pool, truth):
    """With plain PyTorch in bf16, by twice what that differs from fp32."""
    case = Case(0, "gpt2", "bf16")
    plain = truth.record(case, "bf16")
    allowed = parity.tolerances(case, plain, truth)["norms"]
    for stage in range(4):
        ranks = pool.run(rank_norms, replace(case, stage=stage), reference.STEPS, ranks=2)
        assert ranks[0] == ranks[1], "the ranks of one run report one number"
        assert ranks[0] == pytest.approx(plain["norms"], rel=allowed)


def rank_matrix_of_norms(dtype):
    """The norm of the first step at each stage, with one micro-batch and with four."""
    return {
        (stage, accumulation): rank_norms(
            Case(stage, "mlp", dtype, accumulation, dist.get_world_size()), 1
        )[0]
        for stage, accumulation in itertools.product(range(4), (1, 4))
    }


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_norms_agree_over_stages_accumulation_and_processes(dtype, pool, reference):
    """Against plain torch over the whole batch: twice the rounding to dtype."""
    exact = reference.run(plain_first_norm, "mlp")[0]
    tolerance = 1e-6 if dtype == "fp32" else 2 * torch.finfo(DTYPES[dtype]).eps
    for ranks in (1, 2, 4):
        first, *others = pool.run(rank_matrix_of_norms, dtype, ranks=ranks)
        assert all(other == first for other in others), "each rank reports the same norms"
        assert first == pytest.approx(dict.fromkeys(first, exact), rel=tolerance), ranks


def plain_first_norm(name):
    grads = plain_first_gradients(name).values()
    return float(torch.linalg.vector_norm(torch.stack([g.double().norm() for g in grads])))


def half_engine(stage, optimizer=None, **fp16):
    settings = config(stage, fp16={"enabled": True, **fp16}, gradient_clipping=0)
    settings["optimizer"] = optimizer or {"type": "SGD", "params": {"lr": 0.0}}
    return make_engine(models.build("mlp"), settings)


def half_step(engine, factor=1.0):
    micro = {key: value.half() for key, value in samples(0).items()}
    engine.backward(engine(**micro) * factor)
    engine.step()


def rank_changing_scale(stage):
    with half_engine(stage, initial_scale_power=8, loss_scale_window=2) as engine:
        seen = []
        for _ in range(10):
            scale = engine.loss_scale
            half_step(engine)
            seen.append((scale, engine.get_global_grad_norm()))
        return seen


def plain_norm(dtype, scale):
    """Of the first step's gradient, whose parts are computed with a scaled loss."""
    module = models.build("mlp").to(dtype)
    micros = models.micro_batches("mlp", 0, 2, "cpu", dtype)
    _, sums = reference.sum_gradients(module, dict(module.named_parameters()), micros, scale)
    norms = torch.stack([gradient.double().norm() for gradient in sums.values()])
    return float(norms.norm()) / (2 * scale)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_GA_11_norm_uses_the_scale_of_its_step(stage, pool, reference):
    """Each norm is plain fp16's at that scale, by twice what fp16 differs from fp32."""
    seen = pool.run(rank_changing_scale, stage, ranks=2)[0]
    scales = [scale for scale, _ in seen]
    # DeepSpeed counts from an overflow at step -1, so the first window is one step short.
    assert scales == [2.0**p for p in (8, 8, 9, 9, 10, 10, 11, 11, 12, 12)]
    exact = reference.run(plain_norm, torch.float32, 1.0)[0]
    plain = {s: reference.run(plain_norm, torch.float16, s)[0] for s in set(scales)}
    error = max(abs(norm - exact) / exact for norm in plain.values())
    allowed = max(2 * error, torch.finfo(torch.float16).eps / models.SAMPLES**0.5)
    for scale, norm in seen:
        assert norm == pytest.approx(plain[scale], rel=allowed)


def rank_overflows(stage):
    from shardwise.utils import safe_get_full_fp32_param

    schedule = {"type": "WarmupLR", "params": {"warmup_num_steps": 100, "warmup_type": "linear"}}
    settings = config(
        stage,
        fp16={"enabled": True, "initial_scale_power": 16, "hysteresis": 2},
        scheduler=schedule,
        optimizer={"type": "AdamW", "params": {"lr": 1e-3}},
    )
    record = []
    with make_engine(models.build("mlp"), settings) as engine:
        parameters = list(engine.module.parameters())
        for step in range(6):
            before = [safe_get_full_fp32_param(p).clone() for p in parameters]
            half_step(engine, math.inf if step in (2, 3, 4) else 1.0)
            after = [safe_get_full_fp32_param(p) for p in parameters]
            same = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
            record.append(
                (engine.loss_scale, engine.skipped_steps, engine.lr_scheduler.last_batch_iteration,
                 same)
            )  # fmt: skip
    return record


def test_GA_13_skipped_steps(pool):
    """2^16, the hysteresis is spent, 2^15, 2^14; weights, count and schedule stand still."""
    texts = []
    for stage in (1, 2, 3):
        outcomes = pool.outcomes(rank_overflows, stage, ranks=2)
        for outcome in outcomes:
            assert outcome.kind == "value", outcome.describe()
            assert outcome.value == [
                (2.0**16, 0, 0, True),  # the warm-up begins at a rate of 0, twice (LR_01)
                (2.0**16, 0, 1, True),
                (2.0**16, 1, 1, True),
                (2.0**15, 2, 1, True),
                (2.0**14, 3, 1, True),
                (2.0**14, 3, 2, False),
            ]
        lines = [line for line in outcomes[0].log.splitlines() if "step skipped" in line]
        assert len(lines) == 3
        # Which parameter is named first depends on what a stage's first rank holds.
        texts.append([line.split(" at loss scale ")[1] for line in lines])
    assert texts[0] == texts[1] == texts[2]


def rank_moves(stage, factors):
    """How far fp16 training with these factors of its losses moves the masters."""
    from shardwise.utils import safe_get_full_fp32_param

    settings = config(stage, fp16={"enabled": True, "initial_scale_power": 12, "hysteresis": 1})
    with make_engine(models.build("mlp"), settings) as engine:
        named = list(engine.module.named_parameters())
        before = {n: safe_get_full_fp32_param(p).clone() for n, p in named}
        for factor in factors:
            half_step(engine, factor)
        assert engine.skipped_steps == sum(map(math.isinf, factors))
        return {n: safe_get_full_fp32_param(p) - before[n] for n, p in named}


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_GA_13_skipped_steps_are_no_steps_of_the_optimizer(stage, pool):
    """Six steps of Adam's bias correction instead of three would move weights 0.8 times as far."""
    plain = pool.run(rank_moves, stage, [1.0, 1.0, 1.0], ranks=2)[0]
    found = pool.run(rank_moves, stage, [1.0, 1.0, math.inf, math.inf, math.inf, 1.0], ranks=2)[0]
    errors = parity.relative_errors(found, {"weights": plain}, "weights")
    assert max(errors.values()) <= 0.02, max(errors, key=errors.get)


CURVE = 50  # steps, over five batches of 32 samples
ADAMW = {"lr": 1e-3, "weight_decay": 0.01}
SPLITS = ((16, 1), (8, 2), (2, 8))  # micro-batch of one of two ranks, accumulation


def of_batch(step, begin=0, end=32):
    return {key: value[begin:end] for key, value in models.batch("gpt2", step % 5).items()}


def rank_curve(dtype, micro, gas):
    """The mean loss of this rank's samples in each step."""
    optimizer = {"type": "AdamW", "params": ADAMW}
    settings = config(2, gas, train_micro_batch_size_per_gpu=micro, optimizer=optimizer)
    if dtype != "fp32":
        settings[dtype] = {"enabled": True}
    losses = []
    with make_engine(models.build("gpt2"), settings) as engine:
        for step in range(CURVE):
            total = 0.0
            for index in range(gas):
                begin = (2 * index + dist.get_rank()) * micro
                loss = engine(**of_batch(step, begin, begin + micro)).loss
                engine.backward(loss)
                engine.step()
                total += loss.item()
            losses.append(total / gas)
    return losses


def plain_curve():
    module = models.build("gpt2")
    optimizer = torch.optim.AdamW(module.parameters(), **ADAMW)
    losses = []
    for step in range(CURVE):
        loss = module(**of_batch(step)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def difference(a, b):
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(("dtype", "allowed"), [("fp32", 1e-4), ("bf16", 2e-2)])
def test_GA_15_loss_curves_do_not_depend_on_the_split(dtype, allowed, pool, reference):
    """A GPT's curves under ZeRO-2 lie together, and with plain PyTorch's over whole batches."""
    plain = reference.run(plain_curve)[0]
    assert plain[-1] < plain[0] - 0.1, "the case needs a model that learns"
    curves = []
    for micro, gas in SPLITS:
        ranks = pool.run(rank_curve, dtype, micro, gas, ranks=2)
        curves.append([sum(step) / 2 for step in zip(*ranks, strict=True)])
    for one, other in itertools.combinations([plain, *curves], 2):
        assert difference(one, other) < allowed


# OV: overlap and buckets


def rank_delayed(stage, overlap, delayed):
    """Trains with tiny buckets while collectives start late and memory is churned."""
    settings = config(stage)
    settings["zero_optimization"].update(overlap_comm=overlap, reduce_bucket_size=500)
    with make_engine(models.build("mlp"), settings) as engine:

        def disturb(*_):
            time.sleep(0.002 * dist.get_rank())
            torch.full((1 << 16,), math.nan)  # memory that a late collective would still read

        for block in engine.module.blocks if delayed else ():
            block.register_forward_hook(disturb)
        losses, norms = run_steps(engine, 10)
        return losses, norms, engine.state_dict()


@pytest.mark.parametrize("stage", [2, 3])
def test_OV_01_overlap_changes_no_bit(stage, pool):
    runs = [
        pool.run(rank_delayed, stage, overlap, delayed, ranks=2)[0]
        for overlap, delayed in ((False, False), (True, False), (True, True))
    ]
    for losses, norms, weights in runs[1:]:
        assert (losses, norms) == runs[0][:2]
        assert all(torch.equal(weights[name], value) for name, value in runs[0][2].items())
    assert all(math.isfinite(loss) for loss in runs[0][0])


def rank_bucket(size, overlap):
    settings = config(2)
    settings["zero_optimization"].update(overlap_comm=overlap, reduce_bucket_size=size)
    with make_engine(models.build("mlp"), settings) as engine:
        run_steps(engine, 20)
        return engine.state_dict()


def test_OV_03_bucket_size_changes_no_bit(pool):
    elements = sum(p.numel() for p in models.build("mlp").parameters())
    runs = [
        pool.run(rank_bucket, size, overlap, ranks=2)[0]
        for size, overlap in itertools.product((1, 7, 100, 10_000, 5 * elements), (True, False))
    ]
    for run in runs[1:]:
        assert all(torch.equal(run[name], value) for name, value in runs[0].items())


def rank_reused_reductions(stage):
    case = Case(stage, "reused")
    settings = parity.config_of(case, zero={"reduce_bucket_size": 10, "overlap_comm": True})
    with make_engine(models.build("reused"), settings) as engine:
        engine.reset_comm_counters()
        parity.accumulate(engine, case, 0, "cpu")
        gradients = parity.full_gradients(engine)
        engine.step()
        return engine.comm_counters()["reduce_scatter"], gradients


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_OV_05_a_block_called_three_times_is_reduced_once(stage, pool, reference):
    counters, gradients = pool.run(rank_reused_reductions, stage, ranks=2)[0]
    elements = sum(p.numel() for p in models.build("reused").parameters())
    # Padding: at most 2 ranks × 32 elements a unit, of 6 units.
    assert elements <= 2 * counters["elements"] <= elements + 6 * 64  # counted × (N − 1) ÷ N
    plain = reference.run(plain_first_gradients, "reused")[0]
    errors = parity.relative_errors(gradients, {"gradients": plain}, "gradients")
    assert max(errors.values()) <= 1e-5, max(errors, key=errors.get)


def plain_first_gradients(name):
    module = models.build(name)
    models.loss_of(module(**models.batch(name, 0))).backward()
    return {n: p.grad for n, p in module.named_parameters() if p.requires_grad}


# FS: norms of shards, modes


def test_FS_01_norm_of_the_whole_gradient(pool):
    runs = [pool.run(rank_norms, Case(3, ranks=n), 3, ranks=n) for n in (1, 2, 4)]
    for run in runs:
        assert all(norms == run[0] and type(norms[0]) is float for norms in run)
        assert run[0] == pytest.approx(runs[0][0], rel=1e-5)


# The two names of the setting, as arguments of parity.train.
HYBRID = [
    lambda size: {"shardwise": {"hybrid_shard_size": size}},
    lambda size: {"zero": {"mics_shard_size": size}},
]


@pytest.fixture(scope="module")
def truth(reference):
    return parity.Truth(reference)


@pytest.mark.parametrize(
    ("dtype", "accumulation", "ranks", "size", "named"),
    [("fp32", 1, 4, 2, 0), ("fp32", 4, 4, 2, 1), ("bf16", 4, 4, 2, 0), ("fp32", 1, 3, 1, 0)],
)
@STAGES
def test_FS_03_hybrid_shards(stage, dtype, accumulation, ranks, size, named, pool, truth):
    """Shards over `size` neighbours: all numbers are those of plain torch.

    Three replicas do not divide the number of elements that they average.
    """
    case = Case(stage, "gpt2", dtype, accumulation, ranks=ranks, clip=True)
    ranks = pool.run(parity.train, case, ranks=ranks, **HYBRID[named](size))
    parity.check(case, ranks, truth)
    if stage == 3:
        states = 2 if dtype == "fp32" else 3  # moments, and fp32 masters of 16-bit parameters
        whole = sum(p.numel() for p in models.build("gpt2").parameters()) * 4 * states
        held = ranks[0]["memory"]["optimizer"]
        assert held >= whole / size, "each replica holds all states"
        assert held <= whole / size * 1.2, "padding of a toy model"


def rank_bad_hybrid():
    with pytest.raises(ValueError, match="hybrid_shard_size: 3 does not divide the world size 4"):
        make_engine(models.build("mlp"), config(3, shardwise={"hybrid_shard_size": 3}))


def test_hybrid_groups_must_divide_the_ranks(pool):
    pool.run(rank_bad_hybrid, ranks=4)


def rank_modes(stage):
    """All orders of length 4 of training, evaluation and gathering, against the plain module."""
    import shardwise

    settings = config(stage, optimizer={"type": "SGD", "params": {"lr": 0.0}})
    settings["bf16"] = {"enabled": True}
    plain = models.build("gpt2").bfloat16()
    batch = models.micro_batches("gpt2", 0, 2, "cpu", torch.bfloat16)[dist.get_rank()]
    expected = plain(**batch).logits.detach()
    weights = {n: p.detach() for n, p in plain.named_parameters()}
    with make_engine(models.build("gpt2"), settings) as engine:

        def forward():
            assert torch.equal(engine(**batch).logits, expected)

        def forward_backward():
            out = engine(**batch)
            assert torch.equal(out.logits, expected)
            engine.backward(out.loss)
            engine.step()

        def evaluate():
            engine.eval()
            with torch.no_grad():
                assert torch.equal(engine(**batch).logits, expected)
            engine.train()

        def gather():
            with shardwise.zero.GatheredParameters(list(engine.module.parameters())):
                for name, p in engine.module.named_parameters():
                    assert torch.equal(p, weights[name]), name

        for action in every_order((forward, forward_backward, evaluate, gather), 4):
            action()


def every_order(actions, length):
    """The shortest sequence with every order of that length in it (de Bruijn; greedy)."""
    indices = [0] * length
    seen = {tuple(indices)}
    while True:
        last = tuple(indices[-length + 1 :]) if length > 1 else ()
        fresh = [i for i in range(len(actions)) if (*last, i) not in seen]
        if not fresh:
            break
        indices.append(fresh[-1])
        seen.add((*last, fresh[-1]))
    assert len(seen) == len(actions) ** length
    return [actions[i] for i in indices]


@pytest.mark.parametrize("stage", [2, 3])
def test_FS_05_any_order_of_modes(stage, pool):
    pool.run(rank_modes, stage, ranks=2)


# LR: schedules


def rank_first_steps(kind, params):
    """How far each of 12 steps moves weights whose gradient is 1."""

    class Ones(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(8))

        def forward(self):
            return self.weight.sum()

    settings = config(0, optimizer={"type": "SGD", "params": {"lr": 1.0}}, gradient_clipping=0)
    settings["scheduler"] = {"type": kind, "params": params}
    with make_engine(Ones(), settings) as engine:
        moves, rates = [], [engine.lr_scheduler.get_last_lr()[0]]
        for _ in range(12):
            before = engine.state_dict()
            engine.backward(engine())
            engine.step()
            after = engine.state_dict()
            moves.append(float((before["weight"] - after["weight"])[0]) if after else None)
            rates.append(engine.lr_scheduler.get_last_lr()[0])
        return moves, rates


WARMUP = {"warmup_min_lr": 0, "warmup_max_lr": 1, "warmup_num_steps": 10, "warmup_type": "linear"}


@pytest.mark.parametrize(
    ("kind", "params", "expected"),
    [
        ("WarmupLR", WARMUP, lambda step: min(step / 10, 1.0)),
        ("WarmupDecayLR", {**WARMUP, "total_num_steps": 20},
         lambda step: step / 10 if step < 10 else (20 - step) / 10),
        ("WarmupCosineLR", {"warmup_num_steps": 10, "total_num_steps": 20,
                            "warmup_min_ratio": 0.0, "cos_min_ratio": 0.0,
                            "warmup_type": "linear"},
         # DeepSpeed counts the decay's first step as its step 1.
         lambda step: step / 10 if step < 10 else (1 + math.cos(math.pi * (step - 9) / 10)) / 2),
    ],
    ids=["WarmupLR", "WarmupDecayLR", "WarmupCosineLR"],
)  # fmt: skip
def test_LR_01_the_first_step_is_warmed_up(kind, params, expected, pool):
    moves, rates = pool.run(rank_first_steps, kind, params, ranks=1)[0]
    assert moves == pytest.approx(rates[:12], abs=1e-6), (
        "what get_last_lr() says before a step acts"
    )
    # The schedule stands at step 0 before the first step, and moves there after it (DeepSpeed).
    assert moves == pytest.approx([expected(max(step - 1, 0)) for step in range(12)], abs=1e-6)


def rank_small_rate(warmup):
    settings = config(0, optimizer={"type": "AdamW", "params": {"lr": 5e-7}})
    settings["scheduler"] = {"type": "WarmupLR", "params": {"warmup_num_steps": 2, **warmup}}
    with make_engine(models.build("mlp"), settings) as engine:
        run_steps(engine, 4)
        return engine.get_lr()[0]


def test_LR_03_the_optimizers_rate_is_the_maximum(pool):
    assert pool.run(rank_small_rate, {}, ranks=1) == [5e-7]
    outcome = pool.outcomes(rank_small_rate, {"warmup_max_lr": 1e-3}, ranks=1)[0]
    assert outcome.value == 1e-3
    assert "warmup_max_lr" in outcome.log and "5e-07" in outcome.log, "a warning names both"


# DL, CF


def rank_uneven(stage):
    engine = make_engine(models.build("mlp"), config(stage, shardwise={"timeout_seconds": TIMEOUT}))
    start = time.monotonic()
    try:
        for step in range(10 - dist.get_rank()):
            train_step(engine, step % 5)
    except RuntimeError as error:
        return time.monotonic() - start, str(error)
    time.sleep(TIMEOUT + 3)
    return None


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_DL_03_a_rank_with_fewer_batches(stage, own_pool):
    outcome = own_pool(2).outcomes(rank_uneven, stage, ranks=2, timeout=60, stopped=[1])[0]
    assert outcome.kind == "value", outcome.describe()
    seconds, message = outcome.value
    assert seconds < TIMEOUT + 5
    assert "rank 1: in no collective" in message, message
    assert "left the loop at micro-step 9" in message, message


def rank_joined(stage):
    from shardwise.data import joined

    batches = [samples(step) for step in range(10 - dist.get_rank())]
    with engine_of(stage, accumulation=4) as engine:
        for batch in joined(batches):
            engine.backward(engine(**batch))
            engine.step()
        assert engine.flush_accumulation()
        assert (engine.micro_steps, engine.global_steps) == (9, 3)
        return engine.state_dict()


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_DL_03_joined_loaders_end_together(stage, pool, reference):
    """Rank 1 has nine batches: both train on nine, the last as a window of its own."""
    got = pool.run(rank_joined, stage, ranks=2, timeout=60)[0]
    check_weights(got, reference.run(plain_windows, [[0, 1, 2, 3], [4, 5, 6, 7], [8]])[0])


MISSPELT = [
    ({"gradient_clipp1ng": 1}, "gradient_clipp1ng", "did you mean gradient_clipping"),
    ({"zero_optimization": {"stage": 1, "overlap_com": True}}, "zero_optimization.overlap_com",
     "did you mean overlap_comm"),
    ({"offload_optimizer": {"device": "cpu"}}, "offload_optimizer",
     "offload_optimizer belongs under zero_optimization"),
]  # fmt: skip


def rank_config_errors(folder):
    import shardwise

    def error_of(settings):
        with pytest.raises(shardwise.ConfigError) as caught:
            shardwise.initialize(model=models.build("mlp"), config=settings)
        return str(caught.value)

    for change, path, words in MISSPELT:
        settings = {**config(0), **change}
        assert f"{path}: unknown key; {words}" in error_of(settings)
        file = Path(folder) / "ds.json"
        file.write_text(json.dumps(settings, indent=2))
        lines = file.read_text().splitlines()
        last = f'"{path.split(".")[-1]}":'
        (line,) = [number for number, text in enumerate(lines, 1) if last in text]
        assert f"{path} (line {line}): unknown key; {words}" in error_of(str(file))
        settings["shardwise"] = {"strict": False}
        shardwise.initialize(model=models.build("mlp"), config=settings)[0].destroy()


def test_CF_01_misspelt_keys(pool, tmp_path):
    """Errors name the path in the document, its line in a file, and what was meant."""
    pool.run(rank_config_errors, str(tmp_path), ranks=1)


LOSS_SCALE = {
    "auto_cast": False,
    "loss_scale": 0,
    "initial_scale_power": 16,
    "loss_scale_window": 1000,
    "hysteresis": 2,
    "consecutive_hysteresis": False,
    "min_loss_scale": 1,
}


def rank_foreign_section(keys):
    section = {"enabled": True, **{key: LOSS_SCALE[key] for key in keys}}
    make_engine(models.build("mlp"), config(0, bf16=section)).destroy()


@pytest.mark.parametrize("keys", [[key] for key in LOSS_SCALE] + [list(LOSS_SCALE)], ids=len)
def test_CF_03_loss_scale_keys_in_bf16(keys, pool):
    outcome = pool.outcomes(rank_foreign_section, keys, ranks=1)[0]
    assert outcome.kind == "value", outcome.describe()
    warnings = [line for line in outcome.log.splitlines() if "bf16." in line]
    assert len(warnings) == 1, warnings
    assert all(f"bf16.{key}" in warnings[0] for key in keys)


LATER = [
    {"zero_optimization": {"offload_optimizer": {"device": "nvme"}}},
    {"zero_optimization": {"zero_quantized_weights": True}},
    {"zero_optimization": {"zenflow": {}}},
    {"pipeline": {"stages": 2}},
    {"tensor_parallel": {"autotp_size": 2}},
]


def rank_later_key(change):
    import shardwise

    with pytest.raises(shardwise.ConfigError) as caught:
        make_engine(models.build("mlp"), {**config(0), **change})
    return str(caught.value), shardwise.__version__


@pytest.mark.parametrize("change", LATER, ids=str)
def test_CF_03_keys_of_later_versions(change, pool):
    """Known keys of features that this version lacks: one error, which says so."""
    message, version = pool.run(rank_later_key, change, ranks=1)[0]
    assert f"needs version > {version}" in message
    assert "unknown" not in message and "problems" not in message


# Precision options


def train_with(travel, case, pool):
    return pool.run(parity.train, case, ranks=2, communication_data_type=travel)


@STAGES
def test_16_bit_gradients_travel_in_fp32(stage, pool, truth):
    """No rounding between ranks: within the tolerance of 16-bit training."""
    case = Case(stage, "mlp", "bf16", accumulation=4)
    parity.check(case, train_with("fp32", case, pool), truth)


def plain_parts():
    """The gradients of both ranks' samples of the first step."""
    found = []
    for micro in models.micro_batches("mlp", 0, 2, "cpu", torch.float32):
        module = models.build("mlp")
        models.loss_of(module(**micro)).backward()
        found.append({name: p.grad for name, p in module.named_parameters()})
    return found


@STAGES
def test_fp32_gradients_travel_in_bf16(stage, pool, reference):
    """Half the bytes; each rank's gradient is rounded on its way, and their mean on the way back.

    Rounding to bf16 moves an element by at most ε/2 of itself.
    """
    case = Case(stage, "mlp", "fp32", optimizer="SGD")
    ranks = pool.run(parity.train, case, ranks=2, communication_data_type="bf16", steps=1)
    half_unit = torch.finfo(torch.bfloat16).eps / 2
    parts = reference.run(plain_parts)[0]
    moved = 0.0
    for name, got in ranks[0]["gradients"].items():
        mean = (parts[0][name] + parts[1][name]) / 2
        sent = (parts[0][name].abs().max() + parts[1][name].abs().max()) / 2
        back = mean.abs().max()
        error = float((got - mean).abs().max())
        assert error <= half_unit * float(sent + back) * (1 + half_unit) + 1e-5 * float(back), name
        moved = max(moved, error / float(back))
    assert moved > 1e-5, "nothing was rounded"
    full = pool.run(parity.train, case, ranks=2, steps=1)[0]["traffic"]
    name = "all_reduce" if stage == 0 else "reduce_scatter"
    assert 2 * ranks[0]["traffic"][name]["bytes"] == full[name]["bytes"]


def rank_autocast(stage, dtype):
    settings = config(stage, torch_autocast={"enabled": True, "dtype": dtype}, gradient_clipping=0)
    settings["optimizer"] = {"type": "SGD", "params": {"lr": 0.1}}
    with make_engine(models.build("mlp"), settings) as engine:
        losses, norms = run_steps(engine, 5)
        assert all(p.dtype == torch.float32 for p in engine.module.parameters())
        return losses, norms, engine.loss_scale, engine.state_dict()


def plain_autocast(dtype):
    """Losses of each rank's samples, and weights; `dtype` None: all in fp32."""
    module = models.build("mlp")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    losses = []
    for step in range(5):
        micros = models.micro_batches("mlp", step, 2, "cpu", torch.float32)
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            parts = [models.loss_of(module(**micro)) for micro in micros]
        (sum(parts) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append([part.item() for part in parts])
    return losses, {n: p.detach() for n, p in module.named_parameters()}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@STAGES
def test_torch_autocast(stage, dtype, pool, reference):
    """Like torch.autocast around a plain loop; fp16 with a loss scale, which is a power of two."""
    ranks = pool.run(rank_autocast, stage, dtype, ranks=2)
    plain, weights = reference.run(plain_autocast, getattr(torch, dtype))[0]
    exact = reference.run(plain_autocast, None)[0][0]
    pairs = zip(sum(plain, []), sum(exact, []), strict=True)
    error = max(abs(a - b) / b for a, b in pairs)
    for step in range(5):
        got = [rank[0][step] for rank in ranks]
        assert got == pytest.approx(plain[step], rel=2 * error)
    errors = parity.relative_errors(ranks[0][3], {"weights": weights}, "weights")
    # One rounding of the 16-bit products may go the other way; lr 0.1 makes a tenth of it arrive.
    assert max(errors.values()) <= 0.1 * torch.finfo(getattr(torch, dtype)).eps * 5
    assert ranks[0][2] == (1.0 if dtype == "bfloat16" else 2.0**16)
