"""Ways to fill an accumulation window, held against plain PyTorch over the same samples."""

import inspect
import os
import sys
from contextlib import contextmanager

import models
import parity
import pytest
import reference
import torch
import torch.distributed as dist
from steps import STAGES, config, engine_of, samples

WINDOWS = [[0, 1], [2, 3], [4, 5]]  # data steps whose gradients make one update


def plain_windows(windows, ranks=2):
    """Reference process: weights after one AdamW step on the mean of each window."""
    module = models.build("mlp")
    make, options = reference.OPTIMIZERS["AdamW"]
    optimizer = make(module.parameters(), **options)
    for window in windows:
        for step in window:
            for micro in models.micro_batches("mlp", step, ranks, "cpu", torch.float32):
                (models.loss_of(module(**micro)) / (len(window) * ranks)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: p.detach() for name, p in module.named_parameters()}


def check_weights(got: dict, plain: dict):
    errors = parity.relative_errors(got, {"weights": plain}, "weights")
    worst = max(errors, key=errors.get)
    assert errors[worst] <= 1e-5, f"{worst}: {errors[worst]:.2e}"


def usual(engine, loss):
    engine.backward(loss)


def direct(engine, loss):
    loss.backward()


def scaled(engine, loss):
    engine.scale(loss).backward()


def two_losses(engine, loss):
    engine.backward(0.25 * loss, retain_graph=True)
    engine.backward(0.75 * loss)


def two_graphs(engine, loss):
    """One half over a graph of its own."""
    engine.backward(0.5 * loss)
    engine.backward(0.5 * engine(**engine.latest))


def mixed(engine, loss):
    (0.5 * loss).backward(retain_graph=True)
    engine.backward(0.5 * loss)


def outside(engine, loss):
    torch.autograd.backward([0.5 * loss, 0.5 * engine(**engine.latest)])


WAYS = [usual, direct, scaled, two_losses, two_graphs, mixed, outside]


def rank_ways(stage, way):
    with engine_of(stage, accumulation=2) as engine:
        for step in sum(WINDOWS, []):
            engine.latest = samples(step)
            way(engine, engine(**engine.latest))
            engine.step()
        assert engine.global_steps == 3
        return engine.state_dict()


@pytest.mark.parametrize("way", WAYS)
@STAGES
def test_ways_of_backward(stage, way, pool, reference):
    got = pool.run(rank_ways, stage, way, ranks=2)[0]
    check_weights(got, reference.run(plain_windows, WINDOWS)[0])


def rank_by_hand(stage, windows):
    """The user says where windows end; their losses are divided by the user."""
    with engine_of(stage, accumulation=1) as engine:
        for window in windows:
            for step in window:
                engine.set_gradient_accumulation_boundary(step == window[-1])
                engine.backward(engine(**samples(step)) / len(window))
                engine.step()
        return engine.state_dict()


@STAGES
def test_boundaries_by_hand(stage, pool, reference):
    windows = [[0], [1, 2, 3], [4, 5]]
    got = pool.run(rank_by_hand, stage, windows, ranks=2)[0]
    check_weights(got, reference.run(plain_windows, windows)[0])


def rank_epochs(stage, flush):
    """Two epochs of 10 micro-batches with windows of 4."""
    with engine_of(stage, accumulation=4) as engine:
        applied = []
        for _ in range(2):
            for step in range(10):
                engine.backward(engine(**samples(step)))
                engine.step()
                applied.append(engine.was_step_applied())
            if flush:
                assert engine.flush_accumulation()
                assert engine.was_step_applied()
                assert not engine.flush_accumulation(), "nothing is left"
        return engine.state_dict(), engine.global_steps, engine.micro_steps, applied


@STAGES
def test_EP_01_partial_windows(stage, pool, reference):
    """With flush the mean over the two left counts; without it they open the next window."""
    epoch = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    state, steps, micro, _ = pool.run(rank_epochs, stage, True, ranks=2)[0]
    assert (steps, micro) == (6, 20)
    check_weights(state, reference.run(plain_windows, epoch * 2)[0])
    carried = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1], [2, 3, 4, 5], [6, 7, 8, 9]]
    state, steps, micro, _ = pool.run(rank_epochs, stage, False, ranks=2)[0]
    assert (steps, micro) == (5, 20)
    check_weights(state, reference.run(plain_windows, carried)[0])


def rank_flush_without_step(stage):
    """A loop that leaves before step(): its backward counts as a micro-batch."""
    with engine_of(stage, accumulation=4) as engine:
        engine.backward(engine(**samples(0)))
        engine.step()
        engine.backward(engine(**samples(1)))
        assert engine.flush_accumulation()
        assert (engine.global_steps, engine.micro_steps) == (1, 2)
        return engine.state_dict()


@STAGES
def test_flush_counts_the_open_micro_batch(stage, pool, reference):
    got = pool.run(rank_flush_without_step, stage, ranks=2)[0]
    check_weights(got, reference.run(plain_windows, [[0, 1]])[0])


def plain_uneven(counts):
    """Weights after one AdamW step on the mean of all micro-batches, `counts` of each rank."""
    module = models.build("mlp")
    make, options = reference.OPTIMIZERS["AdamW"]
    optimizer = make(module.parameters(), **options)
    for rank, count in enumerate(counts):
        for step in range(count):
            micros = models.micro_batches("mlp", step, len(counts), "cpu", torch.float32)
            (models.loss_of(module(**micros[rank])) / sum(counts)).backward()
    optimizer.step()
    return {name: p.detach() for name, p in module.named_parameters()}


def rank_uneven(stage, counts):
    with engine_of(stage, accumulation=4) as engine:
        count = counts[dist.get_rank()]
        for step in range(count):
            engine.backward(engine(**samples(step)))
            engine.step()
        assert engine.flush_accumulation()
        assert not engine.flush_accumulation()
        assert (engine.global_steps, engine.micro_steps) == (1, count)
        assert engine.global_samples == sum(counts) * engine.train_micro_batch_size_per_gpu()
        return {name: p.detach().clone() for name, p in engine.module.named_parameters()}


@pytest.mark.parametrize("counts", [(3, 2), (0, 1)], ids=str)
@pytest.mark.parametrize("stage", [0, 1])
def test_flush_of_ranks_with_uneven_windows(stage, counts, pool, reference):
    """The mean over the micro-batches of all ranks; those of one may be fewer, or none."""
    for got in pool.run(rank_uneven, stage, counts, ranks=2):
        check_weights(got, reference.run(plain_uneven, counts)[0])


def rank_fp16(stage):
    settings = config(stage, accumulation=2, fp16={"enabled": True, "initial_scale_power": 8})
    half = [{k: v.half() for k, v in samples(step).items()} for step in range(2)]
    states = []
    for way in (usual, scaled):
        with parity.make_engine(models.build("mlp"), settings) as engine:
            for micro in half:
                way(engine, engine(**micro))
                engine.step()
            states.append((engine.state_dict(), engine.get_global_grad_norm()))
    with parity.make_engine(models.build("mlp"), settings) as engine:
        with pytest.raises(RuntimeError, match=r"engine\.scale\(loss\)\.backward\(\)"):
            engine(**half[0]).backward()
        with pytest.raises(RuntimeError, match="zero_grad"):
            engine.step()
        engine.zero_grad()
        for micro in half:
            engine.backward(engine(**micro))
            engine.step()
        states.append((engine.state_dict(), engine.get_global_grad_norm()))
    return states


@STAGES
def test_fp16_needs_the_loss_scale(stage, pool):
    """By hand or by the engine gives the same; without it: an error, and nothing is spoiled."""
    (usual_state, norm), (scaled_state, scaled_norm), (after, norm_after) = pool.run(
        rank_fp16, stage, ranks=2
    )[0]
    assert norm == norm_after
    assert scaled_norm == pytest.approx(norm, rel=2**-10)
    for name, weight in usual_state.items():
        assert torch.equal(after[name], weight), name
        # Dividing before or after backward rounds differently: one unit in the last place.
        torch.testing.assert_close(scaled_state[name], weight, rtol=2**-9, atol=2**-14)


def rank_failing_backward(stage):
    """A user's hook fails in the middle of loss.backward()."""
    with engine_of(stage) as engine:
        fail = True

        def hook(gradient):
            if fail:
                raise ValueError("from the hook")
            return gradient

        block = engine.module.blocks[2]
        block.register_forward_hook(lambda *args: args[-1].register_hook(hook) and None)
        with pytest.raises(ValueError, match="from the hook"):
            engine(**samples(0)).backward()
        if stage >= 2:
            with pytest.raises(RuntimeError, match="zero_grad"):
                engine.step()
        engine.zero_grad()
        fail = False
        engine(**samples(0)).backward()
        engine.step()
        return engine.state_dict()


@STAGES
def test_failing_backward_of_the_user(stage, pool, reference):
    got = pool.run(rank_failing_backward, stage, ranks=2)[0]
    check_weights(got, reference.run(plain_windows, [[0]])[0])


# Two engines over one graph


def build_pair():
    torch.manual_seed(0)
    nets = GeneratorNet(), JudgeNet()
    with torch.no_grad():
        for net in nets:
            for p in net.parameters():
                if p.dim() == 1:  # what starts at zero has no scale to compare errors with
                    p.add_(torch.randn_like(p) * 0.05)
                p.copy_(p.bfloat16())  # both dtypes start from the same point
    return nets


class GeneratorNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(models.MlpBlock() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class JudgeNet(GeneratorNet):
    def forward(self, x):
        return super().forward(x).pow(2).mean()


def adversarial(g, d, data, step_g, step_d):
    """One round as GANs are trained; `step_*(loss)` does backward and update of that side."""
    step_d(d(g(data["x"]).detach()) - d(data["y"]))
    step_g(-d(g(data["x"])))


# Plain steps: the gradients cancel each other in places, and Adam would blow their noise up.
RATE = {"lr": 0.05}


def plain_pair(rounds):
    g, d = build_pair()
    optimizers = [torch.optim.SGD(net.parameters(), **RATE) for net in (g, d)]
    for step in range(rounds):
        micros = models.micro_batches("mlp", step, 2, "cpu", torch.float32)

        def update(optimizer, loss_of, micros=micros):
            for net in optimizers:
                net.zero_grad()
            sum(loss_of(m) / 2 for m in micros).backward()
            optimizer.step()

        update(optimizers[1], lambda m: d(g(m["x"]).detach()) - d(m["y"]))
        update(optimizers[0], lambda m: -d(g(m["x"])))
    return [{n: p.detach() for n, p in net.named_parameters()} for net in (g, d)]


@contextmanager
def engines_of_pair(stages):
    settings = [
        config(stage, optimizer={"type": "SGD", "params": RATE}, gradient_clipping=0)
        for stage in stages
    ]
    nets = build_pair()
    with (
        parity.make_engine(nets[0], settings[0]) as g,
        parity.make_engine(nets[1], settings[1]) as d,
    ):
        yield g, d


def rank_pair(stages, rounds):
    with engines_of_pair(stages) as (g, d):

        def stepper(engine):
            def run(loss):
                engine.backward(loss)
                engine.step()
                for other in (g, d):
                    other.zero_grad()  # the generator's loss reaches the judge too

            return run

        for step in range(rounds):
            adversarial(g, d, samples(step), stepper(g), stepper(d))
        return g.state_dict(), d.state_dict()


@pytest.mark.parametrize("stages", [(2, 3), (3, 2), (0, 3), (1, 1)], ids=str)
def test_LC_03_two_engines_over_one_graph(stages, pool, reference):
    got = pool.run(rank_pair, stages, 20, ranks=2)[0]
    for mine, plain in zip(got, reference.run(plain_pair, 20)[0], strict=True):
        check_weights(mine, plain)


def plain_mixed(kind, rounds):
    """A generator in fp32, a judge in `kind` with fp32 masters and two micro-batches a rank."""
    g, d = build_pair()
    masters = {n: p.detach().clone() for n, p in d.named_parameters()}
    d.to(kind)
    optimizers = [torch.optim.SGD(values, **RATE) for values in (g.parameters(), masters.values())]
    for step in range(rounds):
        sums = {n: torch.zeros_like(value) for n, value in masters.items()}
        for micro in models.micro_batches("mlp", step, 4, "cpu", torch.float32):
            d.zero_grad()
            (d(g(micro["x"]).detach().to(kind)) - d(micro["y"].to(kind))).backward()
            for name, p in d.named_parameters():
                sums[name] += p.grad
        for name, value in masters.items():
            value.grad = sums[name] / 4
        optimizers[1].step()
        with torch.no_grad():
            for name, p in d.named_parameters():
                p.copy_(masters[name])
        g.zero_grad()
        for micro in models.micro_batches("mlp", step, 2, "cpu", torch.float32):
            (-d(g(micro["x"]).to(kind)) / 2).backward()
        optimizers[0].step()
    return [{n: p.detach().float() for n, p in net.named_parameters()} for net in (g, d)]


def rank_mixed(rounds):
    sgd = {"optimizer": {"type": "SGD", "params": RATE}, "gradient_clipping": 0}
    nets = build_pair()
    half = torch.bfloat16
    with (
        parity.make_engine(nets[0], config(2, **sgd)) as g,
        parity.make_engine(nets[1], config(3, 2, bf16={"enabled": True}, **sgd)) as d,
    ):
        for step in range(rounds):
            # Two of four runs of samples, which together are what samples() gives this rank.
            micros = models.micro_batches("mlp", step, 4, "cpu", torch.float32)
            for micro in micros[2 * dist.get_rank() :][:2]:
                d.backward(d(g(micro["x"]).detach().to(half)) - d(micro["y"].to(half)))
                d.step()
            g.backward(-d(g(samples(step)["x"]).to(half)))
            g.step()
            d.zero_grad()  # the generator's loss reached the judge too
        assert (g.global_steps, d.global_steps, d.micro_steps) == (rounds, rounds, 2 * rounds)
        return [{n: p.float() for n, p in e.state_dict().items()} for e in (g, d)]


def test_LC_03_engines_that_differ_in_stage_accumulation_and_dtype(pool, reference):
    """Both within twice what plain PyTorch's judge in bf16 changes, as in the parity table."""
    got = pool.run(rank_mixed, 20, ranks=2)[0]
    exact, plain = (reference.run(plain_mixed, k, 20)[0] for k in (torch.float32, torch.bfloat16))
    for mine, its, fp32 in zip(got, plain, exact, strict=True):
        rounding = parity.relative_errors(its, {"weights": fp32}, "weights")
        errors = parity.relative_errors(mine, {"weights": its}, "weights")
        worst = max(errors, key=errors.get)
        allowed = max(2 * max(rounding.values()), torch.finfo(torch.bfloat16).eps)
        assert errors[worst] <= allowed, f"{worst}: {errors[worst]:.2e}, allowed {allowed:.2e}"


def kept(value):
    """What a global of the package holds, to compare it later."""
    if isinstance(value, dict):
        return {key: kept(held) for key, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [kept(held) for held in value]
    if isinstance(value, (str, int, float, frozenset, type(None))):
        return value
    own = type(value).__module__.startswith("shardwise.") and hasattr(value, "__dict__")
    return {"of": id(value), **kept(vars(value))} if own else id(value)


def globals_of_the_package():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "shardwise":
            values = {k: v for k, v in vars(module).items() if not k.startswith("__")}
            found[name] = {k: kept(v) for k, v in values.items() if not inspect.ismodule(v)}
    found["process"] = {
        "environment": dict(os.environ),
        "hook": id(sys.excepthook),
        "dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "random": torch.get_rng_state().tolist(),
        "default group": id(dist.group.WORLD),
    }
    return found


def changed(before, after, path=""):
    """Names of what is not as it was; new keys are no change."""
    if isinstance(before, dict) and isinstance(after, dict):
        both = {key: (held, after.get(key)) for key, held in before.items()}
        return [n for key, pair in both.items() for n in changed(*pair, f"{path}/{key}")]
    return [] if before == after else [path]


def rank_globals():
    loud = {
        "activation_checkpointing": {"cpu_checkpointing": True},
        "comms_logger": {"enabled": True, "prof_all": False, "prof_ops": ["all_gather"]},
        "wall_clock_breakdown": True,
        "flops_profiler": {"enabled": True},
        "bf16": {"enabled": True},
        "steps_per_print": 1,
    }
    with engine_of(2) as first:
        before = globals_of_the_package()
        with engine_of(3, 2, **loud) as second:
            batch = {name: value.bfloat16() for name, value in samples().items()}
            second.backward(second(**batch))
            assert changed(before, globals_of_the_package()) == []
        first.backward(first(**samples()))
        first.step()


def test_LC_03_a_second_engine_overwrites_no_global(pool):
    pool.run(rank_globals, ranks=2)


def test_LC_03_overwritten_globals_are_seen():
    before = {"a": {"b": [1, 2], "c": 3}}
    assert changed(before, {"a": {"b": [1, 2], "c": 3, "new": 4}, "x": 1}) == []
    assert changed(before, {"a": {"b": [1], "c": 3}}) == ["/a/b"]
    assert changed(before, {"a": {"b": [1, 2]}}) == ["/a/c"]


def rank_joint(stages):
    """One loss through two engines trains both."""
    with engines_of_pair(stages) as (g, d):
        for step in range(3):
            d.backward(d(g(samples(step)["x"])))
            g.step()
            d.step()
        return g.state_dict(), d.state_dict()


def plain_joint():
    nets = build_pair()
    optimizers = [torch.optim.SGD(net.parameters(), **RATE) for net in nets]
    for step in range(3):
        for micro in models.micro_batches("mlp", step, 2, "cpu", torch.float32):
            (nets[1](nets[0](micro["x"])) / 2).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return [{n: p.detach() for n, p in net.named_parameters()} for net in nets]


@pytest.mark.parametrize("stages", [(0, 3), (3, 1), (2, 2)], ids=str)
def test_one_loss_trains_two_engines(stages, pool, reference):
    got = pool.run(rank_joint, stages, ranks=2)[0]
    for mine, plain in zip(got, reference.run(plain_joint)[0], strict=True):
        check_weights(mine, plain)


# Token weights


COUNTS = (31, 3, 17, 9, 0)  # target tokens of the micro-batches


def token_batches():
    """Four micro-batches of GPT-2, whose targets are masked but for COUNTS of them."""
    g = torch.Generator().manual_seed(5)
    batches = []
    for count in COUNTS:
        ids = torch.randint(0, models.VOCABULARY, (4, models.LENGTH), generator=g)
        labels = torch.full_like(ids, -100)
        targets = labels[:, 1:]  # a view: the first label is never predicted
        places = torch.randperm(targets.numel(), generator=g)[:count]
        targets[places // targets.shape[1], places % targets.shape[1]] = 7
        batches.append({"input_ids": ids, "labels": labels})
    return batches


def plain_token_mean():
    """Gradients of the mean over all target tokens."""
    module = models.build("gpt2")
    for batch, count in zip(token_batches(), COUNTS, strict=True):
        if count:
            (module(**batch).loss * (count / sum(COUNTS))).backward()
    return {name: p.grad for name, p in module.named_parameters()}


def plain_mean_of_means():
    """Gradients where each of four micro-batches counts the same."""
    module = models.build("gpt2")
    for batch in token_batches()[:4]:
        (module(**batch).loss / 4).backward()
    return {name: p.grad for name, p in module.named_parameters()}


def by_tokens(model="gpt2", stage=0, accumulation=1):
    """An engine whose losses count by their tokens."""
    own = {"poison_released": True, "token_weighted_loss": True}
    return parity.make_engine(models.build(model), config(stage, accumulation, shardwise=own))


def rank_token_weighted(stage, order, accumulation):
    """`order[micro][rank]`: which batch a rank takes; the last one has no target at all."""
    batches = token_batches()
    with by_tokens("gpt2", stage, accumulation) as engine:
        for position, micro in enumerate(order):
            engine.backward(engine(**batches[micro[dist.get_rank()]]).loss)
            if position + 1 < len(order):
                engine.step()
        gradients = parity.full_gradients(engine)
        engine.step()
        return gradients, engine.get_global_grad_norm()


@pytest.mark.parametrize(
    ("order", "accumulation", "ranks"),
    [([(0, 1), (2, 3)], 2, 2), ([(3, 0), (4, 2), (1, 4)], 3, 2), ([(0, 1, 2, 3)], 1, 4),
     ([(0,), (1,), (2,), (3,)], 4, 1)],
    ids=["2x2", "3x2, two without targets", "4x1", "1x4"],
)  # fmt: skip
@STAGES
def test_GA_03_token_weights(stage, order, accumulation, ranks, pool, reference):
    """However samples are split over ranks and micro-batches, the mean over tokens is the same."""
    gradients, norm = pool.run(rank_token_weighted, stage, order, accumulation, ranks=ranks)[0]
    plain = reference.run(plain_token_mean)[0]
    errors = parity.relative_errors(gradients, {"gradients": plain}, "gradients")
    assert max(errors.values()) <= 1e-5, max(errors, key=errors.get)
    expected = torch.linalg.vector_norm(torch.stack([g.double().norm() for g in plain.values()]))
    assert norm == pytest.approx(float(expected), rel=1e-6)


def rank_default_weights(stage):
    batches = token_batches()
    with parity.make_engine(models.build("gpt2"), config(stage, accumulation=2)) as engine:
        engine.backward(engine(**batches[dist.get_rank()]).loss)
        engine.step()
        engine.backward(engine(**batches[2 + dist.get_rank()]).loss)
        return parity.full_gradients(engine)


@STAGES
def test_GA_03_by_default_micro_batches_count_the_same(stage, pool, reference):
    """As in DeepSpeed."""
    gradients = pool.run(rank_default_weights, stage, ranks=2)[0]
    check_weights(gradients, reference.run(plain_mean_of_means)[0])


def rank_token_rules():
    with engine_of(0) as engine, pytest.raises(RuntimeError, match="token_weighted_loss"):
        engine.backward(engine(**samples()), tokens=3)
    with by_tokens("mlp") as engine:
        with pytest.raises(RuntimeError, match="tokens="):
            engine.backward(engine(**samples()))
        with pytest.raises(RuntimeError, match="tokens="):
            engine(**samples()).backward()
        engine.zero_grad()
        engine.backward(engine(**samples()), tokens=3)
        engine.step()
        assert engine.was_step_applied()


def test_token_weights_must_be_known(pool):
    pool.run(rank_token_rules, ranks=2)


def rank_losses_of_one_micro_batch():
    """Two losses over the same tokens, an evaluation between forward and backward."""
    batches = token_batches()
    with by_tokens("gpt2", 2, accumulation=2) as engine:
        for position in range(2):
            output = engine(**batches[position])
            with torch.no_grad():
                engine(**batches[2])
            engine.backward(output.loss, retain_graph=True)
            engine.backward(output.loss * 0.5)  # the only forward with gradients
            if position == 0:
                engine.step()
        return parity.full_gradients(engine)


def plain_losses_of_one_micro_batch():
    module = models.build("gpt2")
    for batch, count in list(zip(token_batches(), COUNTS, strict=True))[:2]:
        (module(**batch).loss * (1.5 * count / sum(COUNTS[:2]))).backward()
    return {name: p.grad for name, p in module.named_parameters()}


def test_several_losses_count_their_tokens_once(pool, reference):
    gradients = pool.run(rank_losses_of_one_micro_batch, ranks=2)[0]
    plain = reference.run(plain_losses_of_one_micro_batch)[0]
    errors = parity.relative_errors(gradients, {"gradients": plain}, "gradients")
    assert max(errors.values()) <= 1e-5, max(errors, key=errors.get)


def rank_ambiguous_tokens():
    batches = token_batches()
    with by_tokens() as engine:
        first, second = (engine(**batches[i]).loss for i in range(2))
        with pytest.raises(RuntimeError, match="2 forwards with labels"):
            engine.backward(first + second)
        engine.backward(first)
        with pytest.raises(RuntimeError, match="over 31 tokens and one over 3 came in one"):
            engine.backward(second)
        engine.zero_grad()
        engine.backward(engine(**batches[1]).loss)
        engine.step()
        assert engine.was_step_applied()
        with pytest.raises(RuntimeError, match=r"float16 loss .* logits\.float\(\)"):
            engine.backward(engine(**batches[0]).loss.half(), tokens=7)


def test_token_counts_that_do_not_fit_are_refused(pool):
    pool.run(rank_ambiguous_tokens, ranks=1)


OTHER_MEANS = {
    "num_items_in_batch": torch.tensor(100),
    "shift_labels": torch.full((4, models.LENGTH), 3),
    "ignore_index": 7,
}


def rank_other_means():
    """Keywords with which transformers' loss is no mean over the labels that are not -100."""
    batch = {"input_ids": (ids := token_batches()[0]["input_ids"]), "labels": ids}
    with by_tokens() as engine:
        for keyword, value in OTHER_MEANS.items():
            with pytest.raises(RuntimeError, match=f"got {keyword}=.*leave {keyword} out.*tokens="):
                engine.backward(engine(**batch, **{keyword: value}).loss)
            engine.zero_grad()
            engine.backward(engine(**batch, **{keyword: value}).loss, tokens=9)
            engine.zero_grad()
        for keyword, value in (("num_items_in_batch", None), ("ignore_index", -100)):
            engine.backward(engine(**batch, **{keyword: value}).loss)
            engine.zero_grad()


def test_losses_that_transformers_divides_otherwise_are_refused(pool):
    pool.run(rank_other_means, ranks=1)


def rank_weight_beyond_its_loss_dtype():
    """Weights as large as no bf16 or fp16 number tells apart."""
    batch = samples()
    with by_tokens("mlp", 1, accumulation=2) as engine:
        for tokens in (70_000, 70_001):
            engine.backward(engine(**batch).to(torch.bfloat16), tokens=tokens)
            engine.step()
        return engine.was_step_applied(), engine.get_global_grad_norm()


def plain_bf16_loss():
    module = models.build("mlp")
    module(**samples()).to(torch.bfloat16).backward()
    return float(
        torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in module.parameters()]))
    )


def test_large_token_counts(pool, reference):
    """Two micro-batches of the same samples: their mean has the gradient of one.

    Backward rounds a weight to the dtype of the loss, bf16: half a unit in 8 bits of mantissa.
    """
    applied, norm = pool.run(rank_weight_beyond_its_loss_dtype, ranks=1)[0]
    assert applied
    assert norm == pytest.approx(reference.run(plain_bf16_loss)[0], rel=2**-8)
