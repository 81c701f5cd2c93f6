"""A stand-in: what the hook for vLLM takes from it, without behaviour."""
