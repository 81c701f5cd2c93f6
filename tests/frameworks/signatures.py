"""Prints the signatures that a hook relies on, of the package installed here: signatures.py NAME.

Its output is tests/integrations/stored/NAME.txt.
"""

import importlib
import inspect
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

OFFLOAD = "megatron.core.pipeline_parallel.fine_grained_activation_offload"
FSDP = "megatron.core.distributed.fsdp.src.megatron_fsdp.utils"
ZERO = "deepspeed.runtime.zero"
ABSTRACT = "deepspeed.accelerator.abstract_accelerator:DeepSpeedAccelerator"
USED = {
    "deepspeed": [
        "deepspeed.accelerator.real_accelerator:set_accelerator",
        f"{ABSTRACT}._torch_pin_memory",
        f"{ABSTRACT}._torch_empty_pinned",
        f"{ABSTRACT}._torch_is_pinned",
        f"{ABSTRACT}.pin_memory",
        f"{ABSTRACT}.empty_cache",
        f"{ABSTRACT}.memory_stats",
        f"{ABSTRACT}.memory_allocated",
        f"{ABSTRACT}.max_memory_allocated",
        f"{ABSTRACT}.memory_reserved",
        f"{ABSTRACT}.max_memory_reserved",
        f"{ABSTRACT}.memory_cached",
        f"{ABSTRACT}.max_memory_cached",
        f"{ABSTRACT}.reset_peak_memory_stats",
        f"{ABSTRACT}.reset_max_memory_allocated",
        f"{ABSTRACT}.reset_max_memory_cached",
        "deepspeed.ops.op_builder.async_io:AsyncIOBuilder.is_compatible",
        "deepspeed.ops.op_builder.pin_memory_load:load_pin_memory_module",
        f"{ZERO}.stage_1_and_2:DeepSpeedZeroOptimizer.async_accumulate_grad_in_cpu_via_gpu",
        f"{ZERO}.stage_1_and_2:DeepSpeedZeroOptimizer.async_inplace_copy_grad_to_fp32_buffer_from_gpu",
        f"{ZERO}.stage_1_and_2:DeepSpeedZeroOptimizer.step",
        f"{ZERO}.stage_1_and_2:DeepSpeedZeroOptimizer.offload_states",
        f"{ZERO}.stage_1_and_2:DeepSpeedZeroOptimizer.reload_states",
        f"{ZERO}.stage3:DeepSpeedZeroOptimizer_Stage3.partition_grads",
        f"{ZERO}.stage3:DeepSpeedZeroOptimizer_Stage3._reassign_or_swap_out_partitioned_parameters",
        f"{ZERO}.stage3:DeepSpeedZeroOptimizer_Stage3.offload_states",
        f"{ZERO}.stage3:DeepSpeedZeroOptimizer_Stage3.reload_states",
        f"{ZERO}.partition_parameters:Init._allgather_param",
        f"{ZERO}.partition_parameters:Init._allgather_params_sequential",
        f"{ZERO}.partition_parameters:Init._partition_param",
    ],
    "megatron": [
        f"{OFFLOAD}:ChunkOffloadHandler.offload",
        f"{OFFLOAD}:ChunkOffloadHandler.reload",
        "megatron.core.utils:GlobalMemoryBuffer.get_tensor",
        f"{FSDP}:GlobalMemoryBuffer.get_tensor",
    ],
    # Its signatures need no packages of CUDA: pip install --no-deps kvikio-cu12 libkvikio-cu12
    # nvidia-cufile-cu12 cuda-pathfinder rapids-logger.
    "kvikio": [
        "kvikio.defaults:is_compat_mode_preferred",
        "kvikio.cufile:CuFile.__init__",
        "kvikio.cufile:CuFile.pread",
        "kvikio.cufile:CuFile.pwrite",
        "kvikio.cufile:CuFile.close",
        "kvikio.cufile:IOFuture.get",
    ],
    "fsdp2": [
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:DefaultAllocMixin.allocate",
    ],
}
DISTRIBUTION = {
    "deepspeed": "deepspeed",
    "megatron": "megatron-core",
    "fsdp2": "torch",
    "kvikio": "kvikio-cu12",
}


def plain(name: str) -> str:
    """MODULE:QUALIFIED.NAME and its parameters, without annotations."""
    module, _, inside = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in inside.split("."):
        found = vars(found)[part] if isinstance(found, type) else getattr(found, part)
    given = inspect.signature(found)
    bare = [each.replace(annotation=each.empty) for each in given.parameters.values()]
    return f"{name} {inspect.Signature(bare)}"


def extension(source: Path, kind: str) -> list[str]:
    """Methods of a pybind11 class and their arguments, as its source declares them."""
    text = source.read_text()
    body = text[text.index(f'm, "{kind}")') :]
    starts = [*re.finditer(r"\.def\(\s*(\"(\w+)\"|py::init)", body)]
    lines = []
    for start, end in zip(starts, [*(each.start() for each in starts[1:]), None], strict=True):
        arguments = re.findall(r'"(\w+)"_a(?: = ([\w* ]+))?', body[start.start() : end])
        words = [name + (f"={value}" if value else "") for name, value in arguments]
        lines.append(f"{kind}.{start[2] or '__init__'} ({', '.join(words)})")
    return lines


def main() -> None:
    package = sys.argv[1]
    print(f"# {DISTRIBUTION[package]} {metadata.version(DISTRIBUTION[package]).split('+')[0]}")
    for name in USED[package]:
        print(plain(name))
    if package == "deepspeed":
        root = Path(importlib.import_module("deepspeed").__file__ or "").parent / "ops/csrc"
        print(*extension(root / "aio/py_lib/py_ds_aio.cpp", "aio_handle"), sep="\n")
        print(*extension(root / "pin_memory/py_ds_pin_memory.cpp", "pin_handle"), sep="\n")


if __name__ == "__main__":
    main()
