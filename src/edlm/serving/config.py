"""Settings of the server: no torch, so that the command line can show them at once."""

from dataclasses import dataclass

from edlm.errors import UserError


@dataclass(frozen=True)
class ServeConfig:
    """Where the server listens, what a client may ask for, and how much is worked on at a time."""

    host: str = "127.0.0.1"
    """Address to listen on; the default is reached from this machine only."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    batch_size: int = 32
    """Sequences that are worked on at a time, those of all clients together."""
    queue: int = 256
    """Sequences that may wait for their turn; beyond it a request is refused with status 429."""
    round_to: int = 32
    """A denoiser's sequences are lengthened to a multiple of this, so that requests of nearly one length share a batch;
    the tokens at the end are dropped. 1 draws exactly what was asked for."""
    normalise: bool = False
    """Bring prompts and suffixes into the 27 characters of text8, unless a request says otherwise."""
    steps: int = 64
    """Denoising steps of a request that does not say."""
    max_n: int = 16
    """Most choices of a request: prompts times n."""
    max_tokens: int | None = None
    """Most tokens of a completion; by default the model's length."""
    max_prompt: int | None = None
    """Most tokens of prompt and suffix together; by default the model's length."""
    max_steps: int = 256
    """Most denoising steps."""
    max_candidates: int = 16
    """Most candidates of a step."""
    max_body: int = 1_000_000
    """Most bytes of a request's body."""
    grace: int = 30
    """Seconds that running requests have to finish in when the server is told to stop."""

    def __post_init__(self) -> None:
        least = {"queue": 1, "batch_size": 1, "round_to": 1, "steps": 1, "max_n": 1, "max_tokens": 1, "max_prompt": 0}
        least |= {"max_steps": 1, "max_candidates": 1, "max_body": 1, "grace": 0, "port": 0}
        for name, value in least.items():
            given = getattr(self, name)
            if given is not None and given < value:
                raise UserError(f"{name.replace('_', '-')} must be at least {value}, got {given}")
        if self.port > 65535:
            raise UserError(f"port must be at most 65535, got {self.port}")
        if self.steps > self.max_steps:
            raise UserError(f"steps must be at most max-steps ({self.max_steps}), got {self.steps}")
        if self.max_n > self.queue:
            raise UserError(f"max-n must be at most queue ({self.queue}), got {self.max_n}: it could never be served")
