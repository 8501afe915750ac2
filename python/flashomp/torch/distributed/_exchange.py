"""Messages between the ranks of a process group, and what all ranks must agree on before any tensor moves."""

from __future__ import annotations

from typing import Any, Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from ... import _core
from .._attention import described

Group = Any  # dist.ProcessGroup, which PyTorch's stubs do not always export


class Messages:
    """Sends and receives that are on the way together. Both ends post them in the same order; what is empty is not sent.

    Point-to-point messages carry every dtype and any lengths on both gloo and NCCL, which collectives do not.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._operations: list[Any] = []
        self._works: list[Any] = []

    def _add(self, operation: Any, tensor: Tensor, rank: int) -> None:
        if tensor.numel():
            peer = rank if self._group is None else dist.get_global_rank(self._group, rank)
            self._operations.append(dist.P2POp(operation, tensor, peer, self._group))

    def send(self, tensor: Tensor, rank: int) -> None:
        """Sends to a rank of the group, from now until wait()."""
        self._add(dist.isend, tensor.contiguous(), rank)

    def receive(self, tensor: Tensor, rank: int) -> Tensor:
        """Receives into a contiguous tensor, which is filled after wait()."""
        self._add(dist.irecv, tensor, rank)
        return tensor

    def start(self) -> None:
        if self._operations:
            self._works = dist.batch_isend_irecv(self._operations)

    def wait(self) -> None:
        for work in self._works:
            work.wait()
        self._works, self._operations = [], []  # the operations hold the tensors that were sent


def guarded(local: Callable[..., Any], *arguments: Any) -> tuple[Any, Exception | None]:
    """What a function returns, or the exception that it raises, for the other ranks to hear of."""
    try:
        return local(*arguments), None
    except Exception as error:  # noqa: BLE001
        return None, error


def agree(group: Group, same: Mapping[str, Any], own: Any, error: Exception | None = None) -> list[Any]:
    """What each rank gives as its own. Collective.

    Raises the same error on all ranks where one of them has an error, or where `same` differs between ranks.
    """
    kind = None if error is None else "TypeError" if isinstance(error, TypeError) else "Error"
    answers: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(answers, (kind, str(error), dict(same), own), group=group)
    for rank, (kind, text, _, _) in enumerate(answers):
        if kind is not None:
            raise (TypeError if kind == "TypeError" else _core.Error)(f"rank {rank}: {text}")
    first = answers[0][2]
    for rank, (_, _, theirs, _) in enumerate(answers):
        for name, value in theirs.items():
            if value != first[name]:
                raise _core.Error(f"{name} is {described(value)} on rank {rank} but {described(first[name])} on rank 0; "
                                  "all ranks must give the same.")
    return [answer[3] for answer in answers]


def expect_no_failure(group: Group, error: Exception | None, device: torch.device) -> None:
    """Raises RunFailure on all ranks where one of them has an error. Collective, and cheap where nobody has."""
    failures = torch.tensor([error is not None], dtype=torch.int32, device=device)
    dist.all_reduce(failures, group=group)
    if not failures.item():
        return
    texts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(texts, None if error is None else str(error), group=group)
    rank, text = next((rank, text) for rank, text in enumerate(texts) if text is not None)
    raise _core.RunFailure(f"rank {rank}: {text}")
