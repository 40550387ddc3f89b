"""`.grad` at stages 0 and 1, as the user's program sees and changes it; which gradients count."""

import models
import pytest
import torch
import torch.distributed as dist
from parity import make_engine
from rules import ExactGradients, numbers
from steps import STAGES, config

SHAPES = ((7,), (7,), (4, 6))
LIMIT = 0.3
WHOLE = pytest.mark.parametrize("stage", [0, 1])


def plain_steps(model, change, micro_batches, steps=2):
    """Trains in plain PyTorch; `change(model)` acts after each backward."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for step in range(steps):
        for micro in range(micro_batches):
            (model(10 * step + micro) / micro_batches).backward()
            change(model)
        optimizer.step()
        optimizer.zero_grad()


def engine_steps(model, stage, change, micro_batches, steps=2):
    sgd = {"type": "SGD", "params": {"lr": 1.0}}
    with make_engine(model, config(stage, micro_batches, optimizer=sgd)) as engine:
        for step in range(steps):
            for micro in range(micro_batches):
                engine.backward(engine(10 * step + micro))
                change(model)
                engine.step()
        return engine.state_dict()


def assert_equal(found, model):
    """Numbers are multiples of powers of two: no rounding but that of the weights' own."""
    for name, weight in model.named_parameters():
        if found:
            assert torch.equal(found[name], weight.detach()), name


def nothing(model):
    pass


def clamp_in_place(seen):
    def hook(parameter):
        seen.append(parameter.grad.clone())
        parameter.grad.clamp_(-LIMIT, LIMIT)

    return hook


def rank_hooks(stage, micro_batches):
    pairs = [], []
    plain, model = ExactGradients(SHAPES), ExactGradients(SHAPES)
    for seen, one in zip(pairs, (plain, model), strict=True):
        for part in one.parts:
            part.register_post_accumulate_grad_hook(clamp_in_place(seen))
    plain_steps(plain, nothing, micro_batches)
    assert_equal(engine_steps(model, stage, nothing, micro_batches), plain)
    order = [sorted((g.flatten().tolist() for g in seen), key=str) for seen in pairs]
    assert order[0] == order[1] and len(order[0]) == 6 * micro_batches


@WHOLE
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_post_accumulate_hooks_see_and_change_the_sum(stage, micro_batches, pool):
    pool.run(rank_hooks, stage, micro_batches, ranks=2)


def rank_hooks_without_gradients(stage):
    model = ExactGradients(SHAPES)
    model.parts[1].register_post_accumulate_grad_hook(lambda parameter: None)
    with pytest.raises(RuntimeError, match=r"parts\.1 has a hook .* stage 0 or 1"):
        engine_steps(model, stage, nothing, 1)


@pytest.mark.parametrize("stage", [2, 3])
def test_post_accumulate_hooks_need_a_gradient_to_see(stage, pool):
    pool.run(rank_hooks_without_gradients, stage, ranks=2)


def clamp_by_assignment(model):
    for part in model.parts:
        part.grad = part.grad.clamp(-LIMIT, LIMIT)


def swap(model):
    first, second = model.parts[0], model.parts[1]
    first.grad, second.grad = second.grad, first.grad


def drop_one(model):
    model.parts[2].grad = None


def set_data(model):
    model.parts[0].grad.data = torch.full((7,), 0.25)


CHANGES = {f.__name__: f for f in (clamp_by_assignment, swap, drop_one, set_data)}


def rank_replaced(stage, change, micro_batches):
    plain = ExactGradients(SHAPES)
    plain_steps(plain, CHANGES[change], micro_batches)
    found = engine_steps(ExactGradients(SHAPES), stage, CHANGES[change], micro_batches)
    assert_equal(found, plain)


@WHOLE
@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("change", CHANGES)
def test_a_replaced_gradient_is_the_sum_from_then_on(change, micro_batches, stage, pool):
    pool.run(rank_replaced, stage, change, micro_batches, ranks=2)


# ---- gradients of several units


def first_and_second(model):
    return model.blocks[0].up.weight, model.blocks[1].up.weight


def swap_units(model):
    first, second = first_and_second(model)
    first.grad, second.grad = second.grad, first.grad


def share(model):
    first, second = first_and_second(model)
    first.grad = second.grad


def halve_by_a_hook(model):
    """The gradient of the second block is there when that of the first arrives."""
    first, second = first_and_second(model)

    def halve(parameter):
        second.grad = second.grad * 0.5

    first.register_post_accumulate_grad_hook(halve)


BY_HAND = {f.__name__: f for f in (swap_units, share)}
BY_HOOK = {f.__name__: f for f in (halve_by_a_hook,)}


def rank_units(stage, change):
    world = dist.get_world_size()
    plain, model = models.build("mlp"), models.build("mlp")
    for one in (plain, model):
        BY_HOOK.get(change, nothing)(one)
    act = BY_HAND.get(change, nothing)
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1)
    settings = config(stage, optimizer={"type": "SGD", "params": {"lr": 0.1}})
    with make_engine(model, settings) as engine:
        for step in range(2):
            micros = models.micro_batches("mlp", step, world, "cpu", torch.float32)
            (sum(plain(**micro) for micro in micros) / world).backward()
            act(plain)
            sgd.step()
            sgd.zero_grad()
            engine.backward(engine(**micros[dist.get_rank()]))
            act(model)
            engine.step()
        found = engine.state_dict()
    for name, weight in plain.named_parameters():
        if found:
            torch.testing.assert_close(found[name], weight.detach(), rtol=1e-5, atol=1e-6)


@WHOLE
@pytest.mark.parametrize("change", [*BY_HAND, *BY_HOOK])
def test_gradients_change_places_between_units(change, stage, pool):
    pool.run(rank_units, stage, change, ranks=2)


def rank_kept(stage, drop):
    """A gradient that the program keeps is its own once it is no parameter's any more."""
    model = ExactGradients(SHAPES)
    with make_engine(model, config(stage, 2)) as engine:
        kept = []
        for micro in range(4):
            engine.backward(engine(micro))
            gradients = [part.grad for part in model.parts]
            if drop:
                for part in model.parts:
                    part.grad = None
                kept.append((gradients, [gradient.clone() for gradient in gradients]))
            engine.step()
            if not drop and micro % 2:
                kept.append((gradients, [gradient.clone() for gradient in gradients]))
        for gradients, copies in kept:
            assert all(map(torch.equal, gradients, copies))
        assert len({gradients[0].data_ptr() for gradients, _ in kept}) == len(kept)


@WHOLE
@pytest.mark.parametrize("drop", [False, True])
def test_a_gradient_that_is_kept_stays_what_it_was(stage, drop, pool):
    pool.run(rank_kept, stage, drop, ranks=2)


# ---- parameters of no group


def rank_norm(stage):
    """Gradients of what the optimizer does not move neither clip nor spoil its step."""
    model = ExactGradients(SHAPES)
    given = [model.parts[0]]
    sgd = {"type": "SGD", "params": {"lr": 1.0}}
    settings = config(stage, optimizer=sgd, gradient_clipping=0.5)
    settings["shardwise"]["non_finite"] = "skip"
    with make_engine(model, settings, model_parameters=given) as engine:
        spoiled = model.parts[1].register_hook(lambda gradient: gradient * float("inf"))
        engine.backward(engine(0))
        spoiled.remove()
        engine.step()
        assert engine.was_step_applied()
        expected = numbers(SHAPES[0], 0, 0).norm()
        assert engine.get_global_grad_norm() == pytest.approx(float(expected), rel=1e-6)
        engine.optimizer.add_param_group({"params": list(model.parts)[1:], "lr": 1.0})
        engine.backward(engine(1))
        engine.step()
        expected = torch.cat([numbers(s, 1, i).flatten() for i, s in enumerate(SHAPES)]).norm()
        assert engine.get_global_grad_norm() == pytest.approx(float(expected), rel=1e-6)


@STAGES
def test_the_norm_is_of_what_the_optimizer_moves(stage, pool):
    pool.run(rank_norm, stage, ranks=2)


# ---- momentum that begins later


def momentum_groups(parts, dampening):
    rest = {"lr": 0.5, "dampening": dampening}
    return [
        {"params": [parts[0]], "momentum": 0.0, **rest},
        {"params": list(parts)[1:], "momentum": 0.5, **rest},
    ]


def rank_later_momentum(dampening):
    results = []
    for how in ("plain", "engine"):
        model = ExactGradients(SHAPES)
        optimizer = torch.optim.SGD(momentum_groups(model.parts, dampening), lr=0.5)
        settings = config(1)
        del settings["optimizer"]
        engine = make_engine(model, settings, optimizer=optimizer) if how == "engine" else None
        groups = (engine.optimizer if engine else optimizer).param_groups
        for step in range(3):
            if step == 1:
                groups[0]["momentum"] = 0.5
            if engine:
                engine.backward(engine(step))
                engine.step()
            else:
                model(step).backward()
                optimizer.step()
                optimizer.zero_grad()
        results.append(engine.state_dict() if engine else model)
        if engine:
            engine.destroy()
    assert_equal(results[1], results[0])


def rank_damped_later_momentum():
    with pytest.raises(RuntimeError, match=r"param_groups\[0\]\['momentum'\] was 0 .*'dampening'"):
        rank_later_momentum(0.5)


def test_momentum_that_begins_later(pool):
    pool.run(rank_later_momentum, 0.0, ranks=2)
    pool.run(rank_damped_later_momentum, ranks=2)
