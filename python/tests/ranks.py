"""For test_distributed.py and test_distributed_cuda.py: processes that are the ranks of torch.distributed, started once for
all tests, over gloo, or over NCCL with a GPU each."""

import os
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

#: Seconds that a test may take on the ranks before they count as hanging.
PATIENCE = 60


def home():
    """Where tensors of this process are: on its GPU where it is a rank over NCCL."""
    return "cuda" if dist.is_initialized() and dist.get_backend() == "nccl" else "cpu"


def _serve(rank, world, backend, store, pipe):
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a host's own name need not resolve
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world)
    # The last processes, so that a rank of a group is not the rank of its process.
    groups = {size: dist.new_group(list(range(world - size, world))) for size in range(1, world + 1)}
    while True:
        function, size, arguments = pipe.recv()
        try:
            function(groups[size], *arguments)
            pipe.send(None)
        except BaseException:  # noqa: BLE001
            pipe.send(traceback.format_exc())


class Ranks:
    def __init__(self, world, store, backend="gloo"):
        self.world = world
        context = mp.get_context("spawn")
        self.pipes, self.processes = [], []
        for rank in range(world):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, world, backend, str(store), theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def __call__(self, size, function, *arguments):
        """Runs function(group, *arguments) on a group of `size` ranks, and fails where it fails on one of them."""
        pipes = self.pipes[len(self.pipes) - size:]
        for pipe in pipes:
            pipe.send((function, size, arguments))
        failures = []
        for rank, pipe in enumerate(pipes):
            if not pipe.poll(PATIENCE):
                self.close()
                raise AssertionError(f"rank {rank} hangs in {function.__name__}{arguments}; others say: {failures}")
            text = pipe.recv()
            if text is not None:
                failures.append(f"rank {rank} of {size}:\n{text}")
        assert not failures, "\n".join(failures)

    def close(self):
        """Ends the processes, which have nothing to tidy up."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
