"""The pictures of a report, each for light and dark, wide and narrow screens, and for readers who cannot see them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from crossknn.evaluate.comparison import Comparison
from crossknn.evaluate.measures import LEVEL
from crossknn.evaluate.report.area_plots import draw_distributions, draw_indexing, draw_latency
from crossknn.evaluate.report.findings import headline, name_peaks
from crossknn.evaluate.report.format import PERCENT, number
from crossknn.evaluate.report.line_plots import choose_near, draw_quality, draw_sweep
from crossknn.evaluate.report.markup import Markup, element
from crossknn.evaluate.report.recall_plots import draw, shows_intervals
from crossknn.evaluate.report.style import DPI, has_adaptive, in_pairs
from crossknn.evaluate.study_results import DistributionStudy, LatencyStudy, QualityStudy, SamplingStudy, Sweep

NARROW, IS_DARK = "(max-width: 44rem)", "(prefers-color-scheme: dark)"
NUMBERS = "All numbers are on the page."
OWN_SCALES = "Each panel has a scale of its own."


@dataclass(frozen=True)
class Picture:
    """A picture, drawn when it is first wanted.

    draw     gives it as PNG; takes `dark` and `stacked`
    alt      what it shows
    caption  how to read it
    """

    draw: Callable[..., bytes]
    alt: str
    caption: str
    _drawn: dict[tuple[bool, bool], bytes] = field(default_factory=dict, repr=False)

    def png(self, *, dark: bool = False, stacked: bool = False) -> bytes:
        """The picture; `stacked` is for narrow screens."""
        if (dark, stacked) not in self._drawn:
            self._drawn[dark, stacked] = self.draw(dark=dark, stacked=stacked)
        return self._drawn[dark, stacked]


def make_pictures(comparison: Comparison) -> dict[str, Picture]:
    """The pictures of a report by name: recall, and those of its studies."""
    made, studies = {"recall": _recall(comparison)}, comparison.studies
    if studies is None:
        return made
    if studies.rounds:
        made["rounds"] = _sweep(studies.rounds, comparison, "rounds", "One round is reranking.")
    if studies.mix:
        meaning = "λ 0 is the vector that explains the scores so far, λ 1 the encoder’s."
        made["mix"] = _sweep(studies.mix, comparison, "λ", meaning)
    if studies.sampling:
        made |= _sampling(studies.sampling, comparison)
    if studies.latency:
        made["latency"] = _latency(studies.latency)
    if studies.distributions:
        made["distributions"] = _distributions(studies.distributions)
    if studies.quality:
        made["quality"] = _quality(studies.quality, comparison)
    return made


def _recall(comparison: Comparison) -> Picture:
    shown, ks = comparison.attainable, ", ".join(map(str, comparison.ks))
    colour = ", in the same colour" if in_pairs(shown) else ""
    dashes = f"Dashed: one round of reranking. Solid{colour}: adaptive search measured against it."
    bands = f"Bands: {100 * LEVEL:.0f}{PERCENT} intervals."
    caption = [dashes] * has_adaptive(shown) + [bands] * shows_intervals(shown)
    return Picture(
        partial(draw, comparison),
        f"Share of the true top {ks} found, against the budget. {headline(comparison)} {NUMBERS}",
        " ".join(caption),
    )


def _sweep(sweep: Sweep, comparison: Comparison, setting: str, meaning: str) -> Picture:
    level = f"Dashed: “{sweep.levels[0].strategy}”, which does not depend on it."
    return Picture(
        partial(draw_sweep, sweep, setting, comparison),
        f"Share found within {number(sweep.budget)} calls, against {setting}. {name_peaks(sweep, setting)} {NUMBERS}",
        f"Within {number(sweep.budget)} calls. {meaning} {level} {OWN_SCALES}",
    )


def _sampling(study: SamplingStudy, comparison: Comparison) -> dict[str, Picture]:
    meaning = (
        "Per item: every item is scored with train queries drawn at random. Per query: every train query with items"
        " drawn at random, as many calls in all."
    )
    made = {"sampling": _sweep(study.calls, comparison, "offline calls per item", meaning)}
    if study.seconds is not None:
        made["indexing"] = _sweep(study.seconds, comparison, "seconds of indexing", "Encoding is not in them.")
    made["steps"] = Picture(
        partial(draw_indexing, study.indexes),
        f"Seconds of each step of building an index, against offline calls per item. {NUMBERS}",
        "Encoding is left out: it is the same for all.",
    )
    return made


def _latency(study: LatencyStudy) -> Picture:
    what = "Milliseconds per query of each strategy within each budget, by what they are spent on."
    alt = f"{what} Those of the largest budget are in the table."
    return Picture(partial(draw_latency, study), alt, f"The numbers are the sums. {OWN_SCALES}")


def _distributions(study: DistributionStudy) -> Picture:
    scale = "" if study.alpha is None else f" α is {study.alpha:.3g} and β {study.beta:.3g}.".replace("-", "−")
    return Picture(
        partial(draw_distributions, study),
        "Densities of the cross-encoder’s scores and of the encoder’s similarities.",
        f"{number(study.pairs)} pairs of asked queries with items drawn at random.{scale}",
    )


def _quality(study: QualityStudy, comparison: Comparison) -> Picture:
    drawn = choose_near(study)
    far = [f"“{name}”" for name in comparison.attainable.strategies if name not in drawn]
    left_out = f" Not drawn, for less than half of what exact search has: {', '.join(far)}." if far else ""
    return Picture(
        partial(draw_quality, study, comparison),
        f"What every strategy finds and how relevant it is, against the budget. {NUMBERS}",
        f"Means over the queries. {OWN_SCALES}{left_out}",
    )


def show(picture: Picture) -> Markup:
    """Four drawings, of which the browser shows the one for its width and colour scheme."""
    wide, narrow, dark_wide, dark_narrow = (
        picture.png(dark=dark, stacked=stacked) for dark in (False, True) for stacked in (False, True)
    )
    width = int.from_bytes(wide[16:20]) * 100 // DPI  # pixels of the page, a hundred to the inch
    return element(
        "figure",
        element(
            "picture",
            element("source", media=f"{NARROW} and {IS_DARK}", srcset=_as_data(dark_narrow)),
            element("source", media=NARROW, srcset=_as_data(narrow)),
            element("source", media=IS_DARK, srcset=_as_data(dark_wide)),
            element("img", src=_as_data(wide), alt=picture.alt, style=f"--width:{width}px"),
        ),
        element("figcaption", picture.caption),
    )


def _as_data(png: bytes) -> str:
    return f"data:image/png;base64,{b64encode(png).decode()}"
