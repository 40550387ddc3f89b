"""fp8 on CUDA: the bits of the CPU's casts, products, training at every stage, no waiting."""

from dataclasses import replace

import native_front
import parity
import pytest
import torch
from fp8_reference import RECIPES
from parity import Case
from test_fp8 import (
    MATRICES,
    NOT_FINITE,
    PLACES,
    PRODUCTS,
    cast,
    check_no_tokens,
    check_not_finite,
    ours,
    same_bits,
    tensors_of,
)
from test_fused_layers import theirs, tokens_of
from test_gpu import FORCED, gpu_pool, one_gpu, program, truth  # noqa: F401

from shardwise import _C

pytestmark = pytest.mark.gpu


@one_gpu
@pytest.mark.parametrize("e5m2", [False, True])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", MATRICES)
def test_casts_have_the_bits_of_the_cpu(name, recipe, e5m2):
    parts = MATRICES[name]()
    on_gpu = cast([part.cuda() for part in parts], recipe, e5m2)
    for here, there in zip(cast(parts, recipe, e5m2), on_gpu, strict=True):
        if here.element_size() == 1:
            assert same_bits(here, there.cpu())
        else:
            assert torch.equal(here, there.cpu())


def neighbours_on_gpu(tensors):
    """Copies in one storage."""
    if not tensors:
        return []
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).cuda()
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def on_gpu(x, matrices, biases, recipe, input_first):
    operands = neighbours_on_gpu(matrices), neighbours_on_gpu(biases)
    return ours(x.cuda(), *operands, recipe, input_first).cpu()


@one_gpu
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_those_of_the_cpu(name, recipe):
    """Sums in another order, and each result rounded to bf16: 2^-8. Forward's accumulator keeps 13
    bits behind the point: each of 32 terms at most may lose 2^-13 of the largest sum so far."""
    found, right = tensors_of(on_gpu, name, recipe), tensors_of(ours, name, recipe)
    for key, value in right.items():
        error = (found[key].float() - value.float()).norm() / value.float().norm()
        assert error <= 2.0**-8 + (32 * 2.0**-13 if key == "out" else 0), key


@one_gpu
@pytest.mark.parametrize("recipe", RECIPES)
def test_no_tokens(recipe):
    check_no_tokens(recipe, "cuda")


@one_gpu
@pytest.mark.parametrize("bad", NOT_FINITE)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_numbers_that_are_not_finite_reach_what_is_made_of_them(recipe, place, bad):
    check_not_finite(recipe, place, bad, "cuda")


FRONTS = [
    (Case(stage, model, "bf16", accumulation, ranks=1, clip=True), recipe)
    for stage in range(4)
    for model, accumulation, recipe in (
        ("llama16", 1, "tensorwise"),
        ("gpt2", 4, "rowwise"),
        ("llama16", 4, "rowwise"),
    )
]


def by_plain_torch(case, recipe):
    return replace(case, model=f"{case.model}-{recipe}")


@one_gpu
@pytest.mark.parametrize("case,recipe", FRONTS, ids=str)
def test_the_python_front(case, recipe, gpu_pool, truth):  # noqa: F811
    settings = {**FORCED, "fused_layers": "auto", "fp8": recipe}
    records = gpu_pool.run(parity.train, case, None, settings, "cuda", ranks=1, timeout=240)
    parity.check(by_plain_torch(case, recipe), records, truth)


@one_gpu
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_native_front(recipe, tmp_path, truth):  # noqa: F811
    cases = [case for case, asked in FRONTS if asked == recipe]
    own = {**FORCED, "fused_layers": "auto", "fp8": recipe}
    launcher = (program(), "launch", "-n", "1")
    for case, record in native_front.run(cases, tmp_path, launcher, own).items():
        native_front.check(by_plain_torch(case, recipe), record, truth)


@one_gpu
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("model_type", ["gpt2", "llama", "qwen3"])
def test_nothing_waits_for_the_device(model_type, recipe, tmp_path):
    sizes = {"hidden_size": 256, "intermediate_size": 384, "max_position_embeddings": 256}
    sizes |= {"head_dim": 64}
    if model_type == "gpt2":
        sizes = {"n_embd": 256, "n_positions": 256}
    reference = theirs(model_type, sizes)
    reference.save_pretrained(tmp_path)
    tokens = tokens_of(reference, 256, batch=4).cuda()
    model = _C.Model.load(str(tmp_path))
    for _, parameter in model.named_parameters():
        parameter.data = parameter.data.cuda().bfloat16()
    assert model.set_fp8(recipe) == []
    targets = _C.next_token_targets(tokens)
    model.loss(tokens, targets).backward()  # rotary tables are made once
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss = model.loss(tokens, targets)
        loss.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.isfinite(loss)
