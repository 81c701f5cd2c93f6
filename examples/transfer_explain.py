"""Which paths a copy would take, at what rate, and why not the others. It needs no GPU.

python examples/transfer_explain.py
"""

from glake import transfer

plan = transfer.explain(src="cpu", dst="cuda:0", nbytes=1 << 30, platform="dgx_a100")
print(plan)
print(f"{plan.rate:.0f} GB/s, where a plain copy has {plan.plain:.0f}")
assert plan.rate > plan.plain

# The same copy with a slow link shows which paths carry the rest.
slow = transfer.explain(
    src="cpu", dst="cuda:0", nbytes=1 << 30, platform="dgx_a100", scales={"cpu:0/pcie>u1": 0.5}
)
print(f"with one link at half its speed: {slow.rate:.0f} GB/s")
assert slow.rate < plan.rate
