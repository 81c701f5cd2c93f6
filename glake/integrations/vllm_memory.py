"""Names by which a vLLM job gets its memory from glake: a sleep backend and a KV connector.

vLLM imports this module, which imports vLLM.
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
    """vLLM's own sleep backend, for jobs in which glake has replaced vLLM's allocator.

    With "cumem" a job sleeps by glake if the hook is installed, else by vLLM's own allocator.
    `sleep_mode_backend="glake"` requires glake. Without the hook vLLM refuses that name.
    """

    @classmethod
    def is_supported(cls) -> bool:
        """Whether install() has put glake's regions in place of vLLM's allocator."""
        # This check comes before any call, because vLLM's own function would make its allocator and
        # begin to use it.
        function = device_allocator.get_mem_allocator_instance
        return bool(function.__module__ == RegionAllocator.__module__)

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        """True, because kernels are in no region, and the memory for which they were compiled keeps
        its addresses."""
        return True


class GlakeOffloadingConnector(OffloadingConnector):  # type: ignore[misc]
    """vLLM's OffloadingConnector. Each tensor of the KV cache is one driver allocation.

    So a network card can register it, for example for NIXL's connector beside this one in a
    MultiConnector.
    """

    def get_mem_pool_context(self) -> AbstractContextManager[None] | None:
        """The context in which the KV cache is allocated. None: vLLM's own context.

        It is None in two cases. In sleep mode the memory must be given back, so it is a region's.
        If PyTorch's allocator is not glake, its segments are single allocations anyway.
        """
        asleep = self._vllm_config.model_config.enable_sleep_mode
        return None if asleep or allocator.mode() is None else contiguous()
