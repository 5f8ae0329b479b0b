"""edlm serve"""

import sys
from typing import Annotated

from cyclopts import Parameter

from edlm.commands.sample import Compute
from edlm.compute_config import ComputeConfig
from edlm.serving.config import ServeConfig


def serve(
    *,
    denoiser: str = "text8-nano-denoiser",
    ar: str = "",
    energy: Annotated[list[str] | None, Parameter(negative=())] = None,
    settings: Annotated[ServeConfig, Parameter(name="*")] = ServeConfig(),
    api_key: Annotated[str, Parameter(env_var="EDLM_API_KEY", show_env_var=True)] = "",
    compute: Compute = ComputeConfig(),
) -> None:
    """Serve completions over HTTP, in the protocol of OpenAI's clients.

    Parameters
    ----------
    denoiser
        Folder, built-in name or hub name of a denoiser; '' to serve an autoregressive model alone.
    ar
        Folder, built-in name or hub name of an autoregressive model to serve as well.
    energy
        An energy that clients may choose: ar:DIR, coar:DIR or nce:DIR, or a weighted sum; NAME=SPEC gives it a name.
        Once for each. Nothing that a client names is ever loaded.
    api_key
        Key that clients must send; better set in the environment, where other users do not see it.
    """
    from edlm.extras import require_extra

    require_extra("serve", "fastapi", "uvicorn", "prometheus_client")
    from edlm.listening import is_loopback, listen, web_address
    from edlm.serving.catalogue import load_catalogue
    from edlm.serving.server import serve as run

    if not is_loopback(settings.host) and not api_key:
        warning = f"--host {settings.host} lets other machines in, and there is no key; set EDLM_API_KEY"
        print(f"edlm: warning: {warning}", file=sys.stderr)
    listening = listen(settings.host, settings.port)
    catalogue = load_catalogue(denoiser, ar, energy or [], compute)
    print(f"serving {', '.join(catalogue)} at {web_address(listening)}/v1", flush=True)
    run(catalogue, settings, listening, api_key=api_key)
