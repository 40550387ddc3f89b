"""Judges a quickstart run by its log: has the model learnt, and does it write words?

python judge.py OUTPUT_FOLDER: the exit code says whether a full run passed.
"""

import json
import sys
from pathlib import Path

from corpus import Corpus, words

FULL_RUN = 500  # steps
# Nats per byte on the held-out part. A full run reaches 1.38 to 1.45, by seed, and 1.6 after 300 of
# its steps; byte frequencies alone give 3.25, and gzip -9 needs 1.65 even after it has seen the
# training part.
HELD_OUT_LIMIT = 1.55
WORD_SHARE_LIMIT = 0.6
LEAST_WORDS = 40


def judge(steps: int, held_out: float, text: str, corpus: Corpus) -> bool:
    """Prints the checks. True when all passed, or when the run was too short to judge."""
    share, count = corpus.word_share(text), len(words(text))
    checks = {
        f"held-out loss {held_out:.3f} below {HELD_OUT_LIMIT}": held_out < HELD_OUT_LIMIT,
        f"{share:.0%} of {count} words occur in the text, at least {WORD_SHARE_LIMIT:.0%}": (
            count >= LEAST_WORDS and share >= WORD_SHARE_LIMIT
        ),
    }
    for check, passed in checks.items():
        if steps < FULL_RUN:
            print(f"not judged  {check} ({steps} of {FULL_RUN} steps)")
        else:
            print(f"{'pass' if passed else 'FAIL'}  {check}")
    return steps < FULL_RUN or all(checks.values())


def main() -> int:
    folder = Path(sys.argv[1])
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    last = {row["kind"]: row for row in rows}
    passed = judge(
        last["step"]["step"], last["evaluation"]["loss"], last["sample"]["text"], Corpus()
    )
    print(f"Report: {folder / 'report.html'}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
