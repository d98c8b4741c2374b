"""Which environment variables reach workers: a list of names, never a copy of everything."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SYSTEM = (
    "CONDA_PREFIX", "HOME", "HOSTNAME", "LANG", "LC_*", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PYTHON*", "RAY_*",
    "SHELL", "TEMP", "TERM", "TMP", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV", "XDG_*", "*_VISIBLE_DEVICES",
)  # fmt: skip
LIBRARIES = (
    "ASCEND_*", "CUBLAS_*", "CUDA_*", "CUDNN_*", "GLOO_*", "HCCL_*", "KMP_*", "MKL_*", "NCCL_*", "NUMEXPR_*", "OMP_*",
    "OPENBLAS_*", "PYTORCH_*", "TOKENIZERS_PARALLELISM", "TORCH_*", "TRITON_*",
)  # fmt: skip


def inherited(environment: Mapping[str, str], patterns: Sequence[str] = ()) -> dict[str, str]:
    """The variables that the processes of a cluster inherit which is started here, on this host.

    Args:
        environment: All variables.
        patterns: Names beside the common ones of the system and of compute libraries; `*` and `?` are wildcards.
    """
    return _matching(environment, (*SYSTEM, *LIBRARIES, *patterns))


def carried(environment: Mapping[str, str], patterns: Sequence[str] = ()) -> dict[str, str]:
    """The variables that are set on workers, on whichever host: nothing that describes this one, or its devices.

    Args:
        environment: All variables.
        patterns: Names beside those of compute libraries; `*` and `?` are wildcards.
    """
    found = _matching(environment, (*LIBRARIES, *patterns))
    return {key: value for key, value in found.items() if not key.endswith("_VISIBLE_DEVICES")}


def _matching(environment: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    return {key: value for key, value in environment.items() if any(fnmatchcase(key, name) for name in names)}
