"""XP-01: ranks whose copies of the weights drift apart later are found within a number of steps."""

import models
import pytest
import torch.distributed as dist
from parity import make_engine
from steps import STAGES, config, train_step

# What rank 1 alone writes to; the second block of the model does not train.
WRITTEN = {"frozen": "blocks.1.up.weight", "whole": "blocks.2.up.weight"}


def rank_drifts(stage, where, every, size=0):
    """Rank 1 changes one number after the first step; returns the step that says so, and how."""
    from shardwise.utils import safe_get_local_fp32_param, safe_set_local_fp32_param

    model = models.build("frozen")
    own = {"check_replicas_every": every, "hybrid_shard_size": size}
    engine = make_engine(model, config(stage, shardwise=own))
    for step in range(5):
        try:
            train_step(engine, step)
        except RuntimeError as error:
            return step + 1, type(error).__name__, str(error)
        if where == "shard" and step == 0:
            weight = model.blocks[2].up.weight
            mine = safe_get_local_fp32_param(weight)
            safe_set_local_fp32_param(weight, mine + 1e-3 * dist.get_rank())
        elif where in WRITTEN and dist.get_rank() == 1 and step == 0:
            model.get_parameter(WRITTEN[where]).data[2, 3] += 1e-3
    engine.destroy()
    return None


@pytest.mark.parametrize(
    ("stage", "where", "name"),
    [(0, "whole", "blocks.2.up.weight"), (2, "frozen", "blocks.1.up.weight"),
     (3, "shard", "blocks.2.up.weight")],
)  # fmt: skip
def test_XP_01_later_drift_is_found(stage, where, name, pool):
    size = int(where == "shard")  # each rank is a replica of its own
    for step, kind, message in pool.run(rank_drifts, stage, where, 2, size, ranks=2):
        assert (step, kind) == (2, "CommunicationError")
        assert f"{name} has other values on rank 1 than on rank 0" in message, message
    assert pool.run(rank_drifts, stage, where, 0, size, ranks=2) == [None, None], "switched off"


@pytest.mark.parametrize("size", [0, 2])
@STAGES
def test_XP_01_equal_replicas_pass(stage, size, pool):
    """Whole and sharded parameters, with replicas and without."""
    assert pool.run(rank_drifts, stage, "nowhere", 1, size, ranks=4) == [None] * 4
