"""torch.ops.shardwise against plain PyTorch: values, gradients, tracing, refusals."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

import shardwise

ops = torch.ops.shardwise
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
HEADS, HEAD_DIM, ROTARY = 3, 16, 8


def tables(rotary=HEAD_DIM, positions=40, device="cpu"):
    angles = torch.arange(positions)[:, None] * 0.7 ** torch.arange(rotary // 2)[None]
    return angles.cos().to(device), angles.sin().to(device)


def plain_rope(rows, cosines, sines, positions, heads, head_dim, interleaved):
    """As transformers' apply_rotary_pos_emb, in the dtype of rows."""
    if positions is None:
        positions = torch.arange(rows.size(-2), device=rows.device).expand(rows.shape[:-1])
    cosine = cosines[positions].to(rows.dtype)[..., None, :]
    sine = sines[positions].to(rows.dtype)[..., None, :]
    rotary = 2 * cosine.size(-1)
    turned, rest = rows.split([heads * head_dim, rows.size(-1) - heads * head_dim], -1)
    turned = turned.unflatten(-1, (heads, head_dim))
    turned, kept = turned.split([rotary, head_dim - rotary], -1)
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    pair = (a * cosine - b * sine, b * cosine + a * sine)
    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat([torch.cat([turned, kept], -1).flatten(-2), rest], -1)


def plain_loss(hidden, weight, targets, token_weights=None, smoothing=0.0, z_loss=0.0):
    """The mean loss over tokens that count, of logits in the dtype of hidden."""
    logits = (hidden @ weight.t()).flatten(0, -2)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    targets = targets.flatten()
    rows = F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    counts = (targets != -100).to(rows.dtype)
    rows = rows + z_loss * torch.logsumexp(logits, -1) ** 2 * counts
    weights = counts if token_weights is None else counts * token_weights.flatten()
    return (rows * weights).sum() / weights.sum()


ACTIVATIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def plain_activation(x, name, gated):
    if not gated:
        return ACTIVATIONS[name](x)
    gate, value = x.chunk(2, -1)
    return ACTIVATIONS[name](gate) * value


def plain_attention(q, k, v, scale, window=0, documents=()):
    """``documents``: lengths in tokens, over all rows."""
    k, v = (x.repeat_interleave(q.size(1) // k.size(1), 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * scale
    seen = torch.ones(q.size(2), q.size(2), dtype=torch.bool).tril()
    if window:
        seen &= seen.triu(1 - window)
    if documents:
        number = torch.arange(len(documents)).repeat_interleave(torch.tensor(documents))
        number = number.view(q.size(0), 1, -1)
        seen = seen & (number[..., None] == number[..., None, :])
    weights = scores.masked_fill(~seen.to(q.device), float("-inf")).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(2)


def attention_case(batch, length, window=0, documents=(), heads=4, kv_heads=2, size=8):
    def ours(q, k, v):
        offsets = torch.tensor((0, *documents), device=q.device).cumsum(0, dtype=torch.int32)
        packed = (offsets, max(documents)) if documents else ()
        return ops.causal_attention(q, k, v, 0.3, 0.0, window, *packed)

    keys = (batch, kv_heads, length, size)
    return Case(
        [(batch, heads, length, size), keys, keys],
        ours,
        lambda q, k, v: plain_attention(q, k, v, 0.3, window, documents),
    )


def plain_add_norm(norm, x, residual, *weights):
    total = x + residual
    return norm(total, x.shape[-1:], *weights), total


@dataclass
class Case:
    """`ours` and `plain` take tensors of `shapes`, all differentiable."""

    shapes: list
    ours: Callable
    plain: Callable


TARGETS = torch.tensor([[3, 0, -100, 10], [-100, 7, 5, 5]])
TOKEN_WEIGHTS = torch.tensor([[1.0, 0.5, 2.0, 0.0], [1.0, 3.0, 0.25, 1.0]])
IDS = torch.tensor([[1, 4, 4, 0], [4, 2, 1, 4]])
POSITIONS = torch.tensor([[5, 6, 7, 39], [0, 1, 0, 1]])
LOSS = {"label_smoothing": 0.1, "z_loss": 1e-3}


def rope_case(interleaved, rotary, positions):
    def ours(rows):
        cosines, sines = tables(rotary, device=rows.device)
        where = positions if positions is None else positions.to(rows.device)
        return ops.rope(rows, cosines, sines, where, HEADS, HEAD_DIM, interleaved)

    def plain(rows):
        cosines, sines = tables(rotary, device=rows.device)
        where = positions if positions is None else positions.to(rows.device)
        return plain_rope(rows, cosines, sines, where, HEADS, HEAD_DIM, interleaved)

    return Case([(2, 4, (HEADS + 2) * HEAD_DIM)], ours, plain)


def activation_case(kind, halves):
    return Case(
        [(3, 4, 26)],
        lambda x: ops.activation(x, kind, halves),
        lambda x: plain_activation(x, kind, halves),
    )


CASES = {
    "rms_norm": Case(
        [(2, 3, 40), (40,)],
        lambda x, w: ops.rms_norm(x, w, 1e-5),
        lambda x, w: F.rms_norm(x, (40,), w, 1e-5),
    ),
    "rms_norm_plain": Case(
        [(5, 13)], lambda x: ops.rms_norm(x, None, 1e-5), lambda x: F.rms_norm(x, (13,), None, 1e-5)
    ),
    "layer_norm": Case(
        [(2, 3, 40), (40,), (40,)],
        lambda x, w, b: ops.layer_norm(x, w, b, 1e-5),
        lambda x, w, b: F.layer_norm(x, (40,), w, b, 1e-5),
    ),
    "add_rms_norm": Case(
        [(7, 24), (7, 24), (24,)],
        lambda x, r, w: ops.add_rms_norm(x, r, w, 1e-5),
        lambda x, r, w: plain_add_norm(F.rms_norm, x, r, w, 1e-5),
    ),
    "add_layer_norm": Case(
        [(7, 24), (7, 24), (24,), (24,)],
        lambda x, r, w, b: ops.add_layer_norm(x, r, w, b, 1e-5),
        lambda x, r, w, b: plain_add_norm(F.layer_norm, x, r, w, b, 1e-5),
    ),
    "rms_norm_beside": Case(
        [(7, 24), (24,)],
        lambda x, w: tuple(ops.rms_norm_beside(x, w, 1e-5)),
        lambda x, w: (F.rms_norm(x, (24,), w, 1e-5), x * 1),
    ),
    "layer_norm_beside": Case(
        [(7, 24), (24,), (24,)],
        lambda x, w, b: tuple(ops.layer_norm_beside(x, w, b, 1e-5)),
        lambda x, w, b: (F.layer_norm(x, (24,), w, b, 1e-5), x * 1),
    ),
    "causal_attention": Case(
        [(2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8)],
        lambda q, k, v: ops.causal_attention(q, k, v, 0.3),
        lambda q, k, v: plain_attention(q, k, v, 0.3),
    ),
    # Blocks of 64 rows, none of which the lengths are multiples of.
    "attention_window": attention_case(2, 70, window=9, heads=2, kv_heads=1),
    "attention_documents": attention_case(2, 9, documents=(1, 0, 5, 3, 7, 2)),
    "attention_documents_in_blocks": attention_case(
        1, 70, documents=(30, 3, 1, 36), heads=2, kv_heads=2
    ),
    "attention_documents_and_window": attention_case(2, 9, 3, documents=(9, 0, 0, 4, 5)),
    "attention_documents_of_one_length": attention_case(2, 6, documents=(3, 3, 3, 3)),
    "rope": rope_case(False, HEAD_DIM, None),
    "rope_positions": rope_case(False, ROTARY, POSITIONS),
    "rope_interleaved": rope_case(True, HEAD_DIM, POSITIONS),
    "joined_linear": Case(
        [(2, 3, 20), (8, 20), (5, 20), (16, 20)],
        lambda x, *ws: ops.joined_linear(x, ws, []),
        lambda x, *ws: torch.cat([F.linear(x, w) for w in ws], -1),
    ),
    "joined_linear_biases": Case(
        [(2, 3, 20), (8, 20), (5, 20), (8,), (5,)],
        lambda x, u, v, a, b: ops.joined_linear(x, [u, v], [a, b]),
        lambda x, u, v, a, b: torch.cat([F.linear(x, u, a), F.linear(x, v, b)], -1),
    ),
    "joined_linear_neighbours": Case(
        [(6, 20), (13, 20), (13,)],
        lambda x, w, b: ops.joined_linear(x, w.split([8, 5]), b.split([8, 5])),
        lambda x, w, b: F.linear(x, w, b),
    ),
    "embedding": Case(
        [(6, 20)],
        lambda w: ops.embedding(w, IDS.to(w.device)),
        lambda w: F.embedding(IDS.to(w.device), w),
    ),
    "linear_cross_entropy": Case(
        [(2, 4, 12), (11, 12)],
        lambda h, w: ops.linear_cross_entropy(h, w, TARGETS.to(h.device), chunk_rows=3, **LOSS),
        lambda h, w: plain_loss(
            h, w, TARGETS.to(h.device), None, LOSS["label_smoothing"], LOSS["z_loss"]
        ),
    ),
    "linear_cross_entropy_weights": Case(
        [(2, 4, 12), (11, 12)],
        lambda h, w: ops.linear_cross_entropy(
            h, w, TARGETS.to(h.device), token_weights=TOKEN_WEIGHTS.to(h.device)
        ),
        lambda h, w: plain_loss(h, w, TARGETS.to(h.device), TOKEN_WEIGHTS.to(h.device)),
    ),
    **{
        f"{kind}{'_gated' if halves else ''}": activation_case(kind, halves)
        for kind in ACTIVATIONS
        for halves in (False, True)
    },
}


def inputs_of(case, dtype, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator) for shape in case.shapes]
    return [t.to(device, dtype).requires_grad_() for t in tensors]


def results(function, inputs):
    """Outputs, then gradients for fixed gradients of the outputs."""
    outputs = function(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    given = [torch.cos(torch.arange(o.numel(), device=o.device)).view(o.shape) for o in outputs]
    grads = torch.autograd.grad(
        outputs, inputs, [g.to(o.dtype) for g, o in zip(given, outputs, strict=True)]
    )
    return [*outputs, *grads]


def relative_error(a, b):
    return ((a.double() - b).abs().max() / b.abs().max()).item()


def check_case(case, dtype, device):
    """Against fp64. fp32: the parity table's 1e-6 for outputs and 1e-5 for gradients. 16-bit: at
    most twice the error of plain PyTorch in this dtype, or one unit in the last place."""
    inputs = inputs_of(case, dtype, device)
    exact = results(case.plain, [t.detach().double().requires_grad_() for t in inputs])
    plain = results(case.plain, inputs)
    outputs = len(exact) - len(inputs)
    for i, mine in enumerate(results(case.ours, inputs)):
        assert mine.shape == exact[i].shape and mine.dtype == plain[i].dtype
        bound = 1e-6 if i < outputs else 1e-5
        if dtype != torch.float32:
            bound = max(2 * relative_error(plain[i], exact[i]), torch.finfo(mine.dtype).eps)
        assert relative_error(mine, exact[i]) <= bound


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_equals_plain_pytorch(name, dtype):
    check_case(CASES[name], dtype, "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_equals_plain_pytorch_on_cuda(name, dtype):
    check_case(CASES[name], dtype, "cuda")


@pytest.mark.parametrize("name", CASES)
def test_gradients_by_finite_differences(name):
    case = CASES[name]
    assert gradcheck(case.ours, inputs_of(case, torch.float64))


@pytest.mark.parametrize("name", CASES)
def test_traced_with_fake_tensors(name):
    """The whole graph, forward and backward, with shapes that stay symbols."""
    case = CASES[name]
    compiled = torch.compile(case.ours, backend="aot_eager", fullgraph=True, dynamic=True)
    inputs = inputs_of(case, torch.float32)
    for mine, eager in zip(results(compiled, inputs), results(case.ours, inputs), strict=True):
        assert torch.equal(mine, eager)


def test_memory_of_windows_and_documents_does_not_follow_the_square_of_the_row():
    """A mask over 4096 tokens has 16 MiB as bytes and 64 as fp32."""
    q = torch.randn(1, 1, 4096, 8, requires_grad=True)
    offsets = torch.arange(0, 4097, 64, dtype=torch.int32)
    offsets[1] = 60  # not all of one length
    for more in ({"window": 64}, {"offsets": offsets, "longest": 68}):
        with torch.profiler.profile(profile_memory=True) as profile:
            ops.causal_attention(q, q, q, 0.3, **more).sum().backward()
        peak = max(event.cpu_memory_usage for event in profile.events())
        assert peak < 2**23


def test_windows_and_documents_as_wide_as_the_row_are_plain_attention():
    q = torch.randn(2, 2, 5, 8)
    rows = torch.tensor([0, 5, 10], dtype=torch.int32)
    plain = ops.causal_attention(q, q, q, 0.3)
    for more in ({"window": 5}, {"window": 10**12}, {"offsets": rows, "longest": 5}):
        assert torch.equal(ops.causal_attention(q, q, q, 0.3, **more), plain)


def check_who_sees_itself_alone(device, dtype):
    q, k, v = (t.detach() for t in inputs_of(attention_case(1, 6), dtype, device))
    values = v.repeat_interleave(2, 1).transpose(1, 2).flatten(2)
    offsets = torch.tensor([0, 1, 2, 2, 3, 4, 5, 6], dtype=torch.int32, device=device)
    for more in ({"window": 1}, {"offsets": offsets, "longest": 1}):
        assert torch.equal(ops.causal_attention(q, k, v, 0.3, **more), values)


def test_who_sees_itself_alone_gets_its_value():
    check_who_sees_itself_alone("cpu", torch.float32)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_who_sees_itself_alone_gets_its_value_on_cuda(dtype):
    check_who_sees_itself_alone("cuda", dtype)


def test_attention_over_no_tokens():
    q = torch.zeros(0, 2, 5, 8)
    offsets = torch.zeros(1, dtype=torch.int32)
    assert ops.causal_attention(q, q, q, 1.0, 0.0, 2, offsets, 0).shape == (0, 5, 16)


def test_dropout_of_packed_attention_leaves_out_weights():
    """The mean over many draws is attention without dropout."""
    torch.manual_seed(0)
    case = attention_case(1, 9, 3, documents=(4, 5))
    q, k, v = (t.detach() for t in inputs_of(case, torch.float32))
    offsets = torch.tensor([0, 4, 9], dtype=torch.int32)
    draws = [ops.causal_attention(q, k, v, 0.3, 0.2, 3, offsets, 5) for _ in range(2000)]
    mean, spread = torch.stack(draws).mean(0), torch.stack(draws).std(0)
    error = (mean - plain_attention(q, k, v, 0.3, 3, (4, 5))).abs()
    assert spread.max() > 0.1
    # A mean of 2000 is off by its deviation; six of these for the largest of 288.
    assert (error <= 6 * spread / math.sqrt(2000) + 1e-6).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rope_in_place(dtype):
    """The rows themselves turn, and so do their gradients."""
    shape = (2, 4, (HEADS + 2) * HEAD_DIM)

    def ours(rows):
        made = rows * 1
        turned = ops.rope_(made, *tables(), POSITIONS, HEADS, HEAD_DIM)
        assert turned.data_ptr() == made.data_ptr()
        return turned

    case = Case(
        [shape], ours, lambda r: plain_rope(r, *tables(), POSITIONS, HEADS, HEAD_DIM, False)
    )
    check_case(case, dtype, "cpu")
    assert gradcheck(ours, inputs_of(case, torch.float64))


def test_frozen_weights_of_a_joined_product_get_no_gradient():
    x, u, v = (torch.randn(s, requires_grad=True) for s in ((6, 20), (8, 20), (5, 20)))
    u.requires_grad_(False)
    ops.joined_linear(x, [u, v], []).sum().backward()
    assert u.grad is None
    exact = x.detach().double().sum(0).expand(5, -1)
    # Each of five additions rounds a sum that is at most that of the magnitudes.
    assert ((v.grad - exact).abs() <= 5 * 2**-24 * x.detach().abs().sum(0)).all()


def test_half_precision_norms_take_fp32_weights():
    x = torch.randn(5, 24, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(24, requires_grad=True)
    ops.rms_norm(x, weight, 1e-5).sum().backward()
    exact_x, exact_weight = x.detach().double(), weight.detach().double().requires_grad_()
    F.rms_norm(exact_x, (24,), exact_weight, 1e-5).sum().backward()
    assert weight.grad.dtype == torch.float32
    # Sums of five products of fp32 numbers.
    assert relative_error(weight.grad, exact_weight.grad) <= 8 * 2**-24


def head_inputs():
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(37, 16, generator=generator).requires_grad_()
    weight = torch.randn(50, 16, generator=generator).requires_grad_()
    return hidden, weight, torch.randint(0, 50, (37,), generator=generator)


def test_sum_of_losses_and_chunks():
    hidden, weight, targets = head_inputs()
    whole = ops.linear_cross_entropy(hidden, weight, targets, reduction="sum")
    parts = ops.linear_cross_entropy(hidden, weight, targets, reduction="sum", chunk_rows=10)
    plain = F.cross_entropy(hidden @ weight.t(), targets, reduction="sum")
    # 37 rows of about 6: the sums' order and a few roundings of each.
    assert math.isclose(whole.item(), plain.item(), rel_tol=64 * 2**-24)
    assert math.isclose(parts.item(), plain.item(), rel_tol=64 * 2**-24)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_upstream_factor_other_than_announced(dtype):
    hidden, weight, targets = (t.to(dtype) if t.is_floating_point() else t for t in head_inputs())
    inputs = [hidden.detach().requires_grad_(), weight.detach().requires_grad_()]
    exact = torch.autograd.grad(512.0 * plain_loss(*inputs, targets), inputs)
    for announced in (1.0, 512.0):
        loss = ops.linear_cross_entropy(*inputs, targets, announced_factor=announced)
        for _ in range(2):  # a kept graph gives the same gradients again
            found = torch.autograd.grad(512.0 * loss, inputs, retain_graph=True)
            for mine, theirs in zip(found, exact, strict=True):
                # One rounding for each of us to the dtype, and of the product with the factor.
                assert relative_error(mine, theirs.double()) <= 8 * torch.finfo(dtype).eps
        found = torch.autograd.grad(512.0 * loss, inputs)
        assert relative_error(found[0], exact[0].double()) <= 8 * torch.finfo(dtype).eps


def test_loss_without_gradients_and_with_one():
    hidden, weight, targets = head_inputs()
    both = ops.linear_cross_entropy(hidden, weight, targets)
    with torch.no_grad():
        assert torch.equal(ops.linear_cross_entropy(hidden, weight, targets), both)
    frozen = ops.linear_cross_entropy(hidden, weight.detach(), targets)
    (alone,) = torch.autograd.grad(frozen, [hidden])
    together, _ = torch.autograd.grad(both, [hidden, weight])
    assert torch.equal(alone, together)


def test_logits_of_a_batch_never_exist():
    """The largest tensor that is made has the rows of one chunk."""
    hidden = torch.randn(256, 8, requires_grad=True)
    weight = torch.randn(4096, 8, requires_grad=True)
    targets = torch.randint(0, 4096, (256,))
    with torch.profiler.profile(profile_memory=True) as profile:
        ops.linear_cross_entropy(hidden, weight, targets, chunk_rows=16).backward()
    peak = max(event.cpu_memory_usage for event in profile.events())
    assert peak <= 16 * 4096 * 4 + 2 * weight.numel() * 4  # all: 256 x 4096 x 4


def test_padding_token_gets_no_gradient():
    weight = torch.randn(6, 5, requires_grad=True)
    ops.embedding(weight, torch.tensor([1, 1, 2]), 1).sum().backward()
    assert torch.equal(weight.grad.sum(1), torch.tensor([0.0, 0.0, 5.0, 0.0, 0.0, 0.0]))


def test_no_rows():
    x = torch.empty(0, 8, requires_grad=True)
    weight = torch.ones(8, requires_grad=True)
    output, total = ops.add_rms_norm(x, x, weight, 1e-5)
    (output.sum() + total.sum()).backward()
    assert output.shape == (0, 8) and torch.equal(weight.grad, torch.zeros(8))
    assert ops.activation(torch.empty(0, 6), "silu", True).shape == (0, 3)
    head = torch.randn(4, 8, requires_grad=True)
    loss = ops.linear_cross_entropy(
        torch.empty(0, 8), head, torch.empty(0, dtype=torch.long), reduction="sum"
    )
    loss.backward()
    assert loss.item() == 0 and torch.equal(head.grad, torch.zeros(4, 8))


def attend(offsets=None, longest=0, window=0):
    """Two rows of three tokens."""
    heads = torch.zeros(2, 1, 3, 8)
    if isinstance(offsets, list):
        offsets = torch.tensor(offsets, dtype=torch.int32)
    return ops.causal_attention(heads, heads, heads, 1.0, 0.0, window, offsets, longest)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ops.rms_norm(x, torch.ones(7)), "weight of shape"),
        (lambda x: ops.rms_norm(x, torch.ones(8, dtype=torch.half)), "dtype of x or float32"),
        (lambda x: ops.rms_norm(torch.ones(1, 20000), None), "1 to 16384"),
        (lambda x: ops.rms_norm(torch.ones(1, 8, dtype=torch.int), None), "float32"),
        (lambda x: ops.add_rms_norm(x, x[:1], None), "must be the same"),
        (lambda x: ops.activation(x, "swish"), "silu, gelu and gelu_tanh"),
        (lambda x: ops.activation(x[:, :7], "silu", True), "two halves"),
        (lambda x: ops.joined_linear(x, [x.new_ones(3, 9)], []), "of one dtype"),
        (lambda x: ops.joined_linear(x, [], []), "1 to 3"),
        (lambda x: ops.rope(x, *tables(8, 2), None, 1, 8), "as many rows"),
        (lambda x: ops.rope(x, *tables(10), None, 1, 8), "rotary_dim"),
        (lambda x: ops.rope(x, *tables(8), torch.tensor([0, 1, 40]), 1, 8), "from 0 to 40"),
        (lambda x: ops.rope(x, *tables(8), None, 2, 8), "do not hold 2 heads"),
        (lambda x: attend(window=-1), "window is -1"),
        (lambda x: attend([0, 3, 8], 5), "from 0 to 8"),
        (lambda x: attend([0, 3, 2, 6], 4), "number 1 goes from token 3 to 2"),
        (lambda x: attend([0, 3, 6], 2), "longer than `longest`, 2"),
        (lambda x: attend([0, 2, 6], 4), "crosses a row of 3 tokens"),
        (lambda x: attend(torch.tensor([0, 3, 6]), 3), "must be int32"),
        (lambda x: ops.linear_cross_entropy(x, x, torch.tensor([0, 1, 3])), "target 3 is neither"),
        (lambda x: ops.linear_cross_entropy(x, x, torch.tensor([0, 1])), "targets are"),
        (
            lambda x: ops.linear_cross_entropy(x, x, torch.tensor([0, 1, 2]), reduction="none"),
            "must be mean or sum",
        ),
        (
            lambda x: ops.linear_cross_entropy(x, x, torch.zeros(3).long(), announced_factor=0.0),
            "announced_factor is 0",
        ),
    ],
)
def test_refusals_say_what_would_work(call, message):
    with pytest.raises(shardwise.UsageError, match=message):
        call(torch.ones(3, 8))
