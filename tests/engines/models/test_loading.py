"""Folders are read by slices, and configs drawn, into the divided model: the same numbers as in one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from run_loading import UNDIVIDED, figures
from safetensors.torch import load_file, save_file
from tiny_models import Build
from transformers import AutoModelForCausalLM

from twinkle_engines.models.layout import of_folder


@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft reads it
def test_ranks_that_read_their_part_have_the_model_of_one_process(tmp_path: Path) -> None:
    for family in ("llama", "qwen2", "qwen3-moe"):
        Build(family)().save_pretrained(tmp_path / family)
    program = [sys.executable, str(Path(__file__).parents[1] / "run_loading.py"), str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    alone = figures(tmp_path, None)
    files = sorted(tmp_path.glob("*.json"))
    assert len(files) == 6
    for file in files:
        told = json.loads(file.read_text())
        assert told.keys() == (alone.keys() if "1x2x1" in file.name else alone.keys() - {*UNDIVIDED})
        for name, found in told.items():
            assert found == pytest.approx(alone[name], rel=1e-3, abs=1e-4), (file.name, name)


def test_a_folder_is_read_by_slices_where_its_names_are_the_models(tmp_path: Path) -> None:
    for family, has_names in (("llama", True), ("qwen2", True), ("qwen3-moe", False)):
        model = Build(family)()
        model.save_pretrained(tmp_path / family)
        made = of_folder(tmp_path / family, torch.float32, lambda: None)
        assert made is not None and made[2] == has_names
        assert made[0].state_dict().keys() == model.state_dict().keys()
    model.save_pretrained(tmp_path / "bin")
    (tmp_path / "bin" / "model.safetensors").rename(tmp_path / "bin" / "model.other")
    assert of_folder(tmp_path / "bin", torch.float32, lambda: None) is None


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("is_own", [True, False])
def test_a_head_of_its_own_is_read_whatever_the_config_says_of_ties(tmp_path: Path, is_own: bool) -> None:
    Build("qwen2")().save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    head = state["model.embed_tokens.weight"].flip(0) if is_own else state["model.embed_tokens.weight"].clone()
    save_file({**state, "lm_head.weight": head}, tmp_path / "model.safetensors", {"format": "pt"})
    made = of_folder(tmp_path, torch.float32, lambda: None)
    assert made is not None and made[2]
    made[1](made[0])
    right = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([[3, 5, 7]])
    torch.testing.assert_close(made[0](ids).logits, right(ids).logits)
    assert (made[0].lm_head.weight is made[0].model.embed_tokens.weight) != is_own
