"""The native layers on fused operations: 16 bits, what is kept, second derivatives."""

import json

import pytest
import torch
from kept_bytes import kept_bytes
from test_models import ROPES, VARIANTS, theirs, tokens_of

from shardwise import _C


def in_bf16(model):
    for _, parameter in model.named_parameters():
        parameter.data = parameter.data.bfloat16()
    return model


def tensors_of(model, tokens):
    """Logits, loss and gradients of transformers' model, in fp32."""
    model.zero_grad()
    output = model(tokens, labels=tokens)
    output.loss.backward()
    found = {name: p.grad.float() for name, p in model.named_parameters()}
    return found | {"logits": output.logits.detach().float(), "loss": output.loss.detach().float()}


def native_tensors_of(model, tokens):
    loss = model.loss(tokens, _C.next_token_targets(tokens))
    loss.backward()
    found = {name: p.grad.float() for name, p in model.named_parameters()}
    return found | {"logits": model.logits(tokens).detach().float(), "loss": loss.detach()}


def rms(tensor):
    return tensor.square().mean().sqrt().item()


CASES = VARIANTS | {
    f"rope_{name}": ("llama", {"rope_parameters": rope, "head_dim": 8})
    for name, rope in ROPES.items()
}


@pytest.mark.parametrize("name", CASES)
def test_bf16_is_as_near_to_fp32_as_plain_bf16(name, tmp_path):
    """At most twice plain PyTorch's error, tensor by tensor."""
    model_type, changes = CASES[name]
    reference = theirs(model_type, changes)
    with torch.no_grad():  # the same numbers in both dtypes
        for parameter in reference.parameters():
            parameter.copy_(parameter.bfloat16().float())
    reference.save_pretrained(tmp_path)
    tokens = tokens_of(reference, 24, batch=8)
    exact = tensors_of(reference, tokens)
    native = native_tensors_of(in_bf16(_C.Model.load(str(tmp_path))), tokens)
    plain = tensors_of(reference.bfloat16(), tokens)
    assert native.keys() == plain.keys()
    noise = 1e-3 * max(rms(value) for value in exact.values())
    for key, value in exact.items():
        allowed = max(2 * rms(plain[key] - value), 2.0**-9 * rms(value))
        # what cancels exactly (a key's bias in a softmax) is rounding alone on both sides
        assert rms(native[key] - value) <= allowed or rms(value) < noise, key


def make(**changes):
    shape = {
        "model_type": "llama",
        "vocab_size": 96,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    return _C.Model.make(json.dumps(shape | changes), 3)


def test_the_logits_of_a_batch_are_not_kept():
    """A larger vocabulary costs the gradient of its rows alone, which is made in forward."""
    kept = {}
    tokens = torch.arange(4 * 64).view(4, 64) % 90
    for vocabulary in (96, 896):
        model = make(vocab_size=vocabulary)
        targets = _C.next_token_targets(tokens)
        model.loss(tokens, targets)  # rotary tables are made once
        kept[vocabulary] = kept_bytes(lambda m=model, t=targets: m.loss(tokens, t))
    assert kept[896] - kept[96] == 4 * 24 * 800


@pytest.mark.parametrize(
    "changes",
    [{}, {"hidden_act": "gelu"}, {"hidden_act": "relu"}, {"tie_word_embeddings": True}],
    ids=str,
)
@pytest.mark.parametrize("model_type", ["gpt2", "llama", "qwen2", "qwen3"])
def test_gradients_of_gradients(model_type, changes, tmp_path):
    """In fp64, where backward is recorded; transformers takes the loss of fp32 logits."""
    # Dropout of nothing: torch composes attention of operations that have second derivatives.
    dropout = {"attention_dropout": 1e-12}
    if model_type == "gpt2":
        dropout = {"attn_pdrop": 1e-12, "resid_pdrop": 0, "embd_pdrop": 0}
        if "hidden_act" in changes:
            changes = {"activation_function": changes["hidden_act"]}
    reference = theirs(model_type, changes | dropout | {"attn_implementation": "eager"})
    reference.save_pretrained(tmp_path)
    model = _C.Model.load(str(tmp_path))
    model.set_training(True)
    parameters = dict(model.named_parameters())
    for parameter in parameters.values():
        parameter.data = parameter.data.double()
    reference = reference.double()
    tokens = tokens_of(reference, 9)

    def second_derivatives(loss, named):
        weights = list(named.values())
        first = torch.autograd.grad(loss, weights, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), weights)
        return dict(zip(named, second, strict=True))

    found = second_derivatives(model.loss(tokens, _C.next_token_targets(tokens)), parameters)
    expected = second_derivatives(
        reference(tokens, labels=tokens).loss, dict(reference.named_parameters())
    )
    assert found.keys() == expected.keys()
    largest = max(value.abs().max() for value in expected.values())
    for name, value in expected.items():
        scale = max(value.abs().max(), 1e-6 * largest)
        assert (found[name] - value).abs().max() < 1e-5 * scale, name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("model_type", ["gpt2", "llama", "qwen3"])
def test_on_a_gpu(model_type, deterministic, tmp_path):
    """As near to fp32 as transformers in bf16, with cuDNN's attention or flash, and no waiting."""
    wide = {"hidden_size": 256, "intermediate_size": 384, "max_position_embeddings": 256}
    wide |= {"head_dim": 64}
    if model_type == "gpt2":
        wide = {"n_embd": 256, "n_positions": 256}
    reference = theirs(model_type, wide)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.copy_((parameter / 8 if parameter.dim() > 1 else parameter).bfloat16())
    reference.save_pretrained(tmp_path)
    tokens = tokens_of(reference, 256, batch=4).cuda()
    exact = tensors_of(reference.cuda(), tokens)
    model = _C.Model.load(str(tmp_path))
    for _, parameter in model.named_parameters():
        parameter.data = parameter.data.cuda().bfloat16()
    targets = _C.next_token_targets(tokens)
    torch.backends.cuda.enable_cudnn_sdp(not deterministic)
    try:
        model.loss(tokens, targets).backward()  # rotary tables are made once
        torch.cuda.set_sync_debug_mode("error")
        model.loss(tokens, targets).backward()
        torch.cuda.set_sync_debug_mode("default")
        for _, parameter in model.named_parameters():
            parameter.grad = None
        with torch.profiler.profile() as profile:
            native = native_tensors_of(model, tokens)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.backends.cuda.enable_cudnn_sdp(True)
    names = {event.name for event in profile.events()}
    on_hopper = torch.cuda.get_device_capability() >= (9, 0)
    used = "aten::_scaled_dot_product_cudnn_attention" in names
    assert used == (on_hopper and not deterministic)
    plain = tensors_of(reference.bfloat16(), tokens)
    noise = 1e-3 * max(rms(value) for value in exact.values())
    for key, value in exact.items():
        allowed = max(2 * rms(plain[key] - value), 2.0**-9 * rms(value))
        assert rms(native[key] - value) <= allowed or rms(value) < noise, key
