"""Products in fp8 by torch's own casts, and modules of transformers that multiply with them.

Nothing of shardwise is imported here: the reference process trains these modules.
"""

import torch
from torch import nn

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
RECIPES = ("tensorwise", "rowwise")
SMALLEST = 2.0**-100  # largest magnitudes below count as this


def factor_of(amax: torch.Tensor, dtype: torch.dtype, recipe: str) -> torch.Tensor:
    """Largest number of the dtype ÷ largest magnitude; rowwise down to a power of two."""
    amax = amax.float().clamp_min(SMALLEST)
    factor = torch.full_like(amax, torch.finfo(dtype).max) / amax
    if recipe == "tensorwise":
        return factor
    return torch.ldexp(torch.ones_like(factor), torch.frexp(factor).exponent - 1)


def quantized(
    x: torch.Tensor, recipe: str, dtype: torch.dtype = E4M3
) -> tuple[torch.Tensor, torch.Tensor]:
    """(values in fp8, scales) of rows that are contracted along their length."""
    amax = x.abs().amax() if recipe == "tensorwise" else x.abs().amax(-1, keepdim=True)
    factor = factor_of(amax, dtype, recipe)
    return (x.float() * factor).to(dtype), torch.ones_like(factor) / factor


def multiply(left: tuple, right: tuple) -> torch.Tensor:
    """left [m, n] times right [k, n] transposed, from (values, scales), in fp32."""
    sums = left[0].float() @ right[0].float().t()
    return sums * left[1] * (right[1].t() if right[1].dim() else right[1])


class Product(torch.autograd.Function):
    """x [rows, in] times weight [out, in] transposed, plus bias, in bf16."""

    @staticmethod
    def forward(ctx, x, weight, bias, recipe):
        ctx.save_for_backward(x, weight)
        ctx.recipe, ctx.with_bias = recipe, bias is not None
        result = multiply(quantized(x, recipe), quantized(weight, recipe))
        return (result if bias is None else result + bias).bfloat16()

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        recipe = ctx.recipe
        dtype = E5M2 if recipe == "tensorwise" else E4M3
        transposed = gradient.t().contiguous()
        of_x = multiply(quantized(gradient, recipe, dtype), quantized(weight.t(), recipe))
        of_weight = multiply(quantized(transposed, recipe, dtype), quantized(x.t(), recipe))
        of_bias = gradient.sum(0) if ctx.with_bias else None
        return of_x.bfloat16(), of_weight.bfloat16(), of_bias, None


def projection(x, matrices, biases, recipe, input_first=False):
    """As torch.ops.shardwise.projection: the matrices' scales are in common."""
    weight = matrices[0].t() if input_first else torch.cat(list(matrices))
    bias = torch.cat(list(biases)) if biases else None
    rows = Product.apply(x.reshape(-1, x.shape[-1]), weight, bias, recipe)
    return rows.view(*x.shape[:-1], -1)


class _Joined:
    """The first of layers that share an input computes all of them; in fp32 it is as it was, and
    where a size of a matrix is no multiple of 16."""

    def forward(self, x):
        layers = [self, *self.__dict__["others"]]
        biases = [layer.bias for layer in layers if layer.bias is not None]
        weights = [layer.weight for layer in layers]
        misfit = any(size % 16 for weight in weights for size in weight.shape)
        if self.weight.dtype == torch.float32 or misfit:
            return super().forward(x)
        input_first = not isinstance(self, nn.Linear)
        out = projection(x, weights, biases, self.__dict__["recipe"], input_first)
        parts = out.split([weight.shape[int(input_first)] for weight in weights], -1)
        for layer, part in zip(layers[1:], parts[1:], strict=True):
            layer.__dict__["ready"] = part
        return parts[0]


class FirstLinear(_Joined, nn.Linear):
    pass


class LaterLinear(nn.Linear):
    def forward(self, x):
        return self.__dict__.pop("ready") if "ready" in self.__dict__ else super().forward(x)


def in_fp8(model: nn.Module, recipe: str) -> nn.Module:
    """A Llama or GPT-2 of transformers whose blocks multiply in fp8 where they are in bf16."""
    if hasattr(model, "transformer"):
        from transformers.pytorch_utils import Conv1D

        first = type("FirstConv1D", (_Joined, Conv1D), {})
        names = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
        groups = [(name,) for name in names]
        blocks = model.transformer.h
    else:
        first = FirstLinear
        groups = [
            tuple(f"self_attn.{name}_proj" for name in "qkv"),
            ("self_attn.o_proj",),
            ("mlp.gate_proj", "mlp.up_proj"),
            ("mlp.down_proj",),
        ]
        blocks = model.model.layers
    for block in blocks:
        for group in groups:
            leader, *others = (block.get_submodule(name) for name in group)
            leader.__class__ = first
            leader.__dict__.update(others=others, recipe=recipe)
            for other in others:
                other.__class__ = LaterLinear
    return model
