"""Two ranks, which are forked, train one layer. The processes end in the way that is named: return,
exit_now (without Python's exit) or killed (by their parent)."""

import multiprocessing
import os
import sys
import time

import torch


def train(way):
    layer = torch.nn.Linear(2048, 2048, device="cuda")
    optimizer = torch.optim.SGD(layer.parameters())
    for _ in range(3):
        layer(torch.ones(64, 2048, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    held = torch.ones(32 << 18, device="cuda")
    if way == "exit_now":
        os._exit(0)
    if way == "killed":
        time.sleep(600)
    del held


if __name__ == "__main__":
    way = sys.argv[1]
    ranks = [
        multiprocessing.get_context("fork").Process(target=train, args=(way,)) for _ in range(2)
    ]
    for rank in ranks:
        rank.start()
    if way == "killed":
        time.sleep(12)
        for rank in ranks:
            rank.kill()
    for rank in ranks:
        rank.join()
