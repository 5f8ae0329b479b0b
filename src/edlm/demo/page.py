"""The page itself: controls, and what they set going. What is shown comes from `views`."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from edlm.demo.config import DemoConfig
from edlm.demo.drawing import Drawing, Order
from edlm.demo.shelf import NONE, Shelf
from edlm.demo.views import EMPTY, now_and_then, race_html, side_by_side, status, table_html, view
from edlm.errors import UserError
from edlm.sample_config import SampleConfig
from edlm.show.film import Film
from edlm.show.fragments import STYLE
from edlm.show.gif import gif_bytes
from edlm.show.page import page_html
from edlm.show.trace_file import read_film

WHOLE, FIRST = "whole completions (Algorithm 1)", "revealed tokens (reveal-first)"
FONT = [gr.themes.Font(name) for name in ("system-ui", "-apple-system", "Segoe UI", "sans-serif")]
MONO = [gr.themes.Font(name) for name in ("ui-monospace", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")]
THEME = gr.themes.Soft(primary_hue="indigo", neutral_hue="slate", font=FONT, font_mono=MONO).set(
    block_title_background_fill="transparent", block_title_background_fill_dark="transparent",
    block_title_padding="0", block_title_text_color="*body_text_color", block_title_text_color_dark="*body_text_color",
    layout_gap="*spacing_lg",
)  # fmt: skip
CSS = STYLE.read_text(encoding="utf-8") + Path(__file__).with_name("page.css").read_text(encoding="utf-8")


def make_page(shelf: Shelf, config: DemoConfig) -> gr.Blocks:
    """Both tabs."""
    with gr.Blocks(title="edlm", analytics_enabled=False, delete_cache=(3600, 3600)) as page:
        gr.HTML('<div class="edlm"><h1>edlm</h1><div class="edlm-status">masked diffusion, corrected by energies: '
                "watch a text appear</div></div>")  # fmt: skip
        with gr.Tab("Watch", elem_id="watch"):
            watch_tab(shelf, config)
        with gr.Tab("Compare", elem_id="compare"):
            compare_tab(shelf, config)
    return page


# --- one text, step by step


def watch_tab(shelf: Shelf, config: DemoConfig) -> None:
    film, drawing = gr.State(None), gr.State(None)
    with gr.Row(elem_id="stage"):
        with gr.Column(elem_id="ask"):
            text = text_box()
            with gr.Row():
                run = gr.Button("Run", variant="primary", elem_id="run", min_width=100)
                stop = gr.Button("Stop", elem_id="stop", min_width=100)
        with gr.Column(elem_id="film"):
            words = gr.HTML(EMPTY.format("Press Run: every token appears in the colour of its step."), elem_id="words")
            slider = gr.Slider(0, 1, 0, step=1, label="Step", interactive=True, elem_id="slider")
            where = gr.HTML(status(""), elem_id="where")
            curves = gr.HTML(elem_id="curves")
            candidates = gr.HTML(elem_id="candidates")
            with gr.Row():
                as_page = gr.Button("Save as HTML", size="sm", elem_id="save-html", min_width=100)
                as_gif = gr.Button("Save as GIF", size="sm", elem_id="save-gif", min_width=100)
            saved = gr.File(label="Saved", visible=False, elem_id="saved")
        with gr.Column(elem_id="settings"):
            inputs = [*model_controls(shelf), *weighing_controls(config), *shared_controls(shelf, config), text]
            with gr.Accordion("Open a trace", open=False):
                trace = gr.File(label="made with --trace", file_types=[".jsonl", ".json"], elem_id="trace", height=120)
                index = gr.Number(0, label="Sequence", precision=0, minimum=0)

    shown = [words, where, candidates, curves]
    run.click(
        partial(watch, shelf), inputs, [drawing, film, slider, *shown, saved], show_progress="hidden",
        concurrency_id="drawing", concurrency_limit=1, api_visibility="private",
    )  # fmt: skip
    stop.click(stop_drawings, drawing, None, queue=False, api_visibility="private")
    slider.input(
        look, [film, slider], shown, show_progress="hidden", trigger_mode="always_last", api_visibility="private"
    )
    trace.upload(open_trace, [trace, index], [film, slider, *shown, saved], api_visibility="private")
    as_page.click(save_page, film, saved, api_visibility="private")
    as_gif.click(save_gif, film, saved, api_visibility="private")


def watch(shelf: Shelf, *values: Any) -> Iterator[list[Any]]:
    """The page's outputs after every step of a drawing, which comes first, to be stopped by."""
    with messages():
        drawing = Drawing(order_from(*values), shelf)
        yield [[drawing], *outputs(drawing.film)]
        for film in now_and_then(drawing.steps()):
            yield [[drawing], *outputs(film)]
        if drawing.is_stopped:
            last = outputs(drawing.film)
            last[3] = status(f"stopped after step {len(drawing.film.steps)} of {drawing.film.num_steps}")
            yield [[drawing], *last]


def stop_drawings(drawings: list[Drawing] | None) -> None:
    """Make what is being drawn end after the step it is at. Cancelling at Gradio's end would leave it unsaid where."""
    for drawing in drawings or ():
        drawing.is_stopped = True


def outputs(film: Film) -> list[Any]:
    """Film, slider, and all that is shown of the film's last frame."""
    number, shown = len(film.steps), view(film)
    slider = gr.Slider(maximum=max(1, film.num_steps), value=number)
    return [film, slider, shown.text, shown.status, shown.candidates, shown.curves, gr.File(visible=False)]


def look(film: Film | None, number: float) -> list[str]:
    """Another frame of the film."""
    with messages():
        shown = view(require_film(film), min(int(number), len(require_film(film).steps)))
        return [shown.text, shown.status, shown.candidates, shown.curves]


def open_trace(path: str, index: float | None) -> list[Any]:
    """The film of a trace file, which anyone may have written."""
    with messages():
        try:
            film = read_film(Path(path), whole("sequence", index))
        except UserError as error:
            raise UserError(str(error).replace(path, Path(path).name)) from error
        return outputs(film)


def save_page(film: Film | None) -> Any:
    with messages():
        return saved_file("denoising.html", page_html(require_film(film)).encode())


def save_gif(film: Film | None) -> Any:
    with messages():
        return saved_file("denoising.gif", gif_bytes(require_film(film)))


def saved_file(name: str, content: bytes) -> Any:
    path = Path(tempfile.mkdtemp(dir=os.environ.get("GRADIO_TEMP_DIR"))) / name
    path.write_bytes(content)
    return gr.File(value=str(path), visible=True)


def require_film(film: Film | None) -> Film:
    if film is None:
        raise UserError("there is nothing to show yet; press Run, or open a trace")
    return film


# --- two settings, side by side


def compare_tab(shelf: Shelf, config: DemoConfig) -> None:
    with gr.Row():
        with gr.Column(min_width=300):
            text = text_box()
            (denoiser,) = model_controls(shelf, with_energy=False)
            oracle = gr.Dropdown([*shelf.oracles, NONE], label="Oracle", value=[*shelf.oracles, NONE][0])
        with gr.Column(min_width=300):
            steps, length, seed = shared_controls(shelf, config)
            num = gr.Slider(1, config.max_samples, min(4, config.max_samples), step=1, label="Samples of each")
    with gr.Row():
        with gr.Column(min_width=300):
            first = energy_controls(shelf, config, NONE)
        with gr.Column(min_width=300):
            second = energy_controls(shelf, config, (shelf.energies or [NONE])[0])
    with gr.Row():
        run = gr.Button("Run both", variant="primary", elem_id="run-both", min_width=100)
        stop = gr.Button("Stop", elem_id="stop-both", min_width=100)
    with gr.Row():
        with gr.Column(min_width=300):
            left = gr.HTML(EMPTY.format("The first setting."), elem_id="left")
        with gr.Column(min_width=300):
            right = gr.HTML(EMPTY.format("The second setting, with the same steps and seed."), elem_id="right")
    table = gr.HTML(elem_id="table")
    drawings = gr.State(None)

    shared = [denoiser, oracle, num, steps, length, seed, text]
    run.click(
        partial(compare, shelf), [*shared, *first, *second], [drawings, left, right, table],
        show_progress="hidden", concurrency_id="drawing", concurrency_limit=1, api_visibility="private",
    )  # fmt: skip
    stop.click(stop_drawings, drawings, None, queue=False, api_visibility="private")


def compare(
    shelf: Shelf, denoiser: str, oracle: str, num: Any, steps: Any, length: Any, seed: Any, text: str, *sides: Any
) -> Iterator[list[Any]]:
    """Both texts after every step, and at the end what was measured."""
    with messages():
        num = whole("samples", num)
        orders = [
            order_from(denoiser, energy, candidates, window, weighed, steps, length, seed, text, num=num)
            for energy, candidates, window, weighed in (sides[:4], sides[4:])
        ]
        drawings = first, second = [Drawing(order, shelf) for order in orders]
        shelf.oracle(oracle, denoiser)  # refused now rather than at the end
        for _ in now_and_then(side_by_side(first, second)):
            yield [drawings, race_html(first), race_html(second), status("drawing")]
        if first.is_stopped:
            yield [drawings, race_html(first), race_html(second), status("stopped: nothing was measured")]
        else:
            rows = [(drawing.order.label, drawing.measure(shelf, oracle)) for drawing in drawings]
            yield [drawings, race_html(first), race_html(second), table_html(rows, num)]


# --- controls


def text_box() -> gr.Textbox:
    return gr.Textbox(
        "in the year ", label="Prompt, or a text with holes", info="[MASK] is one unknown token, [MASK:12] twelve",
        lines=2, max_length=10_000,
    )  # fmt: skip


def model_controls(shelf: Shelf, *, with_energy: bool = True) -> list[Any]:
    denoiser = gr.Dropdown(shelf.denoisers, label="Denoiser", value=shelf.denoisers[0])
    if not with_energy:
        return [denoiser]
    return [denoiser, energy_menu(shelf, (shelf.energies or [NONE])[0])]


def energy_menu(shelf: Shelf, value: str) -> gr.Dropdown:
    return gr.Dropdown([NONE, *shelf.energies], label="Energy", value=value)


def energy_controls(shelf: Shelf, config: DemoConfig, value: str) -> list[Any]:
    """One side of a comparison."""
    return [energy_menu(shelf, value), *weighing_controls(config)]


def weighing_controls(config: DemoConfig) -> list[Any]:
    return [
        gr.Slider(1, config.max_candidates, min(4, config.max_candidates), step=1, label="Candidates k"),
        gr.Slider(0, 1, 1, step=0.05, label="Window w", info="the energy takes part while t ≥ 1 - w"),
        gr.Dropdown([WHOLE, FIRST], value=FIRST, label="What is weighed"),
    ]


def shared_controls(shelf: Shelf, config: DemoConfig) -> list[Any]:
    longest = shelf.denoiser(shelf.denoisers[0]).length
    return [
        gr.Slider(1, config.max_steps, min(32, config.max_steps), step=1, label="Steps T"),
        gr.Slider(1, longest, min(128, longest), step=1, label="Length", info="tokens; a text with holes has its own"),
        gr.Number(0, label="Seed", precision=0, minimum=0),
    ]


def order_from(
    denoiser: str, energy: str, candidates: Any, window: Any, weighed: str, steps: Any, length: Any, seed: Any,
    text: str, *, num: int = 1,
) -> Order:  # fmt: skip
    """What the controls say, refused if it makes no sense."""
    settings = SampleConfig(
        steps=whole("steps", steps), candidates=whole("candidates", candidates), window=number("window", window),
        completions=int(weighed == FIRST), length=whole("length", length), seed=whole("seed", seed),
    )  # fmt: skip
    return Order(denoiser, energy, text or "", settings, num)


def number(name: str, value: Any) -> float:
    if value is None:
        raise UserError(f"{name} is empty; enter a number")
    return float(value)


def whole(name: str, value: Any) -> int:
    if number(name, value) != int(value):
        raise UserError(f"{name} must be a whole number, got {value}")
    return int(value)


@contextmanager
def messages() -> Iterator[None]:
    """What the user can mend is a message on the page. Gradio shows it as HTML, so it is escaped."""
    try:
        yield
    except UserError as error:
        raise gr.Error(escape(str(error)), duration=None, title="That cannot be", print_exception=False) from error
