"""What numbers mode promises beyond a training loop. Each argument names one function."""

import sys
import threading

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

CUDA = torch.device("cuda")


def graph_replays() -> None:
    x = torch.zeros(8, device=CUDA)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            (x * 2 + 1).sum()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x * 2 + 1).sum()
    for value in (1.0, 5.0, -3.0):
        x.fill_(value)
        graph.replay()
        assert y.item() == 8 * (2 * value + 1), (value, y.item())


def graph_of_a_training_step() -> None:
    def build(device):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    torch.manual_seed(1)
    data = [(torch.randn(8, 16), torch.randn(8, 4)) for _ in range(6)]
    model, optimizer = build("cpu")
    for x, y in data:
        optimizer.zero_grad(set_to_none=False)
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    wanted = [each.detach().clone() for each in model.parameters()]

    model, optimizer = build(CUDA)
    static_x, static_y = torch.zeros(8, 16, device=CUDA), torch.zeros(8, 4, device=CUDA)
    start = [each.detach().clone() for each in model.parameters()]

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        F.mse_loss(model(static_x), static_y).backward()
        optimizer.step()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    with torch.no_grad():
        for each, value in zip(model.parameters(), start, strict=True):
            each.copy_(value)
    for x, y in data:
        static_x.copy_(x)
        static_y.copy_(y)
        graph.replay()
    for each, value in zip(model.parameters(), wanted, strict=True):
        assert torch.equal(each.cpu(), value)


def side_stream_with_events() -> None:
    x = torch.arange(1000.0, device=CUDA)
    side, done = torch.cuda.Stream(), torch.cuda.Event()
    y = x * 3
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        z = y + 1
        z.record_stream(side)
        done.record(side)
    torch.cuda.current_stream().wait_event(done)
    total = z.sum()
    assert total.item() == torch.arange(1000.0).mul(3).add(1).sum().item()
    assert side.query()


def repr_of_strided() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    shown = repr(x.to(CUDA).t()[1:])
    assert shown.replace(", device='cuda:0'", "").split() == repr(x.t()[1:]).split(), shown


def backward_in_threads() -> None:
    found, weight = {}, torch.randn(16, 16)

    def work(name: int, device: str) -> None:
        x = torch.full((4, 16), float(name)).to(device).requires_grad_()
        (x @ weight.to(device)).tanh().sum().backward()
        found[name, device] = x.grad.cpu()

    threads = [threading.Thread(target=work, args=(i, "cuda")) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        work(i, "cpu")
        assert torch.equal(found[i, "cuda"], found[i, "cpu"])


def random_follows_the_cpu() -> None:
    def draws(device):
        torch.manual_seed(7)
        first = torch.randn(3)  # host and device take turns
        second = torch.randn(5, device=device)
        third = F.dropout(torch.ones(20, device=device), 0.5)
        fourth = torch.randperm(9, device=device)
        fifth = torch.rand(2)
        sixth = torch.multinomial(torch.ones(6, device=device), 3)
        return [each.cpu() for each in (first, second, third, fourth, fifth, sixth)]

    for mine, theirs in zip(draws("cuda"), draws("cpu"), strict=True):
        assert torch.equal(mine, theirs), (mine, theirs)
    torch.cuda.manual_seed(3)
    once = torch.randn(4, device=CUDA)
    torch.cuda.manual_seed(3)
    assert torch.equal(once, torch.randn(4, device=CUDA))
    assert torch.equal(once.cpu(), torch.randn(4, generator=torch.Generator().manual_seed(3)))
    state = torch.cuda.get_rng_state()
    first, second = torch.randn(4, device=CUDA), torch.randn(4, device=CUDA)
    torch.cuda.set_rng_state(state)
    assert torch.equal(first, torch.randn(4, device=CUDA))
    assert torch.equal(second, torch.randn(4, device=CUDA))
    torch.manual_seed(7)
    torch.randn(2, device=CUDA)
    state = torch.cuda.get_rng_state()
    first = torch.randn(4, device=CUDA)
    torch.cuda.set_rng_state(state)
    assert torch.equal(first, torch.randn(4, device=CUDA))
    own = torch.Generator(device="cuda").manual_seed(11)
    mine = torch.randn(4, device=CUDA, generator=own)
    assert torch.equal(mine.cpu(), torch.randn(4, generator=torch.Generator().manual_seed(11)))


def checkpoint_draws_dropout_again() -> None:
    def grads(device):
        torch.manual_seed(2)
        layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)).to(device)
        x = torch.ones(4, 8, device=device, requires_grad=True)
        y = checkpoint(layer, x, use_reentrant=False)
        checkpoint(layer, y, use_reentrant=False).sum().backward()
        return x.grad.cpu(), torch.randn(3, device=device).cpu()

    for mine, theirs in zip(grads("cuda"), grads("cpu"), strict=True):
        assert torch.equal(mine, theirs)


def images() -> None:
    def losses(device):
        torch.manual_seed(4)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.ConvTranspose2d(8, 4, 2, stride=2), nn.GroupNorm(2, 4), nn.AdaptiveAvgPool2d(2),
            nn.Flatten(), nn.Linear(16, 5),
        ).to(device)  # fmt: skip
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)
        found = []
        for _ in range(3):
            x, y = torch.randn(4, 3, 8, 8).to(device), torch.randint(0, 5, (4,)).to(device)
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    mine, theirs = losses("cuda"), losses("cpu")
    assert max(abs(a - b) for a, b in zip(mine, theirs, strict=True)) < 1e-6, (mine, theirs)


def shapes_that_depend_on_data() -> None:
    x = torch.tensor([3, 0, 5, 3, 0, 9])
    there = x.to(CUDA)
    assert torch.equal(there.nonzero().cpu(), x.nonzero())
    assert torch.equal(there[there > 2].cpu(), x[x > 2])
    assert torch.equal(there.unique().cpu(), x.unique())
    assert torch.equal(torch.bincount(there).cpu(), torch.bincount(x))
    assert torch.equal(there.repeat_interleave(there).cpu(), x.repeat_interleave(x))
    there[there == 3] = 7
    assert there.tolist() == [7, 0, 5, 7, 0, 9]


def copies() -> None:
    x = torch.arange(24.0).reshape(4, 6)
    there = x.to(CUDA)
    assert torch.equal(there.t().cpu(), x.t())
    assert torch.equal(there.t().half().cpu(), x.t().half())
    assert torch.equal(there[:, ::2].clone().cpu(), x[:, ::2])
    other = there.t().to("cuda:1", torch.float64)
    assert other.device.index == 1 and torch.equal(other.cpu(), x.t().double())
    host = torch.empty(6, 4)
    host.copy_(there.t())
    assert torch.equal(host, x.t())
    pinned = torch.empty(4, 6).pin_memory()
    pinned.copy_(there, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(pinned, x)
    y = torch.randn(3, 3, dtype=torch.complex64)
    assert torch.allclose((y.to(CUDA).conj() @ y.to(CUDA)).cpu(), y.conj() @ y)


def linear_algebra() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 5)
    x = x @ x.t() + torch.eye(5)
    for op in (torch.linalg.cholesky, torch.linalg.inv, torch.linalg.det, torch.linalg.eigvalsh):
        assert torch.allclose(op(x.to(CUDA)).cpu(), op(x), atol=1e-5), op
    assert torch.allclose(torch.linalg.solve(x.to(CUDA), x.to(CUDA)).cpu(), torch.eye(5), atol=1e-4)
    assert torch.allclose(torch.fft.rfft(x.to(CUDA)).cpu(), torch.fft.rfft(x), atol=1e-5)


def scaler() -> None:
    weight = torch.ones(4, device=CUDA, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    for loss in ((weight * 2).sum(), (weight * float("inf")).sum()):
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert weight.tolist() == [-1.0] * 4 and scaler.get_scale() == 2.0  # it skipped the second


def recurrent() -> None:
    """They are computed by products and cells, as on the CPU, because cuDNN's kernels cannot be."""
    torch.manual_seed(0)
    x = torch.randn(5, 3, 8)
    packed = nn.utils.rnn.pack_padded_sequence(x, [5, 3, 2])
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        for options in ({}, {"bidirectional": True, "bias": False}):
            here = kind(8, 6, num_layers=2, **options)
            there = copy_of(here).to(CUDA)
            for given in (x, packed):
                outputs = []
                for model, data in ((here, given), (there, given.to(CUDA))):
                    model.zero_grad()
                    out, last = model(data)
                    out = out.data if isinstance(out, nn.utils.rnn.PackedSequence) else out
                    hidden = last[0] if isinstance(last, tuple) else last
                    (out.pow(2).sum() + hidden.sum()).backward()
                    grads = [weight.grad.cpu() for weight in model.parameters()]
                    outputs.append([out.detach().cpu(), hidden.detach().cpu(), *grads])
                for mine, theirs in zip(*outputs, strict=True):
                    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def half() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(6, 16).to(torch.bfloat16), torch.randn(16, 16).to(torch.bfloat16)
    norm = nn.LayerNorm(16).to(torch.bfloat16)
    mine = copy_of(norm).to(CUDA)
    y = mine(F.gelu(x.to(CUDA) @ w.to(CUDA)))
    z = norm(F.gelu(x @ w))
    y.float().pow(2).sum().backward()
    z.float().pow(2).sum().backward()
    assert torch.allclose(y.cpu().float(), z.float(), atol=3e-2)
    assert torch.allclose(mine.weight.grad.cpu().float(), norm.weight.grad.float(), rtol=3e-2)
    q = torch.randn(2, 4, 8, 16).half()
    there = F.scaled_dot_product_attention(*[q.to(CUDA)] * 3, is_causal=True)
    here = F.scaled_dot_product_attention(*[q] * 3, is_causal=True)
    assert torch.allclose(there.cpu().float(), here.float(), atol=2e-3)


def softmax_of_half_in_float() -> None:
    """CUDA computes it in one op. float16 is what autocast chooses on CUDA."""
    for function in (torch.softmax, torch.log_softmax):
        torch.manual_seed(0)
        x, grad = torch.randn(4, 7).half(), torch.randn(4, 7)
        mine, theirs = x.to(CUDA).requires_grad_(), x.float().requires_grad_()
        y, z = function(mine, -1, dtype=torch.float32), function(theirs, -1)
        y.backward(grad.to(CUDA))
        z.backward(grad)
        assert y.dtype == torch.float32 and torch.equal(y.detach().cpu(), z.detach())
        assert torch.equal(mine.grad.cpu(), theirs.grad.half()), mine.grad
        out = torch.empty(4, 7, device=CUDA, dtype=torch.float16)
        function(x.to(CUDA), -1, out=out)
        assert torch.allclose(out.cpu().float(), z.detach(), atol=2e-3)
    weight = torch.randn(7, 9, device=CUDA, requires_grad=True)
    with torch.autocast("cuda"):
        loss = F.cross_entropy(mine.float() @ weight, torch.arange(4, device=CUDA))
    loss.backward()
    assert loss.dtype == torch.float32 and weight.grad.abs().sum().item() > 0


def fourier_of_half() -> None:
    x = torch.randn(8).half()
    there = torch.fft.fft(x.to(CUDA)).cpu()
    assert torch.allclose(there.to(torch.complex64), torch.fft.fft(x.float()), atol=2e-2)


def sync_batch_norm() -> None:
    """Two parts of a batch, as two processes have them, against the whole batch on the CPU."""
    torch.manual_seed(0)
    x, upstream = torch.randn(6, 5, 4, 4), torch.randn(6, 5, 4, 4)
    norm, theirs = nn.BatchNorm2d(5), x.clone().requires_grad_()
    nn.init.uniform_(norm.weight)
    y = norm(theirs)
    y.backward(upstream)
    parts = [each.to(CUDA) for each in x.split([2, 4])]
    grads = [each.to(CUDA) for each in upstream.split([2, 4])]
    mean, inverse = map(
        torch.stack, zip(*(torch.batch_norm_stats(each, 1e-5) for each in parts), strict=True)
    )
    counts = torch.tensor([32.0, 64.0], device=CUDA)
    running = torch.zeros(5, device=CUDA), torch.ones(5, device=CUDA)
    given = (parts[0], mean, inverse, *running, 0.1, 1e-5, counts)
    both = torch.batch_norm_gather_stats_with_counts(*given)
    weight, bias = norm.weight.detach().to(CUDA), norm.bias.detach().to(CUDA)
    made = torch.cat([torch.batch_norm_elemt(each, weight, bias, *both, 1e-5) for each in parts])
    reduced = [
        torch.batch_norm_backward_reduce(grad, each, *both, weight, True, True, True)
        for grad, each in zip(grads, parts, strict=True)
    ]
    sums, products, of_weight, of_bias = (a + b for a, b in zip(*reduced, strict=True))
    back = [
        torch.batch_norm_backward_elemt(grad, each, *both, weight, sums, products, counts.int())
        for grad, each in zip(grads, parts, strict=True)
    ]
    for mine, wanted in (
        (made, y.detach()),
        (torch.cat(back), theirs.grad),
        (of_weight, norm.weight.grad),
        (of_bias, norm.bias.grad),
        (running[0], norm.running_mean),
        (running[1], norm.running_var),
    ):
        assert torch.allclose(mine.cpu(), wanted, atol=1e-5), (mine, wanted)
    half, _ = torch.batch_norm_stats(parts[0].half(), 1e-5)
    assert half.dtype == torch.float32 and torch.allclose(half, mean[0], atol=1e-2)
    # One count of all parts.
    same = [torch.batch_norm_stats(each, 1e-5) for each in x.to(CUDA).split(3)]
    mean, inverse = map(torch.stack, zip(*same, strict=True))
    again = torch.batch_norm_gather_stats(parts[0], mean, inverse, None, None, 0.1, 1e-5, 48)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(again, both, strict=True))


def ops_that_cudnn_takes() -> None:
    torch.manual_seed(0)
    image, grid = torch.randn(2, 3, 5, 5), torch.rand(2, 4, 4, 2) * 2 - 1
    here = [image.clone().requires_grad_(), grid.clone().requires_grad_()]
    there = [each.to(CUDA).requires_grad_() for each in (image, grid)]
    wanted, made = (F.grid_sample(*each, align_corners=True) for each in (here, there))
    upstream = torch.randn_like(wanted)
    wanted.backward(upstream)
    made.backward(upstream.to(CUDA))
    assert torch.allclose(made.detach().cpu(), wanted.detach(), atol=1e-5)
    assert all(
        torch.allclose(b.grad.cpu(), a.grad, atol=1e-5) for a, b in zip(here, there, strict=True)
    )
    # cuDNN takes targets of the CPU, 32-bit lengths and a blank of 0.
    scores, lengths = torch.randn(50, 4, 20).log_softmax(2), torch.tensor([7, 5, 9, 12]).int()
    targets, all_of_it = torch.randint(1, 20, (33,)).int(), torch.full((4,), 50).int()
    mine, theirs = scores.to(CUDA).requires_grad_(), scores.clone().requires_grad_()
    made, wanted = (F.ctc_loss(each, targets, all_of_it, lengths) for each in (mine, theirs))
    made.backward()
    wanted.backward()
    assert torch.allclose(made.detach().cpu(), wanted.detach())
    assert torch.allclose(mine.grad.cpu(), theirs.grad, atol=1e-5)


def graph_that_draws() -> tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dropped = F.dropout(torch.ones(1000, device=CUDA), 0.5)
        drawn = torch.rand(4, device=CUDA)
    return graph, dropped, drawn


def a_replay_draws_from_where_the_generator_is() -> None:
    graph, dropped, drawn = graph_that_draws()
    x = torch.ones(1000, device=CUDA)
    for seed in (5, 6):
        torch.cuda.manual_seed(seed)
        before, wanted_dropped = torch.rand(3, device=CUDA), F.dropout(x, 0.5)
        wanted, after = torch.rand(4, device=CUDA), torch.rand(2, device=CUDA)
        torch.cuda.manual_seed(seed)
        assert torch.equal(torch.rand(3, device=CUDA), before)
        graph.replay()
        assert torch.equal(torch.rand(2, device=CUDA), after)
        assert torch.equal(dropped, wanted_dropped) and torch.equal(drawn, wanted)


def draws_after_a_replay_follow_the_cpu() -> None:
    graph, dropped, drawn = graph_that_draws()
    torch.manual_seed(3)
    wanted = [F.dropout(torch.ones(1000), 0.5), torch.rand(4), torch.rand(2)]
    wanted += [F.dropout(torch.ones(1000), 0.5), torch.rand(4)]
    torch.manual_seed(3)
    graph.replay()
    made = [dropped.cpu(), drawn.cpu(), torch.rand(2, device=CUDA).cpu()]
    graph.replay()
    made += [dropped.cpu(), drawn.cpu()]
    assert all(map(torch.equal, made, wanted))


def attention_by_backends_that_the_cpu_lacks() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    here = torch.randn(2, 4, 8, 64).bfloat16()
    wanted = F.scaled_dot_product_attention(here, here, here, is_causal=True)
    there = here.to(CUDA).requires_grad_()
    for backend in (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        with sdpa_kernel(backend):
            got = F.scaled_dot_product_attention(there, there, there, is_causal=True)
            got.float().sum().backward()
            assert torch.allclose(got.detach().cpu(), wanted, atol=2e-2), backend


def lists_of_tensors_on_several_devices() -> None:
    """CUDA's code does one op for each tensor, on its device. What the CPU has is written once."""
    first = [torch.randn(300) for _ in range(6)]
    second = [torch.randn(300) for _ in range(6)]
    places = ["cuda:0", "cuda:1", "cpu"] * 2
    expected = [a.sub(b, alpha=2) for a, b in zip(first, second, strict=True)]
    here = [a.to(place, copy=True) for a, place in zip(first, places, strict=True)]
    there = [b.to(place, copy=True) for b, place in zip(second, places, strict=True)]
    out = torch._foreach_sub(here, there, alpha=2)
    torch._foreach_sub_(here, there, alpha=2)
    torch._foreach_copy_(there, here[::-1])
    for device in range(2):
        torch.cuda.synchronize(device)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(out, expected, strict=True))
    assert all(torch.equal(a.cpu(), b) for a, b in zip(here, expected, strict=True))
    assert all(torch.equal(a.cpu(), b) for a, b in zip(there, expected[::-1], strict=True))


def copy_of(module: nn.Module) -> nn.Module:
    import copy

    return copy.deepcopy(module)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
        print(name, "ok")
