from typing import Any


class Worker:
    use_v2_model_runner = True

    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config = vllm_config
        self.calls: list[str] = []

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        self.calls.append("stock cache")

    def compile_or_warm_up_model(self) -> int:
        self.calls.append(f"{self.model_runner.kv_cache_config.num_blocks} blocks")
        return 5

    def shutdown(self) -> None:
        self.calls.append("shutdown")
