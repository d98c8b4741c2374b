"""The environment variables that workers of a joined cluster get from the driver: names on a list, never all.

Workers of a cluster of the session's own inherit all variables. In neither case does a value go through Ray's runtime
environment, which everyone with access to the cluster can read.
"""

from __future__ import annotations

import logging
import re
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_log = logging.getLogger("twinkle.ray")

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
_MISSED = (
    "ANTHROPIC_*", "AWS_*", "AZURE_*", "COMET_*", "GOOGLE_*", "HF_*", "HUGGINGFACE_*", "HUGGING_FACE_*", "MLFLOW_*",
    "MODELSCOPE_*", "NEPTUNE_*", "OPENAI_*", "S3_*", "WANDB_*",
)  # fmt: skip
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


def left_behind(environment: Mapping[str, str], patterns: Sequence[str] = ()) -> list[str]:
    """Return names of variables that programs often need, but that workers of a joined cluster do not get.

    Args:
        environment: All variables.
        patterns: As for `carried`.
    """
    given = carried(environment, patterns)
    wanted = [
        name for name in environment if _matches(name, (*HARMLESS, *_MISSED)) and not _matches(name, _OF_THIS_HOST)
    ]
    return sorted(name for name in wanted if name not in given)


@cache
def warn_left_behind(names: tuple[str, ...]) -> None:
    """Log which variables workers do not get; once for the same names.

    Args:
        names: Their names.
    """
    if names:
        _log.warning(
            "workers of a joined cluster do not get %s; env_allow=(%s) would set them",
            ", ".join(names),
            ", ".join(f'"{name}"' for name in names) + ("," if len(names) == 1 else ""),
        )


def _is_harmless(name: str, value: str) -> bool:
    is_secret = bool(_SECRETS & set(name.upper().split("_"))) or _LOGIN_IN_URL.search(value) is not None
    return _matches(name, HARMLESS) and not _matches(name, _OF_THIS_HOST) and not is_secret


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
