"""What ran where: calls of flashomp's kernels, and calls that PyTorch's kernels got, with the reason."""

from __future__ import annotations

import threading
from collections import Counter


class Counts:
    """Counters of the whole process; threads may count at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forward = 0
        self._backward = 0
        self._pytorch: Counter[str] = Counter()

    def forward(self) -> None:
        with self._lock:
            self._forward += 1

    def backward(self) -> None:
        with self._lock:
            self._backward += 1

    def pytorch(self, reason: str) -> None:
        with self._lock:
            self._pytorch[reason] += 1

    def report(self) -> dict[str, object]:
        """{"forward": calls, "backward": calls, "pytorch": {reason: calls}}"""
        with self._lock:
            return {"forward": self._forward, "backward": self._backward, "pytorch": dict(self._pytorch)}

    def reset(self) -> None:
        with self._lock:
            self._forward = self._backward = 0
            self._pytorch.clear()


counts = Counts()
