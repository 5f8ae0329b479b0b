"""What the server counts, in the text format of Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters of one server; each server has a registry of its own."""

    def __init__(self) -> None:
        self._registry = own = CollectorRegistry()
        ProcessCollector(registry=own)
        self.requests = Counter("edlm_requests", "Requests for completions by status.", ["status"], registry=own)
        self.request_seconds = Histogram(
            "edlm_request_seconds", "Seconds from a request to its last token.", buckets=SECONDS, registry=own
        )
        self.sequences = Counter("edlm_sequences", "Sequences by how they ended.", ["outcome"], registry=own)
        for outcome in ("finished", "cancelled", "failed"):
            self.sequences.labels(outcome)  # shown from the start, as 0
        self.tokens = Counter("edlm_tokens", "Tokens of finished completions.", registry=own)
        self.waiting = Gauge("edlm_waiting_sequences", "Sequences that wait for their turn.", registry=own)
        self.active = Gauge("edlm_active_sequences", "Sequences that are worked on.", registry=own)
        self.step_seconds = Histogram(
            "edlm_step_seconds", "Seconds of one step of a batch.", buckets=SECONDS, registry=own
        )
        self.batch_rows = Histogram("edlm_batch_rows", "Sequences in a step of a batch.", buckets=ROWS, registry=own)

    def text(self) -> bytes:
        return generate_latest(self._registry)
