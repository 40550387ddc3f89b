"""Runs parity cases through the C++ front: the program `parity_native` over layered models."""

import json
import subprocess
from pathlib import Path

import models
import parity
import reference
from parity import Case
from safetensors.torch import load_file, save_file

PROGRAMS = Path(__file__).resolve().parent.parent / "build" / "programs"


def run(cases: list[Case], folder: Path, launcher=(), own: dict | None = None) -> dict[Case, dict]:
    """The record of each case, as parity.train returns it on rank 0.

    Without a launcher the ranks are threads of one process; with one ("shardwise launch -n N") they
    are processes, and all cases have N ranks. `own`: settings of the section "shardwise".
    """
    for model in {case.model for case in cases}:
        models.build(model).save_pretrained(folder / model)
        samples = {
            f"step{step}": models.batch(model, step)["input_ids"] for step in range(reference.STEPS)
        }
        save_file(samples, folder / f"{model}.data")
    rows = [
        {
            "model": str(folder / case.model),
            "data": str(folder / f"{case.model}.data"),
            "config": parity.config_of(case, shardwise=own),
            "ranks": case.ranks,
            "accumulation": case.accumulation,
            "steps": reference.STEPS,
            "output": str(folder / str(case)),
        }
        for case in cases
    ]
    (folder / "cases.json").write_text(json.dumps(rows))
    command = [*launcher, PROGRAMS / "parity_native", folder / "cases.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return {case: as_record(load_file(folder / str(case))) for case in cases}


def as_record(tensors: dict) -> dict:
    def part(prefix: str) -> dict:
        found = [key for key in tensors if key.startswith(prefix)]
        return {key.removeprefix(prefix): tensors[key] for key in found}

    return {
        "losses": tensors["losses"].tolist(),
        "norms": tensors["norms"].tolist(),
        "applied": [bool(flag) for flag in tensors["applied"]],
        "traffic": tensors["traffic"].tolist(),
        "gradients": part("gradient."),
        "masters": part("master."),
        "weights": part("weight."),
    }


def check(case: Case, record: dict, truth: parity.Truth):
    """As parity.check. The program has compared the ranks, so one record stands for all."""
    others = [{**record, "weights": {}}] * (case.ranks - 1)
    parity.check(case, [record, *others], truth)
