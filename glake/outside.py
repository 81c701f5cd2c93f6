"""The memory that CUDA itself takes of a GPU, outside any allocator. Plans and dry runs use the
same estimate."""

from __future__ import annotations

# A context, and the code that PyTorch loads into it. 616 MiB were measured on an H100 with nothing
# allocated (github.com/LMCache/LMCache issue 4019). The figure depends on the GPU's model and on
# the code.
CONTEXT_BYTES = 616 << 20
# Assumed, not measured: the buffers of one NCCL communicator's channels on NVLink, and its proxy.
NCCL_BYTES = 1 << 30
SOURCE = (
    "CUDA context 616 MiB (LMCache issue 4019, an H100); NCCL 1 GiB a rank of several (assumed)"
)
_ONE_RANK = (
    "CUDA context 616 MiB (LMCache issue 4019, an H100); nothing for NCCL, because no launcher "
    "told the number of ranks (WORLD_SIZE)"
)


def source(bytes_taken: int, ranks: int) -> str:
    """The source of a figure: the estimate, or the user who ran the job."""
    if bytes_taken == estimate(ranks):
        return SOURCE
    return _ONE_RANK if bytes_taken == estimate(1) else "as it was given"


def estimate(ranks: int) -> int:
    """The estimated bytes on each rank's GPU, in a job of that many ranks."""
    return CONTEXT_BYTES + (NCCL_BYTES if ranks > 1 else 0)
