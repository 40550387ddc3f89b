"""Hugging Face modules of known families whose forward runs on our operations.

A block, a norm, an embedding or a causal language model keeps its class, parameters, names and
hooks; only ``forward`` is another on the object. ``checks`` decides at ``initialize`` what may be
adopted, each forward decides per call whether it can serve it, and otherwise runs what its class
says. ``llama`` and ``gpt2`` are the families, ``layers`` what they share, ``head`` the loss without
logits.
"""

from shardwise.adoption.adoption import Adoption, adopt
from shardwise.adoption.head import Announced
from shardwise.adoption.layers import Common

__all__ = ["Adoption", "Announced", "Common", "adopt"]
