"""The parity table through the C++ front: layered models, no Python in the training."""

import sys
from pathlib import Path

import native_front
import parity
import pytest
from pairwise import pairwise
from parity import Case

FACTORS = {
    "stage": [0, 1, 2, 3],
    "model": ["gpt2", "llama"],
    "dtype": ["fp32", "bf16", "fp16"],
    "accumulation": [1, 4],
    "ranks": [1, 2, 3, 4],
    "clip": [False, True],
    "optimizer": ["SGD", "AdamW"],
}
MUON = [
    Case(1, "gpt2", "fp32", ranks=3, optimizer="Muon"),
    Case(3, "llama", "bf16", accumulation=4, ranks=2, clip=True, optimizer="Muon"),
]
COVER = [Case(**row) for row in pairwise(FACTORS)] + MUON


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return native_front.run(COVER, tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="module")
def truth(reference):
    return parity.Truth(reference)


@pytest.mark.parametrize("case", COVER, ids=str)
def test_native_cover(case, records, truth):
    native_front.check(case, records[case], truth)


def test_the_comparison_sees_a_wrong_weight(records, truth):
    record = records[COVER[0]]
    name = next(iter(record["weights"]))
    wrong = {**record, "weights": {**record["weights"], name: record["weights"][name] * 1.1}}
    with pytest.raises(AssertionError, match="weights differ"):
        native_front.check(COVER[0], wrong, truth)


def test_processes_over_gloo(tmp_path, truth):
    """The same with real processes, which meet without Python."""
    program = Path(sys.executable).parent / "shardwise"
    cases = [case for case in COVER if case.ranks == 2]
    records = native_front.run(cases, tmp_path, (program, "launch", "-n", "2"))
    for case, record in records.items():
        native_front.check(case, record, truth)
