"""Trains a case with the engine on ranks and holds the record against plain PyTorch.

Tolerances. fp32: losses and norms 1e-6, gradients and weights 1e-5. 16-bit: twice the error that
plain 16-bit PyTorch has against fp32 on the same samples, with floors where that error is smaller
than what correct rounding alone can cause (see `tolerances`). docs/parity.md explains both.
"""

import gc
from dataclasses import dataclass, replace

import fp8_reference
import models
import reference
import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Case:
    stage: int
    model: str = "mlp"
    dtype: str = "fp32"
    accumulation: int = 1
    ranks: int = 2
    clip: bool = False
    optimizer: str = "AdamW"
    power: int = 8  # of the initial loss scale: small enough that no fp16 step overflows
    masters: str = ""  # "16-bit", or "16-bit with states"; else fp32

    def __str__(self):
        clip = "clip" if self.clip else "noclip"
        return (
            f"z{self.stage}-{self.model}-{self.dtype}-gas{self.accumulation}"
            f"-{self.ranks}p-{clip}-{self.optimizer}{self.masters.replace(' ', '-')}"
        )


def config_of(case: Case, zero: dict | None = None, shardwise: dict | None = None, **more) -> dict:
    micro = models.SAMPLES // (case.ranks * case.accumulation)
    config = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": case.accumulation,
        "gradient_clipping": reference.MAX_NORM if case.clip else 0,
        "optimizer": {"type": case.optimizer, "params": reference.OPTIMIZERS[case.optimizer][1]},
        "zero_optimization": {
            "stage": case.stage,
            "stage3_param_persistence_threshold": 0,
            **(zero or {}),
        },
        # Modules as they are: the table is of the engine around them, at the bits of their kernels.
        "shardwise": {"poison_released": True, "fused_layers": False, **(shardwise or {})},
        **more,
    }
    if case.dtype == "bf16":
        config["bf16"] = {
            "enabled": True,
            "bf16_master_weights_and_grads": bool(case.masters),
            "bf16_optimizer_states": case.masters == "16-bit with states",
        }
    if case.dtype == "fp16":
        config["fp16"] = {
            "enabled": True,
            "initial_scale_power": case.power,
            "fp16_master_weights_and_grads": bool(case.masters),
        }
    return config


def make_engine(model, config, **arguments):
    """The engine alone; imported here so that the reference process stays free of shardwise."""
    import shardwise

    return shardwise.initialize(model=model, config=config, **arguments)[0]


def train(
    case: Case, zero=None, shardwise=None, device="cpu", steps=reference.STEPS, **more
) -> dict:
    """Runs on every rank: the record of reference.train, from the engine, and what it took.

    `zero`, `shardwise` and `more` are added to the configuration.
    """
    model = models.build(case.model)
    record = {"losses": [], "norms": [], "applied": []}
    with make_engine(model, config_of(case, zero, shardwise, **more)) as engine:
        for step in range(steps):
            record["losses"].append(accumulate(engine, case, step, device))
            if step == steps - 1:
                record["traffic"] = engine.comm_counters()  # reading gradients adds to it
                record["gradients"] = full_gradients(engine)
            engine.step()
            record["norms"].append(float(engine.get_global_grad_norm()))
            record["applied"].append(bool(engine.was_step_applied()))
        if has_masters(case):
            record["masters"] = full_masters(engine)
        record["weights"] = {n: w.float() for n, w in engine.state_dict().items()}
        record["memory"] = engine.memory_report()["device"]
        record["global_steps"] = engine.global_steps
        record["skipped_steps"] = engine.skipped_steps
    gc.collect()
    return record


def accumulate(engine, case: Case, step: int, device) -> float:
    """Forward and backward of this rank's micro-batches, the mean of their losses."""
    count = case.ranks * case.accumulation
    dtype = reference.DTYPES[case.dtype]
    micros = models.micro_batches(case.model, step, count, device, dtype)
    losses = []
    for index in range(case.accumulation):
        loss = models.loss_of(engine(**micros[index * case.ranks + dist.get_rank()]))
        engine.backward(loss)
        losses.append(loss.item())
        if index + 1 < case.accumulation:
            engine.step()
    return sum(losses) / len(losses)


def full_gradients(engine) -> dict:
    from shardwise.utils import safe_get_full_grad

    named = list(engine.module.named_parameters())
    return {n: safe_get_full_grad(p).float().cpu() for n, p in named if p.requires_grad}


def has_masters(case: Case) -> bool:
    """Whether masters are other tensors than the weights."""
    return case.dtype != "fp32" and not case.masters


def full_masters(engine) -> dict:
    from shardwise.utils import safe_get_full_fp32_param

    named = list(engine.module.named_parameters())
    return {n: safe_get_full_fp32_param(p).cpu() for n, p in named if p.requires_grad}


class Truth:
    """Reference records, each computed once in the reference process."""

    def __init__(self, process, device="cpu"):
        self.process = process
        self.device = device
        self.records = {}

    def record(self, case: Case, dtype: str) -> dict:
        micro_batches, power, accumulation = case.ranks * case.accumulation, None, 1
        if dtype == "fp32":  # the mean over the whole batch, however it is split
            micro_batches = 1
        if dtype == "fp16":
            power, accumulation = case.power, case.accumulation
        masters = "" if dtype == "fp32" else case.masters
        key = (case.model, dtype, case.optimizer, case.clip, micro_batches, accumulation, power)
        key += (masters,)
        if key not in self.records:
            self.records[key] = self.process.run(reference.train, *key, device=self.device)[0]
        return self.records[key]


def check(case: Case, ranks: list[dict], truth: Truth):
    """Every rank agrees on norms and flags; losses, norms, gradients and weights are right."""
    plain = truth.record(case, case.dtype)
    tolerance = tolerances(case, plain, truth)
    assert_training_is_seen(case, plain, tolerance, ranks[0].keys())
    for record in ranks[1:]:
        assert record["norms"] == ranks[0]["norms"], "the ranks report different norms"
        assert record["weights"] == {}, "only rank 0 returns weights"
    assert [r["applied"] for r in ranks] == [plain["applied"]] * len(ranks)
    got = {
        "losses": [
            sum(step) / len(ranks) for step in zip(*(r["losses"] for r in ranks), strict=True)
        ],
        "norms": ranks[0]["norms"],
        "weights": ranks[0]["weights"],
    }
    of_all = [("gradients", r["gradients"]) for r in ranks]
    if has_masters(case):
        of_all += [("masters", r["masters"]) for r in ranks]
    for kind, record in [*got.items(), *of_all]:
        missing = named(plain[kind]).keys() - named(record).keys()
        assert not missing, f"{kind}: nothing for {sorted(missing)}"
        errors = relative_errors(record, plain, kind)
        worst = max(errors, key=errors.get)
        assert errors[worst] <= tolerance[kind], (
            f"{case}: {kind} differ most at {worst}: relative error {errors[worst]:.2e}, "
            f"allowed {tolerance[kind]:.2e}"
        )


def assert_training_is_seen(case: Case, plain: dict, tolerance: dict, compared):
    """Every tensor that plain PyTorch moves would fail if it stayed as it was at the start.

    16-bit masters: some tensor would, since rounding loses small updates in plain PyTorch too.
    """
    start = plain["start"]
    moved = {n for n, m in plain["masters"].items() if not torch.equal(m, start["masters"][n])}
    far = dict.fromkeys(moved, 0.0)  # from the start, in tolerances
    for kind in ("masters", "weights"):
        if kind in tolerance and kind in compared:
            errors = relative_errors(start[kind], plain, kind)
            far |= {n: max(far[n], errors[n] / tolerance[kind]) for n in moved}
    name = (max if case.masters else min)(far, key=far.get)
    assert far[name] > 1, (
        f"{case}: {name} could stay as it is, {far[name]:.2g} of the tolerance away"
    )


def eps_of_gradients(model: str) -> float:
    """Of the format in which the model's products in fp8 get their gradients; 0 without any."""
    recipe = model.rpartition("-")[2]
    if recipe not in fp8_reference.RECIPES:
        return 0.0
    return torch.finfo(fp8_reference.E5M2 if recipe == "tensorwise" else fp8_reference.E4M3).eps


def tolerances(case: Case, plain: dict, truth: Truth) -> dict:
    if case.dtype == "fp32":
        return {"losses": 1e-6, "norms": 1e-6, "gradients": 1e-5, "weights": 1e-5}
    exact = truth.record(replace(case, dtype="fp32"), "fp32")
    kinds = ["losses", "norms", "gradients", "weights", *["masters"] * has_masters(case)]
    errors = {k: max(relative_errors(plain[k], exact, k).values()) for k in kinds}
    eps = torch.finfo(reference.DTYPES[case.dtype]).eps
    # Weights: masters that agree may still round to neighbours, one unit in the last place apart.
    # Losses, norms: eps/2 of rounding in each sample, averaged over the samples, doubled.
    # Norms are those of gradients that products in fp8 made, if the model has any.
    mean = eps / models.SAMPLES**0.5
    in_products = eps_of_gradients(case.model) or eps
    norms = in_products / models.SAMPLES**0.5
    # The scale of an error that n numbers show is known to one part in sqrt(2 n), and a run has a
    # loss and a norm a step: three standard deviations of it.
    few = 1 + 3 / (2 * len(plain["norms"])) ** 0.5
    errors |= {kind: few * errors[kind] for kind in ("losses", "norms")}
    floors = {"losses": mean, "norms": norms, "gradients": 0.0, "weights": eps, "masters": 0.0}
    return {k: max(2 * errors[k], floors[k]) for k in kinds}


def named(values) -> dict:
    return values if isinstance(values, dict) else dict(enumerate(values))


def relative_errors(values, plain: dict, kind: str) -> dict:
    """max|a-b| / max|b| of each tensor, or of each step's scalar, that the reference has.

    Masters: |a-b| / |b-start| in the 2-norm, so that one that never moved is off by 1.
    """
    truth = named(plain[kind])
    largest = max(scale(b) for b in truth.values())
    errors = {}
    for name, b in truth.items():
        a = named(values)[name]
        if kind == "masters":
            moved = float((b - plain["start"][kind][name]).norm())
            errors[name] = float((a - b).norm()) / max(moved, 1e-30)
            continue
        if kind == "weights":
            a = where_sure(a, b, plain.get("closest", {}).get(name))
        # BERT's key bias has no influence in theory: its gradient is noise, measured against
        # the largest gradient instead of itself.
        noise = kind == "gradients" and str(name).endswith("attention.self.key.bias")
        errors[name] = scale(a - b) / max(largest if noise else scale(b), 1e-30)
    return errors


def where_sure(a, b, closest):
    """Lion: elements whose direction came so near to 0 that gradients within their tolerance of
    1e-5 give it either sign are taken from `b`; they must be few.
    """
    if closest is None:
        return a
    unsure = closest.to(b.device) < 1e-5
    assert unsure.float().mean() < 1e-2 or unsure.sum() <= 1
    return torch.where(unsure, b, a)


def scale(value) -> float:
    if isinstance(value, torch.Tensor):
        return float(value.abs().max()) if value.numel() else 0.0
    return abs(value)
