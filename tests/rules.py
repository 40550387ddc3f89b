"""A model whose gradients are exact, so that an optimizer's rule can be held against plain PyTorch.

The loss is a sum of parameters times numbers: the gradient is those numbers, multiples of 1/8 that
every dtype holds, whatever the parameters are and in whatever order ranks are summed.
"""

import torch
from torch import nn

SHAPES = ((1,), (7,), (8,), (63,), (), (64,), (65,), (33, 9), (5, 4, 3))


class ExactGradients(nn.Module):
    def __init__(self, shapes=SHAPES):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        values = [torch.randn(shape, generator=generator) for shape in shapes]
        self.parts = nn.ParameterList(nn.Parameter(v.bfloat16().float()) for v in values)

    def forward(self, step: int, skip: tuple[int, ...] = ()):
        loss = 0.0
        for index, part in enumerate(self.parts):
            if index not in skip:
                loss = loss + (part * numbers(part.shape, step, index).to(part.dtype)).sum().float()
        return loss


def numbers(shape, step: int, index: int) -> torch.Tensor:
    """The gradient of part ``index`` in a step; never 0."""
    generator = torch.Generator().manual_seed(100 * step + index)
    size = torch.randint(1, 9, shape, generator=generator)
    return size * (torch.randint(0, 2, shape, generator=generator) * 2 - 1) / 8


def plain(make, steps: int, skips=lambda step: (), groups=None) -> dict[str, torch.Tensor]:
    """Weights after ``steps`` of the optimizer ``make(parameters)`` in plain PyTorch."""
    model = ExactGradients()
    optimizer = make(groups(model) if groups else model.parameters())
    for step in range(steps):
        model(step, skips(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.detach().clone() for name, value in model.named_parameters()}


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", Algorithm 2."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                m = state.setdefault("exp_avg", torch.zeros_like(p))
                direction = beta1 * m + (1 - beta1) * p.grad
                self._note_closest(state, direction, p.grad, group["betas"])
                p.mul_(1 - lr * group["weight_decay"]).sub_(lr * direction.sign())
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)

    @staticmethod
    def _note_closest(state, direction, grad, betas):
        """How near to 0, where its sign turns, each element of a direction has come.

        Measured against what the largest gradients so far can add up to, so that gradients which
        are off by a share of their largest element move no direction further than that share.
        """
        beta1, beta2 = betas
        largest = float(grad.abs().max())
        scale = beta1 * state.get("scale", 0.0) + (1 - beta1) * largest
        state["scale"] = beta2 * state.get("scale", 0.0) + (1 - beta2) * largest
        near = direction.abs() / max(scale, 1e-30)
        near[direction == 0] = 1.0  # nobody's gradient; it stays where it is
        state["closest"] = torch.minimum(state.get("closest", near), near)


class Lamb(torch.optim.Optimizer):
    """You et al. 2020, Algorithm 2, with DeepSpeed's bias correction and limits of the ratio."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, **more):
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "max_coeff": 10.0,
            "min_coeff": 0.01,
            "eps_inside_sqrt": False,
        }
        super().__init__(params, {**defaults, **more})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                state["step"] = t = state.get("step", 0) + 1
                m = state.setdefault("exp_avg", torch.zeros_like(p))
                v = state.setdefault("exp_avg_sq", torch.zeros_like(p))
                m.mul_(beta1).add_(p.grad, alpha=1 - beta1)
                v.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                inside = group["eps_inside_sqrt"]
                root = (v + group["eps"]).sqrt() if inside else v.sqrt() + group["eps"]
                update = m / root + group["weight_decay"] * p
                weight_norm, update_norm = (float(x.double().norm()) for x in (p, update))
                ratio = 1.0
                if weight_norm != 0 and update_norm != 0:
                    ratio = min(weight_norm / update_norm, group["max_coeff"])
                    ratio = max(ratio, group["min_coeff"])
                size = group["lr"] * (1 - beta2**t) ** 0.5 / (1 - beta1**t)
                p.sub_(size * ratio * update)


def orthogonalised(update, steps=5):
    """Jordan et al. 2024: the quintic Newton-Schulz iteration, in the dtype of ``update``."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = update.flatten(1) if update.dim() == 4 else update
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).reshape(update.shape)


class Muon(torch.optim.Optimizer):
    """DeepSpeed's Muon: parameters with ``use_muon`` as matrices, the others by AdamW."""

    def __init__(self, params, lr, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0, momentum=0.95):
        params = list(params)
        groups = [[p for p in params if p.use_muon], [p for p in params if not p.use_muon]]
        super().__init__([{"params": groups[0]}], {"lr": lr, "weight_decay": weight_decay})
        self.momentum = momentum
        self.rest = torch.optim.AdamW(
            groups[1] or [torch.zeros(0)], lr=lr, betas=betas, eps=eps, weight_decay=weight_decay
        )

    @torch.no_grad()
    def step(self):
        self.rest.step()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                m.mul_(self.momentum).add_(p.grad, alpha=1 - self.momentum)
                update = (1 - self.momentum) * p.grad + self.momentum * m
                size = group["lr"] * max(1.0, p.shape[-2] / p.shape[-1]) ** 0.5
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(size * orthogonalised(update))


def is_matrix(name: str, parameter: torch.Tensor) -> bool:
    """Whether Muon takes it: embeddings and heads of the models in use, by name."""
    return parameter.dim() >= 2 and not any(
        part in name for part in ("wte", "wpe", "embed", "lm_head")
    )
