"""The engine against plain PyTorch: same samples, same losses, norms, gradients and weights."""

from dataclasses import replace
from itertools import product

import parity
import pytest
import reference
from pairwise import pairwise
from parity import Case

FACTORS = {
    "stage": [0, 1, 2, 3],
    "model": ["mlp", "gpt2", "llama"],
    "dtype": ["fp32", "bf16", "fp16"],
    "accumulation": [1, 4],
    "ranks": [1, 2, 3, 4],
    "clip": [False, True],
    "optimizer": ["SGD", "AdamW", "Adagrad", "RMSprop"],
}
COVER = [Case(**row) for row in pairwise(FACTORS)]
PRODUCT = [Case(*values) for values in product(*FACTORS.values())]
# Rules that the whole product leaves out.
OTHER_RULES = [
    Case(**row)
    for row in pairwise(
        {**FACTORS, "model": ["mlp", "llama"], "optimizer": ["Lion", "Lamb", "Muon"]}
    )
]
OTHER_MODELS = [
    "bert",
    "cnn",
    "multi",
    "frozen",
    "unused",
    "reused",
    "tiny",
    "checkpointed",
    "reentrant",
    "lora",
]


@pytest.fixture(scope="module")
def truth(reference):
    return parity.Truth(reference)


def check(case, pool, truth):
    parity.check(case, pool.run(parity.train, case, ranks=case.ranks), truth)


@pytest.mark.parametrize("case", COVER, ids=str)
def test_pairwise_cover(case, pool, truth):
    check(case, pool, truth)


@pytest.mark.parametrize("case", OTHER_RULES, ids=str)
def test_cover_of_other_rules(case, pool, truth):
    check(case, pool, truth)


@pytest.mark.parametrize("case", [c for c in OTHER_RULES if c.dtype != "fp32"], ids=str)
def test_a_model_that_never_moved_is_seen(case, truth):
    """Even one tensor, and even where 16-bit weights are too coarse to show it."""
    plain = truth.record(case, case.dtype)
    others = [{**plain, "weights": {}}] * (case.ranks - 1)
    parity.check(case, [plain, *others], truth)
    name = next(iter(plain["masters"]))
    masters = {**plain["masters"], name: plain["start"]["masters"][name]}
    with pytest.raises(AssertionError, match=f"masters differ most at {name}"):
        parity.check(case, [{**plain, "masters": masters}, *others], truth)


def test_weights_alone_would_not_show_it(truth):
    case = Case(1, "mlp", "bf16", 4, ranks=4, clip=True, optimizer="Lion")
    plain = truth.record(case, "bf16")
    tolerance = parity.tolerances(case, plain, truth)
    with pytest.raises(AssertionError, match="could stay as it is"):
        parity.assert_training_is_seen(case, plain, tolerance, ["weights"])


@pytest.mark.parametrize("optimizer", ["Lamb", "Muon"])
@pytest.mark.parametrize(
    ("stage", "dtype", "size", "device"),
    [(0, "bf16", 2, "cpu"), (1, "fp32", 1, "none"), (2, "fp16", 2, "none"), (3, "fp32", 2, "cpu")],
)
def test_wide_rules_over_replicas(stage, dtype, size, device, optimizer, pool, truth):
    """Rules that need more than an element; shards over `size` ranks, states on the host."""
    case = Case(stage, "mlp", dtype, ranks=4, clip=True, optimizer=optimizer)
    zero = {"offload_optimizer": {"device": device}}
    settings = {"hybrid_shard_size": size}
    parity.check(case, pool.run(parity.train, case, zero, settings, ranks=4), truth)


@pytest.mark.full
@pytest.mark.parametrize("case", [c for c in PRODUCT if c not in COVER], ids=str)
def test_full_product(case, pool, truth):
    check(case, pool, truth)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("model", OTHER_MODELS)
def test_other_models(model, stage, pool, truth):
    """Shapes of modules that units, hooks and gradients must cope with; 4 ranks for tiny."""
    ranks = 4 if model == "tiny" else 2
    check(Case(stage, model, accumulation=4 if stage % 2 else 1, ranks=ranks), pool, truth)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_overflowing_first_steps(stage, pool, truth):
    """A loss scale of 2^21 overflows: skipped steps move nothing and the scale follows the rule."""
    case = Case(stage, "mlp", "fp16", ranks=2, optimizer="SGD", power=21)
    plain = truth.record(case, "fp16")
    assert False in plain["applied"], "the case must overflow to test anything"
    records = pool.run(train_watching_skips, case, ranks=2)
    for record in records:
        skipped = plain["applied"].count(False)
        assert record["applied"] == plain["applied"]
        assert record["skipped_steps"] == skipped
        assert record["global_steps"] == reference.STEPS
        assert record["moved"] == plain["applied"]
    exact = [(a, b) for a, b in zip(records[0]["losses"], records[1]["losses"], strict=True)]
    mean = [sum(pair) / 2 for pair in exact]
    # fp32 skips nothing, so the error of fp16 is that of the case where fp16 does not either.
    calm = replace(case, power=Case.power)
    allowed = parity.tolerances(calm, truth.record(calm, "fp16"), truth)["losses"]
    assert max(parity.relative_errors(mean, plain, "losses").values()) <= allowed


def weights_and_moments(engine):
    """Whole masters and first moments, on every rank."""
    from shardwise.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    parameters = list(engine.module.parameters())
    moments = [safe_get_full_optimizer_state(p, "exp_avg") for p in parameters]
    return [safe_get_full_fp32_param(p) for p in parameters] + [m for m in moments if m is not None]


def train_watching_skips(case):
    """Rank side: whether a weight or a first moment changed in each step."""
    import models
    import torch

    record = {"losses": [], "applied": [], "moved": []}
    with parity.make_engine(models.build(case.model), parity.config_of(case)) as engine:
        before = weights_and_moments(engine)
        for step in range(reference.STEPS):
            record["losses"].append(parity.accumulate(engine, case, step, "cpu"))
            engine.step()
            after = weights_and_moments(engine)
            record["applied"].append(bool(engine.was_step_applied()))
            record["moved"].append(
                not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
            )
            before = after
        record["global_steps"], record["skipped_steps"] = engine.global_steps, engine.skipped_steps
    return record
