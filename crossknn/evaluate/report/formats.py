"""Number formats of the table, the figures and the page."""

from __future__ import annotations

from typing import Final

from crossknn.scorers.timing import Speed

MISSING: Final = "–"
PERCENT: Final = "\u00a0%"  # a line never ends before the sign


def percent(share: float | None) -> str:
    """A share between 0 and 1 in percent, with one decimal and without the sign."""
    return MISSING if share is None else f"{100 * share:.1f}"


def number(value: float | None) -> str:
    """A count; a mean that is not whole keeps one decimal."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def short(value: float) -> str:
    """Three significant digits."""
    return f"{value:.3g}"


def value(fact: str | float) -> str:
    """A fact about the run: text as it is, numbers with separators."""
    return fact if isinstance(fact, str) else f"{fact:,}" if isinstance(fact, int) else f"{fact:,g}"


def milliseconds(seconds: float | None) -> str:
    """Seconds in milliseconds; from ten on without decimals."""
    return MISSING if seconds is None else rounded(1000 * seconds)


def rounded(value: float) -> str:
    """With one decimal; from ten on without."""
    return f"{value:,.1f}" if value < 9.95 else f"{value:,.0f}"


def describe_speed(speed: Speed) -> str:
    """A scorer's speed in words."""
    rate = number(round(speed.calls_per_second))
    return f"{milliseconds(speed.per_round)} ms for each round and 1 s for {rate} calls"


def signed(difference: float | None) -> str:
    """A difference with its sign and one decimal, or two where it would else seem to be none."""
    if difference is None:
        return MISSING
    text = f"{difference:+.1f}" if abs(difference) >= 0.05 else f"{difference:+.2f}"
    return "0.0" if text in ("+0.00", "-0.00") else text.replace("-", "−")


def decimals(value: float) -> str:
    """A difference of a measure between 0 and 1, with its sign."""
    return f"{value:+.3f}".replace("-", "−") if value else "0.000"
