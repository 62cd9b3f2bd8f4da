"""A claim on a key: lets a second scheduler wait instead of computing the same. Correctness never rests on
it.

A claim is a lease with a heartbeat counter and a fencing number. A waiter watches the counter with its own
clock: a claim whose counter stands still for `lease` seconds is taken over, whatever the holder's clock says.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bloomery.artifacts.process import alive, local, mark
from bloomery.artifacts.store import Store

LEASE = 20.0


class Claim:
    """A held claim; `fence` is its fencing number, one higher than that of any holder before."""

    def __init__(self, store: Store, key: str, fence: int) -> None:
        self.store, self.key, self.fence = store, f"claims/{key}", fence
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"claim-{key[:8]}", daemon=True)

    def _beat(self) -> None:
        while not self._stop.wait(LEASE / 5):
            try:
                if not self._write(held=True):
                    return  # another took it over: correctness does not rest on the claim
            except Exception:  # noqa: S112  a store that does not answer now may answer at the next beat
                continue

    def _write(self, held: bool) -> bool:
        found = self.store.get(self.key)
        state = json.loads(found.data) if found else {}
        if found is None or state["fence"] != self.fence:
            return False
        state |= {"beat": state["beat"] + 1, "held": held}
        return self.store.swap(self.key, json.dumps(state).encode(), found.etag)

    def __enter__(self) -> Claim:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()
        self._write(held=False)


@contextmanager
def claim(store: Store, key: str, done: Callable[[], bool], lease: float = LEASE) -> Iterator[Claim | None]:
    """Takes the claim on `key`, waiting for its holder; yields None as soon as `done()` says that the work
    is finished."""
    taken = _take(store, key, done, lease)
    if taken is None:
        yield None
        return
    with taken:
        yield taken


def _take(store: Store, key: str, done: Callable[[], bool], lease: float) -> Claim | None:
    seen, since = None, time.monotonic()
    while not done():
        found = store.get(f"claims/{key}")
        state: dict[str, Any] = json.loads(found.data) if found else {"fence": 0, "held": False, "beat": 0}
        beat = (state["fence"], state["beat"])
        if beat != seen:
            seen, since = beat, time.monotonic()
        if not state["held"] or time.monotonic() - since > lease or _dead(state["holder"]):
            fence = state["fence"] + 1
            mine = json.dumps({"holder": mark(), "fence": fence, "beat": 0, "held": True}).encode()
            if store.swap(f"claims/{key}", mine, found.etag if found else None):
                return Claim(store, key, fence)
        else:
            time.sleep(0.2)
    return None


def _dead(holder: str) -> bool:
    """Whether the holder ran on this machine and is gone: no need to wait for its lease."""
    return local(holder) and not alive(holder)
