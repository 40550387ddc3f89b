"""Models in shards: how they are built, and how their parameters are reached."""

from shardwise.unavailable import ZERO, missing
from shardwise.zero.external import register_external_parameter, unregister_external_parameter
from shardwise.zero.gathering import GatheredParameters
from shardwise.zero.generation import unwrap_model_for_generation
from shardwise.zero.init import Init
from shardwise.zero.replacement import replace_parameter

__all__ = [
    "GatheredParameters",
    "Init",
    "register_external_parameter",
    "replace_parameter",
    "unregister_external_parameter",
    "unwrap_model_for_generation",
]


def __getattr__(name: str):
    raise missing(name, ZERO, "shardwise.zero")
