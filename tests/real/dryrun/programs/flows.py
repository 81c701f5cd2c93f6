"""Memory mode: values by which scripts decide are as on a GPU, or as some data would make them."""

import torch
from torch import nn
from torch.nn import functional

DEVICE = "cuda"

# A gradient scaler finds nothing infinite in gradients that nobody knows.
layer = nn.Linear(8, 8).to(DEVICE)
for optimizer in (
    torch.optim.SGD(layer.parameters(), lr=0.1),
    torch.optim.AdamW(layer.parameters(), fused=True),
):
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=2)
    scales = []
    for _ in range(4):
        scaler.scale(layer(torch.randn(4, 8, device=DEVICE)).square().mean()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [1024.0, 2048.0, 2048.0, 4096.0], scales
assert [each["step"].item() for each in optimizer.state.values()] == [4.0, 4.0]

# Routers send each expert its share, and no token is lost.
tokens, experts = 64, 8
chosen = torch.randn(tokens, experts, device=DEVICE).topk(2, -1).indices
mask = functional.one_hot(chosen, experts).permute(2, 1, 0)
assert [torch.where(mask[each])[1].shape[0] for each in range(experts)] == [16] * experts
assert torch.bincount(chosen.flatten(), minlength=experts).tolist() == [16] * experts
first = torch.randn(tokens, experts, device=DEVICE).softmax(-1)
for indices in (first.max(-1).indices, first.argmax(-1), first.T.argmin(0)):
    assert (indices == 3).nonzero().shape == (8, 1)
assert torch.randn(3, 40000, device=DEVICE).argmax(-1).tolist() == [0, 0, 0]  # words
known = torch.tensor([[1.0, 3.0, 2.0]], device=DEVICE)
assert known.topk(2).indices.tolist() == [[1, 2]] and known.argmax().item() == 1

# Indices that come from the host, and parts of unknown values.
ids = torch.tensor([3, 1, 2], device=DEVICE)
assert ids[torch.tensor([0, 2])].tolist() == [3, 2]
order = torch.empty_like(ids).random_()
order.scatter_(0, ids - 1, torch.arange(3, device=DEVICE))
assert order.tolist() == [1, 2, 0]
drawn = torch.randint(1, 9, (4,), device=DEVICE)
drawn[torch.tensor([0, 2], device=DEVICE)] = torch.tensor([5, 6], device=DEVICE)
assert drawn.tolist() == [5, 0, 6, 0]
assert drawn.gather(0, torch.tensor([2, 1], device=DEVICE)).tolist() == [6, 0]
assert drawn[torch.tensor([1, 2], device=DEVICE)].tolist() == [0, 6]
half = torch.tensor([True, True, False, False], device=DEVICE)
others = torch.tensor([7, 8, 9, 9], device=DEVICE)
assert torch.where(half, drawn, others).tolist() == [5, 0, 9, 9]
drawn.scatter_(0, torch.tensor([0], device=DEVICE), 3)  # a host's number is not followed here
assert drawn.tolist() == [0, 0, 0, 0]
packed = nn.utils.rnn.pack_padded_sequence(
    torch.randn(3, 6, 4, device=DEVICE), torch.tensor([2, 6, 3]), True, enforce_sorted=False
)
assert [each.shape[0] for each in nn.utils.rnn.unpack_sequence(packed)] == [2, 6, 3]

# Graphs of torch.compile copy their inputs into buffers of unknown values.
product = torch.compile(lambda x, w: (x @ w).relu(), backend="cudagraphs")
double = torch.compile(lambda x: x * 2, backend="cudagraphs")
weight = torch.randn(4, 4, device=DEVICE)
for _ in range(4):
    torch.compiler.cudagraph_mark_step_begin()
    product(torch.randn(4, 4, device=DEVICE), weight)
for _ in range(4):
    torch.compiler.cudagraph_mark_step_begin()
    assert double(ids).tolist() == [6, 2, 4]

# A parametrization made by geqrf, and lengths whose sum nobody knows.
orthogonal = nn.utils.parametrizations.orthogonal(nn.Linear(4, 4).to(DEVICE))
assert orthogonal(torch.randn(2, 4, device=DEVICE)).shape == (2, 4)
values = torch.randn(4, device=DEVICE)
assert torch.segment_reduce(values, "sum", lengths=ids[:2]).shape == (2,)
print("decided")
