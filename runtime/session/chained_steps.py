"""Chained steps: the host launches decoding steps before it has read the tokens of earlier ones.

The inputs of a step are on the device, and the step writes the inputs of the next one there
(`step_state`). So the host can launch the next step before it knows the token of this one. Steps
write their tokens to memory of the host themselves: a copy behind each would take longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from ..ir.types import Array
from ..plan.backend import Device, Run, View
from ..plan.exchange import Event, exchange_of
from ..plan.host import HOST, HostBuffer, array
from .bucket_program import BucketProgram
from .step_state import CHOSEN, COUNT, NEXT_CHOSEN, NEXT_COUNT, NEXT_TOKENS, TOKENS


class ChainedSteps:
    """Runs steps of one token, each of which reads the token chosen by its predecessor.

    Args:
        program: the program of such a step, see `step_state.Feedback`; closed with this object.
        state: views of the program's inputs that are the state; closed with this object. `CHOSEN`
            is in memory of the host, see `Device.staging`.
        moves: copies of caches that the program does not write in place.
        depth: maximum number of launched steps whose tokens have not been taken.

    Attributes:
        depth: as given.
        stream: that steps are launched on.
        most: maximum number of positions, those of the last step included.
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
        self.stream, self._exchange = device.stream(), exchange_of(device)
        following = {NEXT_TOKENS: TOKENS, NEXT_COUNT: COUNT, NEXT_CHOSEN: CHOSEN}
        self._moves = [*moves, *_moved(device, plan.outputs, state, following)]
        table = state[CHOSEN]
        assert isinstance(table.buffer, HostBuffer)
        self._chosen = array(View(HOST, table.buffer, 0, table.type))
        events = self._exchange
        self._events: list[Event] = [events.event() for _ in range(depth)] if events else []
        self._waiting: deque[int] = deque()
        self._count = 0  # of positions before the next launch

    def begin(self, state: Mapping[str, Array]) -> None:
        """Set the state: tokens read so far, and the token read next; see `Feedback.state`."""
        self.drain()
        self._device.enter()
        for name, data in state.items():
            here = HOST.upload(data)
            self._device.copier(self._state[name], here)(self.stream)
            self.stream.synchronize()
        (self._count,) = state[COUNT]

    def launch(self) -> None:
        """Launch a step; at most `depth` steps may wait for a `take`."""
        self._plan.execute(self.stream)
        for move in self._moves:
            move(self.stream)
        if self._events:
            self._events[self._count % self.depth].record(self.stream)
        self._waiting.append(self._count)
        self._count += 1

    def take(self) -> Array:
        """Wait for the oldest launched step, and return its tokens, int64 [batch].

        A token is `NOT_FINITE` where the greatest score of its sequence is not finite.
        """
        row = self._waiting.popleft()
        if self._events:
            self._events[row % self.depth].synchronize()
        else:
            self.stream.synchronize()
        return self._chosen[row].copy()

    def drain(self) -> None:
        """Wait for all launched steps, and discard their tokens."""
        if self._waiting:
            self._waiting.clear()
            self.stream.synchronize()

    def close(self) -> None:
        """Free the program and the state."""
        self._waiting.clear()
        self._program.close()
        del self._chosen
        for view in self._state.values():
            view.buffer.close()


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
