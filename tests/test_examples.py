"""The examples run as their README says, on two processes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


PROGRAM = Path(sys.executable).parent / "shardwise"
LAUNCHERS = {
    "shardwise launch": [PROGRAM, "launch", "-n", "2"],
    "torchrun": [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
    ],
}


def launch(script: str | Path, *arguments: str, launcher: str = "shardwise launch") -> str:
    """What the script, a path or one in examples/, prints on two processes."""
    command = [*LAUNCHERS[launcher], ROOT / "examples" / script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_quickstart_in_python_for_twenty_steps(tmp_path):
    text = launch("quickstart/train.py", "--steps", "20", "--output", str(tmp_path))
    assert "20/20" in text and "ETA" in text and "not judged" in text
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 21))
    assert rows[0]["loss"] == pytest.approx(5.545, abs=0.1)  # ln 256: nothing known at the start
    assert rows[-1]["loss"] < 4.5
    assert (tmp_path / "loss.svg").read_text().count("<polyline") == 1


@pytest.mark.timeout(300)
def test_example_of_the_readme(tmp_path):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "example.py").write_text(block)
    text = launch(tmp_path / "example.py")
    assert "other values" not in text
    losses = [float(loss) for loss in re.findall(r"loss[ =:]+([\d.]+)", text)]
    assert len(losses) == 8  # 256 samples in batches of 32
    assert losses[0] == pytest.approx(5.545, abs=0.1)  # ln 256: nothing known at the start
    assert losses[-1] < losses[0] - 0.1  # to count up is easy


def hugging_face_losses(*arguments: str, launcher: str = "shardwise launch") -> dict[int, float]:
    """The losses that eight steps of the Hugging Face script print."""
    text = launch("hf_gpt2.py", "--steps", "8", *arguments, launcher=launcher)
    return {int(s): float(v) for s, v in re.findall(r"step (\d+)\s+loss ([\d.]+)", text)}


@pytest.fixture(scope="module")
def script_losses():
    return hugging_face_losses()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_hugging_face_script(launcher, script_losses):
    own = launcher == "shardwise launch"
    losses = script_losses if own else hugging_face_losses(launcher=launcher)
    assert list(losses) == list(range(1, 9))
    assert losses[1] == pytest.approx(5.545, abs=0.3)
    assert losses[8] < losses[1] - 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("setting", ["selective", "full"])
def test_hugging_face_script_with_little_memory(setting, script_losses, tmp_path):
    """Optimizer states on the host and recomputed activations: the losses of the plain script."""
    config = {
        "train_batch_size": 32,
        "gradient_accumulation_steps": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
        "fp16": {"enabled": True},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        "shardwise": {"activation_checkpointing": setting},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    choice = ("--deepspeed_config", str(tmp_path / "config.json"))
    assert hugging_face_losses(*choice) == script_losses
