"""Tensors that leave GPU memory and come back, in the emulation."""

import gc
import threading

import pytest
import torch

import glake
from glake import _C, errors, simcuda
from glake import transfer as t
from glake.errors import PoolFull

glake.enable()


def gpu_bytes() -> int:
    gc.collect()
    return int(_C.stats(0)["requested_bytes.all.current"])


def away(tensor: torch.Tensor) -> bool:
    return _C.place_of(tensor.untyped_storage().data_ptr()) == (-1, True)


def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 256) for _ in range(4)]
    return torch.nn.Sequential(*layers, torch.nn.BatchNorm1d(256))


def test_a_module_leaves_and_comes_back() -> None:
    net, offloader = model().eval(), t.Offloader("8MiB")
    x = torch.randn(2, 256)
    parameters, expected = list(net.parameters()), net(x).detach()
    before = gpu_bytes()
    move = offloader.offload(net).wait()
    assert move.done() and move.progress() == (move.bytes, move.bytes)
    assert offloader.used == move.bytes >= 4 * 256 * 257 * 4
    assert before - gpu_bytes() >= move.bytes
    assert all(away(one) for one in [*net.parameters(), *net.buffers()])
    assert offloader.offload(net).bytes == 0  # it is away already
    offloader.prefetch(net)
    offloader.offload(net)
    offloader.prefetch(net).wait()
    assert all(one is other for one, other in zip(net.parameters(), parameters, strict=True))
    assert not any(away(one) for one in net.parameters()) and torch.equal(net(x), expected)
    gc.collect()
    assert offloader.used == 0 and offloader.prefetch(net).bytes == 0


def test_tensors_that_wrap_others() -> None:
    """An optimizer's state under FSDP2 moves; parameters, of which FSDP2 has views, do not."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh, plain = init_device_mesh("cpu", (1,)), torch.arange(4096.0)
        state, offloader = distribute_tensor(plain, mesh, [Shard(0)]), t.Offloader("1MiB")
        move = offloader.offload({"exp_avg": state}).wait()
        assert move.bytes == offloader.used == plain.nbytes
        assert away(state.to_local()) and torch.equal(state.full_tensor(), plain)
        offloader.prefetch([state]).wait()
        assert not away(state.to_local()) and torch.equal(state.full_tensor(), plain)
        layer = torch.nn.Linear(2, 2)
        layer.weight = torch.nn.Parameter(state.view(64, 64))
        for call in (offloader.offload, offloader.prefetch):
            with pytest.raises(errors.InvalidArgument, match="DTensor.*CPUOffloadPolicy"):
                call(layer)
        assert offloader.used == 0
    finally:
        dist.destroy_process_group()


def test_what_shares_memory_still_does() -> None:
    base = torch.arange(100.0)
    view, tied = base[10:20].view(2, 5).T, base[:4]
    offloader = t.Offloader("1MiB")
    offloader.offload({"a": [base, view], "b": (tied, 3, None, "name")}).wait()
    assert base.untyped_storage().data_ptr() == view.untyped_storage().data_ptr()
    base[10] = -1
    assert view[0, 0] == -1 and view.stride() == (1, 5)
    offloader.prefetch([base, view, tied]).wait()
    view[0, 0] = -2
    assert base[10] == -2 and tied.tolist() == [0, 1, 2, 3]


def test_a_pool_that_is_too_small() -> None:
    tensors, offloader = [torch.ones(64 << 10) for _ in range(5)], t.Offloader("1MiB")
    offloader.offload(tensors[:3]).wait()
    with pytest.raises(PoolFull, match="nothing was moved") as caught:
        offloader.offload(tensors)
    assert isinstance(caught.value, errors.OutOfMemory) and "786432 of its 1048576" in str(
        caught.value
    )
    assert [away(one) for one in tensors] == [True, True, True, False, False]
    held = [tensors[0].data]  # as another thread may hold it for a moment
    offloader.prefetch(tensors[0])  # no wait: the pool waits for its block
    threading.Timer(0.05, held.clear).start()
    offloader.offload([tensors[3], tensors[4]]).wait()
    assert offloader.used == 1 << 20
    del tensors, caught
    gc.collect()
    assert offloader.used == 0
    for wrong in ("much", "-1", 0, ""):
        with pytest.raises(errors.InvalidArgument, match="limit"):
            t.Offloader(wrong)
    with pytest.raises(errors.InvalidArgument, match="no tensors"):
        offloader.offload(object())


def test_what_another_offloader_has_away_is_refused() -> None:
    mine, other = t.Offloader("8MiB"), t.Offloader("8MiB")
    here, there = torch.ones(1000), torch.ones(2000)
    mine.offload(there).wait()
    for things, count in ((there, "1 of 1"), ([here, there], "1 of 2")):
        with pytest.raises(errors.InvalidArgument, match=f"offload: {count} storages.*another"):
            other.offload(things)
    assert not away(here) and other.used == 0
    mine.prefetch(there).wait()
    other.offload([here, there]).wait()
    assert away(here) and away(there) and other.used == 12000
    with pytest.raises(errors.InvalidArgument, match=r"8000 bytes"):
        mine.offload(there)
    other.prefetch([here, there]).wait()
    gc.collect()
    assert mine.used == other.used == 0


def test_a_copy_that_fails_leaves_tensors_where_they_are() -> None:
    tensor, offloader = torch.arange(1 << 20, dtype=torch.float32), t.Offloader("64MiB")
    place = tensor.data_ptr()
    for symbol in ("cuMemcpyAsync", "cuMemcpyPeerAsync"):
        simcuda.fail(symbol, 1, 999, -1)
    try:
        move = offloader.offload(tensor)
        with pytest.raises(errors.GlakeError):
            move.wait(60)
    finally:
        simcuda.fail(None)
    assert tensor.data_ptr() == place and torch.equal(tensor, torch.arange(1 << 20).float())
    del move
    gc.collect()
    assert offloader.used == 0


def test_optimizer_state_is_away_between_steps() -> None:
    def train(offloader: t.Offloader | None) -> list[float]:
        net = model()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        end = offloader.offload_optimizer(optimizer) if offloader is not None else None
        losses = []
        for _ in range(3):
            loss = net(torch.ones(4, 256)).square().sum()
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if offloader is not None:
                moments = [state["exp_avg"] for state in optimizer.state.values()]
                assert moments and all(away(one) for one in moments)
        if end is not None:
            end()
            assert not any(away(state["exp_avg"]) for state in optimizer.state.values())
        return losses

    assert train(None) == train(t.Offloader("16MiB"))


def test_layers_in_turn() -> None:
    net, offloader = model()[:4], t.Offloader("8MiB")
    x = torch.randn(2, 256)
    with torch.no_grad():
        expected, most = net(x), 0
        with offloader.alternate(net):
            start = gpu_bytes()
            net[2].register_forward_hook(lambda *_: None)
            for _ in range(2):
                assert torch.equal(net(x), expected)
                most = max(most, gpu_bytes() - start)
        assert all(away(one) for one in net.parameters())
        assert most < 3 * 256 * 257 * 4
    with pytest.raises(errors.InvalidArgument, match="forward passes"), offloader.alternate(net):
        net(x)
    offloader.prefetch(net).wait()


@pytest.mark.parametrize("frozen", [False, True])
def test_a_gradient_through_frozen_layers_is_refused(frozen: bool) -> None:
    class Scaled(torch.nn.Linear):
        def forward(self, x: torch.Tensor, scales: dict[str, torch.Tensor]) -> torch.Tensor:
            return super().forward(x) * scales["all"]

    net, offloader = Scaled(256, 256).requires_grad_(False), t.Offloader("8MiB")
    x, scale = torch.randn(2, 256), torch.ones(256, requires_grad=True)
    plain = {"all": scale.detach()}
    with offloader.alternate([net], frozen):
        for wrong in ((x.clone().requires_grad_(), plain), (x, {"all": scale})):
            with pytest.raises(errors.InvalidArgument, match="backward pass"):
                net(wrong[0], scales=wrong[1])
        expected = net(x, scales=plain)  # autograd has nothing to record
        with torch.no_grad():
            assert torch.equal(net(x, scales={"all": scale}), expected)


def test_frozen_modules_are_never_copied_back() -> None:
    net, offloader = model().eval(), t.Offloader("8MiB")
    net[1].weight = net[0].weight  # two layers share it
    x, size = torch.randn(2, 256), 256 * 257 * 4
    with torch.no_grad():
        expected, most = net(x), 0
        with offloader.alternate(net, frozen=True):
            start, carried = gpu_bytes(), t.stats()
            for _ in range(3):
                assert torch.equal(net(x), expected)
                most = max(most, gpu_bytes() - start)
            after = t.stats()
            moved = sum(after[each] - carried[each] for each in ("bytes", "plain_bytes"))
            assert 9 * size <= moved <= 15 * size  # none back to the host
        assert all(away(one) for one in net.parameters())
        assert most < 3 * size
        assert torch.equal(net(x), expected)  # computed on the host's copies
    offloader.prefetch(net).wait()
    assert torch.equal(net(x), expected)
    with pytest.raises(errors.InvalidArgument, match="frozen"):  # noqa: SIM117
        with offloader.alternate(net, frozen="yes"):  # type: ignore[arg-type]
            pass
    del net
    gc.collect()
    assert offloader.used == 0


@pytest.mark.parametrize("frozen", [False, True])
def test_modules_stay_between_watermarks(frozen: bool) -> None:
    """Five of eight layers have room. Most of these are copied once, not in every pass."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
    x, size, offloader = torch.randn(2, 256), 256 * 257 * 4, t.Offloader("8MiB")
    with torch.no_grad():
        expected, most = net(x), 0
        with offloader.alternate(net, frozen, watermarks=(4 * size, 5 * size)):
            start = gpu_bytes()
            for turn in range(5):
                if turn == 1:  # by now the layers that stay are there
                    carried = t.stats()
                assert torch.equal(net(x), expected)
                most = max(most, gpu_bytes() - start)
            after = t.stats()
            moved = sum(after[each] - carried[each] for each in ("bytes", "plain_bytes"))
            ways = 1 if frozen else 2
            assert ways * 4 * 3 * size <= moved <= ways * 4 * 6 * size  # 3 to 6 of 8 layers a pass
        assert 3 * size <= most <= (5 if frozen else 7) * size + (64 << 10)  # with activations
        assert all(away(one) for one in net.parameters())
    offloader.prefetch(net).wait()
    assert torch.equal(net(x), expected)


def watch(net: torch.nn.Sequential) -> list[bool]:
    """A list that gets, for each layer that computes, whether its weights are on the GPU."""
    seen: list[bool] = []
    for layer in net:
        layer.register_forward_pre_hook(
            lambda layer, _: seen.append(all(not away(one) for one in layer.parameters()))
        )
    return seen


@pytest.mark.parametrize("watermarks", [None, ("768KiB", "1MiB")])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("tied", [(0, 1), (0, 4), (2, 5)])
def test_what_modules_share_is_there_for_each(
    tied: tuple[int, int], frozen: bool, watermarks: tuple[str, str] | None
) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)])
    net[tied[1]].weight = net[tied[0]].weight
    x, offloader = torch.randn(2, 256), t.Offloader("8MiB")
    with torch.no_grad():
        expected = net(x)
        with offloader.alternate(net, frozen, watermarks):
            seen = watch(net)
            for _ in range(3):
                assert torch.equal(net(x), expected)
            assert len(seen) == 18 and all(seen), seen
    offloader.prefetch(net).wait()
    assert net[tied[1]].weight is net[tied[0]].weight and torch.equal(net(x), expected)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_pass_that_ends_early_passes_no_watermark(frozen: bool) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
    x, size, offloader = torch.randn(2, 256), 256 * 257 * 4, t.Offloader("8MiB")
    most, at = 0, -1

    def stop(layer: torch.nn.Module, *_: object) -> None:
        nonlocal most
        most = max(most, gpu_bytes() - start)
        if at >= 0 and layer is net[at]:
            raise RuntimeError("stop")

    with torch.no_grad():
        expected = net(x)
        with offloader.alternate(net, frozen, watermarks=(3 * size, 4 * size)):
            start = gpu_bytes()
            gc.freeze()  # leaves torch's objects out, else a hundred collections take a minute
            for layer in net:
                layer.register_forward_pre_hook(stop)
            for at in range(8):
                with pytest.raises(RuntimeError, match="stop"):
                    net(x)
                stopped, at = at, -1
                assert torch.equal(net(x), expected), stopped
        # A layer that is copied back is there until the copy ends. Activations are some KiB.
        assert most <= (4 if frozen else 6) * size + (64 << 10)
    assert all(away(one) for one in net.parameters())


def test_what_a_module_gains_inside_and_other_threads() -> None:
    class Growing(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not hasattr(self, "cache"):
                self.register_buffer("cache", torch.ones(8))
            return super().forward(x)

    net, offloader = (
        torch.nn.Sequential(*[Growing(256, 256) for _ in range(3)]),
        t.Offloader("8MiB"),
    )
    x = torch.randn(2, 256)
    with torch.no_grad():
        expected = torch.nn.functional.linear(x, net[0].weight, net[0].bias)
        with offloader.alternate(net, frozen=True):
            assert torch.equal(net[0](x), expected)
            for _ in range(2):
                net(x)
            refused: list[BaseException] = []

            def other() -> None:
                try:
                    with torch.no_grad():
                        net(x)
                except errors.InvalidArgument as error:
                    refused.append(error)

            def meanwhile(*_: object) -> None:
                thread = threading.Thread(target=other)
                thread.start()
                thread.join()

            handle = net[1].register_forward_pre_hook(meanwhile)
            net(x)
            handle.remove()
            assert len(refused) == 1 and "one thread's forward passes" in str(refused[0])
            meanwhile()  # allowed when no pass is under way
            assert len(refused) == 1


def test_watermarks_that_make_no_sense_are_refused() -> None:
    net, offloader = model(), t.Offloader("8MiB")
    for wrong, why in (
        (5, "two sizes"),
        (("1MiB",), "two sizes"),
        ("ab", "two sizes"),
        (("1MiB", "a lot"), "high 'a lot': not a number of bytes"),
        (("0", 0), "0 bytes are too few"),
        (("2MiB", "1MiB"), "low is above high"),
        ((1, 256 * 257 * 4), "one module and the next are up to 526336 bytes"),
    ):
        with pytest.raises(errors.InvalidArgument, match=why):  # noqa: SIM117
            with offloader.alternate(net, watermarks=wrong):  # type: ignore[arg-type]
                pass
    with pytest.raises(errors.WrongType, match="low is bytes"):  # noqa: SIM117
        with offloader.alternate(net, watermarks=(1.5, "1MiB")):  # type: ignore[arg-type]
            pass
    assert not any(away(one) for one in net.parameters()) and offloader.used == 0


def test_what_cannot_be_kept_away_is_refused() -> None:
    for limit in (1.5, True, None, b"8MiB"):
        with pytest.raises(errors.InvalidArgument, match="limit"):
            t.Offloader(limit)
    offloader, other, net = t.Offloader("8MiB"), t.Offloader("8MiB"), model()
    for wrong, name in (
        (5, "int"),
        (None, "NoneType"),
        ("ab", "str"),
        (net[0], "Linear"),
        ([net, 5], "list whose number 1 is a int"),
        (dict(net.named_children()), r"dict: pass its values\(\)"),
    ):
        with pytest.raises(errors.InvalidArgument, match=f"takes modules.*not a {name}"):  # noqa: SIM117
            with offloader.alternate(wrong):
                pass
    with pytest.raises(errors.InvalidArgument, match="torch optimizer, not a Sequential"):
        offloader.offload_optimizer(net)
    optimizer = torch.optim.Adam(net.parameters())
    end = offloader.offload_optimizer(optimizer)
    for each in (offloader, other):
        with pytest.raises(errors.InvalidArgument, match="state of this Adam is kept away already"):
            each.offload_optimizer(optimizer)
    end()
    again = other.offload_optimizer(optimizer)
    end()  # has ended already, and must not end the other's
    with pytest.raises(errors.InvalidArgument, match="already"):
        offloader.offload_optimizer(optimizer)
    again()
    assert offloader.used == other.used == 0


def test_conjugate_and_negative_views_come_back_as_they_were() -> None:
    offloader = t.Offloader("8MiB")
    for made in (torch.Tensor.conj, lambda x: x.conj().imag, lambda x: x.conj().T):
        tensor = made(torch.randn(64, 64, dtype=torch.cfloat))
        expected = tensor.clone().resolve_conj().resolve_neg()
        offloader.offload(tensor).wait()
        assert torch.equal(tensor.resolve_conj().resolve_neg(), expected)
        offloader.prefetch(tensor).wait()
        assert torch.equal(tensor.resolve_conj().resolve_neg(), expected)


def test_quantized_tensors_are_refused() -> None:
    quantized = torch.quantize_per_tensor(torch.randn(64, 64), 0.1, 0, torch.qint8)
    with pytest.raises(errors.InvalidArgument, match="int_repr"):
        t.Offloader("8MiB").offload([quantized])
    assert quantized.q_scale() == 0.1


def test_a_prefetch_in_inference_mode_leaves_what_can_be_trained() -> None:
    net, offloader = torch.nn.Linear(64, 64), t.Offloader("8MiB")
    offloader.offload(net).wait()
    with torch.inference_mode():
        offloader.prefetch(net).wait()
    net(torch.ones(1, 64)).sum().backward()
    assert net.weight.grad is not None and not net.weight.is_inference()
