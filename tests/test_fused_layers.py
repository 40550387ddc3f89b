"""The native layers on fused operations: 16 bits, what is kept, second derivatives."""

import json
import math

import pytest
import torch
from kept_bytes import kept_bytes
from test_models import ROPES, VARIANTS, packed, theirs, tokens_of

from shardwise import _C


def in_bf16(model):
    for _, parameter in model.named_parameters():
        parameter.data = parameter.data.bfloat16()
    return model


def tensors_of(model, tokens, labels=None, **more):
    """Logits, loss and gradients of transformers' model, in fp32."""
    model.zero_grad()
    output = model(tokens, labels=tokens if labels is None else labels, **more)
    output.loss.backward()
    found = {name: p.grad.float().clone() for name, p in model.named_parameters()}
    return found | {"logits": output.logits.detach().float(), "loss": output.loss.detach().float()}


def native_tensors_of(model, tokens, documents=None):
    loss = model.loss(tokens, _C.next_token_targets(tokens, documents), documents)
    loss.backward()
    found = {name: p.grad.float() for name, p in model.named_parameters()}
    logits = model.logits(tokens, documents).detach().float()
    return found | {"logits": logits, "loss": loss.detach()}


def rms(tensor):
    return tensor.square().mean().sqrt().item()


def assert_as_near(mine, plain, exact):
    """Tensor by tensor, at most twice plain PyTorch's error.

    The rms of n independent errors is known to 1 / sqrt(2 n), the ratio of two of them to
    1 / sqrt(n), four times of which is allowed for: a bias has 16.
    """
    noise = 1e-3 * max(rms(value) for value in exact.values())
    for key, value in exact.items():
        error = 2 * rms(plain[key] - value) * (1 + 4 / math.sqrt(value.numel()))
        allowed = max(error, 2.0**-9 * rms(value))
        # what cancels exactly (a key's bias in a softmax) is rounding alone on both sides
        assert rms(mine[key] - value) <= allowed or rms(value) < noise, key


CASES = VARIANTS | {
    f"rope_{name}": ("llama", {"rope_parameters": rope, "head_dim": 8})
    for name, rope in ROPES.items()
}


@pytest.mark.parametrize("name", CASES)
def test_bf16_is_as_near_to_fp32_as_plain_bf16(name, tmp_path):
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
    assert_as_near(native, plain, exact)


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


WIDE = {"hidden_size": 256, "intermediate_size": 384, "max_position_embeddings": 256}
WIDE |= {"head_dim": 64}
WIDE_GPT2 = {"n_embd": 256, "n_positions": 256}
WINDOWS = {"use_sliding_window": True, "sliding_window": 60, "max_window_layers": 1}
# Family, changes, and the lengths of documents in four rows of 256 tokens.
ON_GPU = {
    "gpt2": ("gpt2", WIDE_GPT2, None),
    "llama": ("llama", WIDE, None),
    "qwen3": ("qwen3", WIDE, None),
    "window": ("mistral", WIDE | {"sliding_window": 60}, None),
    "layers of both kinds": ("qwen2", WIDE | WINDOWS, None),
    "documents": ("llama", WIDE, (256, 100, 156, 1, 255, 17, 70, 100, 69)),
    "documents of one length": ("llama", WIDE, (64,) * 16),
    "documents and window": ("qwen2", WIDE | WINDOWS, (256, 100, 156, 1, 255, 200, 56)),
    "learned positions": ("gpt2", WIDE_GPT2, (256, 100, 156, 1, 255, 256)),
}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("case", ON_GPU)
def test_on_a_gpu(case, deterministic, tmp_path):
    """As near to fp32 as transformers in bf16, with cuDNN's attention or flash, and no waiting."""
    model_type, changes, lengths = ON_GPU[case]
    reference = theirs(model_type, changes)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.copy_((parameter / 8 if parameter.dim() > 1 else parameter).bfloat16())
    reference.save_pretrained(tmp_path)
    tokens = tokens_of(reference, 256, batch=4).cuda()
    documents, as_transformers = None, {}
    if lengths:
        (offsets, longest), positions = packed(lengths, rows=4)
        documents, positions = (offsets.cuda(), longest), positions.cuda()
        labels = tokens.masked_fill(positions == 0, -100)
        as_transformers = {"position_ids": positions, "use_cache": False, "labels": labels}
    exact = tensors_of(reference.cuda(), tokens, **as_transformers)
    model = _C.Model.load(str(tmp_path))
    for _, parameter in model.named_parameters():
        parameter.data = parameter.data.cuda().bfloat16()
    targets = _C.next_token_targets(tokens, documents)
    torch.backends.cuda.enable_cudnn_sdp(not deterministic)
    try:
        model.loss(tokens, targets, documents).backward()  # rotary tables are made once
        torch.cuda.set_sync_debug_mode("error")
        model.loss(tokens, targets, documents).backward()
        torch.cuda.set_sync_debug_mode("default")
        for _, parameter in model.named_parameters():
            parameter.grad = None
        with torch.profiler.profile() as profile:
            native = native_tensors_of(model, tokens, documents)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.backends.cuda.enable_cudnn_sdp(True)
    names = {event.name for event in profile.events()}
    on_hopper = torch.cuda.get_device_capability() >= (9, 0)
    windowed = "sliding_window" in changes
    apart = lengths is not None and len(set(lengths)) > 1
    whole = "use_sliding_window" in changes and not apart  # of a layer without a window
    used = "aten::_scaled_dot_product_cudnn_attention" in names
    wanted = (whole or not (windowed or apart)) and on_hopper and not deterministic
    assert used == wanted
    assert "aten::_flash_attention_forward" in names or not (windowed or apart)
    plain = tensors_of(reference.bfloat16(), tokens, **as_transformers)
    assert_as_near(native, plain, exact)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_packed_attention_is_the_same_in_every_run_in_deterministic_mode():
    torch.manual_seed(0)
    offsets = torch.tensor([0, 700, 701, 1500, 2048], dtype=torch.int32, device="cuda")
    shape = (1, 8, 2048, 64)
    inputs = [
        torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    ]
    given = torch.randn(1, 2048, 512, device="cuda", dtype=torch.bfloat16)

    def gradients(window):
        packed_rows = (offsets, 799)
        out = torch.ops.shardwise.causal_attention(*inputs, 0.1, 0.0, window, *packed_rows)
        return torch.autograd.grad(out, inputs, given)

    torch.use_deterministic_algorithms(True)
    try:
        for window in (0, 100):
            first = gradients(window)
            for _ in range(5):
                assert all(map(torch.equal, gradients(window), first))
    finally:
        torch.use_deterministic_algorithms(False)
