"""Activation checkpointing of the layers in C++: the same bits from fewer kept bytes."""

import json

import native_front
import pytest
import torch
from kept_bytes import Storages, kept_bytes
from parity import Case
from test_train import job_of, losses, run, shape

from shardwise import _C, UsageError

SETTINGS = ("off", "selective", "full")
WIDTH, HEADS, VOCABULARY = 24, 4, 61
BATCH, LENGTH = 2, 16
TOKENS = BATCH * LENGTH
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": VOCABULARY,
    "n_positions": LENGTH,
    "n_embd": WIDTH,
    "n_layer": 3,
    "n_head": HEADS,
    "n_inner": 52,
    "attn_pdrop": 0,
    "resid_pdrop": 0,
    "embd_pdrop": 0,
}
LLAMA = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
}
DROPOUT = {"attn_pdrop": 0.2, "resid_pdrop": 0.3, "embd_pdrop": 0.1}
SHAPES = {
    "gpt2": GPT2,
    "gpt2_dropout": GPT2 | DROPOUT,
    "gpt2_linear": GPT2 | {"activation_function": "linear"},  # its result is its argument
    "gpt2_fast": GPT2 | {"activation_function": "gelu_fast"},
    "llama": LLAMA,
    "llama_tied": LLAMA | {"tie_word_embeddings": True},
    "llama_biases": LLAMA | {"attention_bias": True, "mlp_bias": True},
    "llama_dropout": LLAMA | {"attention_dropout": 0.2},
    "qwen3": LLAMA | {"model_type": "qwen3", "head_dim": 12},
}


def make(config, setting):
    model = _C.Model.make(json.dumps(config), 3)
    model.set_training(True)
    model.set_activation_checkpointing(setting)
    return model


def loss_of(model, batch=BATCH):
    ids = torch.arange(batch * LENGTH).view(batch, LENGTH) * 7 % VOCABULARY
    return model.loss(ids, _C.next_token_targets(ids))


def gradients(config, setting, frozen=()):
    """Loss and gradients, and a random number that is drawn after each."""
    model = make(config, setting)
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        parameter.requires_grad_(not name.endswith(frozen))
    torch.manual_seed(5)
    loss = loss_of(model)
    drawn = torch.rand(1)
    loss.backward()
    found = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    return {"loss": loss.detach(), "drawn": drawn, "later": torch.rand(1), **found}


def assert_same_bits(got, plain):
    assert got.keys() == plain.keys()
    for name, value in plain.items():
        assert torch.equal(got[name], value), name


@pytest.mark.parametrize("setting", ["selective", "full"])
@pytest.mark.parametrize("name", SHAPES)
def test_the_same_bits(name, setting):
    plain = gradients(SHAPES[name], "off")
    assert all(value.abs().max() > 0 for value in plain.values())
    assert_same_bits(gradients(SHAPES[name], setting), plain)


@pytest.mark.parametrize("setting", ["selective", "full"])
@pytest.mark.parametrize(
    "frozen",
    [
        ("wte.weight", "wpe.weight", "h.0.ln_1.weight", "h.0.ln_1.bias"),
        ("c_attn.weight", "c_fc.bias", "ln_2.weight"),
    ],
    ids=["up to the first product", "in the middle"],
)
def test_frozen_parameters(frozen, setting):
    plain = gradients(GPT2, "off", frozen)
    assert not any(name.endswith(frozen) for name in plain)
    assert_same_bits(gradients(GPT2, setting, frozen), plain)


def test_gradients_of_gradients():
    """With dropout torch composes attention of operations that have second derivatives."""
    found = {}
    for setting in SETTINGS:
        model = make(GPT2 | DROPOUT, setting)
        parameters = [p for _, p in model.named_parameters()]
        torch.manual_seed(5)
        first = torch.autograd.grad(loss_of(model), parameters, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), parameters)
        found[setting] = dict(enumerate((*first, *second)))
    for setting in ("selective", "full"):
        for index, value in found["off"].items():
            # sums of three and more terms, in another order: some roundings of 2^-24 each
            error = (found[setting][index] - value).abs().max() / value.abs().max()
            assert error < 1e-5, index


@pytest.mark.parametrize("setting", SETTINGS)
def test_graphs_that_are_used_twice_and_outlive_the_model(setting):
    model = make(GPT2, setting)
    parameters = [p for _, p in model.named_parameters()]
    weights = [p for p in parameters if p.dim() == 2]
    loss = loss_of(model)
    del model
    first = torch.autograd.grad(loss, weights, retain_graph=True)
    second = torch.autograd.grad(loss, weights)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def hooked(setting, register):
    """What a hook on a matrix saw, and the gradient it left, of two passes in one backward."""
    model = make(LLAMA, setting)
    weight = dict(model.named_parameters())["model.layers.1.mlp.down_proj.weight"]
    seen = []

    def halve(tensor):
        seen.append((tensor if register == "register_hook" else tensor.grad).clone())
        return seen[-1] / 2 if register == "register_hook" else None

    getattr(weight, register)(halve)
    (loss_of(model) + loss_of(model, 1)).backward()
    return seen, weight.grad


@pytest.mark.parametrize("setting", ["selective", "full"])
@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_see_a_gradient_once(register, setting):
    (seen, left), (right, right_left) = hooked(setting, register), hooked("off", register)
    assert len(seen) == len(right) == 1
    assert torch.equal(seen[0], right[0]) and torch.equal(left, right_left)


def test_words_that_are_none_of_the_settings():
    with pytest.raises(UsageError, match='"selective" or "full", not "some"'):
        make(GPT2, "some")


# What a block keeps in fp32 on the CPU, in numbers a token. An attention's statistics are one a
# head, an RMS norm's one and a layer norm's two. "off": the arguments of norms, of products and of
# activation functions, and q, k and v; what attention gives is the argument of a product.
# "selective" does not keep arguments of products that a norm or an activation function gave, as
# these keep their own arguments.
def gpt2_numbers(width, inner):
    return {
        "off": 8 * width + 2 * inner + HEADS + 2 * 2,
        "selective": 6 * width + inner + HEADS + 2 * 2,
        "full": width,
    }


def llama_numbers(width, inner):
    keys_and_values = width  # half as many heads, twice
    return {
        "off": 6 * width + keys_and_values + 3 * inner + HEADS + 2,
        "selective": 4 * width + keys_and_values + 2 * inner + HEADS + 2,
        "full": width,
    }


@pytest.mark.parametrize(
    "config,layers,numbers",
    [
        (GPT2, "n_layer", gpt2_numbers(WIDTH, GPT2["n_inner"])),
        (LLAMA, "num_hidden_layers", llama_numbers(WIDTH, LLAMA["intermediate_size"])),
    ],
    ids=["gpt2", "llama"],
)
def test_bytes_that_a_block_keeps(config, layers, numbers):
    assert numbers["off"] > numbers["selective"] > numbers["full"]
    for setting, count in numbers.items():
        kept = {}
        for depth in (2, 3):
            model = make(config | {layers: depth}, setting)
            loss_of(model)  # rotary tables are made once
            kept[depth] = kept_bytes(lambda model=model: loss_of(model))
        assert kept[3] - kept[2] == 4 * TOKENS * count, setting


def test_evaluation_keeps_nothing():
    models = [make(GPT2, setting) for setting in SETTINGS]
    with torch.no_grad():
        kept = {kept_bytes(lambda model=model: loss_of(model)) for model in models}
    assert kept == {4}, "the loss alone is kept"


def test_peak_of_full_is_one_block_and_the_inputs_of_the_others():
    """Deeper models add one input a block, beside the gradients of their parameters."""
    batch = 32  # activations outweigh gradients, so that the peak is where backward begins

    def peak(setting, depth):
        model = make(GPT2 | {"n_layer": depth}, setting)
        with Storages() as storages:
            loss_of(model, batch).backward()
        return storages.peak - 4 * model.parameter_count()

    grown = {setting: peak(setting, 6) - peak(setting, 3) for setting in SETTINGS}
    inputs = 3 * 4 * batch * LENGTH * WIDTH
    assert grown["full"] <= inputs < grown["selective"] < grown["off"]


CASES = [
    *(Case(stage, model, "fp32", 2) for stage in range(4) for model in ("gpt2", "llama")),
    Case(3, "llama", "bf16", 1),
]


def test_the_engine_trains_with_the_same_bits_and_traffic(tmp_path):
    """All stages; a unit's parameters are gathered once for recomputation and backward."""
    found = {}
    for setting in SETTINGS:
        folder = tmp_path / setting
        folder.mkdir()
        found[setting] = native_front.run(CASES, folder, own={"activation_checkpointing": setting})
    for case, plain in found["off"].items():
        assert sum(plain["traffic"]) > 0
        for setting in ("selective", "full"):
            record = found[setting][case]
            for kind in ("losses", "norms", "applied", "traffic"):
                assert record[kind] == plain[kind], (setting, case, kind)
            for kind in ("gradients", "weights"):
                assert_same_bits(record[kind], plain[kind])


def test_job_files(tmp_path):
    """Training losses and the held-out loss are the same; dropout is on."""
    job = job_of(tmp_path, **shape(attention_dropout=0.2), zero_optimization={"stage": 3})
    found = {}
    for setting in SETTINGS:
        choice = f"shardwise.activation_checkpointing={setting}"
        out = tmp_path / setting
        run("train", job, "--set", choice, "--set", f"training.output={out}")
        weights = (out / "model" / "model.safetensors").read_bytes()
        found[setting] = losses(out), weights
    assert len(found["off"][0]) == 4
    assert found["selective"] == found["off"] == found["full"]
