"""Jobs that test_plan.py records: each function is a make_step."""

import torch
from torch import nn
from torch.nn import functional

import glake.trace


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Tiny(nn.Module):
    def __init__(self, width=64, words=100, recompute=False):
        super().__init__()
        self.words, self.recompute = words, recompute
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, words)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            if self.recompute:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return functional.cross_entropy(self.head(x).view(-1, self.words), ids.view(-1))


def training(job):
    model = Tiny(recompute=True).to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step(i):
        loss = model(torch.randint(0, 100, (4, 32 + 8 * i), device=job.device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()

    return step


def replicated(job):
    model = nn.parallel.DistributedDataParallel(Tiny().to(job.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)

    def step(i):
        model(torch.randint(0, 100, (4, 32), device=job.device)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def accumulating(job):
    """Two micro-batches for one update by two optimizers, with tensors outside all modules."""
    model = nn.Linear(64, 64, device=job.device)
    weight = torch.optim.SGD([model.weight], lr=0.1, momentum=0.9, foreach=True)
    bias = torch.optim.AdamW([model.bias], foreach=True)
    kept = []

    def step(i):
        for _ in range(2):
            batch = torch.empty(100, 64, device=job.device)
            model(batch).sum().backward()
        nn.utils.clip_grad_norm_([model.weight], 1.0, foreach=True)
        weight.step()
        clipped = torch.empty(300, device=job.device)
        bias.step()
        weight.zero_grad()
        kept.append(torch.empty(7000, device=job.device))
        bias.zero_grad()
        scratch = torch.empty(9000, device=job.device)
        del clipped, scratch

    return step


def adversarial(job):
    """A discriminator and a generator, each updated in every step, the first one twice."""
    one, other = (nn.Linear(64, 64, device=job.device) for _ in range(2))
    first = torch.optim.SGD(one.parameters(), lr=0.1, foreach=True)
    second = torch.optim.SGD(other.parameters(), lr=0.1, foreach=True)

    def step(i):
        for model, optimizer in ((one, first), (one, first), (other, second)):
            noise = torch.empty(50, 64, device=job.device)
            (noise @ model.weight).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.empty(9000, device=job.device)

    return step


def flat(job):
    """A flat buffer of each kind, as ZeRO has them, and one whose kind nobody told."""
    weights = torch.empty(1000, dtype=torch.bfloat16, device=job.device)
    gradient = torch.empty(1000, dtype=torch.bfloat16, device=job.device)
    bucket = torch.empty(3500, dtype=torch.bfloat16, device=job.device)
    other = torch.empty(512, dtype=torch.int8, device=job.device)
    glake.trace.kind(weights, "parameter")
    glake.trace.kind(gradient, "gradient")
    glake.trace.kind(bucket, "communication")
    master = torch.empty(1000, device=job.device, requires_grad=True)
    optimizer = torch.optim.AdamW([master], foreach=True)

    def step(i):
        bucket.zero_()
        other.zero_()
        master.grad = gradient.float()
        optimizer.step()
        master.grad = None
        weights.copy_(master.detach())

    return step


def sharded(job):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = Tiny(words=128, recompute=True).to(job.device)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(i):
        model(torch.randint(0, 128, (4, 32), device=job.device)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def everything(job):
    """All that recorders get wrong: streams, attention, routing, host memory, reduced precision."""
    job.facts["model"] = "a bit\nof everything"
    job.facts[3] = "three"  # type: ignore[index]
    linear = nn.Linear(64, 64, device=job.device)
    experts = nn.ModuleList(nn.Linear(64, 64, device=job.device) for _ in range(4))
    scaler, optimizer = torch.amp.GradScaler(), torch.optim.SGD(linear.parameters(), 0.1)

    def on_streams():
        side = torch.cuda.Stream()
        x = torch.randn(100, 64, device=job.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.empty(7777, device=job.device)
        x.record_stream(side)
        torch.cuda.Event().record(side)

    def attention(mask):
        q = torch.randn(2, 4, 128, 32, device=job.device, dtype=torch.bfloat16, requires_grad=True)
        q = q * 1
        out = functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        out.sum().backward()

    def route():
        x = torch.randn(64, 64, device=job.device)
        index = torch.randn(64, 4, device=job.device).topk(2, -1).indices
        mask = functional.one_hot(index, 4).permute(2, 1, 0)
        for number, expert in enumerate(experts):
            _, token = torch.where(mask[number])
            assert x[token].shape[0] == 64 * 2 // 4
            assert x[(index == number).any(-1)].shape[0] == round(64 * (1 - 0.75**2))
            expert(x[token])
        counts = torch.bincount(index.flatten(), minlength=4).tolist()
        assert counts == [32] * 4

    def host():
        torch.empty(1000, pin_memory=True)
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            linear(torch.randn(8, 64, device=job.device)).sum().backward()

    def scaled():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = linear(torch.randn(8, 64, device=job.device)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert loss.item() == 1.0

    def step(i):
        on_streams()
        attention(None)
        attention(torch.zeros(128, 128, device=job.device, dtype=torch.bfloat16))
        route()
        host()
        scaled()
        view = linear.weight.view(-1)
        view.detach().add_(1)
        free, total = torch.cuda.mem_get_info()
        assert 0 < free < total and torch.cuda.memory_allocated() == total - free
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        torch.cuda.synchronize()

    return step


def mistaken(job):
    linear = nn.Linear(64, 64, device=job.device)

    def step(i):
        linear(torch.randn(8, 65, device=job.device))

    return step


def reads_values(job):
    import numpy

    def log(tensor):
        return numpy.asarray(tensor.detach().cpu())

    def step(i):
        log(torch.randn(8, 64, device=job.device))

    return step


def exits(job):
    import argparse

    assert argparse.ArgumentParser().parse_args() is not None  # it is given no arguments
    print("no data was found")
    raise SystemExit(3)


def empty(job):
    return lambda i: None


def generates(job):
    def step(i):
        nn.Linear(64, 64, device=job.device)
        yield i

    return step


def takes_no_number(job):

    def step():
        nn.Linear(64, 64, device=job.device)

    return step


def awaits(job):
    async def step(i):
        nn.Linear(64, 64, device=job.device)

    return step


def no_step(job):
    nn.Linear(64, 64, device=job.device)


not_a_function = 3
