"""Cases of users, as reported: what they see of a run, checkpointed activations, loader lengths."""

import contextlib
import csv
import io
import re
from functools import partial
from pathlib import Path

import models
import parity
import pytest
import torch
import torch.distributed as dist
from kept_bytes import Storages
from parity import make_engine
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

SAMPLES = 16
STEPS = 5


def log_losses(text: str) -> list[float]:
    return [float(value) for value in re.findall(r"step \d+, loss ([-\d.e+]+)", text)]


def csv_column(path: Path) -> list[float]:
    rows = list(csv.reader(path.open()))[1:]
    return [float(value) for _, value in rows]


# GA-01


def rank_losses(stage, accumulation, folder):
    """Losses of forward (means of a step), of the log and of the monitor."""
    micro = SAMPLES // accumulation // dist.get_world_size()
    config = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
        "steps_per_print": 1,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "csv_monitor": {"enabled": True, "output_path": folder, "job_name": f"gas{accumulation}"},
    }
    means = []
    with (
        contextlib.redirect_stderr(io.StringIO()) as log,
        make_engine(models.build("mlp"), config) as engine,
    ):
        for step in range(STEPS):
            whole = models.batch("mlp", step)
            first = dist.get_rank() * micro * accumulation
            losses = []
            for index in range(accumulation):
                begin = first + index * micro
                batch = {key: value[begin : begin + micro] for key, value in whole.items()}
                loss = engine(**batch)
                before = loss.item()
                engine.backward(loss)
                assert loss.item() == before, "backward changed the loss in place"
                losses.append(before)
                engine.step()
            means.append(sum(losses) / len(losses))
    return means, log_losses(log.getvalue())


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2])
def test_GA_01_the_loss_that_is_shown_does_not_depend_on_accumulation(stage, ranks, pool, tmp_path):
    seen = {}
    for accumulation in (1, 8):
        results = pool.run(rank_losses, stage, accumulation, str(tmp_path), ranks=ranks)
        forward, logged = results[0]
        file = tmp_path / f"gas{accumulation}" / "Train_Samples_train_loss.csv"
        assert csv_column(file) == pytest.approx(forward, rel=1e-6)
        assert logged == pytest.approx(forward, rel=1e-5)  # six digits are printed
        assert all(others == [] for _, others in results[1:])
        seen[accumulation] = forward
    assert seen[1] == pytest.approx(seen[8], rel=1e-6)


# GA-09


def plain_norm(scale):
    model = models.build("mlp")
    (model(**models.batch("mlp", 0)) * scale).backward()
    return float(torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters()])))


def rank_clipped(stage, scale):
    ranks = dist.get_world_size()
    config = {
        "train_micro_batch_size_per_gpu": models.SAMPLES // ranks,
        "gradient_clipping": 1.0,
        "steps_per_print": 1,
        "optimizer": {"type": "SGD", "params": {"lr": 1.0}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    model = models.build("mlp")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with (
        contextlib.redirect_stderr(io.StringIO()) as log,
        make_engine(model, config) as engine,
    ):
        assert engine.grad_norm is None
        assert engine.grad_norm_clipped is None
        micros = models.micro_batches("mlp", 0, ranks, "cpu", torch.float32)
        engine.backward(engine(**micros[dist.get_rank()]) * scale)
        engine.step()
        norms = engine.grad_norm, engine.get_global_grad_norm(), engine.grad_norm_clipped
        after = engine.state_dict()
    moved = [(after[name] - value).norm() for name, value in before.items()] if after else [0.0]
    return norms, float(torch.as_tensor(moved).norm()), log.getvalue()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_GA_09_both_norms_are_there_and_clipping_holds(stage, pool, reference):
    scale = 1e3
    plain = reference.run(plain_norm, scale)[0]
    results = pool.run(rank_clipped, stage, scale, ranks=2)
    (norm, same, clipped), moved, log = results[0]
    assert results[1][0] == results[0][0], "the ranks report different norms"
    assert norm == same == pytest.approx(plain, rel=1e-5)
    assert plain > 10, "the case needs a gradient that is clipped"
    assert clipped == pytest.approx(1.0, rel=1e-5)
    assert moved == pytest.approx(1.0, rel=1e-5)
    assert f"gradient norm {norm:.4g} ({clipped:.4g} after clipping)" in log


# AC-01


def adapted_llama(use_reentrant: bool):
    torch.manual_seed(0)
    model = models.checkpointed(use_reentrant).requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj = models.Adapter(layer.self_attn.q_proj)
        layer.mlp.down_proj = models.Adapter(layer.mlp.down_proj)
        for adapter in (layer.self_attn.q_proj, layer.mlp.down_proj):
            nn.init.normal_(adapter.up.weight, std=0.1)
    model.enable_input_require_grads()  # reentrant checkpoints of frozen inputs train nothing
    return model.train()


def rank_adapted(use_reentrant, accumulation, threshold):
    ranks = dist.get_world_size()
    count = ranks * accumulation
    config = {
        "train_micro_batch_size_per_gpu": models.SAMPLES // count,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": threshold},
        "shardwise": {"poison_released": True},
    }
    seen = []
    with make_engine(adapted_llama(use_reentrant), config) as engine:
        micros = models.micro_batches("llama", 0, count, "cpu", torch.float32)
        for _ in range(3):
            for index in range(accumulation):
                loss = engine(**micros[index * ranks + dist.get_rank()]).loss
                seen.append(loss.item())
                engine.backward(loss)
                engine.step()
            seen.append(engine.get_global_grad_norm())
    return seen


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("threshold", [0, 20_000], ids=["all sharded", "small units whole"])
def test_AC_01_adapters_under_non_reentrant_checkpoints(accumulation, threshold, pool):
    plain = pool.run(rank_adapted, False, accumulation, threshold, ranks=2)
    reentrant = pool.run(rank_adapted, True, accumulation, threshold, ranks=2)
    assert plain == reentrant
    first, last = plain[0][:accumulation], plain[0][-1 - accumulation : -1]
    assert sum(last) < sum(first), "it does not train"


def rank_peak(kind, depth):
    """Most bytes that a micro-batch of a Llama without frozen parameters holds at a time."""
    from transformers import LlamaForCausalLM

    config = models.llama().config
    config.num_hidden_layers = depth
    model = LlamaForCausalLM(config)
    if kind != "off":
        model.gradient_checkpointing_enable({"use_reentrant": kind == "reentrant"})
    ids = models.batch("llama", 0)["input_ids"][:16]
    with make_engine(model, parity.config_of(parity.Case(3, "llama"))) as engine:
        for _ in range(2):  # at first the engine makes its own buffers
            with Storages() as storages:
                engine.backward(engine(input_ids=ids, labels=ids).loss)
            engine.step()
    return storages.peak


def rank_peaks():
    """By kind of checkpoint: the peak of three blocks, what three more add; bytes of an input."""
    peaks = {
        kind: (rank_peak(kind, 3), rank_peak(kind, 6))
        for kind in ("off", "reentrant", "non-reentrant")
    }
    one_input = 4 * 16 * models.LENGTH * models.WIDTH
    return {kind: (low, high - low) for kind, (low, high) in peaks.items()}, one_input


def test_AC_01_peak_memory_without_frozen_parameters(pool):
    """One block's activations and an input for each other block, with both kinds."""
    for peaks, one_input in pool.run(rank_peaks, ranks=2):
        assert peaks["non-reentrant"][0] <= peaks["reentrant"][0] < peaks["off"][0]
        assert peaks["non-reentrant"][1] <= 3 * one_input < peaks["off"][1]


# AC-03


class Siamese(nn.Module):
    """The same block on two inputs, a checkpoint around each call."""

    def __init__(self, checkpoint=None):
        super().__init__()
        self.blocks = nn.ModuleList(models.MlpBlock() for _ in range(2))
        self.checkpoint = checkpoint or (lambda function, *args: function(*args))

    def forward(self, x, y):
        for block in self.blocks:
            x, y = self.checkpoint(block, x), self.checkpoint(block, y)
        return models.mse(x, torch.tanh(y))


def siamese(checkpoint=None):
    torch.manual_seed(3)
    return Siamese(checkpoint)


def siamese_batch(part, parts):
    batch = dict(models.batch("mlp", 0).items())
    size = models.SAMPLES // parts
    # reentrant checkpoints need an input with a gradient
    return {k: v[part * size : (part + 1) * size].requires_grad_() for k, v in batch.items()}


def plain_siamese():
    model = siamese()
    model(**siamese_batch(0, 1)).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def checkpoint_by(how):
    from shardwise import checkpointing

    if how.startswith("torch"):
        return partial(torch_checkpoint, use_reentrant=how == "torch, reentrant")
    return getattr(checkpointing, how)


def rank_siamese(stage, how):
    ranks = dist.get_world_size()
    model = siamese(checkpoint_by(how))
    config = {
        "train_micro_batch_size_per_gpu": models.SAMPLES // ranks,
        "optimizer": {"type": "AdamW"},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "shardwise": {"poison_released": True},
    }
    with make_engine(model, config) as engine:
        engine.backward(engine(**siamese_batch(dist.get_rank(), ranks)))
        return parity.full_gradients(engine)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "how", ["checkpoint", "non_reentrant_checkpoint", "torch, reentrant", "torch, not reentrant"]
)
def test_AC_03_shared_weights_under_checkpoints(stage, how, pool, reference):
    plain = reference.run(plain_siamese)[0]
    for gradients in pool.run(rank_siamese, stage, how, ranks=2):
        for key, value in plain.items():
            error = (gradients[key] - value).abs().max() / value.abs().max()
            assert error <= 1e-5, f"{key}: {error:.1e}"


# DL-01


@pytest.mark.parametrize(
    "samples,ranks,kept,dropped", [(11_788, 16, 246, 245), (118, 2, 20, 19), (118, 4, 10, 9)]
)
def test_DL_01_the_length_of_the_loader_counts_batches(samples, ranks, kept, dropped):
    from shardwise.data import DistributedLoader

    dataset = torch.arange(samples)
    for drop_last, expected in ((False, kept), (True, dropped)):
        for rank in (0, ranks - 1):
            loader = DistributedLoader(dataset, 3, rank, ranks, drop_last=drop_last)
            batches = list(loader)
            assert len(loader) == len(batches) == expected
            assert {len(batch) for batch in batches[:-1]} == {3}
