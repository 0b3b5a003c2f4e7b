"""Steps that feed themselves: the host launches them ahead of the tokens that it reads.

What a step is fed lies on the device, and the step leaves there what the next one is fed
(`step_state`). So the next step is launched before the token of this one is known to the host,
which gets the tokens in a ring of pinned memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from ..ir.types import Array
from ..plan.backend import Device, Run, View
from ..plan.exchange import Event, exchange_of
from ..plan.host import HOST, array
from .bucket_program import BucketProgram
from .step_state import CHOSEN, COUNT, NEXT_COUNT, NEXT_TOKENS, TOKENS

#: Bytes to which tensors in memory that the device copies to are aligned.
_ALIGNED = 256


class ChainedSteps:
    """Runs steps of one token, each of which reads what the one before has chosen.

    Args:
        program: of such a step; see `step_state.Feedback`. It is closed with this.
        state: the inputs of the program that are the state, in memory of its device; likewise.
        moves: copies of caches that the program does not write in place.
        depth: maximum number of steps that are launched and whose tokens have not been taken.

    Attributes:
        depth: the same.
        most: largest number of positions of which the last step may read the last.
    """

    def __init__(
        self,
        program: BucketProgram,
        state: Mapping[str, View],
        moves: Sequence[Run],
        depth: int,
    ) -> None:
        (plan,) = program.plans
        self._program, self._plan, self._state = program, plan, state
        self.depth, self.most = depth, program.most + 1
        device = plan.device
        self._device: Device = device
        self._stream, self._exchange = device.stream(), exchange_of(device)
        following = {NEXT_TOKENS: TOKENS, NEXT_COUNT: COUNT}
        self._moves = [*moves, *_moved(device, plan.outputs, state, following)]
        source = plan.outputs[CHOSEN]
        size = -(-source.nbytes // _ALIGNED) * _ALIGNED
        self._ring = device.staging(size * depth)
        slots = [View(HOST, self._ring, size * i, source.type) for i in range(depth)]
        self._slots = [array(slot) for slot in slots]
        self._copies = [device.copier(slot, source) for slot in slots]
        events = self._exchange
        self._events: list[Event] = [events.event() for _ in slots] if events else []
        self._waiting: deque[int] = deque()
        self._launched = 0

    def begin(self, state: Mapping[str, Array]) -> None:
        """Set the state: what has been read, and what is read next; see `Feedback.state`."""
        self.drain()
        self._device.enter()
        for name, data in state.items():
            here = HOST.upload(data)
            self._device.copier(self._state[name], here)(self._stream)
            self._stream.synchronize()

    def launch(self) -> None:
        """Launch a step; at most `depth` of them without a `take`."""
        slot = self._launched % self.depth
        self._plan.execute(self._stream)
        for move in self._moves:
            move(self._stream)
        self._copies[slot](self._stream)
        if self._events:
            self._events[slot].record(self._stream)
        self._waiting.append(slot)
        self._launched += 1

    @property
    def waiting(self) -> int:
        """Number of steps whose tokens have not been taken."""
        return len(self._waiting)

    def take(self) -> Array:
        """Wait for the first of the steps launched; return its tokens, int64 [batch].

        They are `NOT_FINITE` where the greatest score of a sequence is not finite.
        """
        slot = self._waiting.popleft()
        if self._events:
            self._events[slot].synchronize()
        else:
            self._stream.synchronize()
        return self._slots[slot][:, 0].copy()

    def drain(self) -> None:
        """Wait for all steps launched, and forget what they have chosen."""
        if self._waiting:
            self._waiting.clear()
            self._stream.synchronize()

    def close(self) -> None:
        """Free the program, the state and the ring."""
        self._waiting.clear()
        self._program.close()
        for view in self._state.values():
            view.buffer.close()
        self._slots.clear()
        self._ring.close()


def _moved(
    device: Device,
    outputs: Mapping[str, View],
    state: Mapping[str, View],
    following: Mapping[str, str],
) -> list[Run]:
    """Return a copy for each part of the state that a step does not write in place."""
    pairs = [(state[name], outputs[result]) for result, name in following.items()]
    return [
        device.copier(here, there)
        for here, there in pairs
        if (there.buffer, there.offset) != (here.buffer, here.offset)
    ]
