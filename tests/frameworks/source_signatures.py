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
