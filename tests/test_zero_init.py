"""Models built in shards, held against the same code without ``zero.Init``."""

import copy
import ctypes
import gc

import models
import parity
import pytest
import torch
import torch.distributed as dist
from parity import make_engine
from steps import STAGES, config, samples, train_step
from torch import nn

MEBI = 2**20


def message_of(kind, action) -> str:
    with pytest.raises(kind) as caught:
        action()
    return str(caught.value)


def whole(model) -> dict:
    """Copies of all parameters and buffers."""
    import shardwise

    with shardwise.zero.GatheredParameters(model.parameters()):
        return {n: p.detach().clone() for n, p in model.state_dict(keep_vars=True).items()}


class Awkward(nn.Module):
    """Touches parameters while it is built, in ways that real models do."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(3))
        self.register_buffer("table", torch.randn(4))
        self.embedding = nn.Embedding(11, 6, padding_idx=2)
        layer = nn.Linear(6, 6)
        self.copies = nn.ModuleList(copy.deepcopy(layer) for _ in range(3))
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 11, bias=False)
        self.late = nn.Parameter(torch.full((5,), 2.0))
        self.apply(self.initialise)
        self.embedding.weight.data[2].zero_()
        with torch.no_grad():
            self.head.weight[:, 0] = self.embedding.weight[:, 1] * 2
            for parameter in self.norm.parameters():
                parameter += 0.25
        self.head.weight = self.embedding.weight
        self.copies[1].weight.data = torch.eye(6) * 3
        self.copies[2].half()
        self.copies[2].float()
        self.total = float(self.copies[0].weight.sum())
        frozen = nn.Linear(4, 4)
        frozen.requires_grad_(False)
        self.frozen = nn.Sequential(
            frozen, nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
        )
        self.empty = nn.Parameter(torch.empty(0))

    def initialise(self, module):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.1)
            nn.init.zeros_(module.bias) if module.bias is not None else None
        elif isinstance(module, nn.Embedding):
            module.weight.data.normal_(mean=0.0, std=0.2)


def gpt2():
    return models.gpt2()


def llama():
    return models.llama()


BUILDERS = {"awkward": Awkward, "gpt2": gpt2, "llama": llama, "bert": models.bert}


def rank_builds(name, seed_by_rank):
    import shardwise

    torch.manual_seed(5)
    plain = BUILDERS[name]()
    after_plain = torch.rand(1)
    torch.manual_seed(5 + dist.get_rank() * seed_by_rank)
    with shardwise.zero.Init():
        model = BUILDERS[name]()
    if not seed_by_rank:
        assert torch.equal(torch.rand(1), after_plain), "the generator was used otherwise"
    assert type(model) is type(plain)
    expected = plain.state_dict(keep_vars=True)
    for key, value in model.state_dict(keep_vars=True).items():
        assert value.shape == expected[key].shape and value.stride() == expected[key].stride(), key
        assert value.dtype == expected[key].dtype, key
        assert value.requires_grad == expected[key].requires_grad, key
        if isinstance(value, nn.Parameter) and value.numel():
            message = message_of(RuntimeError, lambda value=value: value + 1)
            assert "GatheredParameters" in message, message
    ties = lambda m: [n for n, _ in m.named_parameters(remove_duplicate=True)]  # noqa: E731
    assert ties(model) == ties(plain)
    if name == "awkward":
        assert model.total == plain.total or seed_by_rank
        held = sum(p._shardwise_early.shard_bytes() for p in model.parameters())
        size = sum(p.nbytes for p in model.parameters())
        assert held < size / dist.get_world_size() + 128 * len(list(model.parameters()))
    found = whole(model)
    for key, value in expected.items():
        if isinstance(value, nn.Parameter) or not seed_by_rank:
            assert torch.equal(found[key], value), key


@pytest.mark.parametrize("seed_by_rank", [0, 1])
@pytest.mark.parametrize("name", BUILDERS)
def test_weights_are_those_of_plain_construction(name, seed_by_rank, pool):
    pool.run(rank_builds, name, seed_by_rank, ranks=3)


# Training such a model


def rank_trains(name, stage, dtype, steps):
    import shardwise

    case = parity.Case(stage, name, dtype)
    with shardwise.zero.Init():
        model = models.BUILDERS[name]()
    built = copy_into_plain(model, name)
    record = []
    for candidate in (model, built):
        with make_engine(candidate, parity.config_of(case)) as engine:
            losses = []
            for step in range(steps):
                losses.append(parity.accumulate(engine, case, step, "cpu"))
                engine.step()
            record.append((losses, engine.state_dict()))
            gc.collect()
    (losses, weights), (plain_losses, plain_weights) = record
    assert losses == plain_losses
    for key, value in plain_weights.items():
        assert torch.equal(weights[key], value), key
    assert not any(hasattr(p, "_shardwise_early") for p in model.parameters())


def copy_into_plain(model, name):
    """The model built as usual, with the weights of the other."""
    plain = models.BUILDERS[name]()
    plain.load_state_dict(whole(model))
    return plain


@pytest.mark.parametrize("name,dtype", [("gpt2", "fp32"), ("reused", "bf16"), ("lora", "fp32")])
@STAGES
def test_training_is_bit_equal(name, dtype, stage, pool):
    pool.run(rank_trains, name, stage, dtype, 2, ranks=2)


def rank_nested_and_interrupted():
    """Contexts inside contexts; an error inside leaves torch as it was."""
    from torch.nn.modules import module as torch_module

    import shardwise

    hooks = (
        torch_module._global_parameter_registration_hooks,
        torch_module._global_module_registration_hooks,
    )
    with shardwise.zero.Init():
        with shardwise.zero.Init(), shardwise.zero.Init(enabled=False):
            inner = nn.Linear(4, 4)
        outer = nn.Linear(4, 4)
        with shardwise.zero.GatheredParameters(inner.weight, modifier_rank=1):
            inner.weight.data.fill_(float(dist.get_rank() + 1))
        assert float(inner.weight.sum()) == 32
    for model in (inner, outer):
        assert "released" in message_of(RuntimeError, lambda model=model: model.weight.sum().item())
    with pytest.raises(ValueError, match="mine"), shardwise.zero.Init():
        broken = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        broken[0].weight.data.zero_()
        raise ValueError("mine")
    assert not any(hooks)
    after = nn.Linear(4, 4)
    assert torch.isfinite(after.weight).all() and not hasattr(after.weight, "_shardwise_early")
    with shardwise.zero.Init(enabled=False):
        assert torch.isfinite(nn.Linear(4, 4).weight).all()


def test_nested_contexts_and_errors_inside(pool):
    pool.run(rank_nested_and_interrupted, ranks=2)


def rank_gathered_between():
    """Weights can be changed before initialize, as DeepSpeed's users load checkpoints."""
    import shardwise

    torch.manual_seed(0)
    with shardwise.zero.Init():
        model = models.Mlp()
    weight = model.blocks[1].up.weight
    with shardwise.zero.GatheredParameters([weight, model.head.bias], modifier_rank=1):
        if dist.get_rank() == 1:
            with torch.no_grad():
                weight.fill_(0.5)
                model.head.bias.data[1] = 7.0

    def without_modifier():
        with shardwise.zero.GatheredParameters(weight):
            weight.data.view(-1)[dist.get_rank() :].zero_()

    assert "modifier_rank" in message_of(RuntimeError, without_modifier)

    def on_one_rank(modifier=None):
        gathered = shardwise.zero.GatheredParameters
        with gathered(model.head.bias, modifier_rank=0), gathered(weight):
            if dist.get_rank() == 1:
                weight.data.view(-1)[3] = 9.0
            with gathered(weight, modifier_rank=modifier):
                pass

    for modifier in (None, 0):
        message = message_of(RuntimeError, lambda modifier=modifier: on_one_rank(modifier))
        assert "weight of a Linear (64, 32) was changed on rank 1" in message, message

    def two_modifiers():
        gathered = shardwise.zero.GatheredParameters
        with gathered(weight, modifier_rank=0), gathered(weight, modifier_rank=1):
            pass

    assert "rank 0" in message_of(RuntimeError, two_modifiers)
    with make_engine(model, config(3)) as engine:
        state = engine.state_dict()
        if dist.get_rank() == 0:
            assert torch.equal(state["blocks.1.up.weight"], torch.full((64, 32), 0.5))
            assert state["head.bias"][1] == 7.0
        train_step(engine)


def test_weights_changed_before_initialize(pool):
    pool.run(rank_gathered_between, ranks=2)


def rank_converts(dtype):
    import shardwise

    model = models.build("gpt2")
    plain = {n: p.detach().clone() for n, p in model.named_parameters()}
    shardwise.zero.Init(module=model, dtype=dtype)
    for name, value in whole(model).items():
        if name in plain:
            assert value.dtype == (dtype or torch.float32)
            assert torch.equal(value, plain[name].to(value.dtype)), name


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
def test_an_existing_model_is_cut(dtype, pool):
    pool.run(rank_converts, dtype, ranks=2)


def rank_pretrained(folder):
    from transformers import LlamaForCausalLM

    import shardwise

    plain = LlamaForCausalLM.from_pretrained(folder)
    with shardwise.zero.Init():
        model = LlamaForCausalLM.from_pretrained(folder)
    assert all(hasattr(p, "_shardwise_early") for p in model.parameters())
    found = whole(model)
    for key, value in plain.state_dict().items():
        assert torch.equal(found[key], value), key
    with make_engine(model, config(3)) as engine:
        micro = models.micro_batches("llama", 0, 2, "cpu", torch.float32)[dist.get_rank()]
        assert torch.equal(engine(**micro).logits, plain(**micro).logits)


def test_hugging_face_checkpoints_are_loaded_in_shards(tmp_path, pool):
    models.build("llama").save_pretrained(tmp_path)
    pool.run(rank_pretrained, tmp_path, ranks=2)


def rank_arguments(tmp_path):
    import shardwise

    init = shardwise.zero.Init
    bad = {
        "mpu": object(),
        "zero_quantized_weights": True,
        "zero_quantized_nontrainable_weights": True,
        "pin_memory": True,
        "param_swapper": object(),
        "data_parallel_group": object(),
        "remote_device": "nvme",
        "dtype": torch.int64,
    }
    for name, value in bad.items():
        message = message_of(RuntimeError, lambda name=name, value=value: init(**{name: value}))
        assert name in message, message
    message_of(ValueError, lambda: init(config={}, config_dict_or_path={}))
    settings = {"shardwise": {"timeout_seconds": 5}, "train_batch_size": "auto"}
    with init(config_dict_or_path=settings, data_parallel_group=dist.group.WORLD):
        layer = nn.Linear(3, 3)
    assert layer.weight.shape == (3, 3)


def test_arguments_that_are_not_supported(tmp_path, pool):
    pool.run(rank_arguments, tmp_path, ranks=2)


def rank_meta():
    """Parameters on the meta device are left alone until they get values."""
    import shardwise

    with shardwise.zero.Init():
        with torch.device("meta"):
            model = models.Mlp()
        assert all(p.is_meta for p in model.parameters())
        for module in model.modules():
            for name, p in list(module._parameters.items()):
                setattr(module, name, nn.Parameter(torch.full(p.shape, 0.5)))
    assert all(hasattr(p, "_shardwise_early") for p in model.parameters())
    assert all(torch.equal(v, torch.full_like(v, 0.5)) for v in whole(model).values())


def test_meta_parameters_are_cut_when_they_get_values(pool):
    pool.run(rank_meta, ranks=2)


# Memory


RANKS = 4


def peak() -> int:
    """Most bytes of this process in RAM since the last call of reset_peak."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def reset_peak():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def rank_peak():
    import shardwise

    with shardwise.zero.Init():  # loads what is loaded once
        warm = models.BlocksOnly(2, 64)
    with make_engine(warm, config(3)) as engine:
        x = torch.randn(2, 64)
        engine.backward(engine(x, x))
        engine.step()
    del warm, engine
    dist.barrier()
    reset_peak()
    before = peak()
    with shardwise.zero.Init():
        model = models.BlocksOnly(12, 1024, 4096)
    built = peak() - before
    count = sum(p.numel() for p in model.parameters())
    settings = config(3)
    settings["zero_optimization"]["reduce_bucket_size"] = count // 12
    with make_engine(model, settings) as engine:
        made = peak() - before
        x = torch.randn(2, 1024)
        for _ in range(2):
            engine.backward(engine(x, x))
            engine.step()
        held = engine.memory_report()["device"]
        return built, made, peak() - before, held, count


def test_peak_memory_of_construction(own_pool):
    """400 MB of fp32 parameters at four ranks: never more than a unit above the shards."""
    for built, made, trained, held, count in own_pool(RANKS).run(
        rank_peak, ranks=RANKS, timeout=500
    ):
        model, unit = 4 * count, 4 * count // 12
        # What the allocator keeps between shards, Gloo's copies of what it sends, code pages.
        slack = unit + 24 * MEBI
        figures = [round(x / MEBI) for x in (built, made, trained, model, unit)]
        print("peaks in MiB: built, made, trained; model, unit:", figures)
        assert built <= model / RANKS + unit + slack, figures
        assert made <= 4 * model / RANKS + unit + slack, figures
        extra = held["ring"] + held["gradients_in_flight"]
        assert trained <= 4 * model / RANKS + extra + 2 * unit + slack, (figures, extra / MEBI)


# Parameters used elsewhere, generation, modules without memory


class Borrower(nn.Module):
    """Uses the weight of a block that another block owns."""

    def __init__(self, lender):
        super().__init__()
        self.norm = nn.LayerNorm(models.WIDTH)
        object.__setattr__(self, "lender", lender)

    def forward(self, x):
        return x + nn.functional.linear(self.norm(x), self.lender.up.weight[:32])


class Borrowing(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(models.MlpBlock() for _ in range(3))
        self.borrowers = nn.ModuleList(Borrower(block) for block in self.blocks[:2])

    def forward(self, x, y):
        for block in self.blocks:
            x = block(x)
        for borrower in self.borrowers:
            x = borrower(x)
        return models.mse(x, y)


def plain_borrowing():
    torch.manual_seed(0)
    model = Borrowing()
    model(**models.batch("mlp", 0)).backward()
    return {n: p.grad for n, p in model.named_parameters()}


def rank_external(stage):
    import shardwise

    torch.manual_seed(0)
    model = Borrowing()
    if stage == 3:
        with make_engine(model, config(stage)) as engine:  # without registering: a clear error
            message = message_of(RuntimeError, lambda: engine(**samples()))
            assert "blocks.0" in message and "released" in message, message
            late = lambda: shardwise.zero.register_external_parameter(  # noqa: E731
                model.borrowers[0], model.blocks[0].up.weight
            )
            assert "before initialize" in message_of(RuntimeError, late)
    for borrower in model.borrowers:
        shardwise.zero.register_external_parameter(borrower, borrower.lender.up.weight)
    shardwise.zero.register_external_parameter(model.borrowers[0], model.blocks[2].up.weight)
    shardwise.zero.unregister_external_parameter(model.borrowers[0], model.blocks[2].up.weight)
    with make_engine(model, config(stage)) as engine:
        engine.backward(engine(**samples()))
        return parity.full_gradients(engine)


@STAGES
def test_external_parameters(stage, pool, reference):
    plain = reference.run(plain_borrowing)[0]
    for name, value in pool.run(rank_external, stage, ranks=2)[0].items():
        error = (value - plain[name]).abs().max() / plain[name].abs().max()
        assert error <= 1e-5, f"{name}: {error:.1e}"


def rank_generates(stage):
    import shardwise

    plain = models.build("gpt2").eval()
    prompt = models.batch("gpt2", 0)["input_ids"][:2, :3]
    options = {"max_new_tokens": 4 + dist.get_rank(), "do_sample": False, "pad_token_id": 0}
    with make_engine(models.build("gpt2"), config(stage)) as engine:
        micro = models.micro_batches("gpt2", 0, 2, "cpu", torch.float32)[dist.get_rank()]
        with shardwise.zero.unwrap_model_for_generation(engine) as module:
            assert module is engine.module
            module.eval()
            found = module.generate(input_ids=prompt, **options)
            module.train()
        assert torch.equal(found, plain.generate(input_ids=prompt, **options))
        losses = []
        for _ in range(2):
            loss = engine(**micro).loss
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        assert losses[1] < losses[0]
    assert "engine" in message_of(
        RuntimeError, lambda: shardwise.zero.unwrap_model_for_generation(plain).__enter__()
    )


@pytest.mark.parametrize("stage", [0, 3])
def test_generation_with_the_plain_module(stage, pool):
    pool.run(rank_generates, stage, ranks=2)


def rank_on_device():
    import shardwise

    with shardwise.OnDevice(dtype=torch.bfloat16, device="meta"):
        model = models.Mlp()
    assert {(p.device.type, p.dtype) for p in model.parameters()} == {("meta", torch.bfloat16)}
    assert torch.get_default_dtype() == torch.float32
    message = message_of(RuntimeError, lambda: make_engine(model, config(3)))
    assert "blocks.0.norm.weight" in message and "to_empty" in message, message
    with shardwise.utils.OnDevice(dtype=torch.float16, device="cpu"):
        assert nn.Linear(2, 2).weight.dtype == torch.float16
    with shardwise.OnDevice(dtype=torch.float16, enabled=False):
        assert nn.Linear(2, 2).weight.dtype == torch.float32
    with pytest.raises(ValueError, match="mine"), shardwise.OnDevice(torch.float16):
        raise ValueError("mine")
    assert torch.get_default_dtype() == torch.float32 and not torch.empty(1).is_meta


def test_modules_built_on_another_device(pool):
    pool.run(rank_on_device, ranks=1)


# Vocabularies that grow and shrink


def rank_resizes(tied, size, late):
    """Old rows stay, new rows are equal on all ranks, and the model trains."""
    from transformers import GPT2Config, GPT2LMHeadModel

    import shardwise

    shape = GPT2Config(
        vocab_size=256,
        n_positions=12,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=tied,
    )
    torch.manual_seed(0)
    plain = GPT2LMHeadModel(shape)
    torch.manual_seed(dist.get_rank())  # new rows are drawn: rank 0's count
    if not late:
        with shardwise.zero.Init():
            torch.manual_seed(0)
            model = GPT2LMHeadModel(shape)
            torch.manual_seed(dist.get_rank())
            model.resize_token_embeddings(size)
    else:
        torch.manual_seed(0)
        with shardwise.zero.Init():
            model = GPT2LMHeadModel(shape)
        torch.manual_seed(dist.get_rank())
        with shardwise.zero.Init():
            model.resize_token_embeddings(size)
    kept = min(size, 256)
    assert model.lm_head.weight.shape == model.transformer.wte.weight.shape == (size, 32)
    assert (model.lm_head.weight is model.transformer.wte.weight) == tied
    assert model.config.vocab_size == size
    found = whole(model)
    for name in ("transformer.wte.weight", "lm_head.weight"):
        assert torch.equal(found[name][:kept], plain.state_dict()[name][:kept]), name
    rows = found["transformer.wte.weight"]
    everywhere = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(everywhere, rows)
    assert all(torch.equal(rows, other) for other in everywhere)
    with make_engine(model, config(3)) as engine:
        for step in range(3):
            ids = models.batch("gpt2", step)["input_ids"][:4] % size
            engine.backward(engine(input_ids=ids, labels=ids).loss)
            engine.step()
        state = engine.state_dict()
        if dist.get_rank() == 0:
            assert state["lm_head.weight"].shape == (size, 32)
            again = GPT2LMHeadModel(model.config)
            again.load_state_dict(state)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("size", [260, 50])
@pytest.mark.parametrize("tied", [True, False])
def test_PE_01_resized_embeddings(tied, size, late, pool):
    pool.run(rank_resizes, tied, size, late, ranks=2)


def rank_replaces(stage):
    import shardwise

    with shardwise.zero.Init():
        model = models.Reused()
    old = model.square.weight
    new = nn.Parameter(torch.full((models.WIDTH, models.WIDTH), 0.1 * (dist.get_rank() + 1)))
    shardwise.zero.replace_parameter(model, old, new)
    assert model.square.weight is new and model.head.weight is new
    with shardwise.zero.GatheredParameters(new):
        assert torch.equal(new, torch.full_like(new, 0.1))
    with make_engine(model, config(stage)) as engine:
        train_step(engine)
        action = lambda: shardwise.zero.replace_parameter(model, new, old)  # noqa: E731
        assert "destroy" in message_of(RuntimeError, action)
    stranger = nn.Parameter(torch.ones(2))
    action = lambda: shardwise.zero.replace_parameter(model, stranger, stranger)  # noqa: E731
    assert "(2,)" in message_of(RuntimeError, action)


@pytest.mark.parametrize("stage", [1, 3])
def test_replaced_parameters(stage, pool):
    pool.run(rank_replaces, stage, ranks=2)


def rank_sets_data(stage):
    """Values assigned to a parameter that was cut are those that train."""
    import shardwise

    torch.manual_seed(3)
    with shardwise.zero.Init():
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))
    wanted = torch.arange(64.0).reshape(8, 8)
    model[0].weight.data = wanted.clone()
    with make_engine(model, config(stage)) as engine:
        state = engine.state_dict()
    if dist.get_rank() == 0:
        assert torch.equal(state["0.weight"], wanted)


@pytest.mark.parametrize("stage", [0, 3])
def test_data_assigned_after_construction(stage, pool):
    pool.run(rank_sets_data, stage, ranks=2)
