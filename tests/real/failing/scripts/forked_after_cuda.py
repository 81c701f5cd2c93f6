"""RuntimeError: Cannot re-initialize CUDA in forked subprocess

PyTorch, multiprocessing best practices: "The CUDA runtime has the limitation" of not supporting the
fork start method; spawn or forkserver "are required to use CUDA in subprocesses"
(https://docs.pytorch.org/docs/stable/notes/multiprocessing.html).
"""

import multiprocessing

import torch


def child(answers):
    try:
        torch.ones(8, device="cuda")
    except RuntimeError as error:
        answers.put(str(error))


torch.ones(8, device="cuda")
fork = multiprocessing.get_context("fork")
answers = fork.SimpleQueue()
process = fork.Process(target=child, args=(answers,))
process.start()
said = answers.get()
process.join()
raise RuntimeError(said)
