"""Settings of the page: no torch and no Gradio, so that the command line can show them at once."""

from dataclasses import dataclass

from edlm.errors import UserError


@dataclass(frozen=True)
class DemoConfig:
    """Where the page is found, and how much it may be asked for."""

    host: str = "127.0.0.1"
    """Address to listen on; the default is reached from this machine only."""
    port: int = 7860
    """Port to listen on; 0 takes a free one."""
    max_steps: int = 256
    """Most denoising steps that the page offers."""
    max_candidates: int = 16
    """Most candidates per step that the page offers."""
    max_samples: int = 16
    """Most samples of each setting when two are compared."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UserError(f"port must be between 0 and 65535, got {self.port}")
        for name in ("max_steps", "max_candidates", "max_samples"):
            if getattr(self, name) < 2:
                raise UserError(f"{name.replace('_', '-')} must be at least 2, got {getattr(self, name)}")
