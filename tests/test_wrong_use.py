"""Wrong use and failing processes: a clear error in bounded time, never a crash or a hang."""

import copy
import os
import re
import signal
import threading
import time

import models
import parity
import pytest
import torch
import torch.distributed as dist
from parity import Case, make_engine
from steps import STAGES, samples

TIMEOUT = 5  # seconds; "shardwise.timeout_seconds" of the tests with a dead or stalled rank


def config(stage, accumulation=1, **own):
    return parity.config_of(Case(stage, accumulation=accumulation), shardwise=own)


def message_of(error, function):
    """Calls function, which must raise `error`; the text of the exception."""
    with pytest.raises(error) as caught:
        function()
    return str(caught.value)


# Order of calls


def rank_step_without_backward(stage):
    with make_engine(models.build("mlp"), config(stage)) as engine:
        assert "backward" in message_of(RuntimeError, engine.step)
        engine(**samples())
        assert "backward" in message_of(RuntimeError, engine.step)
        engine.backward(engine(**samples()))
        engine.step()
        assert "backward" in message_of(RuntimeError, engine.step)
        assert engine.global_steps == 1


@STAGES
def test_step_without_backward(stage, pool):
    pool.run(rank_step_without_backward, stage, ranks=2)


def rank_bad_loss():
    with make_engine(models.build("mlp"), config(2)) as engine:
        message = message_of((RuntimeError, ValueError), lambda: engine.backward(torch.ones(3)))
        assert "scalar" in message and "3" in message
        with pytest.raises((TypeError, RuntimeError), match="float"):
            engine.backward(1.0)


def test_backward_of_something_else(pool):
    pool.run(rank_bad_loss, ranks=1)


def rank_double_backward(stage):
    """Every stage serves a loss that is made of a gradient."""
    batch = samples()
    batch["x"].requires_grad_()
    with make_engine(models.build("mlp"), config(stage)) as engine:
        loss = engine(**batch)
        (grad,) = torch.autograd.grad(loss, batch["x"], create_graph=True)
        engine.backward(grad.pow(2).sum())
        got = parity.full_gradients(engine)
    expected = penalty_gradients(dist.get_world_size())
    found = parity.relative_errors(got, {"gradients": expected}, "gradients")
    assert found.keys() == got.keys()
    assert max(found.values()) <= 1e-5, found


def penalty_gradients(world):
    model = models.build("mlp")
    for micro in models.micro_batches("mlp", 0, world, "cpu", torch.float32):
        micro["x"].requires_grad_()
        (grad,) = torch.autograd.grad(model(**micro), micro["x"], create_graph=True)
        (grad.pow(2).sum() / world).backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@STAGES
def test_double_backward(stage, pool):
    pool.run(rank_double_backward, stage, ranks=2)


# Parameters


def rank_read_released():
    model = models.build("mlp")
    with make_engine(model, config(3)) as engine:
        engine.backward(engine(**samples()))
        engine.step()
        p = model.blocks[2].up.weight
        reads = {
            "add": lambda: p + 1,
            "print": lambda: str(p),
            "clone": lambda: p.clone(),
            "deepcopy": lambda: copy.deepcopy(p),
            "item": lambda: p[0, 0].item(),
            "numpy": lambda: p.detach().numpy().sum(),
            "copy": lambda: torch.empty_like(p).copy_(p),
            "write": lambda: p.data.fill_(0.0),
        }
        for name, read in reads.items():
            message = message_of(RuntimeError, read)
            assert "blocks.2" in message, f"{name}: {message}"
            assert "GatheredParameters" in message, f"{name}: {message}"
        message = message_of(RuntimeError, reads["clone"])
        assert "one of the parameters" in message and "(Float)" not in message
        assert "and 3 more of unit blocks.2 is released" in message
        engine.backward(engine(**samples(1)))
        engine.step()
        assert engine.global_steps == 2


def test_released_parameter_is_not_readable(pool):
    pool.run(rank_read_released, ranks=2)


def rank_module_of_released(how):
    """What needs the whole module's weights either gives the right ones or refuses by name."""
    model = models.build("mlp")
    original = {n: p.detach().clone() for n, p in model.named_parameters()}
    with make_engine(model, config(3)) as engine:
        try:
            state = {
                "state_dict": lambda: model.state_dict(),
                "deepcopy": lambda: dict(copy.deepcopy(model).named_parameters()),
            }[how]()
            for name, value in (state or {}).items():
                assert torch.equal(value, original[name])
        except RuntimeError as error:
            assert "GatheredParameters" in str(error) or "engine.state_dict" in str(error)
        train = engine(**samples())
        assert torch.isfinite(train)


@pytest.mark.parametrize("how", ["state_dict", "deepcopy"])
def test_module_level_reads_under_stage_3(how, pool):
    pool.run(rank_module_of_released, how, ranks=2)


def rank_changed_shape(stage):
    model = models.build("mlp")
    with make_engine(model, config(stage)) as engine:
        engine.backward(engine(**samples()))
        engine.step()
        model.blocks[1].up.bias.data = torch.zeros(3)

        def use():
            engine.backward(engine(**samples(1)))
            engine.step()

        message = message_of((RuntimeError, ValueError), use)
        assert "blocks.1.up.bias" in message and "shape" in message, message


@STAGES
def test_parameter_changed_in_shape(stage, pool):
    pool.run(rank_changed_shape, stage, ranks=2)


def rank_slice_alias():
    model = models.build("mlp")
    model.blocks[1].down.bias = torch.nn.Parameter(model.blocks[1].up.weight.data[0])
    message = message_of((ValueError, RuntimeError), lambda: make_engine(model, config(2)))
    assert "blocks.1.up.weight" in message and "blocks.1.down.bias" in message


def test_parameter_that_aliases_a_slice(pool):
    pool.run(rank_slice_alias, ranks=1)


# Non-finite gradients


def rank_nan(stage, dtype, times):
    settings = config(stage)
    if dtype != "fp32":
        settings[dtype] = {"enabled": True}
    model = models.build("mlp")
    broken = [True]
    if dist.get_rank() == 1:  # one parameter of one rank gets NaN while `broken`
        weight = model.blocks[3].up.weight
        weight.register_hook(lambda g: g * float("nan") if broken[0] else None)
    kind = parity.reference.DTYPES[dtype]
    micro = {k: v.to(kind) for k, v in samples().items()}
    with make_engine(model, settings) as engine:
        before = engine.state_dict()
        for _ in range(times):
            engine.backward(engine(**micro))
            engine.step()
            assert not engine.was_step_applied()
        after = engine.state_dict()
        assert all(torch.equal(before[n], after[n]) for n in before)
        assert engine.skipped_steps == times
        broken[0] = False
        engine.backward(engine(**micro))
        engine.step()
        assert engine.was_step_applied()
        after = engine.state_dict()
        assert all(not torch.equal(before[n], after[n]) for n in before)
        assert all(torch.isfinite(w).all() for w in after.values())


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@STAGES
def test_nan_gradients_are_skipped_and_named(stage, dtype, pool):
    outcomes = pool.outcomes(rank_nan, stage, dtype, 2, ranks=2)
    assert [o.kind for o in outcomes] == ["value"] * 2, outcomes
    text = "\n".join(o.log for o in outcomes)
    assert "blocks.3.up.weight" in text and re.search(r"rank \d", text), text


def rank_nan_for_ever():
    model = models.build("mlp")
    with make_engine(model, config(2)) as engine:

        def run():
            for _ in range(25):
                engine.backward(engine(**samples()) * float("nan"))
                engine.step()

        message = message_of(RuntimeError, run)
        assert engine.skipped_steps in (19, 20)
        assert "20" in message


def test_nan_for_ever_is_an_error(pool):
    pool.run(rank_nan_for_ever, ranks=2)


def rank_nan_raise():
    with make_engine(models.build("mlp"), config(1, non_finite="raise")) as engine:
        engine.backward(engine(**samples()) * float("nan"))
        message = message_of(RuntimeError, engine.step)
        assert "finite" in message and "blocks." in message, message


def test_non_finite_raise(pool):
    pool.run(rank_nan_raise, ranks=2)


# Ranks that differ


def rank_other_shapes(stage):
    model = models.Mlp(width=32)
    if dist.get_rank() == 1:
        model.blocks[1] = models.MlpBlock(32, hidden=48)
    message = message_of((RuntimeError, ValueError), lambda: make_engine(model, config(stage)))
    assert "blocks.1.up.weight" in message
    assert "48" in message and "64" in message
    return message


@STAGES
def test_ranks_with_other_shapes(stage, pool):
    for message in pool.run(rank_other_shapes, stage, ranks=2, timeout=60):
        assert "rank" in message


def rank_other_count():
    layers = 5 + dist.get_rank()
    make = lambda: make_engine(models.Mlp(layers), config(3))  # noqa: E731
    assert "blocks.5" in message_of((RuntimeError, ValueError), make)


def test_ranks_with_another_number_of_parameters(pool):
    pool.run(rank_other_count, ranks=3, timeout=60)


def swapped(swap):
    """The model with two equal blocks called in the other order, where asked."""
    model = models.build("mlp")
    order = [0, 2, 1, 3, 4] if swap else range(5)

    def forward(self, x, y):
        for index in order:
            x = self.blocks[index](x)
        return models.mse(self.head(x), y)

    model.forward = forward.__get__(model)
    return model


def rank_swapped_gathers(prefetch):
    settings = config(3, timeout_seconds=TIMEOUT)
    settings["zero_optimization"]["stage3_prefetch_bucket_size"] = prefetch
    engine = make_engine(swapped(dist.get_rank() == 1), settings)

    def run():
        engine.backward(engine(**samples()))
        engine.step()

    message = message_of(RuntimeError, run)
    assert "blocks.1" in message and "blocks.2" in message, message
    assert "rank 0" in message and "rank 1" in message and "order" in message, message
    assert engine.global_steps == 0


@pytest.mark.parametrize("prefetch", [0, 10**9])
def test_swapped_blocks_are_an_error_under_stage_3(prefetch, own_pool):
    """Messages of equal size: without a check nothing would hang and the weights would mix."""
    own_pool(2).run(rank_swapped_gathers, prefetch, ranks=2, timeout=60)


def rank_swapped_gradients(stage):
    """Below stage 3 only gradients travel: each parameter gets its own mean."""
    expected = None
    for rank, micro in enumerate(models.micro_batches("mlp", 0, 2, "cpu", torch.float32)):
        model = swapped(rank == 1)
        (model(**micro) / 2).backward()
        grads = {n: p.grad for n, p in model.named_parameters()}
        expected = grads if expected is None else {n: g + expected[n] for n, g in grads.items()}
    engine = make_engine(swapped(dist.get_rank() == 1), config(stage, timeout_seconds=TIMEOUT))
    engine.backward(engine(**samples()))
    for name, grad in parity.full_gradients(engine).items():
        torch.testing.assert_close(grad, expected[name])


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_swapped_blocks_do_not_mix_gradients(stage, own_pool):
    own_pool(2).run(rank_swapped_gradients, stage, ranks=2, timeout=60)


CALLS = {"three times": [0, 0, 0, 1, 2, 3, 4], "not at all": [1, 2, 3, 4], "last": [1, 2, 3, 4, 0]}


def rank_called_otherwise(how):
    """One block is called once on rank 0, and as `how` says on rank 1."""
    model = models.build("mlp")
    order = CALLS[how] if dist.get_rank() else range(5)

    def forward(self, x, y):
        for index in order:
            x = self.blocks[index](x)
        return models.mse(self.head(x), y)

    model.forward = forward.__get__(model)
    engine = make_engine(model, config(3, timeout_seconds=TIMEOUT))
    start = time.monotonic()

    def run():
        for step in range(3):
            engine.backward(engine(**samples(step)))
            engine.step()

    message = message_of(RuntimeError, run)
    assert time.monotonic() - start < 3 * TIMEOUT
    assert f"rank {dist.get_rank()}" in message and "blocks." in message, message


@pytest.mark.parametrize("how", CALLS)
def test_a_block_called_otherwise_on_one_rank(how, own_pool):
    own_pool(2).run(rank_called_otherwise, how, ranks=2, timeout=60)


# Processes that die or stall


def rank_until(victim, stage, action):
    """Trains for ever; the victim leaves in the middle of its third forward."""
    model = models.build("mlp")
    if dist.get_rank() == victim:
        calls = [0]

        def leave(module, inputs):
            calls[0] += 1
            if calls[0] == 3:
                os.kill(os.getpid(), getattr(signal, action))

        model.blocks[2].register_forward_pre_hook(leave)
    engine = make_engine(model, config(stage, timeout_seconds=TIMEOUT))
    last = time.monotonic()
    try:
        for step in range(1000):
            engine.backward(engine(**samples(step % 5)))
            engine.step()
            last = time.monotonic()
    except RuntimeError as error:
        return time.monotonic() - last, str(error)
    raise AssertionError("trained on without the victim")


STALLS = [pytest.param("SIGSTOP", s, marks=[pytest.mark.full] * (s in (1, 2))) for s in range(4)]


@pytest.mark.parametrize("action,stage", [*(("SIGKILL", s) for s in range(4)), *STALLS])
def test_a_rank_that_dies_or_stalls(stage, action, own_pool):
    victim = 1
    pool = own_pool(3)
    stopped = [victim] if action == "SIGSTOP" else []
    outcomes = pool.outcomes(
        rank_until, victim, stage, action, ranks=3, timeout=60, stopped=stopped
    )
    processes = [w.process for w in pool.workers]
    gone = {"SIGKILL": "died", "SIGSTOP": "silent"}[action]
    assert outcomes[victim].kind == gone
    for rank in (0, 2):
        assert outcomes[rank].kind == "value", outcomes[rank].describe()
        seconds, message = outcomes[rank].value
        assert seconds < TIMEOUT + 5, f"rank {rank} noticed after {seconds:.1f} s"
        assert f"rank {rank}" in message, message
        collectives = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast")
        assert any(name in message for name in collectives), message
    pool.close()
    assert not any(p.is_alive() for p in processes)


def rank_leaves_early():
    """Rank 1 has one batch less: the others report a time-out that names where they wait."""
    engine = make_engine(models.build("mlp"), config(2, timeout_seconds=TIMEOUT))
    for step in range(3 - dist.get_rank()):
        engine.backward(engine(**samples(step)))
        engine.step()
    if dist.get_rank() == 0:
        raise AssertionError("rank 0 finished a step without rank 1")
    time.sleep(TIMEOUT + 5)


def test_a_rank_with_fewer_batches(own_pool):
    outcome = own_pool(2).outcomes(rank_leaves_early, ranks=2, timeout=40, stopped=[1])[0]
    assert outcome.kind == "error"
    first_line = outcome.value.splitlines()[0]
    assert "rank 0" in first_line and "AssertionError" not in first_line, outcome.describe()


def rank_flushes_alone(stage, counts):
    settings = config(stage, accumulation=4, timeout_seconds=TIMEOUT)
    engine = make_engine(models.build("mlp"), settings)

    def run():
        for step in range(counts[dist.get_rank()]):
            engine.backward(engine(**samples(step)))
            engine.step()
        engine.flush_accumulation()

    message = message_of(RuntimeError, run)
    if dist.get_rank() == 1:  # the other may only see that this one has gone
        assert "unfinished window" in message, message
    assert "rank 0" in message and "rank 1" in message, message


@pytest.mark.parametrize("stage,counts", [(1, (4, 3)), (2, (3, 2)), (3, (3, 2))])
def test_a_flush_against_training(stage, counts, own_pool):
    """A full window on one rank against a flush on the other, or micro-batches that travel."""
    own_pool(2).run(rank_flushes_alone, stage, counts, ranks=2, timeout=60)


def rank_other_rates(stage):
    engine = make_engine(models.build("mlp"), config(stage))
    rank = dist.get_rank()
    group = engine.optimizer.param_groups[0]
    for key in ("lr", "weight_decay"):
        before = group[key]
        group[key] = 0.5 if rank == 1 else before
        message = message_of(RuntimeError, lambda: train(engine))
        assert f'param_groups[0]["{key}"] = 0.5' in message, message
        assert "rank 1" in message and "rank 0" in message and "not applied" in message, message
        group[key] = before
    train(engine)
    assert engine.was_step_applied()
    engine.destroy()


def train(engine):
    engine.backward(engine(**samples()))
    engine.step()


@pytest.mark.parametrize("stage", [0, 3])
def test_values_of_groups_that_differ_between_ranks(stage, pool):
    pool.run(rank_other_rates, stage, ranks=2)


# Configuration


def rank_bad_config(change, error, words):
    settings = config(0)
    for path, value in change.items():
        section, _, key = path.rpartition(".")
        target = settings.setdefault(section, {}) if section else settings
        if value is None:
            target.pop(key)
        else:
            target[key] = value
    message = message_of(error, lambda: make_engine(models.build("mlp"), settings))
    for word in words:
        assert word in message, message


BAD_CONFIGS = {
    "world": ({"train_batch_size": 7}, ["train_batch_size", "7", "48"]),
    "typo": ({"zero_optimization.stge": 2}, ["zero_optimization.stge", "stage"]),
    "range": ({"zero_optimization.stage": 4}, ["zero_optimization.stage", "4"]),
    "type": ({"gradient_clipping": "much"}, ["gradient_clipping", "much"]),
    "both": ({"fp16.enabled": True, "bf16.enabled": True}, ["fp16", "bf16"]),
    "auto": ({"train_micro_batch_size_per_gpu": "auto"}, ["train_micro_batch_size_per_gpu"]),
    "unbuilt": ({"zero_optimization.offload_param": {"device": "cpu"}}, ["offload_param"]),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_bad_configuration(name, pool):
    change, words = BAD_CONFIGS[name]
    pool.run(rank_bad_config, change, ValueError, words, ranks=2)


def rank_missing_file():
    path = "no/such/config.json"
    message = message_of((OSError, ValueError), lambda: make_engine(models.build("mlp"), path))
    assert path in message


def test_missing_config_file(pool):
    pool.run(rank_missing_file, ranks=1)


def rank_missing_arguments():
    import shardwise

    with pytest.raises((RuntimeError, TypeError), match="model"):
        shardwise.initialize(config=config(0))
    with pytest.raises((ValueError, TypeError), match="config"):
        shardwise.initialize(model=models.build("mlp"))
    settings = config(2)
    del settings["optimizer"]
    with pytest.raises((RuntimeError, ValueError), match="optimizer"):
        engine = shardwise.initialize(model=models.build("mlp"), config=settings)[0]
        engine.backward(engine(**samples()))
        engine.step()


def test_missing_arguments(pool):
    pool.run(rank_missing_arguments, ranks=1)


def rank_recovers_from_an_exception(stage):
    """An exception in the middle of forward or backward leaves an engine that trains on."""
    model = models.build("mlp")
    fail = [None]

    def hook(module, *_):
        if fail[0] == "forward":
            raise KeyError("user's own error")

    def backward_hook(grad):
        if fail[0] == "backward":
            raise KeyError("user's own error")

    model.blocks[2].register_forward_pre_hook(hook)
    settings = config(stage)
    with make_engine(model, settings) as engine:
        expected = [parity.accumulate(engine, Case(stage), s, "cpu") for s in (0,)]
        engine.step()
        fail[0] = "forward"
        with pytest.raises(KeyError, match="user's own"):
            engine(**samples(1))
        fail[0] = "backward"
        batch = samples(1)
        batch["x"].requires_grad_()
        batch["x"].register_hook(backward_hook)
        with pytest.raises(KeyError, match="user's own"):
            engine.backward(engine(**batch))
        fail[0] = None
        engine.zero_grad()
        expected.append(parity.accumulate(engine, Case(stage), 1, "cpu"))
        engine.step()
    with make_engine(models.build("mlp"), settings) as engine:
        for step, loss in enumerate(expected):
            assert parity.accumulate(engine, Case(stage), step, "cpu") == loss
            engine.step()


@STAGES
def test_an_exception_of_the_user_passes_through(stage, pool):
    pool.run(rank_recovers_from_an_exception, stage, ranks=2)


# Hints


def rank_names_that_deepspeed_has():
    import shardwise

    with make_engine(models.build("mlp"), config(1)) as engine:
        assert "state_dict" in message_of(AttributeError, lambda: engine.save_checkpoint("x"))
        assert "no attribute" in message_of(AttributeError, lambda: engine.no_such_thing)
        assert not hasattr(engine, "train_batch")
    assert "not available" in message_of(AttributeError, lambda: shardwise.zero.TiledLinear)
    assert "not available" in message_of(AttributeError, lambda: shardwise.init_inference)
    assert "no attribute" in message_of(AttributeError, lambda: shardwise.nonsense)


def test_missing_names_of_deepspeed_are_explained(pool):
    pool.run(rank_names_that_deepspeed_has, ranks=1)


def rank_float_inputs():
    settings = {**config(1), "bf16": {"enabled": True}}
    with make_engine(models.build("mlp"), settings) as engine:
        message = message_of(RuntimeError, lambda: engine(**samples()))
        assert "torch.float32" in message and ".to(torch.bfloat16)" in message
        engine(**{key: value.bfloat16() for key, value in samples().items()})


def test_inputs_in_another_dtype_are_explained(pool):
    pool.run(rank_float_inputs, ranks=1)


def rank_schedule_class():
    schedule = torch.optim.lr_scheduler.StepLR
    with pytest.raises(TypeError, match="step_size"):
        make_engine(models.build("mlp"), config(0), lr_scheduler=schedule)


def test_a_schedule_class_is_called(pool):
    pool.run(rank_schedule_class, ranks=1)


def rank_says(what):
    """What rank 0 prints during a piece of training."""
    import contextlib
    import io
    import tempfile

    with tempfile.TemporaryFile() as file, contextlib.redirect_stderr(io.StringIO()) as python:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)  # lines of the C++ core
        try:
            what()
        finally:
            os.dup2(saved, 2)
            os.close(saved)
        file.seek(0)
        return file.read().decode() + python.getvalue()


def overflow():
    settings = {**config(1), "fp16": {"enabled": True, "initial_scale_power": 24}}
    with make_engine(models.build("mlp"), settings) as engine:
        engine.backward(engine(**{k: v.half() for k, v in samples().items()}))
        engine.step()
        assert not engine.was_step_applied()


def forgotten_gradients():
    with make_engine(models.build("mlp"), config(1, accumulation=2)) as engine:
        for _ in range(2):
            engine.zero_grad()
            engine.backward(engine(**samples()))
            engine.step()


def nothing_sharded():
    settings = config(3)
    settings["zero_optimization"].pop("stage3_param_persistence_threshold")
    make_engine(models.build("mlp"), settings).destroy()


def two_optimizers():
    model = models.build("mlp")
    make_engine(model, config(0), optimizer=torch.optim.SGD(model.parameters(), lr=1)).destroy()


SAID = {
    overflow: ["step skipped", "at loss scale 1.67", "the scale is now"],
    forgotten_gradients: ["zero_grad() in the middle"],
    nothing_sharded: ["stage3_param_persistence_threshold = 100000"],
    two_optimizers: ["initialize(optimizer=) is used", "AdamW"],
}


@pytest.mark.parametrize("what", SAID, ids=lambda what: what.__name__)
def test_what_surprises_is_said(what, pool):
    (text,) = pool.run(rank_says, what, ranks=1)
    assert all(words in text for words in SAID[what]), text


def rank_tries_again(stage):
    """What fails in initialize() leaves the model as it was."""
    import shardwise

    model = models.build("mlp")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    full = config(stage, activation_checkpointing="full")
    alone = torch.nn.Linear(models.WIDTH, 1)  # has no blocks
    threads = threading.active_count()
    for words, arguments in (
        ("lr_scheduler must be", {"model": model, "config": config(stage), "lr_scheduler": 5}),
        ("no|none were found", {"model": alone, "config": full}),
    ):
        with pytest.raises((RuntimeError, ValueError), match=words):
            shardwise.initialize(**arguments)
    assert threading.active_count() == threads
    assert torch.isfinite(alone.weight).all()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
    with make_engine(model, config(stage)) as engine:
        engine.backward(engine(**samples()))
        engine.step()
        assert engine.was_step_applied()


@pytest.mark.parametrize("stage", [0, 3])
def test_initialize_that_fails_can_be_tried_again(stage, pool):
    pool.run(rank_tries_again, stage, ranks=2)


def rank_settings_by_value():
    """Settings whose text differs between ranks though their values do not."""

    class Named:
        pass

    model = models.build("mlp")
    groups = [{"params": list(model.parameters()), "lr": torch.tensor(1e-3), "tag": Named()}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    plain = config(1)
    del plain["optimizer"]
    with make_engine(model, plain, optimizer=optimizer) as engine:
        engine.backward(engine(**samples()))
        engine.step()
        engine.optimizer.param_groups[0]["lr"] = 0.5
        assert engine.was_step_applied()


def test_settings_are_compared_by_value(pool):
    pool.run(rank_settings_by_value, ranks=2)


def rank_bad_betas(betas):
    with make_engine(models.build("mlp"), config(0)) as engine:
        engine.backward(engine(**samples()))
        engine.optimizer.param_groups[0]["betas"] = betas
        with pytest.raises(RuntimeError, match="betas.*two finite numbers"):
            engine.step()


@pytest.mark.parametrize("betas", [(0.9,), (0.9, float("nan")), None])
def test_betas_that_are_none(betas, pool):
    pool.run(rank_bad_betas, betas, ranks=1)
