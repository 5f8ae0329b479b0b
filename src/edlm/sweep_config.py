"""A grid of likelihoods, and how it is written on the command line."""

import re
from dataclasses import dataclass

from edlm.errors import UserError
from edlm.likelihood_config import LikelihoodConfig

IDEAL = "ideal"


@dataclass(frozen=True)
class SweepConfig:
    """Every number of steps, with every number of candidates."""

    steps: list[int]
    candidates: list[int | None]
    settings: LikelihoodConfig


def parse_sweep(text: str, candidates: str, settings: LikelihoodConfig) -> SweepConfig:
    """The grid of `--sweep steps=1,2,4 --candidates 2,8`."""
    name, equals, values = text.partition("=")
    if name.strip() != "steps" or not equals:
        raise UserError(f"--sweep must look like steps=1,2,4,...,256, got {text!r}")
    if settings.steps is not None:
        raise UserError(f"--sweep names the steps already; leave out --steps {settings.steps}")
    if settings.protocol != "certified":
        raise UserError("a sweep compares samplers by their certified bounds; leave out --protocol paper")
    return SweepConfig(parse_counts(values, "--sweep steps"), parse_candidates(candidates), settings)


def parse_candidates(text: str) -> list[int | None]:
    """Numbers of candidates, None for the ideal sampler."""
    words = [word.strip() for word in text.split(",")]
    numbers = [word for word in words if word != IDEAL]
    parsed: list[int | None] = list(parse_counts(",".join(numbers), "--candidates")) if numbers else []
    return parsed + [None] * (IDEAL in words)


def one_number_of_candidates(text: str) -> int | None:
    """The one number that a single measurement needs."""
    k, *more = parse_candidates(text)
    if more:
        raise UserError(f"several numbers of candidates need --sweep steps=..., got --candidates {text}")
    return k


def parse_counts(text: str, where: str) -> list[int]:
    """'1,2,4,...,256' as whole numbers of at least 1; the dots go on as the two numbers before them began."""
    numbers: list[int] = []
    words = [word.strip() for word in text.split(",")]
    for n, word in enumerate(words):
        if word == "..." and n >= 2 and n == len(words) - 2:
            continue
        if not re.fullmatch(r"[1-9]\d*", word):
            raise UserError(f"{where} must be whole numbers such as 1,2,4 or 1,2,4,...,64, got {text!r}")
        end = int(word)
        if n and words[n - 1] == "...":
            numbers += _between(numbers[-2], numbers[-1], end, where)
        numbers.append(end)
    return sorted(set(numbers))


def _between(first: int, second: int, end: int, where: str) -> list[int]:
    """The numbers after `second` and before `end`: by a whole ratio if the first two have one, else by their step."""
    numbers = [second]
    while first < second and numbers[-1] < end:
        numbers.append(numbers[-1] * (second // first) if second % first == 0 else numbers[-1] + second - first)
    if numbers[-1] != end:
        raise UserError(f"{where}: {first},{second},... does not lead to {end}; write the numbers out")
    return numbers[1:-1]
