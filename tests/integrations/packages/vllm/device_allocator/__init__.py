def get_mem_allocator_instance() -> str:
    return "vLLM's"
