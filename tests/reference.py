"""The truth: plain PyTorch in a process that never imports shardwise.

fp32 takes the mean gradient of the whole batch. 16-bit runs each micro-batch through a 16-bit
model, sums the gradients in fp32, steps torch.optim on fp32 masters and copies those back.
"""

import sys

import models
import rules
import torch

STEPS = 5
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    # With a tiny eps AdamW amplifies the noise of gradients that are zero in theory.
    "AdamW": (torch.optim.AdamW, {"lr": 3e-3, "eps": 1e-4, "weight_decay": 0.01}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 1e-2, "eps": 1e-3, "weight_decay": 0.01}),
    # Steps that are small beside the weights: where a direction is near 0 and its sign turns, the
    # gradients that follow hardly notice.
    "Lion": (rules.Lion, {"lr": 1e-5, "weight_decay": 0.01}),
    "Lamb": (rules.Lamb, {"lr": 3e-3, "eps": 1e-4, "weight_decay": 0.01}),
    # Steps so small that noise of gradients, which grows in directions of small singular values,
    # hardly moves the gradients that follow.
    "Muon": (rules.Muon, {"lr": 5e-4, "eps": 1e-4, "weight_decay": 0.01}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 1e-3, "eps": 1e-3, "momentum": 0.5}),
}
MAX_NORM = 0.05  # well below every model's gradient norm, so that clipping acts


class DynamicScale:
    """DeepSpeed's rule: halve on overflow once the hysteresis is spent, double after a window."""

    def __init__(self, power: int, window: int = 1000, hysteresis: int = 2):
        self.scale = 2.0**power
        self.window, self.hysteresis = window, hysteresis
        self.left, self.step, self.last_overflow = hysteresis, 0, -1

    def update(self, overflow: bool):
        if overflow:
            if self.left == 1:
                self.scale = max(self.scale / 2, 1.0)
            else:
                self.left -= 1
            self.last_overflow = self.step
        elif (self.step - self.last_overflow) % self.window == 0:
            self.left = self.hysteresis
            self.scale *= 2
        self.step += 1


def train(
    model,
    dtype,
    optimizer,
    clip,
    micro_batches=1,
    accumulation=1,
    power=None,
    masters="",
    device="cpu",
    steps=STEPS,
):
    """Losses, norms before clipping, applied flags of each step; last gradients; final weights and
    masters, and those of the start.
    """
    kind = DTYPES[dtype]
    module = models.build(model).to(device, kind)
    trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
    fp32 = {n: p.detach().float().clone().requires_grad_() for n, p in trained.items()}
    for name, master in fp32.items():
        master.use_muon = rules.is_matrix(name, master)
    make, options = OPTIMIZERS[optimizer]
    update = make(fp32.values(), **options)
    weights = {n: p.detach().float().cpu().clone() for n, p in module.named_parameters()}
    start = {"weights": weights, "masters": {n: weights[n] for n in trained}}
    scaler = DynamicScale(power) if power is not None else None
    record = {"losses": [], "norms": [], "applied": [], "start": start}
    for step in range(steps):
        factor = scaler.scale / accumulation if scaler else 1.0
        micros = models.micro_batches(model, step, micro_batches, device, kind)
        losses, sums = sum_gradients(module, trained, micros, factor)
        grads = {n: g / (factor * micro_batches) for n, g in sums.items() if g is not None}
        record["losses"].append(sum(losses) / len(losses))
        norm = torch.linalg.vector_norm(torch.stack([g.double().norm() for g in grads.values()]))
        overflow = not bool(torch.isfinite(norm))
        record["applied"].append(not overflow)
        record["norms"].append(float(norm))
        if scaler:
            scaler.update(overflow)
        if not overflow:
            apply(update, trained, fp32, grads, float(norm), clip)
            round_stored(update, masters, kind)
    record["gradients"] = {n: g.cpu() for n, g in grads.items()}
    record["weights"] = {n: p.detach().float().cpu() for n, p in module.named_parameters()}
    record["masters"] = {n: m.detach().cpu() for n, m in fp32.items()}
    # 16-bit weights are too coarse to show a step of Lion.
    noted = fp32 if dtype == "fp32" else {}
    record["closest"] = {n: update.state[m].get("closest") for n, m in noted.items()}
    assert "shardwise" not in sys.modules
    return record


def round_stored(update, masters, kind):
    """Masters "16-bit" or "16-bit with states" keep between steps what `kind` can hold."""
    for group in update.param_groups:
        for p in group["params"] if masters else ():
            p.data.copy_(p.data.to(kind))
            for value in update.state[p].values() if masters == "16-bit with states" else ():
                if isinstance(value, torch.Tensor) and value.dim():
                    value.copy_(value.to(kind))


def sum_gradients(module, trained, micros, factor):
    """fp32 sums of the gradients of the micro-batches' mean loss times factor; None if unused."""
    losses = []
    sums = dict.fromkeys(trained)
    for micro in micros:
        loss = models.loss_of(module(**micro))
        (loss.float() * factor).backward()
        losses.append(loss.item())
        for n, p in trained.items():
            if p.grad is not None:
                sums[n] = p.grad.float() + (0.0 if sums[n] is None else sums[n])
        module.zero_grad(set_to_none=True)
    return losses, sums


def apply(update, trained, masters, grads, norm, clip):
    """torch.nn.utils.clip_grad_norm_'s formula, then torch.optim, then the copy back."""
    scale = min(1.0, MAX_NORM / (norm + 1e-6)) if clip else 1.0
    for n, master in masters.items():
        master.grad = grads[n] * scale if n in grads else None
    update.step()
    with torch.no_grad():
        for n, p in trained.items():
            p.copy_(masters[n])
