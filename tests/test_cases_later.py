"""Cases about starts and ends of jobs, and those that wait for features: today's precise error.

Checkpoints (Z3), elastic restart (LN-03), pipelines (CU-01) and tensor parallelism (XP-03) come
later; until then asking for them names what is missing and what to do instead.
"""

import os
import signal
import socket
import time

import models
import parity
import pytest
import torch
import torch.distributed as dist
from parity import make_engine
from steps import STAGES, config, engine_of, train_step
from test_launcher import Job, job, last_block  # noqa: F401

TIMEOUT = 5

TRAINING = """
import signal, time
sys.path.insert(0, {tests!r})
import models, steps, torch.distributed as dist
import shardwise
engine = steps.engine_of({stage}, train_micro_batch_size_per_gpu=12, gradient_accumulation_steps=1,
                         shardwise={{"timeout_seconds": {timeout}}})
for step in range(1000):
    if step == 2 and rank == 2:
        print("leaving at", time.time(), flush=True)
        {action}
    steps.train_step(engine, step % 5)
"""
ACTIONS = {
    "raises": ("raise ValueError('the reason')", 1),
    "exits": ("os._exit(3)", 3),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL),
    # A stopped rank says nothing: the others report it after the time-out, and end.
    "is stopped": ("os.kill(os.getpid(), signal.SIGSTOP)", 75),
}


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=[pytest.mark.full] * (how == "exits")) for how in ACTIONS]
)
def test_LN_01_a_rank_that_dies_ends_the_job(how, job):  # noqa: F811
    """Four ranks over the launcher: gone within 10 s, with the code and the words of the cause."""
    action, code = ACTIONS[how]
    script = job.script(
        TRAINING.format(tests=os.path.dirname(__file__), stage=2, timeout=TIMEOUT, action=action)
    )
    found, out, err = job.launch(4, "--grace", 1, script, timeout=90)
    ended = time.time()
    left = float(out.split("leaving at ")[1].split()[0])
    assert ended - left < 10 + (TIMEOUT if how == "is stopped" else 0)
    assert found == code, err
    if how == "is stopped":
        assert "rank 2: silent for" in err, err
    else:
        assert "rank 2 (pid" in last_block(err)[0], err
    if how == "raises":
        assert "the reason" in err
    job.assert_gone()


def test_LN_01_the_job_ends_on_two_machines(job, tmp_path):  # noqa: F811
    """Two launchers with two ranks each: what kills a rank of the second ends both."""
    action, code = ACTIONS["exits"]
    script = job.script(
        TRAINING.format(tests=os.path.dirname(__file__), stage=2, timeout=TIMEOUT, action=action)
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = ("--nnodes", 2, "--master-addr", "127.0.0.1", "--master-port", port, "--grace", 1)
    (tmp_path / "second").mkdir()
    second = Job(tmp_path / "second")
    second.start("launch", "-n", 2, *place, "--node-rank", 1, script)
    first_code, _, first_err = job.launch(2, *place, "--node-rank", 0, script, timeout=90)
    out, err = second.process.communicate(timeout=30)
    ended = time.time()
    left = float(out.decode().split("leaving at ")[1].split()[0])
    assert ended - left < 10
    assert second.process.returncode == code, err
    assert "rank 2 (pid" in last_block(err.decode())[0]
    assert first_code == 75, first_err
    job.assert_gone()
    second.assert_gone()


def rank_hashes(stage):
    """Each rank seeds its model differently; the engine trains rank 0's and says what differed."""
    with make_engine(models.build("mlp", seed=dist.get_rank()), config(stage)) as engine:
        for step in range(3):
            train_step(engine, step)
        sums = torch.stack([parameter.double().sum() for parameter in whole_parameters(engine)])
        every = [torch.empty_like(sums) for _ in range(dist.get_world_size())]
        dist.all_gather(every, sums)
        assert all(torch.equal(other, sums) for other in every)
        return engine.state_dict()


def whole_parameters(engine):
    from shardwise.utils import safe_get_full_fp32_param

    return [safe_get_full_fp32_param(p) for p in engine.module.parameters()]


def rank_equal(stage):
    with make_engine(models.build("mlp", seed=0), config(stage)) as engine:
        for step in range(3):
            train_step(engine, step)
        return engine.state_dict()


@STAGES
def test_XP_01_ranks_that_start_from_other_weights(stage, pool):
    outcomes = pool.outcomes(rank_hashes, stage, ranks=2)
    assert all(outcome.kind == "value" for outcome in outcomes), outcomes
    assert any("blocks.0.norm.weight" in outcome.log for outcome in outcomes), "it is said"
    expected = pool.run(rank_equal, stage, ranks=2)[0]
    assert all(torch.equal(outcomes[0].value[name], value) for name, value in expected.items())


def rank_checkpoints(stage):
    with engine_of(stage) as engine:
        for name in ("save_checkpoint", "load_checkpoint", "save_16bit_model"):
            with pytest.raises(AttributeError, match=f"engine.{name} is not available") as caught:
                getattr(engine, name)
            assert "state_dict" in str(caught.value), "what to do instead"


@STAGES
def test_Z3_01_Z3_09_Z3_15_checkpoints_are_not_available(stage, pool):
    """No half-written folder, no rank that waits: the name itself is the error, on each rank."""
    pool.run(rank_checkpoints, stage, ranks=2)


def rank_frozen_weights():
    """What can be saved today has frozen parameters and buffers in full."""
    model = models.build("frozen")
    pattern = torch.arange(models.WIDTH, dtype=torch.float32)
    with torch.no_grad():
        model.blocks[1].norm.weight.copy_(pattern)
    with make_engine(model, config(3)) as engine:
        for step in range(3):
            train_step(engine, step)
        return engine.state_dict()


def test_Z3_01_frozen_weights_are_in_the_state(pool):
    state = pool.run(rank_frozen_weights, ranks=2)[0]
    fresh = models.build("frozen", seed=1)
    fresh.load_state_dict(state)
    assert torch.equal(fresh.blocks[1].norm.weight, torch.arange(models.WIDTH, dtype=torch.float32))
    assert torch.equal(fresh.blocks[3].up.weight, models.build("frozen").blocks[3].up.weight)


UNAVAILABLE = {
    "Z3-03": {"checkpoint": {"writer": {"type": "fast"}}},
    "LN-03": {"elasticity": {"enabled": True}},
    "XP-03": {"tensor_parallel": {"autotp_size": 2}},
    "CU-01": {"pipeline": {"stages": 2}},
}


def rank_unavailable(change):
    settings = parity.config_of(parity.Case(0))
    settings.update(change)
    section = next(iter(change))
    with pytest.raises(ValueError, match=f"{section}.*not available in this version"):
        make_engine(models.build("mlp"), settings)


@pytest.mark.parametrize("case", UNAVAILABLE)
def test_Z3_03_LN_03_XP_03_CU_01_features_that_wait(case, pool):
    pool.run(rank_unavailable, UNAVAILABLE[case], ranks=2)


def rank_on_cpu(stage, dtype):
    settings = config(stage)
    if dtype != "fp32":
        settings[dtype] = {"enabled": True}
    with make_engine(models.build("mlp"), settings) as engine:
        return engine.device.type, dist.get_backend()


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@STAGES
def test_CU_01_without_a_gpu_the_cpu_is_chosen(stage, dtype, pool):
    assert pool.run(rank_on_cpu, stage, dtype, ranks=2) == [("cpu", "gloo")] * 2


def test_CU_01_one_line_says_which_backend_and_why(job):  # noqa: F811
    script = job.script("import shardwise\nshardwise.init_distributed()")
    code, _, err = job.launch(2, script, timeout=60, env={"CUDA_VISIBLE_DEVICES": ""})
    assert code == 0, err
    lines = [line for line in err.splitlines() if "over gloo" in line]
    assert len(lines) == 1
    assert "2 rank(s) on cpu over gloo: torch finds no GPU(s)" in lines[0]
