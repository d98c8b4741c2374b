"""Trim KubeRay's definition of the resource RayJob to the JSON Schema beside this file, rayjob.json.

    python tests/docs/kuberay/trim.py ray.io_rayjobs.yaml > tests/docs/kuberay/rayjob.json

The argument is ray-operator/config/crd/bases/ray.io_rayjobs.yaml of github.com/ray-project/kuberay at `VERSION`. The
specification of version v1 stays. Kubernetes refuses unknown fields where a schema lists fields, so the trimmed schema
does. Left out: descriptions, the status, and what JSON Schema does not know (the rules in CEL are about deletion
strategies and who manages a job). Parts that occur several times, as the templates of pods, stand in $defs.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

VERSION = "v1.7.0"
SOURCE = f"github.com/ray-project/kuberay {VERSION}, ray-operator/config/crd/bases/ray.io_rayjobs.yaml, Apache-2.0"
_SHORT = 200  # characters of a part that stays where it is


def plain(node: Any) -> Any:
    """A schema without descriptions and Kubernetes' own words."""
    if not isinstance(node, dict):
        return node
    out = {key: value for key, value in node.items() if key != "description" and not key.startswith("x-kubernetes-")}
    if "properties" in out:
        out["properties"] = {name: plain(value) for name, value in out["properties"].items()}
        if not node.get("x-kubernetes-preserve-unknown-fields"):
            out["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if key in out:
            out[key] = plain(out[key])
    return out


def parts(node: Any) -> list[Any]:
    """The schemas right below a schema."""
    below = [*node.get("properties", {}).values(), node.get("items"), node.get("additionalProperties")]
    return [one for one in below if isinstance(one, dict)]


def counted(node: Any, seen: Counter[str]) -> None:
    """Count each part of a schema."""
    seen[json.dumps(node, sort_keys=True)] += 1
    for part in parts(node):
        counted(part, seen)


class Shared:
    """The parts that occur several times, by name."""

    def __init__(self, whole: Any) -> None:
        self.seen: Counter[str] = Counter()
        counted(whole, self.seen)
        self.names: dict[str, str] = {}
        self.found: dict[str, Any] = {}

    def refer(self, name: str, node: Any) -> Any:
        """A part, or a reference to it if it occurs several times."""
        text = json.dumps(node, sort_keys=True)
        if self.seen[text] == 1 or len(text) < _SHORT:
            return self.inside(node)
        if text not in self.names:
            taken = sum(one.partition("-")[0] == name for one in self.names.values())
            self.names[text] = f"{name}-{taken + 1}" if taken else name
            self.found[self.names[text]] = self.inside(node)
        return {"$ref": f"#/$defs/{self.names[text]}"}

    def inside(self, node: Any) -> Any:
        """A part whose own parts are references."""
        out = dict(node)
        if "properties" in out:
            out["properties"] = {name: self.refer(name, value) for name, value in out["properties"].items()}
        for key in ("items", "additionalProperties"):
            if isinstance(out.get(key), dict):
                out[key] = self.refer(key, out[key])
        return out


def main() -> None:
    definition = yaml.safe_load(Path(sys.argv[1]).read_text(encoding="utf-8"))
    (found,) = [one for one in definition["spec"]["versions"] if one["name"] == "v1"]
    whole = plain(found["schema"]["openAPIV3Schema"])
    del whole["properties"]["status"]
    shared = Shared(whole)
    trimmed = {"$comment": SOURCE, "required": ["apiVersion", "kind", "metadata", "spec"], **shared.inside(whole)}
    lines = [f"{json.dumps(name)}: {json.dumps(part)}" for name, part in sorted(shared.found.items())]
    print(json.dumps(trimmed)[:-1] + ', "$defs": {\n' + ",\n".join(lines) + "\n}}")


if __name__ == "__main__":
    main()
