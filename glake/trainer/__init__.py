"""A small FSDP trainer over glake: composed of parts that configs build (docs/trainer.md)."""
