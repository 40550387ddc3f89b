"""A small GPT over bytes, in plain PyTorch: nothing here knows about Shardwise."""

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 256


def with_previous(x):
    """Half of the channels from the position before: bytes are easier to read in pairs."""
    half = x.shape[-1] // 2
    return torch.cat([F.pad(x[:, :-1, :half], (0, 0, 1, 0)), x[..., half:]], dim=-1)


class Block(nn.Module):
    """Pre-norm transformer block: causal attention, then a feed-forward layer."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(with_previous(self.attention_norm(x))).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(attended.transpose(1, 2).reshape(batch, length, width))
        hidden = self.mlp_in(with_previous(self.mlp_norm(x)))
        return x + self.mlp_out(F.gelu(hidden, approximate="tanh"))


class GPT(nn.Module):
    """Returns logits [batch, seq, 256], or the mean loss in nats per byte when given targets."""

    def __init__(self, layers: int = 4, width: int = 160, heads: int = 5, context: int = 128):
        super().__init__()
        self.context = context
        self.bytes = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.apply(self._initialise)
        for block in self.blocks:
            for layer in (block.attention_out, block.mlp_out):
                nn.init.normal_(layer.weight, std=0.02 / (2 * layers) ** 0.5)

    @staticmethod
    def _initialise(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens, targets=None):
        x = self.bytes(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def sample(model, prompt: bytes, length: int, context: int, temperature: float, seed: int) -> bytes:
    """Continues the prompt. All ranks call this with the same arguments and get the same text."""
    generator = torch.Generator().manual_seed(seed)
    tokens = list(prompt)
    for _ in range(length):
        window = torch.tensor([tokens[-context:]])
        logits = model(window)[0, -1].float().cpu() / temperature
        choice = torch.multinomial(torch.softmax(logits, -1), 1, generator=generator)
        tokens.append(int(choice))
    return bytes(tokens)
