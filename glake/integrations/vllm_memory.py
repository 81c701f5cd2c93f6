"""Names by which a vLLM job gets its memory from glake: a sleep backend and a KV connector.

Imported by vLLM, which it imports.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from vllm import device_allocator
from vllm.device_allocator.sleep_mode_backend import CuMemBackend
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

from glake.allocator import torch as allocator
from glake.allocator.sharing import contiguous
from glake.integrations.vllm import RegionAllocator


class GlakeSleepBackend(CuMemBackend):  # type: ignore[misc]
    """vLLM's own sleep backend, for jobs whose allocator in place is glake's.

    With "cumem" a job sleeps by glake if the hook is there, else by vLLM's own allocator.
    `sleep_mode_backend="glake"` demands glake: without the hook vLLM refuses it.
    """

    @classmethod
    def is_supported(cls) -> bool:
        """Whether install() has put glake's regions in place of vLLM's allocator."""
        # This comes before any call of it, because vLLM's own function would make its allocator and
        # begin to use it.
        function = device_allocator.get_mem_allocator_instance
        return bool(function.__module__ == RegionAllocator.__module__)

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        """True: kernels are in no region, and memory that they were compiled for keeps its
        addresses."""
        return True


class GlakeOffloadingConnector(OffloadingConnector):  # type: ignore[misc]
    """vLLM's OffloadingConnector. Each tensor of the KV cache is one driver allocation.

    So a network card can register it, for example for NIXL's connector beside this one in a
    MultiConnector.
    """

    def get_mem_pool_context(self) -> AbstractContextManager[None] | None:
        """The context in which the KV cache is allocated; None: vLLM's own.

        It is vLLM's own in two cases. In sleep mode the memory is a region's, as it must be given
        back. Where PyTorch's allocator is not glake's, its segments are single allocations anyway.
        """
        asleep = self._vllm_config.model_config.enable_sleep_mode
        return None if asleep or allocator.mode() is None else contiguous()
