import os


def is_compat_mode_preferred() -> bool:
    return os.environ.get("KVIKIO_COMPAT_MODE", "OFF") == "ON"
