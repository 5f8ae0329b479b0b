"""Colours by step, from dark blue (early) to yellow (late): the order can be read without seeing hues."""

RAMP = ((72, 61, 139), (58, 115, 168), (70, 174, 170), (136, 214, 124), (253, 234, 90))
"""Lightness grows along it, so it reads the same in grey and with any colour blindness."""
Colour = tuple[int, int, int]


def step_colour(step: int, num_steps: int) -> Colour:
    """The background of a token that was revealed at step 1 to `num_steps`."""
    place = (step - 1) / max(1, num_steps - 1) * (len(RAMP) - 1)
    low = min(int(place), len(RAMP) - 2)
    red, green, blue = (round(a + (b - a) * (place - low)) for a, b in zip(RAMP[low], RAMP[low + 1], strict=True))
    return red, green, blue


def ink(background: Colour) -> Colour:
    """Black or white, whichever stands out more; the contrast is at least 4.5 whatever the background."""
    light = luminance(background)
    return (0, 0, 0) if (light + 0.05) / 0.05 > 1.05 / (light + 0.05) else (255, 255, 255)


def luminance(colour: Colour) -> float:
    """Relative luminance, 0 for black and 1 for white, as the contrast of texts on screens is defined by."""
    red, green, blue = (
        (c / 12.92) if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def hexadecimal(colour: Colour) -> str:
    return "#" + bytes(colour).hex()


def terminal_colour(colour: Colour) -> int:
    """The nearest of the 216 colours that nearly every terminal has."""
    levels = (0, 95, 135, 175, 215, 255)
    red, green, blue = (min(range(6), key=lambda i: abs(levels[i] - value)) for value in colour)
    return 16 + 36 * red + 6 * green + blue
