"""The C++ models against transformers: same folder in, same numbers out, and back again."""

import copy
import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from shardwise import _C

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

TOLERANCE = 1e-5  # max|a-b| / max|b|, fp32

CLASSES = {
    "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}
GPT2 = {"vocab_size": 61, "n_positions": 48, "n_embd": 24, "n_layer": 3, "n_head": 4}
GPT2 |= {"bos_token_id": 0, "eos_token_id": 0}
LLAMA = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}
MISTRAL = LLAMA | {"sliding_window": None}
QWEN3 = LLAMA | {"head_dim": 12}
SMALLEST = {"gpt2": GPT2, "llama": LLAMA, "mistral": MISTRAL, "qwen2": LLAMA, "qwen3": QWEN3}
FACTORS = {"short_factor": [1.0, 1.1, 1.5, 2.0], "long_factor": [1.0, 2.0, 4.0, 8.5]}

ROPES = {
    "default": {"rope_type": "default", "rope_theta": 500.0},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.5},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
    "yarn_betas": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 2.5,
        "beta_slow": 0.2,
        "truncate": False,
        "rope_theta": 100.0,
    },
    "yarn_mscale": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 16,
        "mscale": 0.7,
        "mscale_all_dim": 1.3,
        "beta_fast": 4,
    },
    "yarn_attention_factor": {
        "rope_type": "yarn",
        "factor": 2.0,
        "attention_factor": 1.7,
        "original_max_position_embeddings": 16,
    },
    "longrope": {"rope_type": "longrope", "original_max_position_embeddings": 10} | FACTORS,
    "longrope_factor": {
        "rope_type": "longrope",
        "original_max_position_embeddings": 10,
        "factor": 6.0,
    }
    | FACTORS,
    "longrope_attention_factor": {
        "rope_type": "longrope",
        "original_max_position_embeddings": 10,
        "attention_factor": 0.8,
    }
    | FACTORS,
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
        "rope_theta": 50.0,
    },
}

VARIANTS = {
    "gpt2": ("gpt2", {}),
    "gpt2_untied": ("gpt2", {"tie_word_embeddings": False}),
    "gpt2_inner": ("gpt2", {"n_inner": 52}),
    "gpt2_unscaled": ("gpt2", {"scale_attn_weights": False}),
    "gpt2_layer_scale": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    "gpt2_both_scales": (
        "gpt2",
        {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
    ),
    "gpt2_upcast": ("gpt2", {"reorder_and_upcast_attn": True}),
    "gpt2_epsilon": ("gpt2", {"layer_norm_epsilon": 0.3}),
    "llama": ("llama", {}),
    "llama_mha": ("llama", {"num_key_value_heads": None}),
    "llama_mqa": ("llama", {"num_key_value_heads": 1}),
    "llama_head_dim": ("llama", {"head_dim": 6}),
    "llama_attention_bias": ("llama", {"attention_bias": True}),
    "llama_mlp_bias": ("llama", {"mlp_bias": True}),
    "llama_tied": ("llama", {"tie_word_embeddings": True}),
    "llama_epsilon": ("llama", {"rms_norm_eps": 0.2}),
    "llama_padding": ("llama", {"pad_token_id": 3}),
    "llama_padding_last": ("llama", {"pad_token_id": -1}),
    "mistral": ("mistral", {}),
    "mistral_wide_window": ("mistral", {"sliding_window": 32}),
    "mistral_window": ("mistral", {"sliding_window": 5}),
    "mistral_window_of_one": ("mistral", {"sliding_window": 1}),
    "qwen2": ("qwen2", {}),
    "qwen2_head_dim": ("qwen2", {"head_dim": 10}),
    "qwen2_tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2_windows": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
    "qwen2_windows_off": ("qwen2", {"sliding_window": 6, "max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "qwen3_layer_types": (
        "qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "qwen3_bias": ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
}
ACTIVATIONS = [
    "gelu", "gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python",
    "gelu_python_tanh", "gelu_pytorch_tanh", "hardswish", "laplace", "leaky_relu", "linear",
    "mish", "quick_gelu", "relu", "relu2", "relu6", "sigmoid", "silu", "sqrtsoftplus", "swish",
    "tanh",
]  # fmt: skip


def relative_error(ours, theirs):
    return ((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30)).item()


def theirs(model_type, changes, seed=0):
    """transformers' model with weights that make every parameter matter."""
    config_class, model_class = CLASSES[model_type]
    torch.manual_seed(seed)
    model = model_class(config_class(**copy.deepcopy(SMALLEST[model_type] | changes)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm = parameter.dim() == 1 and not name.endswith("bias")
            parameter.uniform_(0.5, 1.5) if norm else parameter.normal_(0, 0.25)
    return model.eval()


def reload(folder, model_type, **options):
    """As transformers reads the folder; everything must have its place."""
    model, info = CLASSES[model_type][1].from_pretrained(
        folder, output_loading_info=True, **options
    )
    assert not any(info[key] for key in info), info
    return model.eval()


def tokens_of(model, length, batch=2):
    return torch.randint(0, model.config.vocab_size, (batch, length))


def packed(lengths, rows=1):
    """Documents of these lengths in rows: (offsets, longest) for our models, and positions."""
    offsets = torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
    positions = torch.cat([torch.arange(length) for length in lengths]).view(rows, -1)
    return (offsets, max(lengths)), positions


def edit_config(folder, edit):
    path = folder / "config.json"
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def check_equal(reference, ours, tokens):
    """Logits, the loss and the gradients of every parameter."""
    assert relative_error(ours.logits(tokens), reference(tokens).logits) < TOLERANCE
    expected = reference(tokens, labels=tokens).loss
    loss = ours.loss(tokens, _C.next_token_targets(tokens))
    assert loss.item() == pytest.approx(expected.item(), rel=TOLERANCE)
    reference.zero_grad()
    expected.backward()
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in ours.named_parameters()}
    expected = {name: parameter.grad for name, parameter in reference.named_parameters()}
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        # What cancels exactly (a key's bias in a softmax) is rounding noise on both sides.
        noise = 1e-6 * max(g.abs().max() for g in expected.values())
        if expected[name].abs().max() < noise:
            assert gradient.abs().max() < noise, name
        else:
            assert relative_error(gradient, expected[name]) < TOLERANCE, name


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_loss_and_gradients(variant, tmp_path):
    model_type, changes = VARIANTS[variant]
    reference = theirs(model_type, changes)
    reference.save_pretrained(tmp_path)
    ours = _C.Model.load(str(tmp_path))
    assert ours.parameter_count() == sum(p.numel() for p in reference.parameters())
    check_equal(reference, ours, tokens_of(reference, 20))
    for length in (1, 2, 32):
        tokens = tokens_of(reference, length, batch=3)
        assert relative_error(ours.logits(tokens), reference(tokens).logits) < TOLERANCE


def test_the_window_that_mistral_has_where_the_key_is_missing():
    """4096, as transformers has it: the first token is out of sight from the 4097th on."""
    shape = MISTRAL | {"model_type": "mistral", "num_hidden_layers": 1, "hidden_size": 8}
    model = _C.Model.make(json.dumps({k: v for k, v in shape.items() if k != "sliding_window"}), 0)
    tokens = torch.zeros(2, 4098, dtype=torch.long)
    tokens[1, 0] = 1
    with torch.no_grad():
        differ = (model.logits(tokens)[0] != model.logits(tokens)[1]).any(-1)
    assert differ[:4096].float().mean() > 0.9 and not differ[4096:].any()


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(
    "variant", ["gpt2", "llama", "mistral_window", "qwen2_windows", "qwen3", "qwen3_layer_types"]
)
def test_packed_documents(variant, rows, tmp_path):
    """As transformers has them, where positions begin anew; and as each document has it alone."""
    model_type, changes = VARIANTS[variant]
    reference = theirs(model_type, changes)
    reference.save_pretrained(tmp_path)
    ours = _C.Model.load(str(tmp_path))
    lengths = [7, 1, 12, 10, 20, 10][: 4 if rows == 1 else 6]
    documents, positions = packed(lengths, rows)
    tokens = tokens_of(reference, positions.shape[1], rows)
    targets = _C.next_token_targets(tokens, documents)
    labels = tokens.clone()
    labels[positions == 0] = -100
    assert torch.equal(targets[:, :-1], labels[:, 1:]) and (targets[:, -1] == -100).all()
    # With a cache transformers does not look for packed samples.
    packed_rows = {"input_ids": tokens, "position_ids": positions, "use_cache": False}
    expected = reference(**packed_rows, labels=labels)
    assert relative_error(ours.logits(tokens, documents), expected.logits) < TOLERANCE
    loss = ours.loss(tokens, targets, documents)
    assert loss.item() == pytest.approx(expected.loss.item(), rel=TOLERANCE)
    expected.loss.backward()
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in ours.named_parameters()}
    for _, parameter in ours.named_parameters():
        parameter.grad = None
    alone = [part[None] for part in tokens.flatten().split(lengths) if len(part) > 1]
    count = sum(part.numel() - 1 for part in alone)
    mean = sum(
        ours.loss(part, _C.next_token_targets(part)) * ((part.numel() - 1) / count)
        for part in alone
    )
    mean.backward()
    # The same sums of fp32 numbers in another order.
    assert loss.item() == pytest.approx(mean.item(), rel=TOLERANCE)
    noise = 1e-6 * max(g.abs().max() for g in gradients.values())
    for name, parameter in ours.named_parameters():
        for right in (parameter.grad, dict(reference.named_parameters())[name].grad):
            if right.abs().max() < noise:
                assert gradients[name].abs().max() < noise, name
            else:
                assert relative_error(gradients[name], right) < TOLERANCE, name


@pytest.mark.parametrize("rope", ["dynamic", "longrope", "yarn"])
def test_rope_scaling_follows_the_longest_document(rope, tmp_path):
    changes = {"rope_parameters": ROPES[rope], "head_dim": 8}
    theirs("llama", changes).save_pretrained(tmp_path)
    ours = _C.Model.load(str(tmp_path))
    for lengths in ((5, 9, 46), (40, 3, 17), (30, 30)):
        reference = reload(tmp_path, "llama")
        documents, positions = packed(lengths)
        tokens = tokens_of(reference, 60, 1)
        right = reference(tokens, position_ids=positions, use_cache=False).logits
        assert relative_error(ours.logits(tokens, documents), right) < TOLERANCE, lengths


def test_learned_positions_limit_documents_and_not_rows():
    model = _C.Model.make(json.dumps(GPT2 | {"model_type": "gpt2"}), 0)
    tokens = torch.zeros(1, 96, dtype=torch.long)
    assert model.logits(tokens, packed((48, 48))[0]).shape == (1, 96, 61)
    with pytest.raises(_C.UsageError, match="49 tokens is longer"):
        model.logits(tokens, packed((47, 49))[0])
    with pytest.raises(_C.UsageError, match="0 to 90"):
        model.logits(tokens, packed((45, 45))[0])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_activations(model_type, activation, tmp_path):
    key = "activation_function" if model_type == "gpt2" else "hidden_act"
    reference = theirs(model_type, {key: activation})
    reference.save_pretrained(tmp_path)
    check_equal(reference, _C.Model.load(str(tmp_path)), tokens_of(reference, 12))


def test_upcast_attention_is_the_same_number(tmp_path):
    theirs("gpt2", {"reorder_and_upcast_attn": True}).save_pretrained(tmp_path)
    reference = reload(tmp_path, "gpt2", attn_implementation="eager")
    check_equal(reference, _C.Model.load(str(tmp_path)), tokens_of(reference, 20))


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
@pytest.mark.parametrize("rope", ROPES)
def test_rope_scaling(model_type, rope, tmp_path):
    changes = {"rope_parameters": ROPES[rope], "head_dim": 8}
    theirs(model_type, changes).save_pretrained(tmp_path)
    ours = _C.Model.load(str(tmp_path))
    for length in (7, 8, 9, 11, 17, 32, 33, 70):
        # A fresh model: transformers remembers the longest sequence so far.
        reference = reload(tmp_path, model_type)
        tokens = tokens_of(reference, length)
        assert relative_error(ours.logits(tokens), reference(tokens).logits) < TOLERANCE, length


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_rope_scaling_as_older_files_spell_it(rope, key, tmp_path):
    theirs("llama", {"head_dim": 8}).save_pretrained(tmp_path)

    def edit(document):
        del document["rope_parameters"]
        settings = dict(ROPES[rope])
        document["rope_theta"] = settings.pop("rope_theta", 300.0)
        settings[key] = settings.pop("rope_type")
        document["rope_scaling"] = settings

    edit_config(tmp_path, edit)
    for length in (9, 40):
        reference = reload(tmp_path, "llama")
        tokens = tokens_of(reference, length)
        logits = _C.Model.load(str(tmp_path)).logits(tokens)
        assert relative_error(logits, reference(tokens).logits) < TOLERANCE


def test_original_length_outside_of_the_settings(tmp_path):
    settings = dict(ROPES["longrope"])
    del settings["original_max_position_embeddings"]
    theirs("llama", {"head_dim": 8, "rope_parameters": settings}).save_pretrained(tmp_path)

    def edit(document):
        document["original_max_position_embeddings"] = 12
        document["rope_parameters"]["original_max_position_embeddings"] = 5

    edit_config(tmp_path, edit)
    ours = _C.Model.load(str(tmp_path))
    for length in (6, 12, 13):
        reference = reload(tmp_path, "llama")
        tokens = tokens_of(reference, length)
        assert relative_error(ours.logits(tokens), reference(tokens).logits) < TOLERANCE


def random_changes(model_type, rng):
    if model_type == "gpt2":
        heads = rng.choice([1, 2, 3, 5])
        return {
            "vocab_size": rng.randint(2, 90),
            "n_positions": rng.randint(30, 50),
            "n_head": heads,
            "n_embd": heads * rng.randint(1, 9),
            "n_layer": rng.randint(1, 4),
            "n_inner": rng.choice([None, rng.randint(1, 50)]),
            "tie_word_embeddings": rng.random() < 0.5,
            "scale_attn_weights": rng.random() < 0.5,
            "scale_attn_by_inverse_layer_idx": rng.random() < 0.5,
            "activation_function": rng.choice(ACTIVATIONS),
        }
    kv_heads, groups = rng.choice([1, 2, 3]), rng.choice([1, 2, 3])
    heads = kv_heads * groups
    changes = {
        "vocab_size": rng.randint(2, 90),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": heads * 2 * rng.randint(1, 6),
        "head_dim": 8,
        "intermediate_size": rng.randint(1, 60),
        "num_hidden_layers": rng.randint(1, 4),
        "tie_word_embeddings": rng.random() < 0.5,
        "hidden_act": rng.choice(["silu", "gelu", "gelu_pytorch_tanh", "relu"]),
        "rms_norm_eps": rng.choice([1e-6, 1e-5, 1e-2]),
        "rope_parameters": {"rope_theta": 10000.0} | rng.choice(list(ROPES.values())),
    }
    if model_type in ("llama", "qwen3"):
        changes["attention_bias"] = rng.random() < 0.5
    if model_type == "llama":
        changes["mlp_bias"] = rng.random() < 0.5
    return changes


@pytest.mark.parametrize("model_type", CLASSES)
def test_random_shapes(model_type, tmp_path):
    rng = random.Random(model_type)
    for case in range(12):
        changes = random_changes(model_type, rng)
        reference = theirs(model_type, changes, seed=case)
        folder = tmp_path / str(case)
        reference.save_pretrained(folder)
        ours = _C.Model.load(str(folder))
        assert ours.parameter_count() == sum(p.numel() for p in reference.parameters()), changes
        tokens = tokens_of(reference, rng.randint(1, 30))
        assert relative_error(ours.logits(tokens), reference(tokens).logits) < TOLERANCE, changes


@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
@pytest.mark.parametrize("which", ["attention", "residual", "embedding", "all", "none"])
def test_dropout_as_transformers_draws_it(model_type, which, tmp_path):
    keys = {"attention": "attn_pdrop", "residual": "resid_pdrop", "embedding": "embd_pdrop"}
    if model_type == "llama":
        keys = {"attention": "attention_dropout"}
    changes = {key: 0.3 if which in (kind, "all") else 0.0 for kind, key in keys.items()}
    reference = theirs(model_type, changes)
    reference.save_pretrained(tmp_path)
    ours = _C.Model.load(str(tmp_path))
    tokens = tokens_of(reference, 24)
    quiet = ours.logits(tokens)
    ours.set_training(True)
    torch.manual_seed(5)
    drawn = ours.logits(tokens)
    torch.manual_seed(5)
    assert relative_error(drawn, reference.train()(tokens).logits) < TOLERANCE
    assert torch.equal(drawn, quiet) == (not any(changes.values()))
    ours.set_training(False)
    assert torch.equal(ours.logits(tokens), quiet)


@pytest.mark.parametrize("model_type", CLASSES)
@pytest.mark.parametrize("tied", [False, True])
def test_saved_folders_are_read_by_transformers(model_type, tied, tmp_path):
    reference = theirs(model_type, {"tie_word_embeddings": tied})
    reference.save_pretrained(tmp_path / "theirs")
    ours = _C.Model.load(str(tmp_path / "theirs"))
    ours.save(str(tmp_path / "ours"))
    back = reload(tmp_path / "ours", model_type)
    assert back.dtype == torch.float32
    expected = reference.state_dict()
    assert back.state_dict().keys() == expected.keys()
    for name, tensor in back.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    assert back.config.to_diff_dict() == reference.config.to_diff_dict() | {
        "dtype": "float32",
        "architectures": back.config.architectures,
    }
    tokens = tokens_of(reference, 9)
    assert torch.equal(_C.Model.load(str(tmp_path / "ours")).logits(tokens), ours.logits(tokens))


@pytest.mark.parametrize("model_type", ["gpt2", "qwen2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shard_size", ["5GB", "8KB"])
def test_stored_dtypes_and_shards(model_type, dtype, shard_size, tmp_path):
    theirs(model_type, {}).to(dtype).save_pretrained(tmp_path, max_shard_size=shard_size)
    assert (tmp_path / "model.safetensors").exists() == (shard_size == "5GB")
    reference = reload(tmp_path, model_type, dtype=torch.float32)
    ours = _C.Model.load(str(tmp_path))
    check_equal(reference, ours, tokens_of(reference, 12))
    ours.save(str(tmp_path / "saved"))  # in fp32, and the config says so
    back = reload(tmp_path / "saved", model_type)
    for name, tensor in back.state_dict().items():
        assert torch.equal(tensor, reference.state_dict()[name])


@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
@pytest.mark.parametrize("stored", ["embedding", "head", "both"])
def test_tied_heads_however_they_are_stored(model_type, stored, tmp_path):
    reference = theirs(model_type, {"tie_word_embeddings": True})
    reference.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "transformer.wte.weight" if model_type == "gpt2" else "model.embed_tokens.weight"
    weight = tensors.pop(name)
    tensors |= {name: weight} if stored != "head" else {}
    tensors |= {"lm_head.weight": weight.clone()} if stored != "embedding" else {}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    check_equal(reference, _C.Model.load(str(tmp_path)), tokens_of(reference, 12))
    if stored == "both":
        tensors["lm_head.weight"] += 1
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(_C.DataError, match=r"model\.safetensors.*lm_head.*tie_word_embeddings"):
            _C.Model.load(str(tmp_path))


def test_folders_of_the_model_without_its_head(tmp_path):
    """The first GPT-2 files: no prefix, and masks among the weights."""
    reference = theirs("gpt2", {})
    reference.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 48, 48, dtype=torch.uint8)
    bare["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(bare, tmp_path / "model.safetensors", metadata={"format": "pt"})
    check_equal(reference, _C.Model.load(str(tmp_path)), tokens_of(reference, 12))


# Random weights


@pytest.mark.parametrize("model_type", CLASSES)
@pytest.mark.parametrize("tied", [False, True])
def test_random_weights_follow_transformers(model_type, tied):
    changes = {"tie_word_embeddings": tied, "initializer_range": 0.05, "vocab_size": 500}
    if model_type != "gpt2":
        changes |= {"pad_token_id": 7, "hidden_size": 64, "intermediate_size": 128}
    config_class, model_class = CLASSES[model_type]
    config = config_class(**(SMALLEST[model_type] | changes))
    torch.manual_seed(0)
    expected = dict(model_class(config).named_parameters())
    ours = dict(_C.Model.make(config.to_json_string(use_diff=False), 1).named_parameters())
    assert ours.keys() == expected.keys()
    for name, parameter in ours.items():
        assert parameter.shape == expected[name].shape
        if parameter.dim() == 1:
            assert torch.equal(parameter, expected[name]), name
            continue
        # The deviation of n normal numbers is known to 1 / sqrt(2 n); five of these on both sides.
        allowed = 1 + 10 / math.sqrt(2 * parameter.numel())
        assert 1 / allowed < (parameter.std() / expected[name].std()).item() < allowed, name
        assert abs(parameter.mean()) < 5 * parameter.std() / math.sqrt(parameter.numel()), name
    if model_type != "gpt2":
        assert not ours["model.embed_tokens.weight"][7].any()


def test_random_weights_follow_the_seed():
    text = json.dumps(LLAMA | {"model_type": "llama"})

    def weights(seed):
        return [tensor for _, tensor in _C.Model.make(text, seed).named_parameters()]

    assert all(torch.equal(a, b) for a, b in zip(weights(3), weights(3), strict=True))
    for other in (4, 3 + 2**32):
        assert not torch.equal(weights(3)[0], weights(other)[0])
    matrices = [tensor for tensor in weights(3) if tensor.shape == weights(3)[2].shape]
    assert len(matrices) > 1
    assert not torch.equal(matrices[0], matrices[1])


# What cannot be read


UNBUILT = [
    ("llama", {"quantization_config": {"quant_method": "bitsandbytes"}}, "quantization_config"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2, "partial_rotary_factor": 0.5}},
     "rope_scaling.partial_rotary_factor"),
    ("llama", {"pretraining_tp": 2}, "pretraining_tp"),
    ("llama", {"num_local_experts": 8}, "num_local_experts"),
    ("qwen3", {"num_experts": 8}, "num_experts"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
    ("gpt2", {"pruned_heads": {"0": [1]}}, "pruned_heads"),
    ("gpt2", {"activation_function": "prelu"}, "activation_function"),
    ("llama", {"hidden_act": "xielu"}, "hidden_act"),
    ("mistral", {"attention_bias": True}, "attention_bias"),
    ("qwen2", {"mlp_bias": True}, "mlp_bias"),
    ("qwen3", {"layer_types": ["full_attention", "chunked_attention"]}, "layer_types"),
    ("qwen3", {"layer_types": ["full_attention"]}, "layer_types"),
    ("llama", {"rope_scaling": {"rope_type": "su"}}, "rope_scaling.rope_type"),
    ("llama", {"rope_scaling": {"type": "mrope"}}, "rope_scaling.type"),
    ("llama", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters"),
    ("bloom", {}, "model_type"),
]  # fmt: skip
WRONG = [
    ("llama", {"vocab_size": 0}, "vocab_size"),
    ("llama", {"vocab_size": 2**24 + 1}, "vocab_size"),
    ("llama", {"vocab_size": "61"}, "vocab_size"),
    ("llama", {"hidden_size": 2**20 + 2}, "hidden_size"),
    ("llama", {"hidden_size": 2**70}, "hidden_size"),
    ("llama", {"hidden_size": 33}, "num_attention_heads"),
    ("llama", {"hidden_size": ...}, "hidden_size"),
    ("llama", {"intermediate_size": -1}, "intermediate_size"),
    ("llama", {"num_hidden_layers": 100_001}, "num_hidden_layers"),
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads"),
    ("llama", {"num_key_value_heads": 8}, "num_key_value_heads"),
    ("mistral", {"num_key_value_heads": ...}, "num_key_value_heads"),
    ("llama", {"head_dim": 5}, "head_dim"),
    ("llama", {"attention_dropout": 1}, "attention_dropout"),
    ("llama", {"rms_norm_eps": -1e-6}, "rms_norm_eps"),
    ("llama", {"tie_word_embeddings": 1}, "tie_word_embeddings"),
    ("llama", {"pad_token_id": 61}, "pad_token_id"),
    ("llama", {"rope_theta": 0}, "rope_theta"),
    ("llama", {"rope_scaling": "linear"}, "rope_scaling"),
    ("llama", {"rope_scaling": {"type": "linear"}}, "rope_scaling.factor"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling.factor"),
    ("llama", {"rope_scaling": {"type": "yarn", "factor": 2, "beta_fast": "x"}}, "beta_fast"),
    ("llama", {"rope_scaling": {"type": "longrope", "short_factor": [1]}}, "short_factor"),
    ("llama", {"rope_scaling": {"type": "llama3", "factor": 2}}, "low_freq_factor"),
    ("mistral", {"sliding_window": 0}, "sliding_window"),
    ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "use_sliding_window"),
    ("gpt2", {"n_head": 5}, "n_head"),
    ("gpt2", {"n_embd": ...}, "n_embd"),
    ("gpt2", {"n_positions": 2**40}, "n_positions"),
    ("gpt2", {"resid_pdrop": 1.5}, "resid_pdrop"),
]


@pytest.mark.parametrize(("model_type", "changes", "field"), UNBUILT + WRONG)
def test_configurations_that_are_refused(model_type, changes, field):
    document = SMALLEST.get(model_type, LLAMA) | {"model_type": model_type} | changes
    document = {key: value for key, value in document.items() if value is not ...}
    with pytest.raises(_C.DataError) as caught:
        _C.Model.make(json.dumps(document), 0, "some/config.json")
    assert str(caught.value).startswith("some/config.json: ")
    assert field in str(caught.value)
    if model_type == "bloom":
        assert all(known in str(caught.value) for known in CLASSES)


@pytest.mark.parametrize(
    "changes",
    [
        {"vocab_size": 2**24, "hidden_size": 2**20},  # 64 TiB of embedding
        {"intermediate_size": 2**24, "num_hidden_layers": 100_000, "hidden_size": 2**20},
        {"hidden_size": 2**18, "intermediate_size": 2**20, "num_hidden_layers": 2},  # 6 TiB
    ],
)
def test_models_that_fit_nowhere_are_refused_before_they_are_made(changes):
    with pytest.raises(_C.DataError, match=r"config\.json: .*parameters"):
        _C.Model.make(json.dumps(LLAMA | {"model_type": "llama", "head_dim": 8} | changes), 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("model.norm.weight"), ["model.norm.weight"]),
        (lambda t: t.pop("lm_head.weight"), ["lm_head.weight", "tie_word_embeddings"]),
        (lambda t: t.update({"model.extra": torch.zeros(2)}), ["model.extra"]),
        (lambda t: t.update({"model.norm.weight": torch.ones(31)}), ["model.norm.weight", "31"]),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(32, dtype=torch.int8)}),
            ["model.norm.weight", "I8"],
        ),
    ],
)
def test_weights_that_do_not_fit_the_configuration(change, words, tmp_path):
    theirs("llama", {}).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(_C.DataError) as caught:
        _C.Model.load(str(tmp_path))
    assert all(word in str(caught.value) for word in [*words, str(tmp_path)]), caught.value


@pytest.mark.parametrize("model_type", CLASSES)
def test_shapes_typed_into_a_job_take_what_transformers_writes(model_type, tmp_path):
    """All keys of a config.json, of versions 4 and 5, pass where unknown keys are errors."""
    config = CLASSES[model_type][0](**(SMALLEST[model_type] | {"vocab_size": 256})).to_dict()
    of_version_4 = {
        "torch_dtype": "float32",
        "torchscript": False,
        "top_k": 50,
        "use_bfloat16": False,
    }
    (tmp_path / "text.txt").write_text("text" * 99)
    job = {
        "model": {"config": config | of_version_4 | {"auto_map": {}, "pruned_heads": {}}},
        "data": {"files": "text.txt", "sequence_length": 8},
        "training": {"steps": 1},
        "optimizer": {"type": "SGD"},
        "train_batch_size": 1,
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    program = Path(sys.executable).with_name("shardwise")
    command = [program, "config", "check", tmp_path / "job.json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_missing_folder(tmp_path):
    with pytest.raises(_C.IoError, match="config.json"):
        _C.Model.load(str(tmp_path / "nothing"))


def test_wrong_tokens():
    model = _C.Model.make(json.dumps(GPT2 | {"model_type": "gpt2"}), 0)
    with pytest.raises(_C.UsageError, match="int64"):
        model.logits(torch.zeros(2, 3))
    with pytest.raises(_C.UsageError, match="48"):
        model.logits(torch.zeros(2, 49, dtype=torch.long))
    with pytest.raises(_C.UsageError, match="targets"):
        model.loss(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 4, dtype=torch.long))


def test_targets_that_do_not_count():
    model = _C.Model.make(json.dumps(LLAMA | {"model_type": "llama"}), 0)
    tokens = torch.randint(0, 61, (2, 9))
    targets = torch.randint(0, 61, (2, 9))
    targets[0, 3:] = -100
    logits = model.logits(tokens).double()
    terms = -logits.log_softmax(-1).gather(-1, targets.clamp_min(0)[..., None])[..., 0]
    expected = terms[targets != -100].mean()
    assert model.loss(tokens, targets).item() == pytest.approx(expected.item(), rel=1e-6)
