"""Takes weights from shared memory into vLLM, as an engine of its weight-transfer interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform

from twinkle_engines.samplers.shared_weights import map_shared, pin_shared

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

BACKEND = "twinkle"
"""Name of the engine, for vLLM's `weight_transfer_config`."""


@dataclass
class Nothing(WeightTransferInitInfo):  # type: ignore[misc]  # vllm is not there when types are checked
    """The memory is on this host: there is nobody to connect to."""


@dataclass
class SharedUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]  # as above
    """Where the weights are: the arguments of `map_shared`."""

    path: str
    size: int
    tensors: list[tuple[str, str, list[int], int]]


class SharedMemoryEngine(WeightTransferEngine):  # type: ignore[misc]  # as above
    """Loads weights by Transformers' names; vLLM fuses, shards and packs them as after a start."""

    init_info_cls = Nothing
    update_info_cls = SharedUpdate

    def init_transfer_engine(self, init_info: Nothing) -> None:
        """Do nothing."""

    def start_weight_update(self) -> None:
        """Have the layers take weights as they are in a checkpoint."""
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: SharedUpdate) -> None:
        """Load all weights.

        Raises:
            ValueError: The model has parameters that they do not name.
        """
        weights = self._mapped(update_info)
        wanted = {name for name, _ in self.model.named_parameters()}
        loaded: Any = self.model.load_weights(weights.items())
        missing = wanted - loaded if loaded is not None and self.model_config.quantization is None else set()
        if missing:
            raise ValueError(
                f"the weights that were synced leave {len(missing)} parameters of vLLM's model as they were, such as "
                f"{min(missing)}: Transformers gives them other names than vLLM reads"
            )

    def _mapped(self, update_info: SharedUpdate) -> Mapping[str, Tensor]:
        """The weights, mapped once, and pinned once where the model is on a GPU, which then reads them directly."""
        kept: tuple[SharedUpdate, Mapping[str, Tensor]] | None = getattr(self, "_kept", None)
        if kept is None or kept[0] != update_info:
            weights = map_shared(update_info.path, update_info.size, update_info.tensors)
            self._kept = kept = update_info, weights
            if current_platform.is_cuda() and weights:  # the model's own are on no device between start and finish
                pin_shared(weights, self)
        return kept[1]

    def finish_weight_update(self) -> None:
        """Pack the layers anew."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Do nothing."""


def register() -> None:
    """Tell vLLM the engine's name, once in each process; vLLM calls this as a plugin in all of its processes."""
    global _registered
    if not _registered:
        _registered = True
        WeightTransferEngineFactory.register_engine(BACKEND, SharedMemoryEngine)


_registered = False
