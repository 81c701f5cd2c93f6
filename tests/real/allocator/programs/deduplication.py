"""glake.deduplicate() with modules of torch: two processes, and two models in one of them.

    deduplication.py [child]

Kernels compute nothing here, so weights are written and read by copies.
"""

import gc
import os
import subprocess
import sys
import tempfile

import torch

import glake

MIB = 1 << 20


class Model(torch.nn.Module):
    """Some layers, tied weights, and a buffer."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(4096, 256)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(6))
        self.head = torch.nn.Linear(256, 4096, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.zeros(8))


def loaded(seed=0):
    """A model on the GPU with the same weights in each process, and what they are."""
    torch.manual_seed(seed)
    model = Model().requires_grad_(False)
    kept = {name: each.clone() for name, each in model.named_parameters()}
    return model.cuda(), kept


def intact(model, kept):
    return all(torch.equal(each.cpu(), kept[name]) for name, each in model.named_parameters())


def refused(kind, phrase, *given):
    try:
        glake.deduplicate(*given)
    except kind as error:
        assert phrase in str(error), error
    else:
        raise AssertionError(f"not refused: {phrase}")


def child():
    """Finds the parent's weights, and dies of a write."""
    model, kept = loaded()
    shared = glake.deduplicate(model)
    assert shared.found_bytes == shared.shared_bytes > 10 * MIB, shared
    assert shared.given_back_bytes == shared.shared_bytes, shared
    assert intact(model, kept)
    print("found", flush=True)
    sys.stdin.readline()
    assert intact(model, kept)
    print("still", flush=True)
    sys.stdin.readline()
    model.layers[0].weight.copy_(torch.zeros(512, 512))
    torch.cuda.synchronize()
    print("written", flush=True)


def captured():
    """A capture that glake has not seen yet goes on, whatever becomes of weights."""
    model, _ = loaded(1)
    shared = glake.deduplicate(model)
    private, buffer = torch.zeros(1000).cuda(), glake.reserve("8MiB")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        private.add_(1)
        refused(glake.InvalidArgument, "being captured", {"private": private})
        for change in (shared.close, buffer.free):
            try:
                change()
            except glake.InvalidArgument as error:
                assert "being captured" in str(error), error
            else:
                raise AssertionError("not refused")
        assert glake.stats()["glake.deduplication.shards"] == 1
        del model, private
        gc.collect()
    graph.replay()
    torch.cuda.synchronize()
    buffer.free()
    assert glake.deduplicate({}).shared_bytes == 0  # closes what was left
    assert glake.stats()["glake.deduplication.shards"] == 0


def parent():
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        os.environ["GLAKE_SIM_MACHINE"] = f"deduplication-{os.getpid()}"
        model, kept = loaded()
        refused(glake.InvalidArgument, "requires a gradient", torch.nn.Linear(2, 2).cuda())
        refused(glake.InvalidArgument, "only memory of a GPU", torch.nn.Linear(2, 2))
        objects = {name: id(each) for name, each in model.named_parameters()}
        whole = torch.zeros(1000)
        whole[:] = torch.arange(1000)
        whole = whole.cuda()
        part = whole[100:200]
        before = torch.cuda.memory_reserved()
        shared = glake.deduplicate(model)
        views = glake.deduplicate({"whole": whole, "part": part})
        assert shared.found_bytes == 0 and shared.given_back_bytes == shared.shared_bytes, shared
        assert before - torch.cuda.memory_reserved() > 8 * MIB
        assert objects == {name: id(each) for name, each in model.named_parameters()}
        assert model.head.weight is model.embed.weight and intact(model, kept)
        assert part.data_ptr() == whole.data_ptr() + 400
        assert torch.equal(part.cpu(), torch.arange(100.0, 200.0))
        model.steps.copy_(torch.ones(8))  # a buffer stays private
        pipe = subprocess.PIPE
        command = [sys.executable, __file__, "child"]
        other = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert other.stdout.readline() == "found\n", other.stderr.read()
        reference, known = loaded()  # a second copy of the model in this process
        again = glake.deduplicate(reference)
        assert again.found_bytes == again.shared_bytes
        assert reference.embed.weight.data_ptr() == model.embed.weight.data_ptr()
        shared.close()
        views.close()
        assert intact(model, kept) and intact(reference, known)
        assert reference.embed.weight.data_ptr() != model.embed.weight.data_ptr()
        assert part.data_ptr() == whole.data_ptr() + 400
        assert torch.equal(part.cpu(), torch.arange(100.0, 200.0))
        model.layers[0].weight.copy_(torch.zeros(512, 512))
        assert not intact(model, kept) and intact(reference, known)
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "still\n"
        told, errors = other.communicate("\n", timeout=60)
        assert other.returncode != 0 and "written" not in told, errors
        assert intact(reference, known)
        assert glake.stats()["glake.deduplication.shards"] == 1
        del reference
        gc.collect()
        assert glake.stats()["glake.deduplication.shards"] == 0  # no weight lies in it any more
        captured()
    print("deduplicated", "illegal memory access" in errors)


if __name__ == "__main__":
    child() if sys.argv[1:] == ["child"] else parent()
