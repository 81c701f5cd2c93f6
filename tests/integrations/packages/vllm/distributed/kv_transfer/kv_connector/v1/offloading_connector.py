from typing import Any


class OffloadingConnector:
    def __init__(self, vllm_config: Any) -> None:
        self._vllm_config = vllm_config
