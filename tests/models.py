"""The models of the parity tests, their data, and how a loss is read from their output.

Every entry gives the same module in every process for the same seed. Initial weights are rounded to
values that fp32, bf16 and fp16 all hold exactly, so that every dtype starts from the same point.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

SAMPLES = 48  # a step, divisible by 1..4 processes times 1 or 4 accumulation steps
WIDTH = 32
VOCABULARY = 97
LENGTH = 12


def build(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = BUILDERS[name]()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:  # biases that start at zero would have no scale to compare errors with
                p.add_(torch.randn_like(p) * 0.05)
            p.copy_(p.bfloat16().half().float())
    return model.train()


def batch(name: str, step: int) -> dict:
    """The SAMPLES samples of a step as keyword arguments of the model; floats in fp32."""
    g = torch.Generator().manual_seed(1000 + step)
    if name == "cnn":
        return {
            "images": torch.randn(SAMPLES, 3, 12, 12, generator=g),
            "labels": torch.randint(0, 10, (SAMPLES,), generator=g),
        }
    if name in TEXT_MODELS:
        ids = torch.randint(0, VOCABULARY, (SAMPLES, LENGTH), generator=g)
        labels = torch.randint(0, 3, (SAMPLES,), generator=g) if name == "bert" else ids
        return {"input_ids": ids, "labels": labels}
    x = torch.randn(SAMPLES, WIDTH, generator=g)
    y = torch.randn(SAMPLES, WIDTH, generator=g)
    return {"x": x, "y": y}


def micro_batches(name: str, step: int, count: int, device, dtype) -> list[dict]:
    """The step's samples cut into `count` equal runs; micro-batch m of rank r is run m * N + r."""
    whole = {
        key: value.to(device, dtype if value.is_floating_point() else None)
        for key, value in batch(name, step).items()
    }
    size = SAMPLES // count
    return [{k: v[i * size : (i + 1) * size] for k, v in whole.items()} for i in range(count)]


def loss_of(output) -> torch.Tensor:
    """The loss inside a tensor, a tuple, a dict or a Hugging Face output."""
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, dict):
        return output["loss"]
    return output[0]


def mse(prediction, target):
    return F.mse_loss(prediction.float(), target.float())


class MlpBlock(nn.Module):
    def __init__(self, width=WIDTH, hidden=None):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden or 2 * width)
        self.down = nn.Linear(hidden or 2 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Mlp(nn.Module):
    def __init__(self, layers=5, width=WIDTH):
        super().__init__()
        self.blocks = nn.ModuleList(MlpBlock(width) for _ in range(layers))
        self.head = nn.Linear(width, width)

    def forward(self, x, y):
        for block in self.blocks:
            x = block(x)
        return mse(self.head(x), y)


class BlocksOnly(nn.Module):
    """Nothing but equal blocks: every parameter is in a repeated unit."""

    def __init__(self, layers=6, width=WIDTH, hidden=None):
        super().__init__()
        self.blocks = nn.ModuleList(MlpBlock(width, hidden) for _ in range(layers))

    def forward(self, x, y):
        for block in self.blocks:
            x = block(x)
        return mse(x, y)


class Cnn(nn.Module):
    """No repeated block at all: units have to be cut by bytes."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 24, 3, stride=2)
        self.norm = nn.GroupNorm(4, 24)
        self.head = nn.Linear(24 * 25, 10)

    def forward(self, images, labels):
        x = F.relu(self.second(F.relu(self.first(images))))
        logits = self.head(self.norm(x).flatten(1))
        return {"loss": F.cross_entropy(logits.float(), labels), "logits": logits}


class MultiBlock(nn.Module):
    """Takes two tensors and an option by keyword, returns a tuple with a dict inside."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)
        self.b = nn.Linear(WIDTH, WIDTH)

    def forward(self, left, right, *, scale=1.0):
        mixed = torch.tanh(self.a(left)) * scale
        return mixed + right, {"right": right + self.b(mixed)}


class MultiInputOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(MultiBlock() for _ in range(4))

    def forward(self, x, y):
        left, right = x, y
        for block in self.blocks:
            left, rest = block(left, right, scale=0.5)
            right = rest["right"]
        return mse(left, y), right


class Frozen(Mlp):
    """The second and fourth block do not train."""

    def __init__(self):
        super().__init__()
        for block in (self.blocks[1], self.blocks[3]):
            block.requires_grad_(False)


class Unused(Mlp):
    """Two of the five blocks and a lone parameter never take part."""

    def __init__(self):
        super().__init__()
        self.lone = nn.Parameter(torch.ones(7))

    def forward(self, x, y):
        for block in (self.blocks[0], self.blocks[2], self.blocks[4]):
            x = block(x)
        return mse(self.head(x), y)


class Reused(Mlp):
    """One block is called three times and the head shares the weight of a block's layer."""

    def __init__(self):
        super().__init__()
        self.square = nn.Linear(WIDTH, WIDTH)
        self.head.weight = self.square.weight

    def forward(self, x, y):
        x = self.square(x)
        for index in (0, 1, 1, 2, 1, 3, 4):
            x = self.blocks[index](x)
        return mse(self.head(x), y)


class TinyParameters(nn.Module):
    """Three elements in all, a scalar among them: fewer than processes."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.shift = nn.Parameter(torch.tensor([0.25, -0.5]))
        self.nothing = nn.Parameter(torch.empty(0))

    def forward(self, x, y):
        return mse(x * self.scale + self.shift.sum() + self.nothing.sum(), y)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=LENGTH,
            bos_token_id=None,
            eos_token_id=None,
            n_embd=WIDTH,
            n_layer=3,
            n_head=4,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
            use_cache=False,
        )
    )


def llama(inner=56):
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            intermediate_size=inner,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=LENGTH,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
            use_cache=False,
        )
    )


def bert():
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=56,
            max_position_embeddings=LENGTH,
            hidden_dropout_prob=0,
            attention_probs_dropout_prob=0,
            num_labels=3,
        )
    )


def checkpointed(use_reentrant: bool):
    model = llama()
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    return model


class Adapter(nn.Module):
    """A frozen linear layer with a trainable low-rank addition."""

    def __init__(self, base: nn.Linear, rank: int = 4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def lora():
    """Everything frozen but adapters, under non-reentrant checkpointing."""
    model = checkpointed(use_reentrant=False).requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj = Adapter(layer.self_attn.q_proj)
        layer.mlp.down_proj = Adapter(layer.mlp.down_proj)
    return model


def in_fp8(build, recipe):
    from fp8_reference import in_fp8

    return in_fp8(build(), recipe)


# All sizes of matrices are multiples of 16; then with products in fp8 by plain PyTorch.
FP8 = {
    "llama16": lambda: llama(inner=64),
    **{
        f"{name}-{recipe}": partial(in_fp8, build, recipe)
        for name, build in (("gpt2", gpt2), ("llama", llama), ("llama16", partial(llama, 64)))
        for recipe in ("tensorwise", "rowwise")
    },
}
TEXT_MODELS = ("gpt2", "llama", "bert", "checkpointed", "reentrant", "lora", *FP8)
BUILDERS = {
    "mlp": Mlp,
    "gpt2": gpt2,
    "llama": llama,
    "bert": bert,
    "checkpointed": lambda: checkpointed(use_reentrant=False),
    "reentrant": lambda: checkpointed(use_reentrant=True),
    "lora": lora,
    "cnn": Cnn,
    "multi": MultiInputOutput,
    "frozen": Frozen,
    "unused": Unused,
    "reused": Reused,
    "tiny": TinyParameters,
    "blocks": BlocksOnly,
    **FP8,
}
