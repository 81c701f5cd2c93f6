"""Writes the small synthetic traces in tests/traces, of training jobs with known shapes.

    python benchmarks/allocator/make_traces.py [OUT_DIR]

Each is a decoder-only transformer. Its allocations are computed from its dimensions, not recorded.
That is enough to exercise an allocator's policy, but measures no real job. The files are the same
on every machine.

- gpt-fixed: every step has the same shapes, so a good allocator makes no driver call once warm.
- gpt-varying: the sequence length changes each step, with activation recomputation.
- fsdp-streams: parameters are gathered on stream 1 and gradients reduced on stream 2 while stream
  0 computes; buffers that cross streams carry record_stream lines.
"""

from __future__ import annotations

import gzip
import random
from dataclasses import dataclass, field
from pathlib import Path

import click

COMPUTE, GATHER, REDUCE = 0, 1, 2
BF16, FP32 = 2, 4


@dataclass
class Recorder:
    """Collects a trace's lines and the figures its header states."""

    lines: list[str] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    next_id: int = 0
    live: int = 0
    peak: int = 0

    def alloc(self, size: int, stream: int = COMPUTE) -> int:
        block = self.next_id
        self.next_id += 1
        self.sizes[block] = size
        self.live += size
        self.peak = max(self.peak, self.live)
        self.lines.append(f"a {block} {size} {stream}")
        return block

    def free(self, *blocks: int) -> None:
        for block in blocks:
            self.live -= self.sizes.pop(block)
            self.lines.append(f"f {block}")

    def record_stream(self, block: int, stream: int) -> None:
        self.lines.append(f"r {block} {stream}")

    def step(self, number: int) -> None:
        self.lines.append(f"s {number}")

    def write(self, path: Path, header: dict[str, object]) -> None:
        facts = {
            "format": "a ID BYTES STREAM | f ID | r ID STREAM | s STEP",
            **header,
            "peak_live_bytes": self.peak,
            "end_live_bytes": self.live,
        }
        text = "".join(f"# {key}: {value}\n" for key, value in facts.items())
        text += "\n".join(self.lines) + "\n"
        # The gzip header has no file name and no time, so the bytes depend on the job alone.
        with open(path, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
            packed.write(text.encode())


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer and its batch."""

    layers: int
    hidden: int
    heads: int
    vocab: int
    batch: int

    def layer_parameters(self) -> list[int]:
        """Elements of each parameter of a layer: attention, its output, two of the MLP, norms."""
        h = self.hidden
        return [3 * h * h, 3 * h, h * h, h, 4 * h * h, 4 * h, 4 * h * h, h, h, h, h, h]

    def saved_activations(self, tokens: int) -> list[int]:
        """Bytes of each block that a layer's forward keeps for its backward, `tokens` per
        sequence."""
        row = self.batch * tokens * self.hidden * BF16
        scores = self.batch * self.heads * tokens * tokens * BF16
        statistics = self.batch * tokens * FP32
        return [
            row,
            statistics,
            statistics,
            3 * row,
            scores,
            row,
            row,
            statistics,
            4 * row,
            4 * row,
        ]


def forward(record: Recorder, model: Model, tokens: int) -> list[int]:
    """Records one layer's forward. Returns the blocks that it keeps; its work space is freed."""
    kept = []
    for size in model.saved_activations(tokens):
        scratch = record.alloc(size)
        kept.append(record.alloc(size))
        record.free(scratch)
    return kept


def backward(record: Recorder, model: Model, tokens: int, kept: list[int]) -> None:
    """Records one layer's backward. Each activation gets a gradient, and is freed with it."""
    row = model.batch * tokens * model.hidden * BF16
    gradient = record.alloc(row)
    for block in reversed(kept):
        following = record.alloc(record.sizes[block])
        record.free(block, gradient)
        gradient = following
    record.free(gradient)


def loss(record: Recorder, model: Model, tokens: int) -> None:
    """Logits, their float copy and the gradient: the largest blocks of a step."""
    logits = record.alloc(model.batch * tokens * model.vocab * BF16)
    floats = record.alloc(model.batch * tokens * model.vocab * FP32)
    record.free(logits)
    gradient = record.alloc(model.batch * tokens * model.vocab * BF16)
    record.free(floats)
    record.free(gradient)


def optimizer_step(record: Recorder, gradients: list[int], states: list[int]) -> list[int]:
    """Adam over float master weights: makes the states in the first step, frees the gradients."""
    made = []
    for gradient in gradients:
        scratch = record.alloc(2 * record.sizes[gradient])
        if not states:
            made += [record.alloc(2 * record.sizes[gradient]) for _ in range(2)]
        record.free(scratch, gradient)
    return states or made


def gpt(record: Recorder, model: Model, lengths: list[int], recompute: bool) -> None:
    """Plain training on one device, one stream."""
    sizes = [elements * BF16 for elements in model.layer_parameters()]
    for _ in range(model.layers):
        for size in sizes:
            record.alloc(size)
    states: list[int] = []
    for number, tokens in enumerate(lengths):
        record.step(number)
        saved = []
        for _ in range(model.layers):
            kept = forward(record, model, tokens)
            if recompute:
                record.free(*kept[1:])
                kept = kept[:1]
            saved.append(kept)
        loss(record, model, tokens)
        gradients = []
        for kept in reversed(saved):
            if recompute:
                again = forward(record, model, tokens)
                backward(record, model, tokens, again)
                record.free(*kept)
            else:
                backward(record, model, tokens, kept)
            gradients += [record.alloc(size) for size in sizes]
        states = optimizer_step(record, gradients, states)


def gather(record: Recorder, sizes: list[int]) -> list[int]:
    """All-gathers a layer's parameters on its own stream, for use by the stream that computes."""
    flat = record.alloc(sum(sizes), GATHER)
    whole = [record.alloc(size, GATHER) for size in sizes]
    for block in whole:
        record.record_stream(block, COMPUTE)
    record.free(flat)
    return whole


def fsdp(record: Recorder, model: Model, lengths: list[int], world: int) -> None:
    """Fully sharded training: the next layer is gathered while this one computes."""
    sizes = [elements * BF16 for elements in model.layer_parameters()]
    shard = sum(sizes) // world
    for _ in range(model.layers):
        record.alloc(shard)
    states: list[int] = []
    for number, tokens in enumerate(lengths):
        record.step(number)
        saved = []
        ahead = gather(record, sizes)
        for layer in range(model.layers):
            whole, ahead = ahead, gather(record, sizes) if layer + 1 < model.layers else []
            saved.append(forward(record, model, tokens))
            record.free(*whole)
        loss(record, model, tokens)
        gradients = []
        ahead = gather(record, sizes)
        for layer in reversed(range(model.layers)):
            whole, ahead = ahead, gather(record, sizes) if layer > 0 else []
            backward(record, model, tokens, saved[layer])
            full = record.alloc(sum(sizes))
            record.free(*whole)
            record.record_stream(full, REDUCE)
            reduced = record.alloc(shard, REDUCE)
            record.free(full)
            gradients.append(record.alloc(shard))
            record.record_stream(reduced, COMPUTE)
            record.free(reduced)
        states = optimizer_step(record, gradients, states)


@click.command()
@click.argument(
    "out_dir",
    default=Path(__file__).resolve().parents[2] / "tests" / "traces",
    type=click.Path(file_okay=False, path_type=Path),
)
def main(out_dir: Path) -> None:
    """Write the traces into OUT_DIR (default: tests/traces)."""
    out_dir.mkdir(parents=True, exist_ok=True)
    seed = 7
    chance = random.Random(seed)

    def lengths(steps: int) -> list[int]:
        return [
            min(2048, max(64, int(chance.lognormvariate(6.4, 0.5)) // 8 * 8)) for _ in range(steps)
        ]

    small = Model(layers=8, hidden=1024, heads=16, vocab=32000, batch=8)
    large = Model(layers=12, hidden=2048, heads=16, vocab=32000, batch=4)
    jobs = {
        "gpt-fixed": (small, [512] * 8),
        "gpt-varying": (small, lengths(12)),
        "fsdp-streams": (large, lengths(8)),
    }
    for name, (model, steps) in jobs.items():
        record = Recorder()
        if name == "fsdp-streams":
            fsdp(record, model, steps, world=8)
        else:
            gpt(record, model, steps, recompute=name == "gpt-varying")
        path = out_dir / f"{name}.trace.gz"
        header = {"job": name, "made_by": "make_traces.py", "model": model, "seqs": steps}
        record.write(path, header)
        click.echo(f"{path}: {len(record.lines)} events, peak {record.peak / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
