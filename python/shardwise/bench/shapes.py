"""Models that are measured, by their Hugging Face shape."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Shape:
    """A model and the work of one step on one GPU.

    Attributes: ``keys``, those of the model's config.json; ``sequences`` a micro-batch of
    ``length`` tokens each.
    """

    keys: dict[str, Any]
    sequences: int
    length: int
    job: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return self.sequences * self.length

    def config(self) -> Any:
        """The shape as a transformers configuration."""
        from transformers import AutoConfig

        return AutoConfig.for_model(use_cache=False, attn_implementation="sdpa", **self.keys)

    def flops_per_token(self, parameters: int) -> float:
        """Of a training step: 6 a parameter, and attention where causality halves the scores.

        Embedding rows that are only looked up count as if they were multiplied; with a tied head
        they are.
        """
        config = self.config()
        return 6 * parameters + 6 * config.num_hidden_layers * config.hidden_size * self.length


def _llama(hidden: int, inner: int, layers: int, tied: bool, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 4096,
        "rope_theta": 500000.0,
        "tie_word_embeddings": tied,
        **more,
    }


GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 50257,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
}
TINY = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512}
SHAPES = {
    "llama-1b": Shape(_llama(2048, 8192, 16, tied=True), sequences=4, length=4096),
    "llama-8b": Shape(_llama(4096, 14336, 32, tied=False), sequences=1, length=4096),
    "gpt2": Shape(GPT2, sequences=64, length=1024),
    "tiny": Shape(_llama(64, 192, 2, tied=True, **TINY), sequences=2, length=128),
}
