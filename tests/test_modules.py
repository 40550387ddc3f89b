"""Ways in which models are built and called, each held against plain PyTorch."""

import models
import parity
import pytest
import torch
import torch.distributed as dist
from parity import Case, make_engine
from steps import STAGES, config, samples, train_step


def assert_close(got: dict, plain: dict):
    """Weights or gradients agree to 1e-5 of the largest element of each tensor."""
    for name, value in plain.items():
        error = (got[name] - value).abs().max() / value.abs().max()
        assert error <= 1e-5, f"{name}: {error:.1e}"


# Units


def rank_units(units, dtype):
    case = Case(3, "mlp", dtype)
    return parity.train(case, shardwise={"units": units}, steps=2)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("units", [["MlpBlock"], ["blocks.0", "blocks.3"], ["Linear"]], ids=str)
def test_given_units_do_not_change_bits(units, dtype, pool):
    found = pool.run(rank_units, [], dtype, ranks=2)[0]
    given = pool.run(rank_units, units, dtype, ranks=2)[0]
    assert given["losses"] == found["losses"]
    for name, value in found["weights"].items():
        assert torch.equal(given["weights"][name], value), name


def rank_unknown_unit():
    settings = parity.config_of(Case(3), shardwise={"units": ["MlpBlok"]})
    with pytest.raises(ValueError, match="MlpBlok") as caught:
        make_engine(models.build("mlp"), settings)
    assert "MlpBlock" in str(caught.value)


def test_an_unknown_unit_is_named(pool):
    pool.run(rank_unknown_unit, ranks=1)


# Ways to call


def plain_two_forwards():
    model = models.build("gpt2")
    micros = [models.batch("gpt2", step) for step in (0, 1)]
    sum(model(**m).loss for m in micros).backward()
    return {n: p.grad for n, p in model.named_parameters()}


def rank_two_forwards(stage):
    """Two forwards, then one backward of the sum of their losses."""
    with make_engine(models.build("gpt2"), config(stage)) as engine:
        loss = 0
        for step in (0, 1):
            micros = models.micro_batches("gpt2", step, 2, "cpu", torch.float32)
            loss = loss + engine(**micros[dist.get_rank()]).loss
        engine.backward(loss)
        return parity.full_gradients(engine)


@STAGES
def test_two_forwards_before_one_backward(stage, pool, reference):
    plain = reference.run(plain_two_forwards)[0]
    assert_close(pool.run(rank_two_forwards, stage, ranks=2)[0], plain)


def toggle(model, step):
    """As a GAN does: in odd steps the first two blocks are frozen."""
    for block in model.blocks[:2]:
        block.requires_grad_(step % 2 == 0)


def plain_toggled(steps):
    model = models.build("mlp")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4, weight_decay=0.1)
    for step in range(steps):
        toggle(model, step)
        model(**models.batch("mlp", step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {n: p.detach() for n, p in model.named_parameters()}


def rank_toggled(stage, steps):
    model = models.build("mlp")
    params = {"lr": 0.01, "eps": 1e-4, "weight_decay": 0.1}
    settings = config(stage, optimizer={"type": "AdamW", "params": params})
    with make_engine(model, settings) as engine:
        for step in range(steps):
            toggle(model, step)
            train_step(engine, step)
        return engine.state_dict()


@STAGES
def test_requires_grad_toggled_every_step(stage, pool, reference):
    plain = reference.run(plain_toggled, 5)[0]
    assert_close(pool.run(rank_toggled, stage, 5, ranks=2)[0], plain)


def frozen_group(model):
    for p in model.blocks[0].parameters():
        p.requires_grad_(False)
    rest = [p for n, p in model.named_parameters() if not n.startswith("blocks.0.")]
    return [{"params": list(model.blocks[0].parameters())}, {"params": rest, "lr": 0.02}]


def rank_frozen_group(stage):
    model = models.build("mlp")
    optimizer = torch.optim.AdamW(frozen_group(model), lr=0.01)
    settings = config(stage)
    del settings["optimizer"]
    with make_engine(model, settings, optimizer=optimizer) as engine:
        before = engine.state_dict()
        for step in range(2):
            train_step(engine, step)
        after = engine.state_dict()
    for name, value in before.items():
        assert torch.equal(value, after[name]) == name.startswith("blocks.0."), name


@STAGES
def test_a_group_of_frozen_parameters(stage, pool):
    pool.run(rank_frozen_group, stage, ranks=2)


# Layout and dtypes


def rank_channels_last(stage):
    """Weights keep their strides while the engine holds them, and afterwards."""
    model = models.build("cnn").to(memory_format=torch.channels_last)
    strides = {n: p.stride() for n, p in model.named_parameters()}
    plain = models.build("cnn").to(memory_format=torch.channels_last)
    micro = models.micro_batches("cnn", 0, 2, "cpu", torch.float32)[dist.get_rank()]
    with make_engine(model, config(stage)) as engine:
        loss = engine(**micro)["loss"]
        assert loss.item() == pytest.approx(plain(**micro)["loss"].item(), rel=1e-6)
        engine.backward(loss)
        engine.step()
        assert {n: p.stride() for n, p in model.named_parameters()} == strides
        state = engine.state_dict()
    assert {n: p.stride() for n, p in model.named_parameters()} == strides
    for name, value in state.items():
        assert torch.equal(value, model.state_dict()[name])


@STAGES
def test_channels_last_weights(stage, pool):
    pool.run(rank_channels_last, stage, ranks=2)


def rank_buffers(stage):
    """RoPE frequencies stay fp32 in a bf16 model, and keep rank 0's values on every rank."""
    model = models.build("llama")
    frequencies = model.model.rotary_emb.inv_freq.clone()
    model.model.rotary_emb.inv_freq.mul_(1 + dist.get_rank())
    with make_engine(model, config(stage, bf16={"enabled": True})) as engine:
        buffer = engine.module.model.rotary_emb.inv_freq
        assert buffer.dtype == torch.float32
        assert torch.equal(buffer, frequencies)
        assert {p.dtype for p in engine.module.parameters()} == {torch.bfloat16}


@STAGES
def test_buffers_keep_their_dtype(stage, pool):
    pool.run(rank_buffers, stage, ranks=2)


def rank_output_is_the_modules_own():
    """A Hugging Face output object, a tuple and a dict come back as the module made them."""
    kinds = {"gpt2": "CausalLMOutputWithCrossAttentions", "multi": "tuple", "cnn": "dict"}
    for name, kind in kinds.items():
        micro = models.micro_batches(name, 0, 2, "cpu", torch.float32)[dist.get_rank()]
        with make_engine(models.build(name), config(3)) as engine:
            assert type(engine(**micro)).__name__ == kind


def test_outputs_keep_their_type(pool):
    pool.run(rank_output_is_the_modules_own, ranks=2)


def rank_gradients_of_inputs():
    """Inputs that need gradients get them, through hooks and input nodes of all units."""
    batch = samples()
    plain_input = batch["x"].clone().requires_grad_()
    models.build("mlp")(x=plain_input, y=batch["y"]).backward()
    engine_input = batch["x"].clone().requires_grad_()
    with make_engine(models.build("mlp"), config(3)) as engine:
        engine.backward(engine(x=engine_input, y=batch["y"]))
        torch.testing.assert_close(engine_input.grad, plain_input.grad)


def test_gradients_of_inputs(pool):
    pool.run(rank_gradients_of_inputs, ranks=2)
