"""Command-line arguments that training scripts share."""

import argparse


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds ``--deepspeed`` and ``--deepspeed_config``, and their old names, to ``parser``."""
    group = parser.add_argument_group("Shardwise", "configuration of the engine")
    for name in ("deepspeed", "deepscale"):
        group.add_argument(f"--{name}", action="store_true", help="use the engine (for the script)")
        group.add_argument(f"--{name}_config", default=None, help="path of the JSON configuration")
    return parser
