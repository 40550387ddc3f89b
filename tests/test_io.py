"""Weight files against the safetensors library and transformers, in both directions."""

import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

BUILDS = Path(__file__).resolve().parent.parent / "build"
DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.float8_e5m2, torch.float8_e4m3fn, torch.int16,
    torch.uint16, torch.float16, torch.bfloat16, torch.int32, torch.uint32, torch.float32,
    torch.float64, torch.int64, torch.uint64,
]  # fmt: skip


def random_bytes(dtype, *shape):
    size = torch.empty(shape, dtype=dtype).nbytes
    values = torch.randint(0, 2 if dtype == torch.bool else 256, (size,), dtype=torch.uint8)
    return values.view(dtype).reshape(shape)


def small_llama():
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=100,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )


@pytest.fixture(scope="module")
def peer(tmp_path_factory):
    """from_python: files of Python; from_cpp: their copies, read and written by C++."""
    programs = sorted(BUILDS.glob("*/torch_free_tests"), key=lambda path: path.stat().st_mtime)
    if not programs:
        pytest.skip("no build/*/torch_free_tests: run make build with libgtest-dev installed")
    folder = tmp_path_factory.mktemp("peer")
    (folder / "from_python").mkdir()
    (folder / "from_cpp").mkdir()
    torch.manual_seed(5)
    tensors = {f"{dtype} é\n": random_bytes(dtype, 3, 5) for dtype in DTYPES}
    tensors |= {f"{dtype}.scalar": random_bytes(dtype) for dtype in DTYPES}
    tensors |= {f"{dtype}.empty": random_bytes(dtype, 2, 0) for dtype in DTYPES}
    save_file(tensors, folder / "from_python" / "all.safetensors", {"format": "pt"})
    save_file({}, folder / "from_python" / "nothing.safetensors")
    small_llama().save_pretrained(folder / "from_python" / "sharded", max_shard_size="40KB")
    small_llama().save_pretrained(folder / "from_python" / "single")
    done = subprocess.run(
        [programs[-1], "--gtest_filter=SafetensorsPeer.*"],
        env={**os.environ, "SW_SAFETENSORS_PEER": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "1 test." in done.stdout, done.stdout + done.stderr
    return folder


def same_bytes(a, b):
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
    )


def test_a_copy_has_all_types(peer):
    expected = load_file(peer / "from_python" / "all.safetensors")
    copy = load_file(peer / "from_cpp" / "all.safetensors")
    assert copy.keys() == expected.keys()
    assert all(same_bytes(copy[name], expected[name]) for name in expected)


@pytest.mark.parametrize("name", ["all.safetensors", "nothing.safetensors"])
def test_a_copy_is_the_file_that_the_library_writes(peer, name):
    assert (peer / "from_cpp" / name).read_bytes() == (peer / "from_python" / name).read_bytes()


@pytest.mark.parametrize("name", ["sharded", "single"])
def test_transformers_loads_a_model_folder(peer, name):
    source, copy = peer / "from_python" / name, peer / "from_cpp" / name
    shards = sorted(copy.glob("*.safetensors"))
    assert len(shards) > 2
    assert (len(list(source.glob("*.safetensors"))) > 1) == (name == "sharded")
    (copy / "config.json").write_text((source / "config.json").read_text())
    expected = LlamaForCausalLM.from_pretrained(source).state_dict()
    model, report = LlamaForCausalLM.from_pretrained(copy, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert all(torch.equal(value, expected[key]) for key, value in model.state_dict().items())
    with safe_open(shards[0], "pt") as file:
        assert file.metadata() == {"format": "pt"}
