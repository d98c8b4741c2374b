"""Which environment variables reach workers: a list of names, never a copy of everything."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SYSTEM = (
    "HOME", "HOSTNAME", "LANG", "LC_*", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PYTHON*", "SHELL", "TEMP", "TERM",
    "TMP", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV", "CONDA_PREFIX", "XDG_*",
)  # fmt: skip
LIBRARIES = (
    "ASCEND_*", "CUBLAS_*", "CUDA_*", "CUDNN_*", "GLOO_*", "HCCL_*", "KMP_*", "MKL_*", "NCCL_*", "NPU_*", "NUMEXPR_*",
    "NVIDIA_*", "OMP_*", "OPENBLAS_*", "PYTORCH_*", "RAY_*", "ROCR_*", "TOKENIZERS_PARALLELISM", "TORCH_*", "TRITON_*",
)  # fmt: skip


def allowed(environment: Mapping[str, str], patterns: Sequence[str] = ()) -> dict[str, str]:
    """The variables that a worker may see.

    Args:
        environment: All variables.
        patterns: Names beside the common ones of the system and of compute libraries; `*` and `?` are wildcards.
    """
    names = (*SYSTEM, *LIBRARIES, *patterns)
    return {key: value for key, value in environment.items() if any(fnmatchcase(key, name) for name in names)}
