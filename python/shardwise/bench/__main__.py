"""``shardwise bench``: training steps, kernels and collectives, and tables compared."""

import argparse
import sys
from pathlib import Path

from shardwise.bench import breakdown, comm, kernels, results, train


def print_trace(arguments: argparse.Namespace) -> int:
    try:
        parts = breakdown.breakdown(Path(arguments.trace), arguments.steps)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        sys.exit(f"bench trace: {arguments.trace}: {error}")
    print("\n".join(breakdown.table({Path(arguments.trace).name: parts})), end="\n\n")
    print("\n".join(breakdown.longest(parts)))
    return 0


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="shardwise bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for module, run, meaning in (
        (train, train.train, "training steps against peers and the limit"),
        (kernels, kernels.kernels, "our kernels one by one, beside a copy"),
        (comm, comm.comm, "bus bandwidth of collectives between ranks"),
    ):
        command = commands.add_parser(
            module.__name__.rpartition(".")[2], help=meaning, description=module.__doc__
        )
        module.add_options(command)
        command.set_defaults(run=run)
    command = commands.add_parser(
        "trace", help="where the GPU's time goes in a trace of shardwise.trace or torch's profiler"
    )
    command.add_argument("trace", metavar="FILE", help="in Chrome's format")
    command.add_argument("--steps", type=results.positive, default=1, help="that it covers")
    command.set_defaults(run=print_trace)
    command = commands.add_parser("compare", help="two tables that --json wrote, row by row")
    command.add_argument("tables", metavar="FILE", nargs=2)
    command.set_defaults(run=results.compare)
    arguments = parser.parse_args(words)
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
