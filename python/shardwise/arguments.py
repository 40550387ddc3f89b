"""Command-line arguments that training scripts share."""

import argparse


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds ``--deepspeed``, ``--deepspeed_config`` and ``--local_rank`` to ``parser``."""
    group = parser.add_argument_group("Shardwise", "configuration of the engine")
    group.add_argument("--deepspeed", action="store_true", help="use the engine (for the script)")
    group.add_argument("--deepspeed_config", default=None, help="path of the JSON configuration")
    group.add_argument("--local_rank", type=int, default=-1, help="set by some launchers; unused")
    return parser
