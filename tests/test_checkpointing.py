"""Activation checkpointing: the same numbers as without, from activations that are not kept."""

import copy
import io
import warnings

import models
import parity
import pytest
import torch
import torch.distributed as dist
from kept_bytes import kept_bytes
from parity import make_engine
from torch import nn


class Noisy(nn.Module):
    """Dropout; two inputs, one by keyword, and an option; a tuple with a dict inside."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(models.WIDTH, models.WIDTH)
        self.dropout = nn.Dropout(0.3)
        self.calls = 0

    def forward(self, left, factor, *, right=None, skip=True):
        self.calls += 1
        mixed = self.dropout(torch.tanh(self.linear(left))) * factor
        return (mixed + left if skip else mixed), {"right": right + mixed, "name": "noisy"}


class Chain(nn.Module):
    """Blocks of it, each under ``checkpoint`` where there is one."""

    def __init__(self, checkpoint=None, frozen=()):
        super().__init__()
        self.embed = nn.Linear(models.WIDTH, models.WIDTH)
        self.blocks = nn.ModuleList(Noisy() for _ in range(3))
        self.checkpoint = checkpoint or (lambda function, *args, **kw: function(*args, **kw))
        for index in frozen:
            self.blocks[index].requires_grad_(False)

    def forward(self, x, y):
        left, right = self.embed(x), y
        for block in self.blocks:
            left, rest = self.checkpoint(block, left, 0.5, right=right, skip=True)
            right = rest["right"]
            assert rest["name"] == "noisy"
        return models.mse(left + right, y)


def rank_chain(stage, name, frozen=(), settings=None):
    """Loss, gradients and calls of the first block after one forward and backward."""
    from shardwise import checkpointing

    torch.manual_seed(0)
    model = Chain(getattr(checkpointing, name) if name else None, frozen)
    ranks = dist.get_world_size()
    config = {
        "train_micro_batch_size_per_gpu": models.SAMPLES // ranks,
        "optimizer": {"type": "AdamW"},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "shardwise": {"poison_released": True, **(settings or {})},
    }
    with make_engine(model, config) as engine:
        torch.manual_seed(7 + dist.get_rank())
        micros = models.micro_batches("mlp", 0, ranks, "cpu", torch.float32)
        loss = engine(**micros[dist.get_rank()])
        engine.backward(loss)
        drawn = torch.rand(1).item()  # the generator stands where it would without checkpoints
        return loss.item(), drawn, parity.full_gradients(engine), model.blocks[0].calls


def assert_same(got, plain):
    assert got[:2] == plain[:2]
    assert got[2].keys() == plain[2].keys()
    for key, value in plain[2].items():
        assert torch.equal(got[2][key], value), key


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["checkpoint", "non_reentrant_checkpoint"])
def test_dropout_keywords_and_nested_results(stage, name, pool):
    plain = pool.run(rank_chain, stage, None, ranks=2)
    got = pool.run(rank_chain, stage, name, ranks=2)
    for mine, its in zip(got, plain, strict=True):
        assert_same(mine, its)
        assert its[3] == 1
        assert mine[3] == 2, "the block was not computed again"


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("name", ["checkpoint", "non_reentrant_checkpoint"])
def test_frozen_blocks(stage, name, pool):
    plain = pool.run(rank_chain, stage, None, (1,), ranks=2)
    got = pool.run(rank_chain, stage, name, (1,), ranks=2)
    for mine, its in zip(got, plain, strict=True):
        assert_same(mine, its)


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("setting", ["full", "selective"])
def test_every_block_of_any_model_is_recomputed(stage, setting, pool):
    plain = pool.run(rank_chain, stage, None, ranks=2)
    settings = {"activation_checkpointing": setting}
    got = pool.run(rank_chain, stage, None, settings=settings, ranks=2)
    for mine, its in zip(got, plain, strict=True):
        assert_same(mine, its)
        assert mine[3] == 2


def rank_hugging_face(model, stage, setting):
    module = models.build(model)
    module.config.use_cache = True  # a cache that recomputation must not fill twice
    forwards = [vars(block).get("forward") for block in module.modules()]
    case = parity.Case(stage, model)
    record = []
    config = parity.config_of(case, shardwise={"activation_checkpointing": setting})
    with make_engine(module, config) as engine:
        for step in range(2):
            record.append(parity.accumulate(engine, case, step, "cpu"))
            engine.step()
            record.append(engine.get_global_grad_norm())
        record.append({n: c["bytes"] for n, c in engine.comm_counters().items()})
    assert forwards == [vars(block).get("forward") for block in module.modules()]
    return record


@pytest.mark.parametrize("model", ["gpt2", "llama"])
@pytest.mark.parametrize("stage", [0, 3])
def test_hugging_face_models(model, stage, pool):
    """Losses, norms and traffic are those without checkpointing."""
    plain = pool.run(rank_hugging_face, model, stage, "off", ranks=2)
    for setting in ("full", "selective"):
        assert pool.run(rank_hugging_face, model, stage, setting, ranks=2) == plain


def saved_and_loaded(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def own_forward(module):
    """A forward that is the module's own attribute, as frameworks hang on."""

    def forward(x):
        return 2 * module.linear(x)

    return forward


def rank_copies(setting, stage):
    """Copies compute with their own weights, whatever becomes of the engine's."""
    import shardwise

    model = models.build("blocks")
    batch = models.micro_batches("blocks", 0, 1, "cpu", torch.float32)[0]
    config = parity.config_of(
        parity.Case(stage, "blocks", ranks=1), shardwise={"activation_checkpointing": setting}
    )
    with make_engine(model, config) as engine:
        loss = engine(**batch)
        before = engine.state_dict()
        with shardwise.zero.GatheredParameters(list(model.parameters())):
            copies = [copy.deepcopy(model), saved_and_loaded(model)]
        engine.backward(loss)
        engine.step()
        after = engine(**batch).item()
        assert after != loss.item()
        for other in copies:
            assert other(**batch).item() == loss.item()
            other(**batch).backward()
            assert all(p.grad is not None for p in other.parameters())
            other.load_state_dict(engine.state_dict())
            assert other(**batch).item() == after
            again = copy.deepcopy(other)
            again.load_state_dict(before)
            assert again(**batch).item() == loss.item()
            with make_engine(again, config) as second:
                second.backward(second(**batch))
                second.step()
                assert second(**batch).item() == after
        assert engine(**batch).item() == after


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("setting", ["off", "full", "selective"])
def test_copies_of_the_module_are_right_by_themselves(setting, stage, pool):
    pool.run(rank_copies, setting, stage, ranks=1)


def test_a_forward_of_the_modules_own_is_copied_as_without_checkpoints():
    from shardwise.block_checkpoints import BlockCheckpoints

    block = InPlace()
    block.forward = own_forward(block)
    checkpoints = BlockCheckpoints([block])
    copied = copy.deepcopy(block)
    checkpoints.restore()
    assert copied.forward is copy.deepcopy(block).forward is block.forward


def rank_kept_bytes(setting):
    """Bytes that the third of three blocks of Hugging Face's GPT-2 keeps for backward."""
    from transformers import GPT2Config, GPT2LMHeadModel

    ids = models.batch("gpt2", 0)["input_ids"][:2]
    kept = {}
    for depth in (2, 3):
        shape = models.build("gpt2").config.to_dict() | {"n_layer": depth}
        config = parity.config_of(
            parity.Case(0, ranks=1), shardwise={"activation_checkpointing": setting}
        )
        with make_engine(GPT2LMHeadModel(GPT2Config(**shape)), config) as engine:
            engine(input_ids=ids, labels=ids)
            kept[depth] = kept_bytes(lambda e=engine: e(input_ids=ids, labels=ids).loss)
    return kept[3] - kept[2], ids.numel(), shape["n_embd"], shape["n_head"]


def test_bytes_that_a_block_keeps(pool):
    """full: its input. selective: its input, the results of its four products (3 + 1 + 4 + 1
    widths), and attention's result and statistics."""
    kept = {s: pool.run(rank_kept_bytes, s, ranks=1)[0] for s in ("off", "selective", "full")}
    _, tokens, width, heads = kept["off"]
    assert kept["full"][0] == 4 * tokens * width
    assert kept["selective"][0] == 4 * tokens * (11 * width + heads)
    assert kept["off"][0] > kept["selective"][0]


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(models.WIDTH, models.WIDTH)

    def forward(self, x):
        return self.linear(x).relu_()


def rank_refusals():
    """What torch cannot recompute selectively is refused with the setting's name."""
    from shardwise import UsageError

    blocks = nn.Sequential(*(InPlace() for _ in range(3)))
    x = torch.ones(2, models.WIDTH)
    for model, passes, pattern in (
        (blocks, 1, "in place"),
        (models.BlocksOnly(3, models.WIDTH), 2, "two backward passes"),
    ):
        config = parity.config_of(
            parity.Case(0, ranks=1), shardwise={"activation_checkpointing": "selective"}
        )
        with make_engine(model, config) as engine:
            loss = engine(x).mean() if model is blocks else engine(x, x)
            with pytest.raises(UsageError, match=pattern + '.*write "full"'):
                for _ in range(passes):
                    engine.backward(loss, retain_graph=True)


def test_refusals(pool):
    pool.run(rank_refusals, ranks=1)


def test_attention_with_dropout_is_recomputed():
    """Its random numbers would else be missing from the sequence that later calls draw from."""
    from shardwise.dear_results import policy
    from torch.utils.checkpoint import CheckpointPolicy

    attention = torch.ops.aten._scaled_dot_product_efficient_attention.default
    q = torch.ones(1, 1, 1, 8)
    call = (None, attention, q, q, q, None, True)
    assert policy(*call) == policy(*call, 0.0) == CheckpointPolicy.MUST_SAVE
    assert policy(*call, 0.1) == CheckpointPolicy.PREFER_RECOMPUTE
    assert policy(*call, dropout_p=0.1) == CheckpointPolicy.PREFER_RECOMPUTE


def rank_settings():
    from shardwise import ConfigError, UsageError, checkpointing

    for model, setting, pattern in (
        ("mlp", "some", "allowed: "),
        ("tiny", "full", '"full" recomputes blocks.*shardwise.units'),
        ("tiny", "selective", '"selective" recomputes blocks.*shardwise.units'),
    ):
        config = parity.config_of(
            parity.Case(0, model, ranks=1), shardwise={"activation_checkpointing": setting}
        )
        with pytest.raises(ConfigError, match=pattern):
            make_engine(models.build(model), config)

    configured = checkpointing.is_configured()
    config = parity.config_of(parity.Case(0, ranks=1))
    config["activation_checkpointing"] = {
        "partition_activations": True,  # cannot act: no rank holds another's activations
        "contiguous_memory_optimization": True,
        "number_checkpoints": 4,
        "cpu_checkpointing": True,
    }
    with make_engine(models.build("mlp"), config):
        assert checkpointing.is_configured() == configured, "that is for the program to do"
    checkpointing.configure(None, deepspeed_config=config, checkpoint_in_cpu=False)
    assert checkpointing.is_configured()
    checkpointing.reset()
    checkpointing.set_num_layers(4)

    class Grid:
        def get_model_parallel_world_size(self):
            return 2

    checkpointing.configure(Grid(), partition_activations=False)
    with pytest.raises(UsageError, match="partition_activations.*2 ranks"):
        checkpointing.configure(Grid(), partition_activations=True)
    with pytest.raises(UsageError, match="wall_clock_breakdown"):
        checkpointing.configure(None, profile=True)


class Watching(nn.Module):
    """Notes where the inputs of its checkpoint are kept, in both runs of it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(models.WIDTH, models.WIDTH)
        self.seen = []

    def part(self, x):
        from shardwise import checkpointing

        self.seen.append(checkpointing.inputs_in_force().on_host)
        return self.linear(x)

    def forward(self, x):
        from shardwise import checkpointing

        return checkpointing.checkpoint(self.part, x).mean()


def rank_two_engines():
    from contextlib import ExitStack

    from shardwise import checkpointing

    x = torch.ones(2, models.WIDTH, requires_grad=True)
    sections = ({"cpu_checkpointing": True}, {"cpu_checkpointing": False}, None)
    expected = {False: [True, False, False], True: [True, False, True]}
    with ExitStack() as stack:
        engines = []
        for section in sections:
            config = parity.config_of(parity.Case(0, ranks=1))
            if section is not None:
                config["activation_checkpointing"] = section
            engines.append(stack.enter_context(make_engine(Watching(), config)))
        for on_host in (False, True):
            checkpointing.configure(checkpoint_in_cpu=on_host)
            losses = [engine(x) for engine in engines]
            for engine, loss in zip(engines, losses, strict=True):
                engine.backward(loss)
                engine.step()
            for engine, wanted in zip(engines, expected[on_host], strict=True):
                assert engine.module.seen == [wanted, wanted]
                engine.module.seen.clear()
            plain = Watching()
            plain(x).backward()
            assert plain.seen == [on_host, on_host], "the program's own"
    checkpointing.configure(checkpoint_in_cpu=False)


def test_each_engine_keeps_its_own_settings(pool):
    pool.run(rank_two_engines, ranks=1)


def test_settings(pool):
    pool.run(rank_settings, ranks=1)


def test_frozen_inputs_are_warned_about():
    from shardwise import checkpointing

    layer = nn.Linear(3, 3)
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad"):
        out = checkpointing.checkpoint(layer, torch.ones(2, 3))
    assert not out.requires_grad
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checkpointing.non_reentrant_checkpoint(layer, torch.ones(2, 3)).requires_grad


@pytest.mark.parametrize("name", ["checkpoint", "non_reentrant_checkpoint"])
def test_named_random_states_are_the_same_again(name):
    from shardwise import UsageError, checkpointing

    states = checkpointing.get_cuda_rng_tracker()
    seen = []

    def layer(x):
        with states.fork():
            mask = torch.rand(4)
        seen.append(mask)
        return x * mask

    checkpointing.model_parallel_cuda_manual_seed(5)
    x = torch.ones(4, requires_grad=True)
    first = getattr(checkpointing, name)(layer, x)
    second = getattr(checkpointing, name)(layer, first)
    after = states.get_states()[checkpointing.MODEL_PARALLEL_RNG]
    second.sum().backward()
    assert torch.equal(x.grad, seen[0] * seen[1])
    assert not torch.equal(seen[0], seen[1])
    assert torch.equal(seen[2], seen[1])
    assert torch.equal(seen[3], seen[0])
    assert torch.equal(states.get_states()[checkpointing.MODEL_PARALLEL_RNG], after)
    with pytest.raises(UsageError, match="already"):
        states.add(checkpointing.MODEL_PARALLEL_RNG, 1)
    with pytest.raises(UsageError, match="no random state 'x'"), states.fork("x"):
        pass
    torch.manual_seed(5 + checkpointing.SEED_OFFSET)
    assert torch.equal(torch.rand(4), seen[0])
    states.reset()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="copies to the host need a GPU")
@pytest.mark.parametrize("name", ["checkpoint", "non_reentrant_checkpoint"])
@pytest.mark.parametrize("cycles", [0, 20_000_000], ids=["copies", "slow copies"])
def test_inputs_in_host_memory(name, cycles):
    from shardwise import checkpointing

    layers, width, rows = 8, 1024, 8192
    torch.manual_seed(0)
    blocks = nn.ModuleList(models.MlpBlock(width) for _ in range(layers)).cuda()

    def gradients(on_host):
        checkpointing.configure(checkpoint_in_cpu=on_host)
        checkpointing.reset()
        copies = checkpointing.inputs_in_force().copies
        stream_of = copies._stream

        def slow_stream(device):
            stream = stream_of(device)
            with torch.cuda.stream(stream):
                torch.cuda._sleep(cycles)
            return stream

        copies._stream = slow_stream
        blocks.zero_grad()
        torch.manual_seed(1)
        x = torch.randn(rows, width, device="cuda", requires_grad=True)
        before = torch.cuda.memory_allocated()
        torch.cuda.set_sync_debug_mode("error")
        try:
            y = x
            for block in blocks:
                y = getattr(checkpointing, name)(block, y)
            held = torch.cuda.memory_allocated() - before
            y.square().mean().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return held, [x.grad.clone(), *(p.grad.clone() for p in blocks.parameters())]

    try:
        gradients(False)  # what is allocated once
        kept, plain = gradients(False)
        held, got = gradients(True)
    finally:
        checkpointing.configure(checkpoint_in_cpu=False)
    for a, b in zip(got, plain, strict=True):
        assert torch.equal(a, b)
    one = 4 * rows * width
    assert kept >= layers * one
    assert held <= 4 * one, "the inputs stay on the GPU"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="copies to the host need a GPU")
@pytest.mark.parametrize("ending", ["next pass", "reset"])
def test_memory_that_was_fetched_for_a_graph_that_is_gone(ending, monkeypatch):
    """Backward stops after the first checkpoint; what it fetched ahead is still on its way."""
    from shardwise.host_copies import HostCopies

    numbers, stream_of = 1 << 24, HostCopies._stream

    def slow_stream(self, device):
        stream = stream_of(self, device)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
        return stream

    copies = HostCopies()
    copies.pack(torch.ones(1, device="cuda"))  # pinned memory is there from now on
    packed = []
    for value in (1.0, 2.0):
        copies.begin_group()
        packed.append(copies.pack(torch.full((numbers,), value, device="cuda")))
    torch.cuda.synchronize()
    monkeypatch.setattr(HostCopies, "_stream", slow_stream)
    got = copies.unpack(packed[1])
    held = torch.cuda.memory_allocated()
    del packed
    if ending == "next pass":
        copies.pack(torch.ones(1, device="cuda"))
    else:
        del copies
    assert torch.cuda.memory_allocated() < held - 2 * numbers, "all of it is still held"
    taken = [torch.zeros(numbers, device="cuda") for _ in range(3)]
    torch.cuda.synchronize()
    assert not any(zeros.any() for zeros in taken), "a copy came after its memory was free"
    assert torch.equal(got, torch.full_like(got, 2.0))
