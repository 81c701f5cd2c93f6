"""A stand-in. It has what the hook for vLLM takes from the package, without behaviour."""
