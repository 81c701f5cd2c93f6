"""glake as the allocator of the frameworks: torch, its statistics, its emulation without a GPU."""
