"""Prints the signatures that vLLM's hook relies on, read from its source: FOLDER of the package.

Its output is tests/integrations/stored/vllm.txt (0.32.0, vLLM's CPU build) and vllm_0.33.0.txt.
"""

import ast
import sys
from pathlib import Path

USED = {
    "device_allocator/__init__.py": ["get_mem_allocator_instance"],
    "device_allocator/cumem.py": [
        "CuMemAllocator.use_memory_pool",
        "CuMemAllocator.cudagraph_pool",
        "CuMemAllocator.sleep",
        "CuMemAllocator.discard",
        "CuMemAllocator.wake_up",
        "CuMemAllocator.get_current_usage",
    ],
    "device_allocator/sleep_mode_backend.py": [
        "CuMemBackend.suspend",
        "CuMemBackend.resume",
        "CuMemBackend.discard",
        "SleepModeBackend.is_supported",
        "SleepModeBackend.preserves_compiled_artifacts",
        "SleepModeBackendFactory.register_backend",
    ],
    "distributed/kv_transfer/kv_connector/factory.py": ["KVConnectorFactory.register_connector"],
    "distributed/kv_transfer/kv_connector/v1/base.py": ["KVConnectorBase_V1.get_mem_pool_context"],
    "distributed/kv_transfer/kv_connector/v1/offloading_connector.py": [
        "OffloadingConnector.__init__"
    ],
    "v1/kv_offload/base.py": [
        "OffloadingWorker.submit_store",
        "OffloadingWorker.submit_load",
        "OffloadingWorker.get_finished",
        "OffloadingWorker.wait",
        "OffloadingWorker.shutdown",
    ],
    "v1/kv_offload/factory.py": ["OffloadingSpecFactory.register_spec"],
    "v1/kv_offload/cpu/shared_offload_region.py": [
        "SharedOffloadRegion.__init__",
        "SharedOffloadRegion.create_next_worker_view",
        "SharedOffloadRegion.cleanup",
    ],
    "v1/kv_offload/cpu/spec.py": ["CPUOffloadingSpec._uses_shared_region", "_all_workers_barrier"],
    "v1/kv_offload/tiering/factory.py": ["SecondaryTierFactory.register_tier"],
    "v1/kv_offload/tiering/fs/manager.py": [
        "FileSystemTierManager.__init__",
        "FileSystemTierManager.submit_store",
        "FileSystemTierManager.submit_load",
    ],
    "v1/kv_offload/tiering/fs/thread_pool.py": [
        "DualQueueThreadPool.get_finished",
        "DualQueueThreadPool.wait_idle",
        "DualQueueThreadPool.shutdown",
    ],
    # What the elastic KV cache relies on.
    "v1/core/block_pool.py": [
        "BlockPool._maybe_evict_cached_block",
        "BlockPool.get_new_blocks",
        "BlockPool.get_num_free_blocks",
    ],
    "v1/core/kv_cache_coordinator.py": ["KVCacheCoordinator.get_num_blocks_to_allocate"],
    "v1/core/kv_cache_manager.py": ["KVCacheManager.allocate_slots"],
    "v1/core/kv_cache_utils.py": [
        "FreeKVCacheBlockQueue.popleft",
        "FreeKVCacheBlockQueue.popleft_n",
        "FreeKVCacheBlockQueue.remove",
        "FreeKVCacheBlockQueue.append",
        "FreeKVCacheBlockQueue.append_n",
        "FreeKVCacheBlockQueue.prepend_n",
        "FreeKVCacheBlockQueue.get_all_free_blocks",
        "FreeKVCacheBlockQueue.iter_blocks_after",
    ],
    "v1/core/sched/scheduler.py": ["Scheduler.schedule", "Scheduler.update_from_output"],
    "v1/engine/core.py": [
        "EngineCore._initialize_kv_caches",
        "EngineCore._initialize_effective_attention_block_size",
    ],
    "v1/worker/gpu_worker.py": [
        "Worker.initialize_from_config",
        "Worker.compile_or_warm_up_model",
        "Worker.shutdown",
    ],
    "v1/worker/utils.py": ["allocate_kv_cache"],
}


def parameters(function: ast.FunctionDef) -> str:
    """The parameters without annotations."""
    for argument in ast.walk(function.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return ast.unparse(function.args)


def functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    found: dict[str, ast.FunctionDef] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef):
                    found[f"{node.name}.{each.name}"] = each
    return found


def main() -> None:
    for file, names in USED.items():
        found = functions(ast.parse((Path(sys.argv[1]) / file).read_text()))
        for name in names:
            print(f"{file}:{name} ({parameters(found[name])})")


if __name__ == "__main__":
    main()
