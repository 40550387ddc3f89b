"""Hugging Face models of each adopted family, and how an adopted copy is compared with one."""

import copy

import torch
from torch import nn

LENGTH = 10
SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
    "use_cache": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
GPT2 = {
    "vocab_size": 61,
    "n_positions": 32,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "use_cache": False,
    "bos_token_id": None,
    "eos_token_id": None,
}
# Every branch of the families' layers: (family, keys of the configuration).
VARIANTS = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"}),
    "llama, own head size": ("llama", {"head_dim": 16}),
    "llama, long": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8,
            }
        },
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral, window": ("mistral", {"sliding_window": 4}),
    "qwen2": ("qwen2", {}),
    "qwen2, windows": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "gpt2": ("gpt2", {}),
    "gpt2, scaled": (
        "gpt2",
        {
            "scale_attn_by_inverse_layer_idx": True,
            "activation_function": "gelu",
            "tie_word_embeddings": False,
            "n_inner": 40,
        },
    ),
}


def build(variant: str, **more) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    family, keys = VARIANTS[variant]
    base = GPT2 if family == "gpt2" else SMALL
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**base, **keys, **more})
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # biases of zero and norms of one would hide mistakes
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.train()


# Joined products that share a tensor, or of which one part has a bias: (variant, pairs of names of
# which the first becomes the second). A name alone gets a new bias. All matrices have one shape, so
# that one that is elsewhere leaves its place to a neighbour of the right shape.
SQUARE = {"num_key_value_heads": 4, "intermediate_size": 32}
SHARED = {
    "k and v": ("llama", [("0.self_attn.v_proj.weight", "0.self_attn.k_proj.weight")]),
    "gate and up": ("llama", [("1.mlp.up_proj.weight", "1.mlp.gate_proj.weight")]),
    "v of two layers": ("llama", [("1.self_attn.v_proj.weight", "0.self_attn.v_proj.weight")]),
    "q, k, v of two layers": (
        "llama",
        [(f"1.self_attn.{n}_proj.weight", f"0.self_attn.{n}_proj.weight") for n in "qkv"],
    ),
    "k of one layer, v of another": (
        "llama",
        [("2.self_attn.v_proj.weight", "0.self_attn.k_proj.weight")],
    ),
    "biases of k and v": ("qwen2", [("0.self_attn.v_proj.bias", "0.self_attn.k_proj.bias")]),
    "biases of two layers": ("qwen2", [("1.self_attn.v_proj.bias", "0.self_attn.v_proj.bias")]),
    "weights, and biases apart": (
        "qwen2",
        [("0.self_attn.v_proj.weight", "0.self_attn.k_proj.weight")],
    ),
    "a bias of v alone": ("llama", [("1.self_attn.v_proj.bias", "")]),
    "a bias of gate alone": ("llama", [("1.mlp.gate_proj.bias", "")]),
}


def build_shared(name: str) -> nn.Module:
    variant, pairs = SHARED[name]
    model = build(variant, **SQUARE)
    layers = model.model.layers
    for taker, giver in pairs:
        path, _, kind = taker.rpartition(".")
        module = layers.get_submodule(path)
        new = (
            layers.get_parameter(giver) if giver else nn.Parameter(torch.ones(module.out_features))
        )
        setattr(module, kind, new)
    return model


def batch(seed=0, samples=3) -> dict:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 61, (samples, LENGTH), generator=generator)
    labels = ids.clone()
    labels[0, :4] = -100
    return {"input_ids": ids, "labels": labels}


def adopted(model: nn.Module, **common):
    """An adopted copy, and what was adopted."""
    from shardwise.adoption import Common, adopt

    twin = copy.deepcopy(model)
    return twin, adopt(twin, True, False, Common(**common))


def results(model: nn.Module, **inputs) -> dict[str, torch.Tensor]:
    """Loss, logits and gradients of one forward and backward."""
    output = model(**inputs)
    model.zero_grad()
    output.loss.backward(retain_graph=True)
    gradients = {n: p.grad.float() for n, p in model.named_parameters() if p.grad is not None}
    return {"loss": output.loss.detach(), "logits": output.logits.detach().float(), **gradients}


def errors(got: dict, right: dict) -> dict[str, float]:
    """max|a - b| / max|b| of each tensor."""
    assert got.keys() == right.keys()
    return {
        name: float((got[name] - value).abs().max() / value.abs().max().clamp_min(1e-12))
        for name, value in right.items()
    }


def assert_close(got: dict, right: dict, allowed: float = 1e-5):
    found = errors(got, right)
    worst = max(found, key=found.get)
    assert found[worst] <= allowed, f"{worst}: {found[worst]:.1e}, allowed {allowed:.1e}"
