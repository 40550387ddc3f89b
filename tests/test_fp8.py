"""torch.ops.shardwise in fp8: casts bit by bit, products and gradients by dequantised operands."""

import fp8_reference as plain
import pytest
import torch
from fp8_reference import E4M3, E5M2, RECIPES
from kept_bytes import kept_bytes
from shardwise.profiling.flops_profiler.counter import Counter
from torch._subclasses.fake_tensor import FakeTensorMode

from shardwise import UsageError

ops = torch.ops.shardwise


def numbers(*sizes, seed=0, spread=8):
    """bf16, rows and columns of different magnitudes."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sizes, generator=generator)
    rows, columns = (torch.randint(-spread, 1, (n,), generator=generator) for n in sizes[-2:])
    return torch.ldexp(x, rows[:, None] + columns).bfloat16()


def cast(parts, recipe, e5m2=False, rows=True, columns=True):
    """(rows, columns, row scales, column scales) of the matrix whose parts these are."""
    rowwise = recipe == "rowwise"
    amax = ops.float8_amax(parts, rowwise)
    straight, transposed, scales = ops.float8_quantize(parts, amax, rowwise, e5m2, rows, columns)
    assert amax.shape == scales.shape
    count, width = sum(len(part) for part in parts), parts[0].shape[1]
    if not rowwise:
        return straight, transposed, scales, scales
    return straight, transposed, scales[:count, None], scales[-width:, None]


def same_bits(a, b):
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


MATRICES = {
    "one": lambda: [numbers(48, 32)],
    "odd": lambda: [numbers(37, 21)],
    "three": lambda: [numbers(16, 48), numbers(32, 48, seed=1), numbers(5, 48, seed=2)],
    "a view of columns": lambda: [numbers(40, 96)[:, 16:48]],
    "transposed": lambda: [numbers(40, 96).t()],
    "every other row": lambda: [numbers(40, 32)[::2]],
    "wide": lambda: [numbers(3, 5000)],
    "tall": lambda: [numbers(5000, 3)],
    "zeros": lambda: [torch.zeros(16, 16, dtype=torch.bfloat16)],
    "tiny": lambda: [numbers(32, 16) * 2.0**-110],
    "large": lambda: [numbers(32, 16) * 2.0**120],
}


@pytest.mark.parametrize("e5m2", [False, True])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", MATRICES)
def test_casts_have_torchs_bits(name, recipe, e5m2):
    parts = MATRICES[name]()
    whole = torch.cat(parts)
    rows, columns, row_scales, column_scales = cast(parts, recipe, e5m2)
    dtype = E5M2 if e5m2 else E4M3
    values, scales = plain.quantized(whole, recipe, dtype)
    assert same_bits(rows, values)
    assert torch.equal(row_scales.flatten(), scales.flatten())
    values, scales = plain.quantized(whole.t(), recipe, dtype)
    count = len(whole)
    assert columns.shape[1] == -(-count // 16) * 16
    assert same_bits(columns[:, :count].contiguous(), values.contiguous())
    assert not columns[:, count:].view(torch.uint8).any()
    assert torch.equal(column_scales.flatten(), scales.flatten())


@pytest.mark.parametrize("recipe", RECIPES)
def test_one_copy_alone_is_the_same(recipe):
    x = numbers(40, 48)
    rows, columns, *scales = cast([x], recipe)
    only_rows, nothing, *row_scales = cast([x], recipe, columns=False)
    assert same_bits(rows, only_rows) and nothing.numel() == 0
    nothing, only_columns, *column_scales = cast([x], recipe, rows=False)
    assert same_bits(columns, only_columns) and nothing.numel() == 0
    for a, b, c in zip(scales, row_scales, column_scales, strict=True):
        assert torch.equal(a, b) and torch.equal(a, c)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("sizes", [(0, 16), (16, 0), (0, 0)])
def test_empty_matrices(sizes, recipe):
    rows, columns, *scales = cast([torch.empty(sizes, dtype=torch.bfloat16)], recipe)
    assert rows.shape == sizes and columns.shape == sizes[::-1]
    assert all(torch.isfinite(scale).all() for scale in scales)


# Products


def close(found, right, apart, what):
    """As far apart as their fp32 sums are, and one step of bf16 where those round to both sides of
    its middle."""
    assert found.dtype == right.dtype == torch.bfloat16 and found.shape == right.shape, what
    found, right = found.float(), right.float()
    assert ((found - right).abs() <= apart + 2.0**-7 * right.abs()).all(), what


def joined(*sizes):
    """Neighbours in one storage, as in a flat unit."""
    rows = [size[0] for size in sizes]
    return list(numbers(sum(rows), sizes[0][1], seed=5).split(rows))


PRODUCTS = {  # x, matrices, with biases, input_first
    "one": lambda: (numbers(2, 16, 32), [numbers(48, 32, seed=1)], False, False),
    "bias": lambda: (numbers(2, 16, 32), [numbers(48, 32, seed=1)], True, False),
    "odd tokens": lambda: (numbers(3, 7, 32), [numbers(48, 32, seed=1)], True, False),
    "one token": lambda: (numbers(1, 1, 32), [numbers(48, 32, seed=1)], False, False),
    "three, apart": lambda: (
        numbers(2, 11, 32),
        [numbers(n, 32, seed=n) for n in (64, 16, 16)],
        True,
        False,
    ),
    "three, neighbours": lambda: (
        numbers(2, 11, 32),
        joined((64, 32), (16, 32), (16, 32)),
        True,
        False,
    ),
    "input first": lambda: (numbers(2, 9, 32), [numbers(32, 48, seed=1)], True, True),
    "a view": lambda: (numbers(2, 9, 64)[..., 16:48], [numbers(48, 32, seed=1)], False, False),
}


def tensors_of(function, name, recipe, frozen=(), of=lambda number: number):
    """The result and gradients where all numbers are ``of`` those of the product."""
    x, matrices, with_biases, input_first = PRODUCTS[name]()
    widths = [matrix.shape[int(input_first)] for matrix in matrices]
    biases = [numbers(1, width, seed=7)[0] for width in widths] if with_biases else []
    leaves = [of(t).detach().requires_grad_() for t in (x, *matrices, *biases)]
    for index in frozen:
        leaves[index].requires_grad_(False)
    count = 1 + len(matrices)
    out = function(leaves[0], leaves[1:count], leaves[count:], recipe, input_first)
    out.backward(of(numbers(*out.shape, seed=9)))
    return {"out": out.detach(), **{i: leaf.grad for i, leaf in enumerate(leaves)}}


def apart_at_most(name, recipe):
    """How far fp32 sums of the same terms in other orders are apart, by tensor.

    Of n terms n - 1 sums are rounded, then two scalings and the bias, each by 2^-24 of the sum of
    all magnitudes at most; on both sides. Magnitudes have the casts and scales of their numbers,
    so plain products of them are those sums, but for their own rounding to bf16: 2^-8.
    """
    x, matrices, _, input_first = PRODUCTS[name]()
    outputs = sum(matrix.shape[int(input_first)] for matrix in matrices)
    terms = max(x.shape[-1], x.numel() // x.shape[-1], outputs)
    roundings = 2 * (terms + 2) * 2.0**-24 * (1 + 2.0**-7)
    magnitudes = tensors_of(plain.projection, name, recipe, of=torch.abs)
    return {key: roundings * value.float() for key, value in magnitudes.items()}


def ours(x, matrices, biases, recipe, input_first):
    return ops.projection(x, matrices, biases, input_first, recipe)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_and_gradients_are_those_of_dequantised_operands(name, recipe):
    found = tensors_of(ours, name, recipe)
    right = tensors_of(plain.projection, name, recipe)
    apart = apart_at_most(name, recipe)
    for key, value in right.items():
        close(found[key], value, apart[key], key)
    # and another recipe is told apart by every product
    other = tensors_of(ours, name, RECIPES[recipe == "tensorwise"])
    for key in ("out", 0, 1):
        assert not torch.equal(found[key], other[key]), key


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("frozen", [(0,), (1,), (2, 3), (1, 2, 3), (4, 5, 6)])
def test_parts_that_need_no_gradient(frozen, recipe):
    """The others get what they get when all do."""
    right = tensors_of(ours, "three, neighbours", recipe)
    found = tensors_of(ours, "three, neighbours", recipe, frozen)
    apart = apart_at_most("three, neighbours", recipe)
    for key, value in found.items():
        if key in frozen:
            assert value is None
        else:
            close(value, right[key], apart[key], key)


@pytest.mark.parametrize("recipe", RECIPES)
def test_where_parameters_lie_makes_no_difference(recipe):
    x, matrices, _, _ = PRODUCTS["three, neighbours"]()
    apart = [matrix.clone() for matrix in matrices]
    assert torch.equal(ours(x, matrices, [], recipe, False), ours(x, apart, [], recipe, False))


def check_no_tokens(recipe, device="cpu"):
    x = torch.zeros(0, 4, 32, dtype=torch.bfloat16, device=device, requires_grad=True)
    weight = numbers(48, 32).to(device).requires_grad_()
    out = ours(x, [weight], [], recipe, False)
    assert out.shape == (0, 4, 48)
    out.sum().backward()
    assert x.grad.shape == x.shape and not weight.grad.any()


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_tokens(recipe):
    check_no_tokens(recipe)


@pytest.mark.parametrize("recipe", RECIPES)
def test_sizes_that_do_not_fit_stay_in_bf16(recipe):
    x, weights = numbers(2, 5, 32), [numbers(24, 32), numbers(16, 32)]
    out = ours(x, weights, [], recipe, False)
    assert torch.equal(out, ours(x, weights, [], "off", False))
    weights = [numbers(32, 32), numbers(16, 32)]
    out = ours(x, weights, [], recipe, False)
    assert not torch.equal(out, ours(x, weights, [], "off", False))


NOT_FINITE = [float("inf"), float("-inf"), float("nan")]
PLACES = ["x", "weight", "gradient"]


def check_not_finite(recipe, place, bad, device="cpu"):
    """One such number reaches all that is made of it."""
    tensors = {
        "x": numbers(1, 20, 32),
        "weight": numbers(48, 32, seed=1),
        "gradient": numbers(1, 20, 48, seed=2),
    }
    tensors[place].view(-1)[100] = bad
    tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
    x, weight = tensors["x"].requires_grad_(), tensors["weight"].requires_grad_()
    out = ours(x, [weight], [], recipe, False)
    out.backward(tensors["gradient"])
    made_of = {"x": (out, weight.grad), "weight": (out, x.grad), "gradient": (x.grad, weight.grad)}
    for result in made_of[place]:
        assert not result.isfinite().all()


@pytest.mark.parametrize("bad", NOT_FINITE)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_numbers_that_are_not_finite_reach_what_is_made_of_them(recipe, place, bad):
    check_not_finite(recipe, place, bad)


def test_what_is_kept():
    """A byte for each number of x, and a few scales; nothing of the weight."""
    x, weight = numbers(4, 64, 128).requires_grad_(), numbers(48, 128).requires_grad_()
    x = x * 1
    result = 2 * 4 * 64 * 48
    for recipe, scales in (("tensorwise", 4 * (1 + 1)), ("rowwise", 4 * (4 * 64 + 128 + 48 + 128))):
        kept = kept_bytes(lambda recipe=recipe: ours(x, [weight], [], recipe, False))
        assert kept - result == 4 * 64 * 128 + scales
    weight.requires_grad_(False)
    kept = kept_bytes(lambda: ours(x, [weight], [], "tensorwise", False))
    assert kept - result == 4  # the largest magnitude of the weight
    with torch.no_grad():
        assert kept_bytes(lambda: ours(x, [weight], [], "tensorwise", False)) == result


@pytest.mark.parametrize("recipe", RECIPES)
def test_shapes_for_tracing(recipe):
    parts = [numbers(32, 48), numbers(21, 48, seed=1)]
    rowwise = recipe == "rowwise"

    def run(parts):
        amax = ops.float8_amax(parts, rowwise)
        rows, columns, scales = ops.float8_quantize(parts, amax, rowwise, False, True, True)
        left, right = (scales[:53], scales[-48:]) if rowwise else (scales, scales)
        other = columns[:, :48]
        product = ops.scaled_product(rows, other.contiguous(), left, right, None, True)
        return amax, rows, columns, scales, product

    real = run(parts)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = run([mode.from_tensor(part) for part in parts])
    for a, b in zip(real, fake, strict=True):
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())


def test_refusals():
    x, weight = numbers(2, 5, 32), numbers(48, 32)
    with pytest.raises(UsageError, match='"off", "tensorwise" or "rowwise", not "blockwise"'):
        ours(x, [weight], [], "blockwise", False)
    with pytest.raises(UsageError, match=r"Float.*train in bf16.*shardwise\.fp8"):
        ours(x.float(), [weight.float()], [], "rowwise", False)
    out = ours(x.requires_grad_(), [weight.requires_grad_()], [], "rowwise", False)
    with pytest.raises(RuntimeError, match="gradients of gradients"):
        torch.autograd.grad(out.sum(), weight, create_graph=True)


class Projection(torch.nn.Module):
    def __init__(self, recipe):
        super().__init__()
        self.recipe = recipe
        self.weight = torch.nn.Parameter(numbers(48, 32))

    def forward(self, x):
        return torch.ops.shardwise.projection(x, [self.weight], [], False, self.recipe)


def test_as_many_flops_are_counted_as_in_bf16():
    counted = []
    for recipe in ("off", *RECIPES):
        model = Projection(recipe)
        with Counter(model) as counter:
            model(numbers(2, 8, 32).requires_grad_()).sum().backward()
        counted.append([counter.total(phase) for phase in ("forward", "backward")])
    assert counted == [[2 * 16 * 48 * 32, 4 * 16 * 48 * 32]] * 3
