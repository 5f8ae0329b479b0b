"""The queue and the one thread that draws: tasks wait in line, join the batch of their kind, and report as they go."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edlm.serving.batches import Batch, Row, make_batch
from edlm.serving.metrics import Metrics
from edlm.serving.orders import Task
from edlm.serving.problems import BusyError, DrawingError, RequestError, StoppingError
from edlm.serving.transcript import Finish, Transcript, with_holes

log = logging.getLogger("edlm.serving")
REMEMBERED = 64
"""Finished sequences from whose times it is guessed how long the queue takes."""


@dataclass(frozen=True)
class Progress:
    """News of one sequence."""

    index: int
    text: str
    """What became final since the last news."""
    step: int
    holes: str | None = None
    """The whole sequence as it is, if that was asked for."""
    finish: Finish | None = None
    num_tokens: int = 0
    """Of the whole completion, once it has ended."""
    problem: RequestError | None = None
    """Why it could not be drawn."""


class Ticket:
    """The right to a request's sequences: who listens, and whether they still do."""

    def __init__(self, listen: Callable[[Progress], None], *, shows_steps: bool = False) -> None:
        self.listen, self.shows_steps = listen, shows_steps
        self.is_cancelled = False


class Seat:
    """One task in the queue or in a batch."""

    def __init__(self, task: Task, ticket: Ticket) -> None:
        self.task, self.ticket, self.step = task, ticket, 0
        self._prompt = task.fixed[: task.start].tolist()
        self.transcript = Transcript(task.model.tokenizer, self._prompt, task.stops)

    @property
    def is_over(self) -> bool:
        return self.ticket.is_cancelled or self.transcript.finish is not None

    def report(self, row: Row) -> None:
        """Tell the listener what the last step made final."""
        task, self.step = self.task, self.step + 1
        final = row.tokens[task.start : min(row.num_final, task.stop)]
        text = self.transcript.extend(final, is_all=row.num_final >= task.stop)
        holes = None
        if self.ticket.shows_steps:
            holes = with_holes(task.model.tokenizer, row.tokens[task.start : task.stop], task.model.mask_id)
        if text or holes is not None or self.transcript.finish:
            finish, num = self.transcript.finish, self.transcript.num_tokens
            self.ticket.listen(Progress(task.index, text, self.step, holes, finish, num))


class Batcher:
    """Draws in a thread of its own, one step of one batch at a time; batches take turns."""

    def __init__(self, batch_size: int, queue: int, metrics: Metrics) -> None:
        self._batch_size, self._queue, self._metrics = batch_size, queue, metrics
        self._waiting: deque[Seat] = deque()
        self._batches: deque[tuple[tuple[object, ...], Batch, list[Seat]]] = deque()
        self._finished_at: deque[float] = deque(maxlen=REMEMBERED)
        self._wake = threading.Condition()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="edlm-batcher", daemon=True)
        self._thread.start()

    # --- called by whoever serves clients

    def submit(self, tasks: Sequence[Task], ticket: Ticket) -> None:
        """Queue all tasks or none. News go to the ticket's listener, from the drawing thread."""
        seats = [Seat(task, ticket) for task in tasks]
        with self._wake:
            if self._is_stopping:
                raise StoppingError("the server is stopping; send the request to another one, or later")
            if len(self._waiting) + len(seats) > self._queue:
                seconds = self._seconds_to_wait()
                raise BusyError(
                    f"{len(self._waiting)} sequences are waiting already; try again in {seconds} s", seconds
                )
            self._waiting.extend(seats)
            self._count()
            self._wake.notify()

    def cancel(self, ticket: Ticket) -> None:
        """Forget the ticket's sequences: the waiting ones now, the others before their next step."""
        with self._wake:
            ticket.is_cancelled = True
            gone = sum(seat.ticket is ticket for seat in self._waiting)
            self._waiting = deque(seat for seat in self._waiting if seat.ticket is not ticket)
            self._metrics.sequences.labels("cancelled").inc(gone)
            self._count()

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_active(self) -> int:
        with self._wake:
            return sum(len(seats) for _, _, seats in self._batches)

    def refuse_new(self) -> None:
        """From now on only finish what was accepted."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()

    def close(self, timeout: float | None = None) -> None:
        """Finish what was accepted, and end the thread."""
        self.refuse_new()
        self._thread.join(timeout)

    def _seconds_to_wait(self) -> int:
        """A guess at when the queue has room: its length at the rate of the last finished sequences."""
        if len(self._finished_at) < 2:
            return 1
        rate = len(self._finished_at) / max(1e-3, time.monotonic() - self._finished_at[0])
        return min(60, max(1, math.ceil(len(self._waiting) / rate)))

    def _count(self) -> None:
        self._metrics.waiting.set(len(self._waiting))
        self._metrics.active.set(self.num_active)

    # --- the drawing thread

    def _run(self) -> None:
        while self._admit():
            if not self._batches:
                continue
            _, batch, seats = self._batches[0]
            try:
                self._advance(batch, seats)
            except Exception as error:
                self._fail(seats, error)
            with self._wake:
                self._batches.rotate(-1)
                if not seats:
                    self._batches = deque(entry for entry in self._batches if entry[2])
                self._count()

    def _admit(self) -> bool:
        """Wait for work and seat it; False once there is none and none will come."""
        with self._wake:
            self._wake.wait_for(lambda: self._waiting or self._batches or self._is_stopping)
            while self._waiting and self.num_active < self._batch_size:
                seat = self._waiting.popleft()
                try:
                    self._seat(seat)
                except Exception as error:
                    self._fail([seat], error)
            self._count()
            return bool(self._batches) or not self._is_stopping

    def _seat(self, seat: Seat) -> None:
        """Into the batch of its kind, or into a new one."""
        key = seat.task.key
        found = next((entry for entry in self._batches if entry[0] == key and entry[1].is_open), None)
        if found is None:
            found = key, make_batch(seat.task), []
            self._batches.append(found)
        found[1].add(seat.task)
        found[2].append(seat)

    def _advance(self, batch: Batch, seats: list[Seat]) -> None:
        self._leave(batch, seats)
        if not seats:
            return
        with self._metrics.step_seconds.time():
            batch.step()
        self._metrics.batch_rows.observe(len(seats))
        for seat, row in zip(seats, batch.rows(), strict=True):
            if not seat.ticket.is_cancelled:
                seat.report(row)
        self._leave(batch, seats)

    def _leave(self, batch: Batch, seats: list[Seat]) -> None:
        """Let go of the sequences that are finished, or that nobody waits for any more."""
        over = [seat.is_over for seat in seats]  # read once: a client may leave at any moment
        kept = [i for i, is_over in enumerate(over) if not is_over]
        for seat, is_over in zip(seats, over, strict=True):
            if is_over:
                self._count_end(seat)
        if 0 < len(kept) < len(seats):
            batch.keep(kept)
        seats[:] = [seats[i] for i in kept]

    def _count_end(self, seat: Seat) -> None:
        if seat.transcript.finish is None:
            self._metrics.sequences.labels("cancelled").inc()
            return
        self._metrics.sequences.labels("finished").inc()
        self._metrics.tokens.inc(seat.transcript.num_tokens)
        self._finished_at.append(time.monotonic())

    def _fail(self, seats: list[Seat], error: Exception) -> None:
        """Tell everyone in a batch that it is lost, and go on with the others."""
        log.error("drawing failed", exc_info=error)
        message = f"drawing failed ({type(error).__name__}); the server's log says why"
        for seat in seats:
            self._metrics.sequences.labels("failed").inc()
            seat.ticket.listen(Progress(seat.task.index, "", seat.step, problem=DrawingError(message)))
        seats.clear()
