"""Parameters that were frozen at initialize() and train later, against plain PyTorch."""

import re

import models
import parity
import pytest
import reference
import rules
import torch
import torch.distributed as dist
from parity import Case, make_engine
from steps import STAGES, config, samples, train_step

STEPS = 7
TIMEOUT = 3


def train_blocks(model, step):
    """Gradual unfreezing: from the head down, in parts of a block too, with a pause."""
    blocks = model.blocks
    model.requires_grad_(False)
    for part in (blocks[3], blocks[4], model.head):
        part.requires_grad_(True)
    blocks[2].requires_grad_(step >= 1 and step != 4)
    blocks[1].up.requires_grad_(step >= 2)
    blocks[1].requires_grad_(step >= 3)


def train_tied(model, step):
    """The head's bias first, then one block, then the weight that the head shares."""
    model.requires_grad_(False)
    model.head.bias.requires_grad_(True)
    model.blocks[1].requires_grad_(step >= 1)
    model.square.requires_grad_(step >= 3)


def train_tied_embeddings(model, step):
    model.requires_grad_(step >= 2)
    model.transformer.h[2].requires_grad_(True)


def train_base(model, step):
    """Adapters first, then what they adapt."""
    for name, parameter in model.named_parameters():
        adapter = "down.weight" in name or "up.weight" in name
        of_adapter = adapter and ("q_proj" in name or "down_proj." in name)
        parameter.requires_grad_(of_adapter or (step >= 2 and "base" in name) or step >= 4)


SCHEDULES = {
    "mlp": train_blocks,
    "reused": train_tied,
    "gpt2": train_tied_embeddings,
    "lora": train_base,
}


def plain(case: Case, dtype: str) -> dict:
    """As reference.train, with a schedule of what requires gradients."""
    kind = reference.DTYPES[dtype]
    micro_batches = 1 if dtype == "fp32" else case.ranks * case.accumulation
    module = models.build(case.model).to(kind)
    named = dict(module.named_parameters())
    masters = {n: p.detach().float().clone().requires_grad_() for n, p in named.items()}
    for name, master in masters.items():
        master.use_muon = rules.is_matrix(name, master)
    make, options = reference.OPTIMIZERS[case.optimizer]
    update = make(masters.values(), **options)
    factor = 2.0**case.power / case.accumulation if dtype == "fp16" else 1.0
    record = {"losses": [], "norms": [], "closest": {}}
    for step in range(STEPS):
        SCHEDULES[case.model](module, step)
        micros = models.micro_batches(case.model, step, micro_batches, "cpu", kind)
        losses, sums = reference.sum_gradients(module, named, micros, factor)
        grads = {n: g / (factor * micro_batches) for n, g in sums.items() if g is not None}
        norm = torch.linalg.vector_norm(torch.stack([g.double().norm() for g in grads.values()]))
        reference.apply(update, named, masters, grads, float(norm), case.clip)
        reference.round_stored(update, case.masters if dtype != "fp32" else "", kind)
        record["losses"].append(sum(losses) / len(losses))
        record["norms"].append(float(norm))
    record["weights"] = {n: p.detach().float() for n, p in named.items()}
    return record


def rank_trains(case: Case, how: str) -> dict:
    model = models.build(case.model)
    schedule = SCHEDULES[case.model]
    schedule(model, 0)
    settings = parity.config_of(case)
    arguments = {}
    if how == "hybrid":
        settings["shardwise"]["hybrid_shard_size"] = 2
    if how == "head stays whole":
        settings["zero_optimization"]["stage3_param_persistence_threshold"] = 2000
    if how == "offload":
        settings["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    if how == "zero.Init":
        import shardwise

        shardwise.zero.Init(module=model)
    if how == "torch object":
        make, options = reference.OPTIMIZERS[case.optimizer]
        arguments["optimizer"] = make(model.parameters(), **options)
        del settings["optimizer"]
    if how == "added":  # as filter(requires_grad) and a callback that adds groups do
        arguments["model_parameters"] = [p for p in model.parameters() if p.requires_grad]
    record = {"losses": [], "norms": []}
    with make_engine(model, settings, **arguments) as engine:
        known = {id(p) for group in engine.optimizer.param_groups for p in group["params"]}
        for step in range(STEPS):
            schedule(model, step)
            if how in ("added", "taken"):
                new = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
                if new:
                    engine.optimizer.add_param_group({"params": new})
                    known |= {id(p) for p in new}
            record["losses"].append(parity.accumulate(engine, case, step, "cpu"))
            engine.step()
            record["norms"].append(float(engine.get_global_grad_norm()))
        record["weights"] = {n: w.float() for n, w in engine.state_dict().items()}
    return record


CASES = [
    (Case(0, ranks=2), "configuration"),
    (Case(1, ranks=3, accumulation=4, clip=True), "configuration"),
    (Case(2, ranks=4, optimizer="SGD"), "configuration"),
    (Case(3, ranks=2, accumulation=4, clip=True), "configuration"),
    (Case(3, ranks=1), "configuration"),
    (Case(0, dtype="bf16", ranks=2, accumulation=4, clip=True), "configuration"),
    (Case(1, dtype="bf16", ranks=2), "configuration"),
    (Case(2, dtype="bf16", ranks=2, accumulation=4), "configuration"),
    (Case(3, dtype="bf16", ranks=3, accumulation=4, clip=True), "configuration"),
    (Case(1, dtype="fp16", ranks=2, accumulation=4), "configuration"),
    (Case(2, dtype="fp16", ranks=1, accumulation=4), "configuration"),
    (Case(3, dtype="fp16", ranks=4, clip=True), "configuration"),
    (Case(2, ranks=2), "added"),
    (Case(3, dtype="bf16", ranks=2), "added"),
    (Case(1, ranks=2), "taken"),
    (Case(1, ranks=2), "torch object"),
    (Case(0, ranks=2, optimizer="RMSprop"), "torch object"),
    (Case(3, ranks=2, optimizer="RMSprop"), "torch object"),
    (Case(2, dtype="bf16", ranks=2, optimizer="RMSprop"), "configuration"),
    (Case(3, ranks=2, optimizer="Adagrad"), "torch object"),
    (Case(1, ranks=2, optimizer="Lamb"), "configuration"),
    (Case(0, ranks=2, optimizer="Muon"), "configuration"),
    (Case(3, ranks=2, optimizer="Muon"), "configuration"),
    (Case(2, dtype="bf16", ranks=2, clip=True), "offload"),
    (Case(3, ranks=2), "offload"),
    (Case(3, ranks=2), "zero.Init"),
    (Case(3, ranks=2), "head stays whole"),
    (Case(2, ranks=4, accumulation=4), "hybrid"),
    (Case(3, dtype="bf16", ranks=4), "hybrid"),
    (Case(0, dtype="bf16", ranks=2, masters="16-bit"), "configuration"),
    (Case(1, dtype="bf16", ranks=2, masters="16-bit"), "added"),
    (Case(2, dtype="fp16", ranks=2, clip=True, masters="16-bit"), "configuration"),
    (Case(3, dtype="bf16", ranks=2, masters="16-bit with states"), "configuration"),
    (Case(3, dtype="bf16", ranks=2, masters="16-bit with states"), "offload"),
    (Case(2, dtype="bf16", ranks=4, masters="16-bit with states"), "hybrid"),
    *((Case(stage, model="reused", ranks=2), "configuration") for stage in range(4)),
    (Case(2, model="gpt2", ranks=2), "configuration"),
    (Case(3, model="gpt2", ranks=2, accumulation=4), "configuration"),
    (Case(0, model="lora", ranks=2), "configuration"),
    (Case(2, model="lora", ranks=2), "configuration"),
    (Case(3, model="lora", dtype="bf16", ranks=2, accumulation=4), "configuration"),
]


@pytest.fixture(scope="module")
def records(reference):
    """Records of plain PyTorch, each computed once."""
    found = {}

    def record(case: Case, dtype: str) -> dict:
        parts = 1 if dtype == "fp32" else case.ranks * case.accumulation
        key = (case.model, dtype, case.optimizer, case.clip, parts, case.masters)
        if key not in found:
            found[key] = reference.run(plain, case, dtype)[0]
        return found[key]

    return record


@pytest.mark.parametrize("case,how", CASES, ids=str)
def test_unfreezing_equals_plain_torch(case, how, pool, records):
    """Tolerances as in the parity table."""
    ranks = pool.run(rank_trains, case, how, ranks=case.ranks)
    truth = records(case, case.dtype)
    allowed = {"losses": 1e-6, "norms": 1e-6, "weights": 1e-5}
    if case.dtype != "fp32":
        exact = records(case, "fp32")
        errors = {k: max(parity.relative_errors(truth[k], exact, k).values()) for k in allowed}
        eps = torch.finfo(reference_dtype(case)).eps
        mean = eps / models.SAMPLES**0.5
        floors = {"losses": mean, "norms": mean, "weights": eps}
        allowed = {k: max(2 * errors[k], floors[k]) for k in allowed}
    got = {
        "losses": [sum(s) / len(ranks) for s in zip(*(r["losses"] for r in ranks), strict=True)],
        "norms": ranks[0]["norms"],
        "weights": ranks[0]["weights"],
    }
    for kind, values in got.items():
        errors = parity.relative_errors(values, truth, kind)
        worst = max(errors, key=errors.get)
        assert errors[worst] <= allowed[kind], (kind, worst, errors[worst], allowed[kind])
    for record in ranks[1:]:
        assert record["norms"] == ranks[0]["norms"]


def reference_dtype(case: Case) -> torch.dtype:
    return reference.DTYPES[case.dtype]


# In the middle of a window, and other ways to bring gradients


def half_frozen():
    model = models.build("mlp")
    for block in model.blocks[:3]:
        block.requires_grad_(False)
    return model


def plain_window(drop):
    """Two windows of two micro-batches; two blocks are unfrozen between those of the first."""
    model = half_frozen()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)
    for step in range(2):
        for index, micro in enumerate(models.micro_batches("mlp", step, 2, "cpu", torch.float32)):
            if step == 0 and index == 1:
                model.blocks[0].requires_grad_(True)
                model.blocks[2].up.requires_grad_(True)
            (model(**micro) / 2).backward()
        if drop and step == 0:
            optimizer.zero_grad()
            for micro in models.micro_batches("mlp", 7, 2, "cpu", torch.float32):
                (model(**micro) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {n: p.detach() for n, p in model.named_parameters()}


def rank_window(stage, drop, how):
    """Each rank takes its half of every micro-batch."""
    model = half_frozen()
    params = {"lr": 0.01, "eps": 1e-4, "weight_decay": 0.01}
    settings = config(stage, 2, optimizer={"type": "AdamW", "params": params})

    def halves(step):
        micros = models.micro_batches("mlp", step, 4, "cpu", torch.float32)
        return micros[dist.get_rank() :: 2]

    def backward(micro):
        loss = engine(**micro)
        loss.backward() if how == "loss.backward" else engine.backward(loss)

    with make_engine(model, settings) as engine:
        for step in range(2):
            for index, micro in enumerate(halves(step)):
                if step == 0 and index == 1:
                    model.blocks[0].requires_grad_(True)
                    model.blocks[2].up.requires_grad_(True)
                backward(micro)
                if drop and step == 0 and index == 1:
                    engine.zero_grad()
                    for other in halves(7):
                        backward(other)
                engine.step()
        return engine.state_dict()


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("how", ["engine.backward", "loss.backward"])
@STAGES
def test_unfreezing_inside_a_window(stage, how, drop, pool, reference):
    """Gradients count from the micro-batch on; zero_grad() drops them like the others."""
    truth = reference.run(plain_window, drop)[0]
    found = pool.run(rank_window, stage, drop, how, ranks=2)[0]
    for name, value in truth.items():
        assert parity.scale(found[name] - value) <= 1e-5 * parity.scale(value), name


# What does not change


def rank_states(stage, unfreeze):
    """Masters and moments of what trained from the start, after a step in which others join."""
    from shardwise import utils

    model = half_frozen()
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    with make_engine(model, config(stage, bf16={"enabled": True})) as engine:
        for step in range(3):
            if unfreeze and step == 2:
                model.blocks[2].requires_grad_(True)
                model.blocks[0].up.requires_grad_(True)
            micro = {k: v.bfloat16() for k, v in samples(step).items()}
            engine.backward(engine(**micro))
            engine.step()
        kinds = ("exp_avg", "exp_avg_sq")
        states = {
            (n, kind): utils.safe_get_full_optimizer_state(p, kind)
            for n, p in trained.items()
            for kind in kinds
        }
        states |= {(n, "master"): utils.safe_get_full_fp32_param(p) for n, p in trained.items()}
        frozen = model.blocks[1].up.weight
        assert utils.safe_get_full_optimizer_state(frozen, "exp_avg") is None
        return states, engine.state_dict()


@STAGES
def test_other_parameters_keep_their_bits(stage, pool):
    states, _ = pool.run(rank_states, stage, False, ranks=2)[0]
    with_newcomers, weights = pool.run(rank_states, stage, True, ranks=2)[0]
    for key, value in states.items():
        assert torch.equal(with_newcomers[key], value), key
    before = half_frozen().state_dict()
    moved = {n for n, w in weights.items() if not torch.equal(w.float(), before[n])}
    assert {n for n in moved if n.startswith("blocks.0.")} == {
        "blocks.0.up.weight",
        "blocks.0.up.bias",
    }
    assert not any(n.startswith("blocks.1.") for n in moved)
    assert any(n.startswith("blocks.2.") for n in moved)


def rank_memory(stage, dtype, frozen):
    model = models.BlocksOnly(4, 96)
    for block in model.blocks[: 3 if frozen else 0]:
        block.requires_grad_(False)
    settings = parity.config_of(Case(stage, dtype=dtype, accumulation=2))
    with make_engine(model, settings) as engine:
        for step in range(4):
            if step == 2:
                model.requires_grad_(True)
            for _ in range(2):
                x = torch.randn(3, 96, dtype=reference.DTYPES[dtype])
                engine.backward(engine(x, x))
                engine.step()
        return engine.memory_report()["device"]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@STAGES
def test_memory_is_that_of_a_model_that_trained_from_the_start(stage, dtype, pool):
    always = pool.run(rank_memory, stage, dtype, False, ranks=2)[0]
    unfrozen = pool.run(rank_memory, stage, dtype, True, ranks=2)[0]
    # What the transport received of one block in fp32, when the sums of the window were reduced.
    block = sum(p.numel() + 64 for p in models.BlocksOnly(1, 96).parameters())
    more = unfrozen.pop("gradients_in_flight") - always.pop("gradients_in_flight")
    assert unfrozen == always
    assert 0 <= more <= (4 * block if stage >= 2 and dtype == "bf16" else 0)


# Groups


def rank_without_group(stage):
    """In no group: gradients but no movement, as in plain PyTorch; then the steps count from 1."""
    from shardwise import utils

    model = half_frozen()
    chosen = [p for p in model.parameters() if p.requires_grad]
    weight = model.blocks[0].up.weight
    with make_engine(model, config(stage), model_parameters=chosen) as engine:
        train_step(engine, 0)
        model.blocks[0].up.requires_grad_(True)
        train_step(engine, 1)
        before = utils.safe_get_full_fp32_param(weight)
        engine.backward(engine(**samples(2)))
        assert utils.safe_get_full_grad(weight).abs().max() > 0
        engine.step()
        assert torch.equal(utils.safe_get_full_fp32_param(weight), before)
        engine.optimizer.add_param_group({"params": [weight], "lr": 0.5, "weight_decay": 0.0})
        engine.backward(engine(**samples(3)))
        gradient = utils.safe_get_full_grad(weight)
        engine.step()
        # Adam's first step: lr × g / (|g| + eps).
        moved = before - utils.safe_get_full_fp32_param(weight)
        torch.testing.assert_close(moved, 0.5 * gradient / (gradient.abs() + 1e-4))


@STAGES
def test_unfrozen_without_a_group(stage, pool):
    outcomes = pool.outcomes(rank_without_group, stage, ranks=2)
    for outcome in outcomes:
        assert outcome.kind == "value", outcome.describe()
    assert "blocks.0.up.weight, blocks.0.up.bias" in outcomes[0].log
    assert "add_param_group" in outcomes[0].log
    assert "add_param_group" not in outcomes[1].log


def rank_groups_taken():
    """A group of one's own for what the default listed; a refused one changes nothing."""
    model = half_frozen()
    with make_engine(model, config(2)) as engine:
        groups = engine.optimizer.param_groups
        block = list(model.blocks[0].parameters())
        with pytest.raises(ValueError, match="more than one"):
            engine.optimizer.add_param_group({"params": [*block, model.head.weight]})
        assert len(groups) == 1 and len(groups[0]["params"]) == len(list(model.parameters()))
        engine.optimizer.add_param_group({"params": iter(block), "lr": 0.0})
        assert len(groups[0]["params"]) == len(list(model.parameters())) - len(block)
        with pytest.raises(ValueError, match="more than one"):
            engine.optimizer.add_param_group({"params": block})
        before = engine.state_dict()
        model.blocks[0].requires_grad_(True)
        model.blocks[1].requires_grad_(True)
        train_step(engine)
        after = engine.state_dict()
    if dist.get_rank() == 0:
        assert torch.equal(after["blocks.0.up.weight"], before["blocks.0.up.weight"])
        assert not torch.equal(after["blocks.1.up.weight"], before["blocks.1.up.weight"])


def test_a_group_of_ones_own_for_unfrozen_parameters(pool):
    pool.run(rank_groups_taken, ranks=2)


# Ranks that differ


def rank_differs(stage, parts):
    """Each rank unfreezes its own part. Nothing is applied; together they go on."""
    model = half_frozen()
    with make_engine(model, config(stage)) as engine:
        train_step(engine, 0)
        before = engine.state_dict()
        mine = parts[dist.get_rank()]
        for name, parameter in model.named_parameters():
            if mine and name.startswith(mine):
                parameter.requires_grad_(True)
        with pytest.raises(RuntimeError) as error:
            train_step(engine, 1)
        after = engine.state_dict()
        assert all(torch.equal(after[n], before[n]) for n in before)
        for part in filter(None, parts):
            for name, parameter in model.named_parameters():
                if name.startswith(part):
                    parameter.requires_grad_(True)
        train_step(engine, 1)
        moved = engine.state_dict()
        for part in filter(None, parts):
            assert not moved or not torch.equal(moved[part + ".weight"], before[part + ".weight"])
        return str(error.value)


@pytest.mark.parametrize(
    "parts,said",
    [
        (["blocks.2.up", ""], "blocks.2.up.weight.*on rank 0 but not on rank 1"),
        (["", "blocks.2.up"], "blocks.2.up.weight.*on rank 1 but not on rank 0"),
        (["blocks.2.up", "blocks.2.down"], "blocks.2.up.weight.*on rank 0 but not on rank 1"),
        (["blocks.0.up", "blocks.0.down", "blocks.0.down"], "blocks.0.*on rank 0 but not on rank"),
    ],
)
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_ranks_that_unfreeze_different_parameters(stage, parts, said, pool):
    for message in pool.run(rank_differs, stage, parts, ranks=len(parts)):
        assert re.search(said, message), message
        assert "unfreeze the same parameters" in message


def rank_differs_at_stage_3(block):
    model = half_frozen()
    settings = parity.config_of(Case(3), shardwise={"timeout_seconds": TIMEOUT})
    engine = make_engine(model, settings)
    train_step(engine, 0)
    if dist.get_rank() == 0:
        model.blocks[block].up.requires_grad_(True)
    with pytest.raises(RuntimeError) as error:
        train_step(engine, 1)
    return str(error.value)


@pytest.mark.parametrize("block", [0, 2])
def test_ranks_that_unfreeze_different_parameters_at_stage_3(block, own_pool):
    """There the backward of rank 0 gathers blocks that rank 1 does not: a time-out that says it."""
    for message in own_pool(2).run(rank_differs_at_stage_3, block, ranks=2, timeout=60):
        assert f"blocks.{block}.up.weight" in message and "rank 0" in message, message
        assert "every rank must" in message or "not on rank 1" in message, message


# Ranks that see different gradients


class Branching(models.Mlp):
    """A linear layer beside the blocks, for the ranks that ask for it."""

    def __init__(self):
        super().__init__(layers=2)
        self.extra = torch.nn.Linear(models.WIDTH, models.WIDTH)
        self.extra.requires_grad_(False)

    def forward(self, x, y, branch):
        for block in self.blocks:
            x = block(x)
        return models.mse(self.head(self.extra(x) if branch else x), y)


def branching(dtype):
    torch.manual_seed(0)
    return Branching().to(reference.DTYPES[dtype])


def micro_batches_of_branching(dtype):
    return models.micro_batches("mlp", 0, 4, "cpu", reference.DTYPES[dtype])


def plain_branch(dtype, uses):
    """The layer's mean gradient over four micro-batches, of which the first `uses` train it."""
    model = branching(dtype)
    model.extra.requires_grad_(True)
    total = 0
    for index, micro in enumerate(micro_batches_of_branching(dtype)):
        model.zero_grad()
        model(**micro, branch=index < 2).backward()
        total = total + (model.extra.weight.grad.float() / 4 if index < uses else 0)
    return total


def rank_branch(stage, dtype, freeze_again):
    from shardwise import utils

    model = branching(dtype)
    settings = config(stage, 2, optimizer={"type": "SGD", "params": {"lr": 1.0}})
    if dtype == "bf16":
        settings["bf16"] = {"enabled": True}
    rank = dist.get_rank()
    with make_engine(model, settings) as engine:
        before = branching(dtype).extra.weight.float()
        model.extra.requires_grad_(True)
        for micro in micro_batches_of_branching(dtype)[2 * rank : 2 * rank + 2]:
            engine.backward(engine(**micro, branch=rank == 0))
            if freeze_again:
                model.extra.requires_grad_(False)
            engine.step()
        return before - utils.safe_get_full_fp32_param(model.extra.weight)


@pytest.mark.parametrize("freeze_again", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@STAGES
def test_a_newcomer_that_one_rank_uses(stage, dtype, freeze_again, pool, reference):
    truth = reference.run(plain_branch, dtype, 1 if freeze_again else 2)[0]
    moved = pool.run(rank_branch, stage, dtype, freeze_again, ranks=2)[0]
    # Sums are of fp32; the difference of two weights has the rounding of a weight, below 0.25.
    eps = torch.finfo(torch.float32).eps
    assert truth.abs().max() > 1e-3
    assert (moved - truth).abs().max() <= 2 * 0.25 * eps + 1e-6 * truth.abs().max()


# Gradients that the engine did not make


def rank_stale(stage, stale):
    model = half_frozen()
    if stale:
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 7.0)
    with make_engine(model, config(stage)) as engine:
        norms = []
        for step in range(3):
            model.blocks[0].requires_grad_(step > 0)
            train_step(engine, step)
            norms.append(float(engine.get_global_grad_norm()))
        return norms, engine.state_dict()


@STAGES
def test_gradients_from_before_initialize_count_nowhere(stage, pool):
    norms, weights = pool.run(rank_stale, stage, False, ranks=2)[0]
    stale_norms, stale_weights = pool.run(rank_stale, stage, True, ranks=2)[0]
    assert stale_norms == norms
    assert all(torch.equal(stale_weights[name], value) for name, value in weights.items())


def rank_direct(stage):
    import shardwise

    model = half_frozen()
    with make_engine(model, config(stage)) as engine:
        train_step(engine, 0)
        model.blocks[0].requires_grad_(True)
        engine.module(**samples(1)).backward()
        if stage < 2:
            with pytest.raises(shardwise.UsageError, match=r"blocks\.0\.norm\.weight.*engine\("):
                engine.step()
            engine.zero_grad()
            train_step(engine, 1)
        else:  # units hear of every call
            engine.step()
        return engine.state_dict()


@STAGES
def test_a_backward_that_the_engine_does_not_see(stage, pool):
    """Not counted as if it had been divided and reduced like the others."""
    seen = pool.run(rank_direct, stage, ranks=2)[0]
    assert not torch.equal(
        seen["blocks.0.up.weight"], half_frozen().state_dict()["blocks.0.up.weight"]
    )


def plain_regrouped():
    """Adam on one block from the second step on, with another rate from the fifth."""
    model = half_frozen()
    block = list(model.blocks[0].parameters())
    others = [p for p in model.parameters() if not any(p is q for q in block)]
    settings = {"lr": 0.01, "eps": 1e-4, "weight_decay": 0.01}
    optimizer = torch.optim.AdamW([{"params": others}, {"params": block}], **settings)
    for step in range(6):
        model.blocks[0].requires_grad_(step > 0)
        optimizer.param_groups[1]["lr"] = 0.002 if step >= 4 else 0.01
        for micro in models.micro_batches("mlp", step, 2, "cpu", torch.float32):
            (model(**micro) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {n: p.detach() for n, p in model.named_parameters()}


def rank_regrouped(stage):
    model = half_frozen()
    params = {"lr": 0.01, "eps": 1e-4, "weight_decay": 0.01}
    with make_engine(model, config(stage, optimizer={"type": "AdamW", "params": params})) as engine:
        for step in range(6):
            model.blocks[0].requires_grad_(step > 0)
            if step == 4:
                block = list(model.blocks[0].parameters())
                engine.optimizer.add_param_group({"params": block, "lr": 0.002})
            train_step(engine, step)
        return engine.state_dict()


@STAGES
def test_another_group_after_some_steps_keeps_states_and_their_count(stage, pool, reference):
    truth = reference.run(plain_regrouped)[0]
    found = pool.run(rank_regrouped, stage, ranks=2)[0]
    for name, value in truth.items():
        assert parity.scale(found[name] - value) <= 1e-5 * parity.scale(value), name
