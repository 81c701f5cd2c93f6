from vllm import device_allocator


class CuMemBackend:
    @classmethod
    def is_supported(cls) -> bool:
        return True

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        return False

    def suspend(self, level: int = 1) -> None:
        kept = ("weights", "runtime", "cudagraph") if level == 1 else ("runtime", "cudagraph")
        device_allocator.get_mem_allocator_instance().sleep(offload_tags=kept)  # type: ignore

    def resume(self, tags: list[str] | None = None) -> None:
        device_allocator.get_mem_allocator_instance().wake_up(tags)  # type: ignore


class SleepModeBackendFactory:
    _registry: dict[str, tuple[str, str]] = {}

    @classmethod
    def register_backend(cls, name: str, module_path: str, class_name: str) -> None:
        if name in cls._registry:
            raise ValueError(f"Sleep-mode backend '{name}' is already registered.")
        cls._registry[name] = (module_path, class_name)
