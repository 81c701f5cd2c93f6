"""Decoder-only transformers, composed of parts (docs/trainer.md)."""
