from typing import Any


class EngineCore:
    """It starts in vLLM's order, with what a test gives it for its executor and its scheduler."""

    def __init__(self, vllm_config: Any, executor: Any, scheduler: Any) -> None:
        self.vllm_config, self.model_executor = vllm_config, executor
        self._initialize_kv_caches(vllm_config)
        self.scheduler = scheduler
        self._initialize_effective_attention_block_size()

    def _initialize_kv_caches(self, vllm_config: Any) -> None:
        self.model_executor.start()

    def _initialize_effective_attention_block_size(self) -> None:
        self.started = True
