"""Adopted Hugging Face modules against the same modules untouched."""

import copy
import inspect
import io
import itertools
import pickle

import models
import pytest
import torch
from adoption_cases import (
    LENGTH,
    VARIANTS,
    adopted,
    assert_close,
    batch,
    build,
    errors,
    results,
)
from torch import nn

# Parity of single modules


def rank_parity(variant, hands_on):
    model = build(variant)
    twin, adoption = adopted(model, hands_on=hands_on)
    layers = 3
    assert len(adoption) == layers + 4, adoption.report()  # embedding, norm, model, head
    assert_close(results(twin, **batch()), results(model, **batch()))
    assert not adoption.common.said
    for ours, theirs in zip(twin.modules(), model.modules(), strict=True):
        assert inspect.signature(ours.forward) == inspect.signature(theirs.forward)


@pytest.mark.parametrize("hands_on", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_fp32_equals_the_untouched_module(variant, hands_on, pool):
    pool.run(rank_parity, variant, hands_on, ranks=1)


def rank_sixteen_bits(variant, dtype):
    exact = build(variant)
    with torch.no_grad():
        for parameter in exact.parameters():
            parameter.copy_(parameter.to(dtype).float())
    plain = copy.deepcopy(exact).to(dtype)
    twin, _ = adopted(plain, hands_on=True)
    right = results(exact, **batch())
    worst = max(errors(results(plain, **batch()), right).values())
    assert_close(results(twin, **batch()), right, 2 * worst)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("variant", ["llama", "qwen2", "qwen3", "gpt2"])
def test_16_bits_err_as_the_untouched_module_does(variant, dtype, pool):
    pool.run(rank_sixteen_bits, variant, dtype, ranks=1)


def rank_autocast(variant):
    exact = build(variant)
    twin, adoption = adopted(exact, hands_on=True)
    right = results(exact, **batch())
    with torch.autocast("cpu", torch.bfloat16):
        plain = results(exact, **batch())
        got = results(twin, **batch())
    assert not adoption.common.said
    assert got["loss"].dtype == torch.float32
    assert_close(got, right, 2 * max(errors(plain, right).values()))


@pytest.mark.parametrize("variant", ["llama", "qwen3", "gpt2"])
def test_autocast_errs_as_the_untouched_module_does(variant, pool):
    pool.run(rank_autocast, variant, ranks=1)


def rank_inputs(variant):
    """Padding, positions of packed samples, embeddings instead of tokens, other losses."""
    model = build(variant)
    twin, adoption = adopted(model, hands_on=True)
    mask = torch.ones(3, LENGTH, dtype=torch.long)
    mask[0, 7:] = 0
    mask[1, :2] = 0
    rows = torch.stack([torch.arange(LENGTH), torch.arange(LENGTH) + 3, torch.arange(LENGTH)])
    packed = torch.cat([torch.arange(4), torch.arange(6)]).expand(3, -1)
    embeddings = torch.randn(3, LENGTH, 32)
    for more in (
        {"attention_mask": mask},
        {"attention_mask": torch.ones_like(mask)},
        {"position_ids": rows},
        {"position_ids": packed},
        {"num_items_in_batch": 50},
        {"num_items_in_batch": torch.tensor(50)},
        {"shift_labels": batch(1)["labels"]},
        {"use_cache": True},
        {"input_ids": None, "inputs_embeds": embeddings},
    ):
        assert_close(results(twin, **batch() | more), results(model, **batch() | more))
        assert not adoption.common.said, more


@pytest.mark.parametrize("variant", ["llama", "mistral, window", "qwen3", "gpt2"])
def test_inputs_that_are_served(variant, pool):
    pool.run(rank_inputs, variant, ranks=1)


def rank_dropout():
    model = build("gpt2")
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.1
    twin, adoption = adopted(model, hands_on=True)
    torch.manual_seed(1)
    right = results(model, **batch())
    torch.manual_seed(1)
    assert_close(results(twin, **batch()), right)
    assert not adoption.common.said


def test_dropout_draws_the_same_numbers(pool):
    pool.run(rank_dropout, ranks=1)


def rank_eval_and_generate(variant):
    model = build(variant).eval()
    twin, _ = adopted(model, hands_on=True)
    ids = batch()["input_ids"]
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            right, got = model(**batch()), twin(**batch())
            assert_close({"loss": got.loss}, {"loss": right.loss})
            assert_close({"x": got.logits}, {"x": right.logits})
            assert_close({"x": twin(ids).logits}, {"x": model(ids).logits})
    options = {"max_new_tokens": 6, "do_sample": False, "use_cache": True, "pad_token_id": 0}
    assert torch.equal(twin.generate(ids, **options), model.generate(ids, **options))


@pytest.mark.parametrize("variant", ["llama", "mistral, window", "qwen3", "gpt2"])
def test_evaluation_and_generation(variant, pool):
    pool.run(rank_eval_and_generate, variant, ranks=1)


def rank_gradient_checkpointing(reentrant):
    model = build("llama")
    right = results(model, **batch())
    twin, _ = adopted(model, hands_on=True)
    twin.gradient_checkpointing_enable({"use_reentrant": reentrant})
    calls = []
    for block in twin.model.layers:
        fused = block._shardwise_fused
        run = fused.run
        fused.run = lambda *a, run=run: (calls.append(1), run(*a))[1]
    if reentrant:
        twin.enable_input_require_grads()
    assert_close(results_once(twin, **batch()), right)
    assert len(calls) == 6  # three blocks, each again in backward


def results_once(model, **inputs):
    """As ``results``, for graphs that serve one backward."""
    output = model(**inputs)
    logits = output.logits.detach().float()
    output.loss.backward()
    gradients = {n: p.grad.float() for n, p in model.named_parameters()}
    return {"loss": output.loss.detach(), "logits": logits, **gradients}


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_of_transformers(reentrant, pool):
    pool.run(rank_gradient_checkpointing, reentrant, ranks=1)


# The logits


def rank_lazy_logits():
    model = build("llama")
    twin, _ = adopted(model)
    calls = []
    twin.lm_head.register_forward_hook(lambda *_: calls.append(1))
    twin._shardwise_fused.hooks = ()  # the hook only counts here
    right = model(**batch())

    def fresh():
        calls.clear()
        return twin(**batch())

    output = fresh()
    assert type(output).__mro__[2] is type(right)
    assert isinstance(output, type(right))
    assert type(output).__name__ == type(right).__name__
    for loss in (output.loss, output["loss"], output[0], output.get("loss")):
        assert torch.allclose(loss, right.loss, rtol=1e-5)
    assert "logits" in output and list(output.keys()) == list(right.keys())
    assert not calls
    ways = {
        "attribute": lambda o: o.logits,
        "key": lambda o: o["logits"],
        "index": lambda o: o[1],
        "slice": lambda o: o[:2][1],
        "get": lambda o: o.get("logits"),
        "tuple": lambda o: o.to_tuple()[1],
        "items": lambda o: dict(o.items())["logits"],
        "values": lambda o: list(o.values())[1],
        "dict": lambda o: dict(o)["logits"],
        "pytree": lambda o: torch.utils._pytree.tree_map(lambda x: x, o).logits,
        "pickle": lambda o: pickle.loads(pickle.dumps(o)).logits,
        "copy": lambda o: copy.copy(o).logits,
    }
    for name, way in ways.items():
        output = fresh()
        assert_close({name: way(output).detach()}, {name: right.logits.detach()})
        way(output)
        assert len(calls) == 1, f"{name}: computed {len(calls)} times"
    assert type(pickle.loads(pickle.dumps(fresh()))) is type(right)
    output = fresh()
    with torch.no_grad():
        assert output.logits.requires_grad
    output = fresh()
    (output.loss + output.logits.square().mean()).backward()
    (right.loss + right.logits.square().mean()).backward()
    gradients = [{n: p.grad for n, p in m.named_parameters()} for m in (twin, model)]
    assert_close(*gradients)


def test_logits_are_computed_when_they_are_read(pool):
    pool.run(rank_lazy_logits, ranks=1)


# What keeps its own forward


class TwoLinears(nn.Linear):
    """A wrapped projection, as LoRA makes them."""


def put_lora(model):
    old = model.model.layers[1].self_attn.q_proj
    new = TwoLinears(old.in_features, old.out_features, bias=False)
    new.weight = old.weight
    model.model.layers[1].self_attn.q_proj = new


def hook_inside(model):
    model.model.layers[1].mlp.register_forward_hook(lambda *_: None)


def parametrize(model):
    nn.utils.parametrize.register_parametrization(
        model.model.layers[1].mlp.up_proj, "weight", nn.Identity()
    )


def own_forward(model):
    block = model.model.layers[1]
    forward = block.forward
    block.forward = lambda *args, **kwargs: forward(*args, **kwargs)


def subclass(model):
    block = model.model.layers[1]
    block.__class__ = type("Mine", (type(block),), {})


def other_dtype(model):
    model.model.layers[1].self_attn.q_proj.to(torch.float64)


def quantised(model):
    weight = model.model.layers[1].mlp.up_proj.weight
    model.model.layers[1].mlp.up_proj.weight = nn.Parameter(
        weight.detach().to(torch.int8), requires_grad=False
    )


def more_modules(model):
    model.model.layers[1].self_attn.extra = nn.Linear(2, 2)


def other_activation(model):
    model.model.layers[1].mlp.act_fn = nn.ReLU()


def put_bias(model, path):
    layer = model.model.layers[1].get_submodule(path)
    layer.bias = nn.Parameter(torch.ones(layer.out_features))


def bias_of_query(model):
    put_bias(model, "self_attn.q_proj")


def bias_of_value(model):
    put_bias(model, "self_attn.v_proj")


def bias_of_up(model):
    put_bias(model, "mlp.up_proj")


SOME_BIASES = "only some of the layers of one product"
REFUSALS = {
    put_lora: "self_attn.q_proj is a test_adoption.TwoLinears",
    hook_inside: "mlp has hooks",
    parametrize: "mlp.up_proj is a ",
    own_forward: "it has a forward of its own",
    subclass: "it is a subclass of LlamaDecoderLayer",
    other_dtype: "differ in dtype",
    quantised: "of torch.int8",
    more_modules: "self_attn.extra, which is not known",
    other_activation: "ReLU is none of",
    bias_of_query: SOME_BIASES,
    bias_of_value: SOME_BIASES,
    bias_of_up: SOME_BIASES,
}


def rank_refused(change):
    model = build("llama")
    change(model)
    _, adoption = adopted(model)
    assert (
        f"model.layers.1 ({REFUSALS[change].split()[0]}"
        in adoption.report().replace("its parameters differ", "differ")
        or REFUSALS[change] in adoption.report()
    )
    assert REFUSALS[change] in adoption.report()
    assert "2 LlamaDecoderLayer" in adoption.report()


@pytest.mark.parametrize("change", REFUSALS, ids=lambda change: change.__name__)
def test_a_changed_block_keeps_its_forward(change, pool):
    pool.run(rank_refused, change, ranks=1)


def rank_refused_heads():
    model = build("llama")
    model.loss_function = lambda logits, labels, **_: logits.sum()
    assert "its loss_function is " in adopted(model)[1].report()
    model = build("llama")
    model.lm_head = nn.Linear(32, 61)
    assert "lm_head has a bias" in adopted(model)[1].report()
    model = build("llama")
    model.model.embed_tokens.max_norm = 1.0
    assert "model.embed_tokens (it has max_norm" in adopted(model)[1].report()
    model = build("gpt2", add_cross_attention=True)
    assert "it has a module crossattention" in adopted(model)[1].report()
    assert "nothing" in adopted(nn.Sequential(nn.Linear(2, 2)))[1].report()


def test_changed_heads_and_embeddings_keep_their_forward(pool):
    pool.run(rank_refused_heads, ranks=1)


def rank_calls_that_fall_back():
    """Calls that the module's own code runs: the same bits, and one line that says why."""
    cases = [
        ({"output_hidden_states": True}, "output_hidden_states is True"),
        ({"return_dict": False}, "return_dict is False"),
        ({"logits_to_keep": LENGTH}, "logits_to_keep"),
        ({"is_causal": False}, "is_causal"),
    ]
    for more, reason in cases:
        model = build("llama")
        twin, adoption = adopted(model)
        right, got = model(**batch(), **more), twin(**batch(), **more)
        loss, expected = (o[0] if isinstance(o, tuple) else o.loss for o in (got, right))
        assert torch.allclose(loss, expected, rtol=1e-5)
        assert isinstance(got, tuple) == isinstance(right, tuple)
        assert any(reason in said for said in adoption.common.said), adoption.common.said
    model = build("llama", attn_implementation="eager")
    twin, adoption = adopted(model)
    right, got = model(**batch(), output_attentions=True), twin(**batch(), output_attentions=True)
    assert all(map(torch.equal, right.attentions, got.attentions))
    model = build("llama").eval()
    twin, adoption = adopted(model)
    cache = twin(batch()["input_ids"], use_cache=True).past_key_values
    twin(batch()["input_ids"], past_key_values=cache)
    assert any("cache" in said for said in adoption.common.said)


def test_calls_that_fall_back(pool):
    pool.run(rank_calls_that_fall_back, ranks=1)


def rank_hooks():
    """Hooks of users fire, whenever they came, and see what they see in the untouched module."""
    model = build("llama")
    twin, adoption = adopted(model, hands_on=True)
    seen = {}

    def watch(name, which):
        def hook(module, args, output):
            output = output[0] if isinstance(output, tuple) else output
            if output.requires_grad:
                output.register_hook(lambda g: seen.setdefault(which, {}).update({name: g}))

        return hook

    paths = ["model.layers.0", "model.norm", "model.embed_tokens", "model"]
    for which, one in (("right", model), ("got", twin)):
        for path in paths:
            if path != "model":
                one.get_submodule(path).register_forward_hook(watch(path, which))
        one(**batch()).loss.backward()
    assert_close(seen["got"], seen["right"])
    assert not adoption.common.said
    calls = []
    twin.model.layers[1].self_attn.q_proj.register_forward_hook(lambda *_: calls.append(1))
    twin(**batch())
    assert calls == [1]
    assert "a module inside a block has hooks" in adoption.common.said
    twin.lm_head.register_forward_hook(lambda *_: calls.append(1))
    twin(**batch())
    assert calls == [1, 1, 1]


def test_hooks_fire(pool):
    pool.run(rank_hooks, ranks=1)


def rank_replaced_later():
    """Modules that are replaced after adoption are heard all the same."""
    model = build("llama")
    twin, adoption = adopted(model, hands_on=True)
    for one in (model, twin):
        torch.manual_seed(5)
        one.model.layers[1].self_attn.q_proj = TwoLinears(32, 32)
        one.lm_head = nn.Linear(32, 61)
    assert_close(results(twin, **batch()), results(model, **batch()))
    assert adoption.common.said == {
        "a module inside a block was replaced",
        "lm_head was replaced",
    }
    others = build("llama", num_hidden_layers=1, hidden_act="relu")
    for one in (model, twin):
        one.model.layers[2] = copy.deepcopy(others.model.layers[0])
    assert_close(results(twin, **batch()), results(model, **batch()))


def test_modules_that_are_replaced_later(pool):
    pool.run(rank_replaced_later, ranks=1)


def rank_biases_later():
    """Biases that go after adoption: some of a product, then all of it."""
    model = build("llama, biases").double()
    twin, adoption = adopted(model, hands_on=True)
    for paths, reasons in (
        (["self_attn.q_proj"], {SOME_BIASES}),
        (["self_attn.k_proj", "self_attn.v_proj"], set()),
        (["mlp.gate_proj"], {SOME_BIASES}),
        (["mlp.up_proj", "mlp.down_proj", "self_attn.o_proj"], set()),
    ):
        adoption.common.said.clear()
        for one, path in itertools.product((model, twin), paths):
            one.get_submodule(f"model.layers.1.{path}").bias = None
        assert_close(results(twin, **batch()), results(model, **batch()))
        assert {said[: len(SOME_BIASES)] for said in adoption.common.said} == reasons, paths


def test_biases_that_go_later(pool):
    pool.run(rank_biases_later, ranks=1)


def rank_missing_biases():
    """As Qwen2 has them, but for one: every position of it in its product."""
    for path in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
        model = build("qwen2")
        model.get_submodule(f"model.layers.1.{path}").bias = None
        twin, adoption = adopted(model)
        assert f"model.layers.1 ({SOME_BIASES}" in adoption.report(), adoption.report()
        assert_close(results(twin, **batch()), results(model, **batch()))


def test_products_of_which_one_layer_has_no_bias(pool):
    pool.run(rank_missing_biases, ranks=1)


def flattened(**options):
    """Samples as padding-free training gives them."""
    from transformers import DataCollatorWithFlattening

    ids = batch()["input_ids"].flatten().tolist()
    samples = [{"input_ids": ids[a:b]} for a, b in ((0, 7), (7, 8), (8, 19), (19, 30))]
    return dict(DataCollatorWithFlattening(**options)(samples, return_tensors="pt"))


def rank_packed(variant):
    """Documents apart, in one row and in several, from positions with and without boundaries."""
    model = build(variant)
    one = flattened(return_flash_attn_kwargs=True)
    positions = torch.cat([torch.arange(n) for n in (4, 6, 10, 1, 9)]).view(3, LENGTH)
    several = {**batch(), "position_ids": positions}
    alone = [results(model, **batch())]
    for inputs in (flattened(), one, several):
        for hands_on in (False, True):
            twin, adoption = adopted(model, hands_on=hands_on)
            right = results(model, **inputs)
            assert_close(results(twin, **inputs), right)
            assert not adoption.common.said
        alone.append(right)
    assert errors({"x": alone[3]["logits"]}, {"x": alone[0]["logits"]})["x"] > 1e-3
    # Blocks with a hook run transformers' own code, which gets a mask.
    twin, adoption = adopted(model)
    blocks = twin.transformer.h if hasattr(twin, "transformer") else twin.model.layers
    blocks[1].mlp.register_forward_hook(lambda *_: None)
    for inputs, right in ((batch(), alone[0]), (one, alone[2]), (several, alone[3])):
        assert_close(results(twin, **inputs), right)
    assert adoption.common.said == {"a module inside a block has hooks"}


@pytest.mark.parametrize("variant", ["llama", "mistral, window", "qwen2, windows", "qwen3", "gpt2"])
def test_packed_documents(variant, pool):
    pool.run(rank_packed, variant, ranks=1)


def rank_compiled_later(variant):
    model = build(variant)
    twin, _ = adopted(model)
    for block in twin.transformer.h if hasattr(twin, "transformer") else twin.model.layers:
        block.compile(backend="eager")
    for inputs in (batch(), flattened()):
        assert_close(results(twin, **inputs), results(model, **inputs))


@pytest.mark.parametrize("variant", ["mistral, window", "gpt2"])
def test_blocks_that_are_compiled_later_get_a_mask(variant, pool):
    pool.run(rank_compiled_later, variant, ranks=1)


def on_gpu(inputs):
    return {name: v.cuda() if isinstance(v, torch.Tensor) else v for name, v in inputs.items()}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("variant", ["llama", "mistral, window", "qwen2, windows", "gpt2"])
def test_packed_documents_on_a_gpu(variant):
    """bf16 errs as the untouched module does; with boundaries nobody waits for the GPU."""
    exact = build(variant).cuda()
    with torch.no_grad():
        for parameter in exact.parameters():
            parameter.copy_(parameter.bfloat16())
    plain = copy.deepcopy(exact).bfloat16()
    twin, adoption = adopted(plain, hands_on=True)
    positions = torch.cat([torch.arange(n) for n in (4, 6, 10, 1, 9)]).view(3, LENGTH)
    boundaries = {"cu_seq_lens_q": torch.tensor([0, 4, 10, 20, 21, 30]), "max_length_q": 10}
    several = {**batch(), "position_ids": positions} | boundaries
    without_end = {**several, "cu_seq_lens_q": torch.tensor([0, 4, 10, 20, 21])}
    batched = {**several, "cu_seq_lens_q": boundaries["cu_seq_lens_q"][None]}
    for inputs in (flattened(return_flash_attn_kwargs=True), several, without_end, batched):
        inputs = on_gpu(inputs)
        right = results(exact, **inputs)
        worst = max(errors(results(plain, **inputs), right).values())
        assert_close(results(twin, **inputs), right, 2 * worst)
        torch.cuda.set_sync_debug_mode("error")
        try:
            twin(**inputs).loss.backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert not adoption.common.said


def test_boundaries_come_in_one_row():
    from shardwise.adoption.mask import one_row

    from shardwise import UsageError

    begins = torch.tensor([0, 4, 10], dtype=torch.int32)
    for given in (begins, begins[None], begins[None, None], begins[:0]):
        assert torch.equal(one_row(given), given.flatten())
    for given in (begins.expand(2, 3), begins[:, None]):
        with pytest.raises(UsageError, match=r"cu_seq_lens_q is \[\d, \d\].*whole micro-batch"):
            one_row(given)


def rank_packed_checkpointing():
    """By transformers, by the engine, and around a block, reentrant, which detaches arguments."""
    from shardwise.block_checkpoints import BlockCheckpoints
    from shardwise.checkpointing import checkpoint

    def around(block):
        forward = block.forward
        block.forward = lambda *args, **kwargs: checkpoint(forward, *args, **kwargs)

    ways = (
        lambda twin: twin.gradient_checkpointing_enable({"use_reentrant": False}),
        lambda twin: BlockCheckpoints(list(twin.model.layers)),
        lambda twin: [around(block) for block in twin.model.layers],
    )
    model = build("mistral, window")
    right = results(model, **flattened())
    for way in ways:
        twin, adoption = adopted(model)
        way(twin)
        assert_close(results_once(twin, **flattened()), right)
        assert not adoption.common.said


def test_packed_documents_with_gradient_checkpointing(pool):
    pool.run(rank_packed_checkpointing, ranks=1)


def rank_masks():
    """transformers is not asked for a mask where blocks know what tokens see."""
    from transformers import masking_utils

    asked = []
    look = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda x: asked.append(1) or look(x)
    try:
        for variant in ("llama", "mistral, window", "qwen2, windows", "gpt2"):
            model = build(variant)
            twin, _ = adopted(model)
            for inputs in (batch(), flattened()):
                asked.clear()
                right = model(**inputs)
                assert asked
                asked.clear()
                got = twin(**inputs)
                assert not asked
                assert_close({"x": got.logits.detach()}, {"x": right.logits.detach()})
    finally:
        masking_utils.find_packed_sequence_indices = look


def test_no_mask_is_looked_for(pool):
    pool.run(rank_masks, ranks=1)


def rank_flops(variant):
    from shardwise.profiling.flops_profiler.counter import Counter

    model = build(variant)
    twin, _ = adopted(model, hands_on=True)
    counted = []
    for one in (model, twin):
        with Counter(one) as counter:
            one(**batch()).loss.backward()
        counted.append({phase: counter.total(phase) for phase in ("forward", "backward")})
    assert counted[0] == counted[1]


@pytest.mark.parametrize("variant", ["llama", "gpt2"])
def test_as_many_flops_are_counted(variant, pool):
    pool.run(rank_flops, variant, ranks=1)


def rank_recorded_states():
    """transformers' own recording hooks stay behind and stop nothing."""
    model = build("llama")
    twin, adoption = adopted(model, hands_on=True)
    states = [m(**batch(), output_hidden_states=True).hidden_states for m in (model, twin)]
    for right, got in zip(*states, strict=True):
        assert_close({"x": got.detach()}, {"x": right.detach()})
    adoption.common.said.clear()
    twin(**batch())
    assert not adoption.common.said


def test_recorded_hidden_states(pool):
    pool.run(rank_recorded_states, ranks=1)


def rank_shared_block(variant):
    """A block at two places of the model is one that is adopted."""
    model = build(variant)
    blocks = model.transformer.h if hasattr(model, "transformer") else model.model.layers
    blocks[2] = blocks[0]
    twin, adoption = adopted(model, hands_on=True)
    assert "own forward" not in adoption.report(), adoption.report()
    assert_close(results(twin, **batch()), results(model, **batch()))
    assert not adoption.common.said


@pytest.mark.parametrize("variant", ["llama", "gpt2"])
def test_a_block_at_two_places(variant, pool):
    pool.run(rank_shared_block, variant, ranks=1)


def rank_empty(variant):
    """Batches without samples are an error of transformers' own code."""
    model = build(variant)
    twin, adoption = adopted(model)
    positions = torch.arange(LENGTH).expand(3, -1)
    inputs = {name: x[:0] for name, x in {**batch(), "position_ids": positions}.items()}
    for one in (model, twin):
        with pytest.raises(RuntimeError, match="tensor of 0 elements"):
            one(**inputs)
    assert any("empty" in reason for reason in adoption.common.said)


@pytest.mark.parametrize("variant", ["llama", "qwen3", "gpt2"])
def test_batches_without_samples(variant, pool):
    pool.run(rank_empty, variant, ranks=1)


# Copies, and giving back


def rank_copies():
    model = build("llama")
    right = results(model, **batch())
    twin, adoption = adopted(model, hands_on=True)
    copied = copy.deepcopy(twin)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert_close(results(copied, **batch()), right)
    assert type(copied.model.layers[0]._shardwise_fused).__name__ == "FusedLlamaBlock"
    stream = io.BytesIO()
    torch.save(copied, stream)
    stream.seek(0)
    loaded = torch.load(stream, weights_only=False)
    assert loaded.model.layers[0]._shardwise_fused is None
    assert_close(results(loaded, **batch()), right)
    # Both can be adopted again.
    for other in (copied, loaded):
        again, found = adopted(other)
        assert len(found) == 7, found.report()
        assert_close(results(again, **batch()), right)
    block = copy.deepcopy(twin.model.layers[0])
    assert block._shardwise_fused.following is None
    adoption.undo()
    for module in twin.modules():
        assert "forward" not in vars(module)
        assert "_shardwise_fused" not in vars(module)


def test_copies_and_undo(pool):
    pool.run(rank_copies, ranks=1)


def test_models_of_the_parity_table_are_adopted(pool):
    for name in ("llama", "gpt2"):
        pool.run(rank_adopts_all, name, ranks=1)


def rank_adopts_all(name):
    _, adoption = adopted(models.build(name))
    assert len(adoption) == 7 and "own forward" not in adoption.report(), adoption.report()
