"""A film as one HTML file that needs nothing else: no server, no network, no other file."""

import base64
import hashlib
import json
from html import escape
from pathlib import Path

from edlm.show.curves import curves_html
from edlm.show.film import Film, summary, title
from edlm.show.fragments import MASK, candidates_html, legend_html, text_html

FOLDER = Path(__file__).parent


def page_html(film: Film) -> str:
    """The whole page: the last frame, and a slider and a button that go through all of them.

    Only the player's own script may run, whatever the trace holds: its hash is in the page's policy.
    """
    script = _asset("player.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    about = escape(title(film.settings))
    last = film.frame(len(film.steps))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{about}</title>
<style>{_asset("show.css")}{_asset("player.css")}</style>
</head>
<body>
<main class="edlm">
<h1>From masks to text</h1>
<div class="edlm-status">{about}</div>
{text_html(film, last)}
{legend_html(film)}
<div class="edlm-controls">
<button id="play" type="button">Play</button>
<input id="slider" type="range" min="0" max="{len(film.steps)}" value="{len(film.steps)}" aria-label="step">
</div>
<div class="edlm-status" id="status">{escape(summary(film, last))}</div>
{curves_html(film, last.number)}
<h2>Candidates of the step</h2>
<div id="candidates">{candidates_html(film, last)}</div>
</main>
<script type="application/json" id="film">{film_json(film)}</script>
<script>{script}</script>
</body>
</html>
"""


def film_json(film: Film) -> str:
    """What the player shows of each frame, so written that no text in it can end the script."""
    frames = list(film.frames())
    data = {
        "mask": MASK,
        "summaries": [summary(film, frame) for frame in frames],
        "candidates": [candidates_html(film, frame) for frame in frames],
    }
    text = json.dumps(data, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
