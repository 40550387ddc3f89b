"""Reading and changing single parameters of an engine, against plain tensors."""

import models
import parity
import pytest
import torch
import torch.distributed as dist
from parity import make_engine
from steps import STAGES, config, samples, train_step

ADAMW = {"lr": 0.01, "eps": 1e-4, "weight_decay": 0.1}


def settings_of(stage, dtype="fp32"):
    more = {} if dtype == "fp32" else {dtype: {"enabled": True}}
    return config(stage, optimizer={"type": "AdamW", "params": ADAMW}, **more)


def message_of(kind, action) -> str:
    with pytest.raises(kind) as caught:
        action()
    return str(caught.value)


def changed_weight(model):
    """What the modifier writes: values that no other rank knows."""
    generator = torch.Generator().manual_seed(7)
    weight = model.blocks[1].up.weight
    return torch.randn(weight.shape, generator=generator).bfloat16().to(weight.dtype)


def plain_after_change(steps):
    model = models.build("mlp")
    with torch.no_grad():
        model.blocks[1].up.weight.copy_(changed_weight(model))
        model.blocks[0].norm.bias.data[3] = 2.0
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    for step in range(steps):
        model(**models.batch("mlp", step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {n: p.detach() for n, p in model.named_parameters()}


# Changes inside GatheredParameters


def rank_modifies(stage, modifier):
    import shardwise

    model = models.build("mlp")
    with make_engine(model, settings_of(stage)) as engine:
        changed = [model.blocks[1].up.weight, model.blocks[0].norm.bias]
        with shardwise.zero.GatheredParameters(changed, modifier_rank=modifier):
            if dist.get_rank() == modifier:
                with torch.no_grad():
                    changed[0].copy_(changed_weight(model))
                changed[1].data[3] = 2.0
        with shardwise.zero.GatheredParameters(model.parameters()):
            everywhere = {n: p.detach().clone() for n, p in model.named_parameters()}
        for step in range(2):
            train_step(engine, step)
        return everywhere, engine.state_dict()


@pytest.mark.parametrize("modifier", [0, 2])
@STAGES
def test_one_ranks_changes_become_everybodys(stage, modifier, pool, reference):
    before, after = (reference.run(plain_after_change, steps)[0] for steps in (0, 2))
    found = pool.run(rank_modifies, stage, modifier, ranks=3)
    for everywhere, _ in found:
        for name, value in before.items():
            assert torch.equal(everywhere[name], value), name
    for name, value in after.items():
        error = (found[0][1][name] - value).abs().max() / value.abs().max()
        assert error <= 1e-5, f"{name}: {error:.1e}"


def rank_masters_follow(stage):
    """Only elements whose 16-bit value changed get a new master; the others keep their digits."""
    from shardwise.utils import safe_get_full_fp32_param

    import shardwise

    torch.manual_seed(0)
    model = models.Mlp()  # weights that bf16 cannot hold
    with make_engine(model, settings_of(stage, "bf16")) as engine:
        weight = model.blocks[2].down.weight
        expected = safe_get_full_fp32_param(weight)
        assert not torch.equal(expected, expected.bfloat16().float())
        with shardwise.zero.GatheredParameters(weight, modifier_rank=0):
            weight.data[3, :] = 1.5 if dist.get_rank() == 0 else 9.0
        expected[3, :] = 1.5
        assert torch.equal(safe_get_full_fp32_param(weight), expected)
        train_step_16(engine)
        moved = (safe_get_full_fp32_param(weight) - expected).abs().max()
        assert 0 < moved < 0.02  # one step of AdamW at lr 0.01, decay included


def train_step_16(engine):
    micro = {k: v.bfloat16() for k, v in samples().items()}
    engine.backward(engine(**micro))
    engine.step()


@STAGES
def test_masters_follow_what_changed(stage, pool):
    pool.run(rank_masters_follow, stage, ranks=2)


CHANGES = {
    "in place": lambda p, rank: p.data.add_(1.0),
    "one element": lambda p, rank: p.data.view(-1)[-1].fill_(5.0),
    "on one rank": lambda p, rank: p.data.view(-1)[0].fill_(5.0) if rank == 1 else None,
    "rows swapped": lambda p, rank: p.data.copy_(p.data.flip(0).clone()),
}


def rank_unannounced(stage, how):
    import shardwise

    model = models.build("mlp")
    engine = make_engine(model, settings_of(stage))
    weight = model.blocks[1].up.weight

    def change():
        with shardwise.zero.GatheredParameters(weight):
            CHANGES[how](weight, dist.get_rank())

    if stage < 3 and how == "on one rank" and dist.get_rank() != 1:
        change()  # closing what nobody shards is not collective
    else:
        message = message_of(RuntimeError, change)
        assert "blocks.1.up.weight" in message and "modifier_rank" in message, message
    with shardwise.zero.GatheredParameters(weight):
        if stage == 3:  # the change is gone, and nothing was left open
            plain = models.build("mlp").blocks[1].up.weight
            assert torch.equal(weight, plain)
    engine.destroy()


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("stage", [1, 3])
def test_changes_without_a_modifier_are_reported(stage, how, pool):
    pool.run(rank_unannounced, stage, how, ranks=2)


def rank_parted(stage):
    """What goes wrong on one rank ends the contexts of all, and no rank waits for another."""
    import shardwise

    gathered = shardwise.zero.GatheredParameters
    model = models.build("mlp")
    rank = dist.get_rank()
    with make_engine(model, settings_of(stage)) as engine:
        weight, other = model.blocks[1].up.weight, model.blocks[2].up.weight
        before = engine.state_dict()

        def change_inside():
            with gathered(weight, modifier_rank=0), gathered(other):
                weight.data.fill_(3.0)
                if rank == 1:
                    other.data.view(-1)[5] = 7.0

        message = message_of(RuntimeError, change_inside)
        if stage == 3 or rank == 1:
            assert "blocks.2.up.weight" in message and "on rank 1" in message, message
        else:
            assert "an error ended" in message and "on rank 1" in message, message

        def fail_on_one():
            with gathered(weight, modifier_rank=0):
                weight.data.fill_(3.0)
                if rank == 1:
                    raise RuntimeError("mine")

        message = message_of(RuntimeError, fail_on_one)
        expected = "mine" if rank == 1 else "an error ended GatheredParameters(modifier_rank=0)"
        assert expected in message, message

        def everybody_modifies():
            with gathered(weight, modifier_rank=rank):
                weight.data.fill_(3.0)

        message = message_of(RuntimeError, everybody_modifies)
        assert "was 1 on rank 1 but 0 on rank 0" in message, message

        def change_before():
            with gathered(weight):
                if rank == 1:
                    weight.data.view(-1)[5] = 7.0
                with gathered(weight, modifier_rank=0):
                    pass

        assert "blocks.1.up.weight" in message_of(RuntimeError, change_before)
        after = engine.state_dict()
        if stage == 3:  # elsewhere the changes are this rank's own, as the error says
            for name, value in before.items():
                assert torch.equal(after[name], value), name
        train_step(engine)


@pytest.mark.parametrize("stage", [1, 3])
def test_contexts_that_end_differently(stage, pool):
    pool.run(rank_parted, stage, ranks=2)


def rank_nested(stage):
    import shardwise

    gathered = shardwise.zero.GatheredParameters
    model = models.build("mlp")
    with make_engine(model, settings_of(stage)) as engine:
        weight, other = model.blocks[1].up.weight, model.blocks[2].up.weight
        # Reading around changing: the inner context's change is known, so the outer is content.
        with gathered([weight, other]):
            with gathered(weight, modifier_rank=1):
                weight.data.fill_(float(dist.get_rank() + 1))
            assert torch.equal(weight, torch.full_like(weight, 2.0))
        # Changing around reading: what is changed inside is the outer modifier's.
        with gathered(weight, modifier_rank=0), gathered([weight, other]):
            weight.data.fill_(float(dist.get_rank() + 5))
        with gathered(weight):
            assert torch.equal(weight, torch.full_like(weight, 5.0))
        # The same modifier twice.
        with gathered(weight, modifier_rank=1), gathered(weight, modifier_rank=1):
            weight.data.fill_(float(dist.get_rank() + 7))
        with gathered(weight):
            assert torch.equal(weight, torch.full_like(weight, 8.0))

        def two_modifiers():
            with gathered(weight, modifier_rank=0), gathered(weight, modifier_rank=1):
                pass

        message = message_of(RuntimeError, two_modifiers)
        assert "blocks.1" in message and "rank 0" in message and "rank 1" in message

        def changed_too_early():
            with gathered(weight):
                weight.data.fill_(3.0)
                with gathered(weight, modifier_rank=0):
                    pass

        assert "modifier_rank" in message_of(RuntimeError, changed_too_early)
        train_step(engine)


@pytest.mark.parametrize("stage", [0, 3])
def test_nested_contexts(stage, pool):
    pool.run(rank_nested, stage, ranks=2)


def rank_bad_arguments():
    import shardwise

    gathered = shardwise.zero.GatheredParameters
    model = models.build("mlp")
    with make_engine(model, settings_of(3)) as engine:
        for rank in (-1, 2, True, "0"):

            def enter(rank=rank):
                with gathered(model.parameters(), modifier_rank=rank):
                    pass

            assert repr(rank) in message_of(RuntimeError, enter)
        with pytest.raises(ValueError, match="mine"), gathered(model.parameters(), 0):
            model.blocks[0].up.weight.data.zero_()
            raise ValueError("mine")
        with gathered(torch.nn.Parameter(torch.ones(2)), modifier_rank=0), gathered([]):
            pass  # nobody shards these
        state = engine.state_dict()
        if dist.get_rank() == 0:  # what failed changed nothing
            plain = models.build("mlp").blocks[0].up.weight
            assert torch.equal(state["blocks.0.up.weight"], plain)


def test_wrong_arguments_and_errors_inside(pool):
    pool.run(rank_bad_arguments, ranks=2)


def rank_failed_changes(stage, dtype):
    """Errors inside, on one rank or on all, leave the weights of every rank as they were."""
    from shardwise.zero import GatheredParameters

    model = models.build("mlp")
    settings = settings_of(stage, dtype)
    with make_engine(model, settings) as engine:
        step = train_step_16 if dtype == "bf16" else train_step
        step(engine)
        weight, rank = model.blocks[0].up.weight, dist.get_rank()

        def values():
            with GatheredParameters([weight]):
                return weight.detach().clone()

        before = values()
        for raising in ([0], [1], [0, 1]):
            try:
                with GatheredParameters([weight], modifier_rank=0):
                    if rank == 0:
                        with torch.no_grad():
                            weight.fill_(3.0)
                        weight.data.add_(1.0)
                    if rank in raising:
                        raise ValueError("mine")
            except (ValueError, RuntimeError):
                pass
            assert torch.equal(values(), before), raising
        step(engine)  # nobody takes the parameter for changed
        assert not torch.equal(values(), before)
        return values()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@STAGES
def test_errors_inside_change_nothing(stage, dtype, pool):
    found = pool.run(rank_failed_changes, stage, dtype, ranks=2)
    assert torch.equal(found[0], found[1])


def rank_assigns(stage):
    """Tensors assigned to `.data`: values of the same shape count, other shapes are an error."""
    import shardwise
    from shardwise.zero import GatheredParameters

    model = models.build("mlp")
    with make_engine(model, settings_of(stage)) as engine:
        train_step(engine)
        weight, rank = model.blocks[0].up.weight, dist.get_rank()
        with (
            pytest.raises(shardwise.UsageError, match=r"blocks\.0\.up\.weight.*shape on rank 0"),
            GatheredParameters([weight], modifier_rank=0),
        ):
            if rank == 0:
                weight.data = torch.ones(3, 3)
        train_step(engine)
        with GatheredParameters([weight], modifier_rank=0):
            if rank == 0:
                weight.data = torch.full(weight.shape, 0.125)
        with GatheredParameters([weight]):
            assert torch.equal(weight, torch.full_like(weight, 0.125))
        train_step(engine)
        return engine.state_dict()


@STAGES
def test_data_assigned_inside(stage, pool):
    found = pool.run(rank_assigns, stage, ranks=2)
    weights = [state["blocks.0.up.weight"] for state in found if state]
    moved = (weights[0] - 0.125).abs()
    assert 0 < moved.max() <= 1.1 * ADAMW["lr"]  # one step of AdamW from there


def rank_transforms():
    import shardwise
    from shardwise.zero import GatheredParameters

    model = models.build("mlp")
    with make_engine(model, settings_of(3)) as engine:
        x = samples()["x"]

        def transform():
            return torch.func.jvp(lambda z: model.blocks[0](z), (x,), (x,))[1]

        with pytest.raises(shardwise.UsageError, match=r"torch\.func.*GatheredParameters"):
            transform()
        with GatheredParameters(model.parameters()):
            assert torch.isfinite(transform()).all()
        train_step(engine)


def test_function_transforms_say_what_they_need(pool):
    pool.run(rank_transforms, ranks=2)


# Whole tensors set by hand


def plain_set(kinds):
    """One AdamW step, changes, another step; weights afterwards."""
    model = models.build("mlp")
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    for step in range(2):
        model(**models.batch("mlp", step)).backward()
        weight = model.blocks[1].up.weight
        if step == 1:
            with torch.no_grad():
                weight.copy_(changed_weight(model)) if "param" in kinds else None
                weight.grad.mul_(0.5) if "grad" in kinds else None
                optimizer.state[weight]["exp_avg"].fill_(0.01) if "state" in kinds else None
        optimizer.step()
        optimizer.zero_grad()
    return {n: p.detach() for n, p in model.named_parameters()}


def set_whole(weight, model, kinds):
    from shardwise import utils

    if "param" in kinds:
        utils.safe_set_full_fp32_param(weight, changed_weight(model))
    if "grad" in kinds:
        utils.safe_update_full_grad_vectorized([weight], lambda grad, p: grad * 0.5)
    if "state" in kinds:
        state = torch.full(weight.shape, 0.01)
        utils.safe_set_full_optimizer_state(weight, state, "exp_avg")


def set_local(weight, model, kinds, shards):
    """The same through each rank's own elements; `shards` neighbours share one copy."""
    from shardwise import utils

    count = torch.tensor([utils.safe_get_local_fp32_param(weight).numel()])
    counts = [torch.zeros_like(count) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, count)
    of_copy = dist.get_rank() // shards * shards
    assert sum(int(c) for c in counts[of_copy : of_copy + shards]) == weight.numel()
    first = sum(int(c) for c in counts[of_copy : dist.get_rank()])
    if "param" in kinds:
        new = changed_weight(model).flatten()[first : first + int(count)]
        utils.safe_set_local_fp32_param(weight, new)
        assert torch.equal(utils.safe_get_local_fp32_param(weight), new)
    if "grad" in kinds:
        utils.safe_set_local_grad(weight, utils.safe_get_local_grad(weight) * 0.5)
    if "state" in kinds:
        state = utils.safe_get_local_optimizer_state(weight, "exp_avg")
        utils.safe_set_local_optimizer_state(weight, torch.full_like(state, 0.01), "exp_avg")


def backward_by_tokens(engine, step):
    """Ranks take 6, 18 and 24 of the step's 48 samples, and say so."""
    first, end = ((0, 6), (6, 24), (24, 48))[dist.get_rank()]
    micro = {key: value[first:end] for key, value in models.batch("mlp", step).items()}
    engine.backward(engine(**micro), tokens=end - first)


def rank_sets(stage, kinds, local, persistence=0, own=None):
    settings = settings_of(stage)
    settings["zero_optimization"]["stage3_param_persistence_threshold"] = persistence
    settings["shardwise"].update(own or {})
    shards = settings["shardwise"].get("hybrid_shard_size", 0) or dist.get_world_size()
    model = models.build("mlp")
    with make_engine(model, settings) as engine:
        for step in range(2):
            if settings["shardwise"].get("token_weighted_loss"):
                backward_by_tokens(engine, step)
            else:
                engine.backward(engine(**samples(step)))
            if step == 1 and local:
                set_local(model.blocks[1].up.weight, model, kinds, shards)
            elif step == 1:
                set_whole(model.blocks[1].up.weight, model, kinds)
            engine.step()
        return engine.state_dict()


def check_set(found, kinds, reference):
    for name, value in reference.run(plain_set, kinds)[0].items():
        error = (found[name] - value).abs().max() / value.abs().max()
        assert error <= 1e-5, f"{name}: {error:.1e}"


@pytest.mark.parametrize("kinds", [["param"], ["grad"], ["state"], ["param", "grad", "state"]])
@STAGES
def test_whole_tensors_set(stage, kinds, pool, reference):
    check_set(pool.run(rank_sets, stage, kinds, False, ranks=3)[0], kinds, reference)


@pytest.mark.parametrize("stage,persistence", [(2, 0), (3, 0), (3, 10**6)])
def test_local_parts_set(stage, persistence, pool, reference):
    kinds = ["param", "grad", "state"]
    found = pool.run(rank_sets, stage, kinds, True, persistence, ranks=4)
    check_set(found[0], kinds, reference)


TOKENS, HYBRID = {"token_weighted_loss": True}, {"hybrid_shard_size": 2}


@pytest.mark.parametrize(
    "own,ranks", [(TOKENS, 3), (HYBRID, 4)], ids=["losses by tokens", "replicas"]
)
@pytest.mark.parametrize("stage,local", [*((s, False) for s in range(4)), (2, True), (3, True)])
def test_tensors_set_where_gradients_mean_something_else(stage, local, own, ranks, pool, reference):
    """Gradients are read and set as means, whatever they are divided by later; replicas follow."""
    kinds = ["param", "grad", "state"]
    check_set(pool.run(rank_sets, stage, kinds, local, 0, own, ranks=ranks)[0], kinds, reference)


def plain_gradients():
    model = models.build("mlp")
    model(**models.batch("mlp", 0)).backward()
    return {n: p.grad for n, p in model.named_parameters()}


def rank_reads(stage, own):
    """Gradients after backward; masters and first moments after the step."""
    from shardwise import utils

    settings = settings_of(stage)
    settings["shardwise"].update(own)
    with make_engine(models.build("mlp"), settings) as engine:
        named = list(engine.module.named_parameters())
        if "token_weighted_loss" in own:
            backward_by_tokens(engine, 0)
        else:
            engine.backward(engine(**samples(0)))
        gradients = parity.full_gradients(engine)
        engine.step()
        moments = {n: utils.safe_get_full_optimizer_state(p, "exp_avg") for n, p in named}
        masters = {n: utils.safe_get_full_fp32_param(p) for n, p in named}
        state = [engine.state_dict()]
        dist.broadcast_object_list(state)
        assert all(torch.equal(masters[n], state[0][n]) for n in masters)
        return gradients, moments


@pytest.mark.parametrize(
    "own,ranks", [(TOKENS, 3), (HYBRID, 4)], ids=["losses by tokens", "replicas"]
)
@STAGES
def test_tensors_read_where_gradients_mean_something_else(stage, own, ranks, pool, reference):
    plain = reference.run(plain_gradients)[0]
    for gradients, moments in pool.run(rank_reads, stage, own, ranks=ranks):
        for name, value in plain.items():
            largest = value.abs().max()
            assert (gradients[name] - value).abs().max() <= 1e-5 * largest, name
            # One step of Adam from zero: a tenth of the gradient.
            assert (moments[name] - 0.1 * value).abs().max() <= 1e-6 * largest, name


def rank_set_16_bit(stage):
    """The parameter follows its master, rounded; the master keeps what was set."""
    import shardwise
    from shardwise import utils

    model = models.build("mlp")
    with make_engine(model, settings_of(stage, "bf16")):
        weight = model.blocks[1].up.weight
        exact = torch.randn(weight.shape, generator=torch.Generator().manual_seed(3))
        utils.safe_set_full_fp32_param(weight, exact)
        assert torch.equal(utils.safe_get_full_fp32_param(weight), exact)
        with shardwise.zero.GatheredParameters(weight):
            assert torch.equal(weight, exact.bfloat16())
        local = utils.safe_get_local_fp32_param(weight)
        utils.safe_set_local_fp32_param(weight, torch.full_like(local, 1.001))
        with shardwise.zero.GatheredParameters(weight):
            assert torch.equal(weight, torch.full_like(weight, 1.001))


@STAGES
def test_16_bit_parameters_follow(stage, pool):
    pool.run(rank_set_16_bit, stage, ranks=2)


def rank_wrong_values(stage):
    from shardwise import utils

    model = models.build("mlp")
    model.blocks[0].up.weight.requires_grad_(False)
    with make_engine(model, settings_of(stage)) as engine:
        weight, frozen = model.blocks[1].up.weight, model.blocks[0].up.weight
        good = torch.zeros(weight.shape)
        stranger = torch.nn.Parameter(torch.ones(3))
        assert utils.safe_get_full_grad(weight) is None  # before a backward
        assert utils.safe_get_full_fp32_param(stranger) is None
        assert utils.safe_get_local_optimizer_state(stranger, "exp_avg") is None
        assert utils.safe_get_full_fp32_param(frozen) is None
        assert utils.safe_get_full_optimizer_state(weight, "nonsense") is None
        cases = {
            "shape": lambda: utils.safe_set_full_fp32_param(weight, good[:1]),
            "floating": lambda: utils.safe_set_full_fp32_param(weight, good.long()),
            "tensor": lambda: utils.safe_set_full_fp32_param(weight, 1.0),
            "backward": lambda: utils.safe_set_full_grad(weight, good),
            "nonsense": lambda: utils.safe_set_full_optimizer_state(weight, good, "nonsense"),
            "this rank": lambda: utils.safe_set_local_fp32_param(weight, torch.zeros(5)),
        }
        for word, action in cases.items():
            message = message_of(RuntimeError, action)
            assert word in message and "blocks.1.up.weight" in message, message
        message = message_of(RuntimeError, lambda: utils.safe_set_full_grad(stranger, good[0, :3]))
        assert "initialize" in message
        utils.safe_set_full_optimizer_state(weight, good + 2, "exp_avg")
        engine.backward(engine(**samples()))
        if stage < 2:
            action = lambda: utils.safe_get_local_grad(weight)  # noqa: E731
            assert "safe_get_full_grad" in message_of(RuntimeError, action)


@STAGES
def test_wrong_values_are_named(stage, pool):
    pool.run(rank_wrong_values, stage, ranks=2)


def rank_fp16_gradients():
    """Gradients are read and set without the loss scale."""
    from shardwise import utils

    model = models.build("mlp")
    settings = parity.config_of(parity.Case(3, dtype="fp16"))
    with make_engine(model, settings) as engine:
        micro = {k: v.half() for k, v in samples().items()}
        engine.backward(engine(**micro))
        weight = model.blocks[1].up.weight
        gradient = utils.safe_get_full_grad(weight)
        utils.safe_set_full_grad(weight, gradient * 2)
        torch.testing.assert_close(utils.safe_get_full_grad(weight), gradient * 2)
        local = utils.safe_get_local_grad(weight)
        utils.safe_set_local_grad(weight, local * 2)
        torch.testing.assert_close(utils.safe_get_full_grad(weight), gradient * 4)


def test_fp16_gradients_are_unscaled(pool):
    pool.run(rank_fp16_gradients, ranks=2)
