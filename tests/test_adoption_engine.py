"""Adopted Hugging Face modules under the engine, at every stage."""

import copy
import gc
import io

import parity
import pytest
import torch
from adoption_cases import assert_close, batch, build
from parity import Case, make_engine


def config(stage, **more):
    settings = {"fused_layers": True, "poison_released": True, **more.pop("shardwise", {})}
    return {
        "train_micro_batch_size_per_gpu": 3,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "shardwise": settings,
        **more,
    }


# Against plain PyTorch

ENGINES = [
    Case(stage, model, dtype, accumulation, ranks=2, clip=True)
    for stage in (0, 1, 2, 3)
    for model, dtype, accumulation in (
        ("llama", "fp32", 1),
        ("gpt2", "fp32", 4),
        ("llama", "bf16", 4),
        ("gpt2", "fp16", 1),
    )
]


@pytest.fixture(scope="module")
def truth(reference):
    return parity.Truth(reference)


@pytest.mark.parametrize("case", ENGINES, ids=str)
def test_the_engine_equals_plain_torch(case, pool, truth):
    settings = {"fused_layers": True}
    parity.check(case, pool.run(parity.train, case, None, settings, ranks=2), truth)


@pytest.mark.parametrize("recompute", ["full", "selective"])
@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_activation_checkpointing(stage, model, recompute, pool, truth):
    case = Case(stage, model)
    settings = {"fused_layers": True, "activation_checkpointing": recompute}
    parity.check(case, pool.run(parity.train, case, None, settings, ranks=2), truth)


def rank_neighbours(stage):
    """q, k, v and gate, up lie side by side in their unit: one product, no copy."""
    with make_engine(build("llama"), config(stage)) as engine:
        attention = engine.module.model.layers[0].self_attn
        with engine.gathered(range(len(engine._wiring.units))):
            weights = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
            for first, second in zip(weights, weights[1:], strict=False):
                assert second.data_ptr() == first.data_ptr() + first.nbytes


@pytest.mark.parametrize("stage", [0, 3])
def test_weights_of_one_product_are_neighbours(stage, pool):
    pool.run(rank_neighbours, stage, ranks=2)


def rank_autocast_engine(stage):
    settings = config(stage, torch_autocast={"enabled": True, "dtype": "bfloat16"})
    losses = []
    for fused in (True, False):
        settings["shardwise"] = {**settings["shardwise"], "fused_layers": fused}
        with make_engine(build("llama"), settings) as engine:
            steps = []
            for step in range(3):
                loss = engine(**batch(step)).loss
                engine.backward(loss)
                engine.step()
                steps.append(loss.item())
            losses.append(steps)
        gc.collect()
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)


@pytest.mark.parametrize("stage", [0, 3])
def test_torch_autocast(stage, pool):
    pool.run(rank_autocast_engine, stage, ranks=2)


def rank_generate(stage):
    model = build("llama").eval()
    ids = batch()["input_ids"]
    options = {"max_new_tokens": 4, "do_sample": False, "use_cache": True, "pad_token_id": 0}
    right = model.generate(ids, **options)
    with make_engine(model, config(stage)) as engine:
        engine.eval()
        with torch.no_grad():
            got = engine.module.generate(ids, synced_gpus=False, **options)
    assert torch.equal(got, right)


@pytest.mark.parametrize("stage", [0, 3])
def test_generation_under_the_engine(stage, pool):
    pool.run(rank_generate, stage, ranks=2)


# The logits


def rank_logits_after_a_step(stage):
    from shardwise import UsageError

    with make_engine(build("llama"), config(stage)) as engine:
        output = engine(**batch())
        engine.backward(output.loss)
        before = output.logits
        engine.step()
        assert output.logits is before
        output = engine(**batch())
        engine.backward(output.loss)
        engine.step()
        with pytest.raises(UsageError, match="before step"):
            _ = output.logits


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_logits_of_weights_that_are_gone_are_an_error(stage, pool):
    pool.run(rank_logits_after_a_step, stage, ranks=2)


def rank_logits_in_the_loss(stage):
    """The gradient of a loss on logits that were read, at once or behind backward."""
    from shardwise.utils import safe_get_full_grad

    model = build("llama")
    plain = copy.deepcopy(model)
    right = plain(**batch())
    (right.loss + right.logits.square().mean()).backward()
    expected = {n: p.grad for n, p in plain.named_parameters()}
    with make_engine(model, config(stage)) as engine:
        output = engine(**batch())
        engine.backward(output.loss + output.logits.square().mean())
        gradients = {n: safe_get_full_grad(p) for n, p in model.named_parameters()}
        assert_close(gradients, expected)
        engine.step()
        with torch.no_grad():
            output = engine(**batch())
        assert output.logits.isfinite().all()
        output = engine(**batch())
        engine.backward(output.loss)
        assert output.logits.isfinite().all()
        del output
        engine.step()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_logits_in_the_loss(stage, pool):
    pool.run(rank_logits_in_the_loss, stage, ranks=2)


# Copies, and giving back


def rank_copies(stage, recompute):
    """A copy of the engine's module, and one that was saved, have the plain module's results."""
    model = build("llama")
    right = results_of(copy.deepcopy(model))
    settings = config(stage, shardwise={"activation_checkpointing": recompute})
    with make_engine(model, settings) as engine:
        with engine.gathered(range(len(engine._wiring.units))):
            copied = copy.deepcopy(engine.module)
            stream = io.BytesIO()
            torch.save(engine.module, stream)
        stream.seek(0)
        loaded = torch.load(stream, weights_only=False)
        assert not untouched(copied)
        for other in (copied, loaded):
            assert_close(results_of(other), right)


def results_of(model):
    output = model(**batch())
    output.loss.backward()
    return {"loss": output.loss.detach(), **{n: p.grad for n, p in model.named_parameters()}}


@pytest.mark.parametrize("recompute", ["off", "full"])
@pytest.mark.parametrize("stage", [0, 3])
def test_copies_stand_by_themselves(stage, recompute, pool):
    pool.run(rank_copies, stage, recompute, ranks=2)


def untouched(model) -> bool:
    return not any("forward" in vars(m) or "_shardwise_fused" in vars(m) for m in model.modules())


def rank_undo(setting):
    model = build("llama")
    settings = config(1, shardwise={"fused_layers": setting})
    engine = make_engine(model, settings)
    assert untouched(model) == (setting in ("auto", False, "off"))
    engine.destroy()
    assert untouched(model)
    with pytest.raises(TypeError):
        make_engine(model, settings, lr_scheduler=lambda optimizer: optimizer + 1)
    assert untouched(model)


@pytest.mark.parametrize("setting", ["auto", False, "off", True, "on"])
def test_the_engine_gives_back(setting, pool):
    pool.run(rank_undo, setting, ranks=1)
