"""The parity table through the C++ front: layered models, no Python in the training."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import models
import parity
import pytest
import reference as plain_torch
from pairwise import pairwise
from parity import Case
from safetensors.torch import load_file, save_file

PROGRAM = Path(__file__).resolve().parent.parent / "build" / "programs" / "parity_native"
FACTORS = {
    "stage": [0, 1, 2, 3],
    "model": ["gpt2", "llama"],
    "dtype": ["fp32", "bf16", "fp16"],
    "accumulation": [1, 4],
    "ranks": [1, 2, 3, 4],
    "clip": [False, True],
    "optimizer": ["SGD", "AdamW"],
}
COVER = [Case(**row) for row in pairwise(FACTORS)]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """All cases, run by one process of the native program: case → what it recorded."""
    folder = tmp_path_factory.mktemp("native")
    for model in FACTORS["model"]:
        models.build(model).save_pretrained(folder / model)
        samples = {
            f"step{step}": models.batch(model, step)["input_ids"]
            for step in range(plain_torch.STEPS)
        }
        save_file(samples, folder / f"{model}.data")
    rows = [
        {
            "model": str(folder / case.model),
            "data": str(folder / f"{case.model}.data"),
            "config": parity.config_of(case),
            "ranks": case.ranks,
            "accumulation": case.accumulation,
            "steps": plain_torch.STEPS,
            "output": str(folder / str(case)),
        }
        for case in COVER
    ]
    (folder / "cases.json").write_text(json.dumps(rows))
    done = subprocess.run([PROGRAM, folder / "cases.json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return {case: load_file(folder / str(case)) for case in COVER}


@pytest.fixture(scope="module")
def truth(reference):
    return parity.Truth(reference)


def with_prefix(record, prefix):
    return {key.removeprefix(prefix): v for key, v in record.items() if key.startswith(prefix)}


@pytest.mark.parametrize("case", COVER, ids=str)
def test_native_cover(case, records, truth):
    record = records[case]
    as_python = {
        "losses": record["losses"].tolist(),
        "norms": record["norms"].tolist(),
        "applied": [bool(flag) for flag in record["applied"]],
        "gradients": with_prefix(record, "gradient."),
        "weights": with_prefix(record, "weight."),
    }
    others = [{**as_python, "weights": {}}] * (case.ranks - 1)
    parity.check(case, [as_python, *others], truth)


def test_the_comparison_sees_a_wrong_weight(records, truth):
    case = replace(COVER[0])
    record = dict(records[case])
    name = next(key for key in record if key.startswith("weight."))
    record[name] = record[name] * 1.1
    with pytest.raises(AssertionError, match="weights differ"):
        test_native_cover(case, {case: record}, truth)
