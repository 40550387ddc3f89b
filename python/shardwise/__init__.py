"""Shardwise trains PyTorch models that are larger than one device.

``engine, optimizer, loader, schedule = shardwise.initialize(model=model, config="ds.json")`` and
then ``engine(batch)``, ``engine.backward(loss)``, ``engine.step()``, as with DeepSpeed.
"""

import torch

from shardwise import _C
from shardwise.torch_version import check_torch

check_torch(torch.__version__)

# torch is checked first
from shardwise import checkpointing, comm, monitor, profiling, runtime, utils, zero  # noqa: E402
from shardwise._C import (  # noqa: E402
    CommunicationError,
    ConfigError,
    DataError,
    InternalError,
    IoError,
    UsageError,
)
from shardwise.arguments import add_config_arguments  # noqa: E402
from shardwise.engine import Engine  # noqa: E402
from shardwise.initialization import initialize  # noqa: E402
from shardwise.muon import set_optimizer_flags  # noqa: E402
from shardwise.process_groups import init_distributed  # noqa: E402
from shardwise.token_data import Corpus, Tokenizer, TokenLoader, open_corpus  # noqa: E402
from shardwise.unavailable import PACKAGE, missing  # noqa: E402
from shardwise.utils import OnDevice  # noqa: E402

__version__ = _C.version

__all__ = [
    "CommunicationError",
    "ConfigError",
    "Corpus",
    "DataError",
    "Engine",
    "InternalError",
    "IoError",
    "OnDevice",
    "TokenLoader",
    "Tokenizer",
    "UsageError",
    "__version__",
    "add_config_arguments",
    "checkpointing",
    "comm",
    "init_distributed",
    "initialize",
    "monitor",
    "open_corpus",
    "profiling",
    "runtime",
    "set_optimizer_flags",
    "utils",
    "zero",
]


def __getattr__(name: str):
    raise missing(name, PACKAGE, "shardwise")
