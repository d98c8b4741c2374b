"""The job scripts and the manifest that the page on launching shows; tests/ray/hosts runs the scripts."""

from __future__ import annotations

import copy
import json
import re
import shlex
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples" / "slurm").glob("*.sh"))
KUBERNETES = ROOT / "examples" / "kubernetes"
SCHEMA = json.loads((Path(__file__).parent / "kuberay" / "rayjob.json").read_text(encoding="utf-8"))
SHOWN = ["slurm/ray.sh", "sft.py", "kubernetes/Dockerfile", "kubernetes/rayjob.yaml", "slurm/torchrun.sh"]


@pytest.fixture
def manifest() -> Any:
    return yaml.safe_load((KUBERNETES / "rayjob.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.name))
def test_shellcheck_finds_nothing(script: Path) -> None:
    checker = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([str(checker), str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.name))
def test_the_options_of_a_job_stand_before_its_commands(script: Path) -> None:
    lines = script.read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    options = [number for number, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert options and max(options) < first  # sbatch reads no further
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", lines[number]) for number in options)


def test_the_notice_goes_to_the_script_which_waits_for_it() -> None:
    text = (ROOT / "examples" / "slurm" / "ray.sh").read_text(encoding="utf-8")
    (signal,) = re.findall(r"--signal=B:(\w+)@\d+", text)
    assert re.search(rf"^trap .* {signal}$", text, re.MULTILINE)


def test_the_page_shows_the_files_themselves() -> None:
    text = (ROOT / "docs" / "howto" / "launch.md").read_text(encoding="utf-8")
    assert re.findall(r"^```\{literalinclude\} \.\./\.\./examples/(\S+)$", text, re.MULTILINE) == SHOWN


def test_the_manifest_is_one_of_kuberay(manifest: Any) -> None:
    jsonschema.validate(manifest, SCHEMA)
    assert manifest["apiVersion"] == "ray.io/v1" and manifest["kind"] == "RayJob"


def head(manifest: Any) -> Any:
    return manifest["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]


BREAKS: dict[str, Callable[[Any], None]] = {
    "a word that is misspelt": lambda job: job["spec"].update(backOffLimit=3),
    "a number as text": lambda job: job["spec"].update(backoffLimit="3"),
    "a number where text belongs": lambda job: job["spec"]["rayClusterSpec"]["headGroupSpec"].update(
        rayStartParams={"num-cpus": 0}
    ),
    "a mode that is unknown": lambda job: job["spec"]["rayClusterSpec"]["authOptions"].update(mode="password"),
    "a field of a pod in the wrong place": lambda job: head(job).update(volumes=[]),
    "a container without a name": lambda job: head(job).pop("name"),
    "a job without a specification": lambda job: job.pop("spec"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_manifest_that_is_broken_is_refused(manifest: Any, name: str) -> None:
    broken = copy.deepcopy(manifest)
    BREAKS[name](broken)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, SCHEMA)


def test_the_program_asks_for_the_devices_that_the_pods_have(manifest: Any) -> None:
    (group,) = manifest["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    devices = int(container["resources"]["limits"]["nvidia.com/gpu"]) * group["replicas"]
    words = shlex.split(manifest["spec"]["entrypoint"])
    assert int(words[words.index("--workers") + 1]) == devices
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert mounts == [mount["mountPath"] for mount in head(manifest)["volumeMounts"]]
    assert any(words[words.index("--checkpoints") + 1].startswith(f"{mount}/") for mount in mounts)


def test_the_image_has_the_ray_of_the_manifest_within_our_bounds(manifest: Any) -> None:
    version = manifest["spec"]["rayClusterSpec"]["rayVersion"]
    text = (KUBERNETES / "Dockerfile").read_text(encoding="utf-8")
    assert f'"ray[default]=={version}"' in text
    (ours,) = [one for one in map(Requirement, requires("twinkle-ray") or ()) if one.name == "ray"]
    assert ours.specifier.contains(version)
    assert head(manifest)["image"] in text
