"""Memory mode: small values from the host are followed through PyTorch's operators."""

import torch


def pages():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])


x = torch.tensor([3, 1, 2], device="cuda")
assert x.sum().item() == 6 and (x > 1).tolist() == [True, False, True]
assert x.nonzero().flatten().tolist() == [0, 1, 2]
mask = torch.ones(2, 5, device="cuda", dtype=torch.long)
mask[0, 3:] = 0
lengths = mask.sum(-1)
assert lengths.tolist() == [3, 5] and lengths.float().mean().item() == 4.0
ids = torch.arange(10, device="cuda").view(2, 5)[:, : int(lengths.min())]
assert ids.tolist() == [[0, 1, 2], [5, 6, 7]]
assert torch.repeat_interleave(torch.arange(3, device="cuda"), x).tolist() == [0, 0, 0, 1, 2, 2]
batch = torch.full((8, 4096), -100)  # 256 KiB: the labels of a whole batch
batch[:, :100] = 1
labels = batch.cuda()
assert (labels != -100).sum().item() == 800
big = torch.zeros(1 << 20, device="cuda")
big[7:9] = torch.tensor([1.0, 2.0], device="cuda")
assert big[6:10].tolist() == [0, 1, 2, 0]

# In a graph they are followed at each replay.
captured, out = torch.cuda.CUDAGraph(), torch.zeros(3, dtype=torch.long, device="cuda")
with torch.cuda.graph(captured):
    out.copy_(x * 2)
captured.replay()
assert out.tolist() == [6, 2, 4]
x.copy_(torch.tensor([5, 5, 5]))
captured.replay()
assert out.tolist() == [10, 10, 10]

# What is computed of data is zero, and shapes follow that. Known values stay known beside it.
weight = torch.randn(4096, 4096, device="cuda")
product = weight @ weight
assert product.sum().item() == 0.0 and x.tolist() == [5, 5, 5]
drawn = torch.randint(0, 9, (6,), device="cuda")
assert drawn.tolist() == [0] * 6 and torch.repeat_interleave(drawn).tolist() == []
assert torch.bincount(drawn, minlength=3).tolist() == [6, 0, 0]
x.add_(drawn[:3])
assert x.tolist() == [0, 0, 0]
assert (product > 0).nonzero().shape == (0, 2)

norm = torch.nn.BatchNorm1d(8).cuda()
norm(torch.randn(4, 8, device="cuda"))
assert norm.running_var.tolist() == [0.0] * 8 and norm.num_batches_tracked.item() == 1
ends = torch.zeros(1 << 26, device="cuda")  # views far apart in one storage
torch._foreach_add_([ends[:2], ends[-2:]], [torch.ones(2, device="cuda")] * 2)
assert ends[-3:].tolist() == [0.0] * 3

# A known mask over data, writes beside known values, parts of a whole.
hidden = torch.randn(8, 4096, 16, device="cuda")
assert hidden[labels != -100].shape == (800, 16)
assert hidden.masked_select((labels != -100)[..., None]).shape == (800 * 16,)
hidden[labels != -100] = torch.randn(800, 16, device="cuda")
prompts = torch.arange(12, device="cuda").view(3, 4).clone()
prompts[:, -1] = torch.randint(0, 9, (3,), device="cuda")
assert prompts.tolist() == [[0, 1, 2, 0], [4, 5, 6, 0], [8, 9, 10, 0]]
both = torch.stack([product.sum(), torch.tensor(7.0, device="cuda")])
assert both.tolist() == [0.0, 7.0]
counters = [torch.zeros((), device="cuda") for _ in range(100)]
torch._foreach_add_(counters, 1)
assert sum(each.item() for each in counters) == 100
assert torch.equal(product, product.clone()) is False  # nothing is known of them
exponential = torch.linalg.matrix_exp(torch.randn(2, 2, device="cuda"))
assert exponential.tolist() == [[0.0, 0.0], [0.0, 0.0]]

# No stand-in has cuSOLVER, but the results are allocated.
matrix = torch.randn(256, 256, device="cuda")
values, vectors = torch.linalg.eigh(matrix @ matrix.T)
assert values.shape == (256,) and vectors.shape == (256, 256) and vectors.is_cuda
assert torch.linalg.svd(matrix)[1].shape == (256,)
assert torch.linalg.cholesky(matrix).shape == torch.linalg.qr(matrix)[0].shape == (256, 256)
tall = torch.randn(5, 256, 8, device="cuda")
assert [each.shape for each in torch.geqrf(tall)] == [(5, 256, 8), (5, 8)]
assert torch.linalg.eig(matrix)[1].shape == (256, 256) and torch.linalg.eigvals(matrix).is_cuda
least = torch.linalg.lstsq(tall, torch.randn(5, 256, 3, device="cuda"))
assert [each.shape for each in least] == [(5, 8, 3), (5, 3), (0,), (0,)]
assert torch.linalg.lstsq(matrix, matrix[0]).solution.shape == (256,)

# Values that are not read need not be known. Large known sizes take no memory of this machine.
pair = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device="cuda")
ones = torch.ones(2, device="cuda")
assert (pair @ ones).tolist() == torch.mv(pair, ones).tolist() == [3.0, 7.0]
assert torch.addmv(torch.empty(2, device="cuda"), pair, ones, beta=0).tolist() == [3.0, 7.0]
assert torch.baddbmm(pair[None], pair[None], pair[None], beta=0).tolist() == [[[7, 10], [15, 22]]]
held = pages()
many = torch.repeat_interleave(torch.tensor([1 << 28, 1 << 27], device="cuda"))
assert many.shape == (3 << 27,) and many[5].item() == 0
assert torch.bincount(torch.tensor([1 << 28], device="cuda")).shape == ((1 << 28) + 1,)
assert pages() - held < 1 << 14  # 64 MiB
lengths = torch.randint(0, 3, (1 << 20,), device="cuda")  # too many to be followed
assert torch.repeat_interleave(lengths).shape == (0,)
assert torch.repeat_interleave(lengths, output_size=5).shape == (5,)

# Checks of unknown values pass.
assert torch.isfinite(product[0]).all() and not torch.isfinite(ones / 0).any()
torch.distributions.Normal(product[0], product[1]).sample()
large = torch.empty(20 << 20, device="cuda").normal_()  # so large that no answer is kept
assert torch.isfinite(large).all() and torch.isfinite(large).all(0)
finite = torch.isfinite(large)
finite[5] = False
assert not finite.all() and not (large > 0).all()

# Sparse tensors keep entries apart unless their places are known to be the same.
places = torch.randint(0, 100, (1, 300), device="cuda")
rows = torch.sparse_coo_tensor(places, torch.randn(300, 64, device="cuda"), (100, 64))
assert rows.coalesce()._nnz() == 300 and rows.coalesce().is_coalesced()
pairs = torch.tensor([[0, 2, 0], [1, 1, 1]], device="cuda")
merged = torch.sparse_coo_tensor(pairs, torch.ones(3, device="cuda"), (3, 3)).coalesce()
assert merged.indices().tolist() == [[0, 2], [1, 1]] and merged.values().tolist() == [2.0, 1.0]
table = torch.nn.Embedding(1000, 64, sparse=True, device="cuda")
table(torch.tensor([3, 5, 3], device="cuda")).sum().backward()
assert table.weight.grad.coalesce()._nnz() == 2
torch.optim.SparseAdam(table.parameters()).step()

# The CUDA kernel takes memory besides its result.
torch.cuda.reset_peak_memory_stats()
before = torch.cuda.memory_allocated()
unique = torch.unique(torch.arange(1 << 18, device="cuda"))
assert unique.shape == (1 << 18,)
assert torch.cuda.max_memory_allocated() - before > 2 * unique.nbytes
print("followed")
