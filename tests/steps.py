"""What the tests of the Python front share: a configuration, an engine, samples, one step."""

import models
import parity
import pytest
import torch
import torch.distributed as dist

STAGES = pytest.mark.parametrize("stage", [0, 1, 2, 3])


def config(stage=0, accumulation=1, **more):
    """A configuration for the MLP on two ranks; `more` replaces or adds keys."""
    return {**parity.config_of(parity.Case(stage, accumulation=accumulation)), **more}


def engine_of(stage=0, accumulation=1, **more):
    return parity.make_engine(models.build("mlp"), config(stage, accumulation, **more))


def samples(step=0):
    """This rank's share of a step's samples, as one micro-batch."""
    world = dist.get_world_size()
    return models.micro_batches("mlp", step, world, "cpu", torch.float32)[dist.get_rank()]


def train_step(engine, step=0):
    loss = engine(**samples(step))
    engine.backward(loss)
    engine.step()
    return loss.item()
