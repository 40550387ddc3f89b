"""Adopted Hugging Face modules under the engine, at every stage."""

import copy
import gc
import io
import itertools

import parity
import pytest
import torch
import torch.distributed as dist
from adoption_cases import SHARED, assert_close, batch, build, build_shared, errors
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


STEPS, MICROS = 2, 2
SGD = {"type": "SGD", "params": {"lr": 0.1}}


def micro(step, index, rank):
    return batch((step * MICROS + index) * dist.get_world_size() + rank)


def train_engine(model, stage, **more):
    """This rank's losses, the gradients of the last step, weights; how many blocks were adopted."""
    from shardwise.utils import safe_get_full_fp32_param

    more |= {"gradient_accumulation_steps": MICROS, "gradient_clipping": 0, "optimizer": SGD}
    settings = config(stage, **more)
    losses = []
    with make_engine(model, settings) as engine:
        for step in range(STEPS):
            for index in range(MICROS):
                loss = engine(**micro(step, index, dist.get_rank())).loss
                engine.backward(loss)
                losses.append(loss.detach())
                if (step, index) == (STEPS - 1, MICROS - 1):
                    gradients = parity.full_gradients(engine)
                engine.step()
        weights = {n: safe_get_full_fp32_param(p) for n, p in model.named_parameters()}
        fused = [m._shardwise_fused for m in model.model.layers if hasattr(m, "_shardwise_fused")]
        assert not any(state.common.said for state in fused)
    gc.collect()
    return {"losses": torch.stack(losses), "gradients": gradients, "weights": weights}, len(fused)


def train_plain(model, dtype=None):
    """The same of plain PyTorch with the untouched module, losses of all ranks in columns.

    dtype: of torch.autocast.
    """
    world, losses = dist.get_world_size(), []
    update = torch.optim.SGD(model.parameters(), **SGD["params"])
    for step in range(STEPS):
        update.zero_grad()
        for index, rank in itertools.product(range(MICROS), range(world)):
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                loss = model(**micro(step, index, rank)).loss
            (loss / (MICROS * world)).backward()
            losses.append(loss.detach())
        update.step()
    gradients = {n: p.grad for n, p in model.named_parameters()}
    weights = {n: p.detach() for n, p in model.named_parameters()}
    losses = torch.stack(losses).view(-1, world)
    return {"losses": losses, "gradients": gradients, "weights": weights}


def rank_shared(name, stage):
    model = build_shared(name)
    right = train_plain(copy.deepcopy(model))
    got, blocks = train_engine(model, stage)
    assert blocks == (2 if name.endswith("alone") else 3)
    assert_close({"losses": got["losses"]}, {"losses": right["losses"][:, dist.get_rank()]}, 1e-6)
    assert_close(got["gradients"], right["gradients"])
    assert_close(got["weights"], right["weights"])


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("name", SHARED)
def test_products_that_share_tensors(name, stage, pool):
    pool.run(rank_shared, name, stage, ranks=2)


def rank_autocast_engine(stage):
    """Errs at most twice as much against fp32 as plain autocast does."""
    exact = train_plain(build("llama"))
    plain = train_plain(build("llama"), torch.bfloat16)
    for fused in (True, False):
        got, blocks = train_engine(
            build("llama"),
            stage,
            torch_autocast={"enabled": True, "dtype": "bfloat16"},
            shardwise={"fused_layers": fused},
        )
        assert blocks == (3 if fused else 0)
        for kind in ("gradients", "weights"):
            allowed = 2 * max(errors(plain[kind], exact[kind]).values())
            assert_close(got[kind], exact[kind], allowed)
        allowed = 2 * errors({"losses": plain["losses"]}, {"losses": exact["losses"]})["losses"]
        right = exact["losses"][:, dist.get_rank()]
        assert_close({"losses": got["losses"]}, {"losses": right}, allowed)


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
