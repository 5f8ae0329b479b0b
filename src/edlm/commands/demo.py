"""edlm demo"""

import os
import sys
from typing import Annotated

from cyclopts import Parameter

from edlm.commands.sample import Compute
from edlm.compute_config import ComputeConfig
from edlm.demo.config import DemoConfig

Names = Annotated[list[str] | None, Parameter(negative=())]


def demo(
    *,
    denoiser: Names = None,
    energy: Names = None,
    oracle: Names = None,
    settings: Annotated[DemoConfig, Parameter(name="*")] = DemoConfig(),
    browser: bool = True,
    compute: Compute = ComputeConfig(),
) -> None:
    """Open a page that shows the denoising: step by step, candidate by candidate, two settings side by side.

    Parameters
    ----------
    denoiser
        A denoiser that the page offers, named as in `edlm sample`. Once for each; by default the built-in ones.
    energy
        An energy that the page offers: ar:NAME, coar:NAME, nce:NAME or step:NAME, or a sum, as in `edlm sample`. Once
        for each; by default those of the built-in models.
    oracle
        Who judges texts when two settings are compared: ar:NAME, with NAME of any causal language model. Once for each;
        by default the built-in one.
    browser
        Open a browser at the page; without it, or where there is no screen, the address is only printed.
    """
    from edlm.extras import require_extra

    require_extra("demo", "gradio", "PIL")
    from edlm.listening import is_loopback, listen, web_address

    if not is_loopback(settings.host):
        warning = f"--host {settings.host} lets other machines in, and the page asks nobody who they are"
        print(f"edlm: warning: {warning}", file=sys.stderr)
    listening = listen(settings.host, settings.port)
    from edlm.demo.server import run
    from edlm.demo.shelf import Shelf

    shelf = Shelf(denoiser or [], energy or [], oracle or [], compute)
    shelf.denoiser(shelf.denoisers[0])  # a name that is wrong is found before the page is
    address = web_address(listening)
    print(f"showing {', '.join(shelf.denoisers)} at {address}", flush=True)
    if browser and has_screen():
        import webbrowser

        webbrowser.open(address)
    run(shelf, settings, listening)


def has_screen() -> bool:
    """Whether a browser would be seen; on Linux without a screen a text browser could take the terminal instead."""
    return sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
