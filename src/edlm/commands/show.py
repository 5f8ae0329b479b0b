"""edlm show"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from edlm.errors import UserError

if TYPE_CHECKING:
    from edlm.show.film import Film


def show(trace: Path, /, *, out: Path | None = None, index: int | None = None) -> None:
    """Show how a text came about, from the file that `edlm sample --trace` wrote: as a page, a GIF, or here.

    Parameters
    ----------
    trace
        The trace file.
    out
        File to write: a page that needs no network or other file if it ends in .html, an animation if it ends in
        .gif. Without it, the steps are shown in the terminal.
    index
        Which sequence, if the trace has several; by default the first.
    """
    from edlm.commands.sample import require_writable

    form = out.suffix.lower() if out else ""
    if out is not None and form not in (".html", ".gif"):
        raise UserError(f"--out {out}: the name must end in .html or .gif")
    require_writable("--out", out)
    from edlm.show.trace_file import read_film

    film = read_film(trace, index)
    if out is None:
        play(film)
    elif form == ".html":
        from edlm.show.page import page_html

        out.write_text(page_html(film), encoding="utf-8")
    else:
        from edlm.extras import require_extra

        require_extra("demo", "PIL")
        from edlm.show.gif import gif_bytes

        out.write_bytes(gif_bytes(film))


def play(film: "Film") -> None:
    """All frames in the terminal, about six seconds of them."""
    from edlm.show.terminal import Screen

    screen = Screen(sys.stdout, least_seconds=min(0.5, 6 / (len(film.steps) + 1)))
    for number in range(len(film.steps) + 1):
        screen.show(film, number)
