"""The environment variables that workers of a joined cluster get from the driver: names on a list, never all.

Workers of a cluster of the session's own inherit all variables. In neither case does a value go through Ray's runtime
environment, which everyone with access to the cluster can read.
"""

from __future__ import annotations

import os
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import ray

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HARMLESS = (
    "ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "all_proxy", "http_proxy", "https_proxy", "no_proxy",
    "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE",
    "DATASETS_*", "HF_DATASETS_*", "HF_ENDPOINT", "HF_HOME", "HF_HUB_*", "TOKENIZERS_PARALLELISM", "TRANSFORMERS_*",
    "CUBLAS_*", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING",
    "CUDNN_*", "ASCEND_*", "GLOO_*", "HCCL_*", "NCCL_*", "NVSHMEM_*", "NVTE_*", "UCX_*",
    "GOMP_*", "KMP_*", "MKL_*", "NUMEXPR_*", "OMP_*", "OPENBLAS_*",
    "PYTORCH_*", "TORCHDYNAMO_*", "TORCHINDUCTOR_*", "TORCH_*", "TRITON_*", "VLLM_*",
)  # fmt: skip
_OF_THIS_HOST = ("*_VISIBLE_DEVICES", "ASCEND_*_PATH", "NCCL_HOSTID", "VLLM_HOST_IP", "VLLM_PORT")
_SECRETS = {
    "APIKEY", "AUTH", "CREDENTIAL", "CREDENTIALS", "KEY", "KEYS", "PASSPHRASE", "PASSWD", "PASSWORD", "SECRET", "TOKEN",
}  # fmt: skip
_LOGIN_IN_URL = re.compile(r"://[^/\s]*@")

HASH_SEED = "PYTHONHASHSEED"


def hash_seed(environment: Mapping[str, str], seed: int) -> str:
    """The hash seed of all workers, so that sets have one order on all hosts: the driver's, or the session's seed."""
    own = environment.get(HASH_SEED, "")
    return own if own.isdecimal() else str(seed)


def carried(environment: Mapping[str, str], patterns: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables to set on workers of a joined cluster: none is secret, and none describes this host.

    Args:
        environment: All variables.
        patterns: Names in addition to those of `HARMLESS`, secret ones too; `*` and `?` are wildcards.
    """
    return {
        name: value
        for name, value in environment.items()
        if not _matches(name, ("*_VISIBLE_DEVICES",)) and (_matches(name, patterns) or _is_harmless(name, value))
    }


def node_variable(name: str) -> str | None:
    """A variable that workers of this node inherit, from the environment of Ray's process there.

    Returns:
        Its value; None where it is not set, or the process belongs to another user or host.
    """
    here = ray.get_runtime_context().get_node_id()
    nodes = ray.nodes()  # type: ignore[no-untyped-call]  # Ray's own gap
    wanted = {f"--raylet_socket_name={node['RayletSocketName']}".encode() for node in nodes if node["NodeID"] == here}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if wanted & set((process / "cmdline").read_bytes().split(b"\0")):
                entries = (process / "environ").read_bytes().split(b"\0")
                return next(
                    (os.fsdecode(one[len(name) + 1 :]) for one in entries if one.startswith(name.encode() + b"=")), None
                )
        except OSError:  # it ended meanwhile, or is another user's
            continue
    return None


def _is_harmless(name: str, value: str) -> bool:
    is_secret = bool(_SECRETS & set(name.upper().split("_"))) or _LOGIN_IN_URL.search(value) is not None
    return _matches(name, HARMLESS) and not _matches(name, _OF_THIS_HOST) and not is_secret


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
