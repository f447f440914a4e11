"""The report as one HTML page that needs nothing but itself."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from importlib.resources import files

from crossknn.evaluate.compare import Result
from crossknn.evaluate.comparison import Answer, Comparison, Line
from crossknn.evaluate.figures import MISSING, PERCENT, describe_speed, milliseconds, number, percent, points, signed
from crossknn.evaluate.findings import headline, tally
from crossknn.evaluate.markup import Markup, element, join
from crossknn.evaluate.measures import DRAWS, LEVEL
from crossknn.evaluate.plots import draw

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
SURE = f"{100 * LEVEL:.0f}{PERCENT}"
NARROW, IS_DARK = "(max-width: 44rem)", "(prefers-color-scheme: dark)"


def page(comparison: Comparison) -> str:
    """The whole page; it makes no request of any kind and works from a file."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", comparison.title),
        element("link", rel="icon", href="data:,"),
        element("style", Markup(files(__package__).joinpath("page.css").read_text(encoding="utf-8"))),
    )
    sections = [_recall(comparison), _times(comparison), _answers(comparison), _method(comparison)]
    body = element("body", _opening(comparison), element("main", *sections))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _opening(comparison: Comparison) -> Markup:
    exact = f"Exact search takes {number(comparison.items)} calls per query."
    sentences = " ".join(filter(None, [tally(comparison), exact]))
    return element(
        "header",
        element("h1", comparison.title),
        element("p", headline(comparison), class_="lead"),
        element("p", sentences, class_="quiet"),
    )


def _recall(comparison: Comparison) -> Markup:
    return element(
        "section",
        element("h2", "What is found within a budget"),
        _picture(comparison),
        element("div", _results(comparison), class_="scroll", role="region", aria_label="Results", tabindex=0),
        element(
            "p",
            f"Found: mean share of the true top k, in percent, with its {SURE} interval."
            " Diff.: percentage points above (+) or below (−) the baseline, the row that an indented row stands"
            " under. ms: milliseconds per query, scorer and search together.",
            class_="quiet note",
        ),
    )


def _picture(comparison: Comparison) -> Markup:
    """Four pictures, of which the browser shows the one for its width and colour scheme."""
    wide, narrow, dark_wide, dark_narrow = (
        f"data:image/png;base64,{b64encode(draw(comparison, dark=dark, stacked=stacked)).decode()}"
        for dark in (False, True)
        for stacked in (False, True)
    )
    ks = ", ".join(map(str, comparison.ks))
    alt = f"Share of the true top {ks} found, against the budget. {headline(comparison)} All numbers are in the table."
    return element(
        "figure",
        element(
            "picture",
            element("source", media=f"{NARROW} and {IS_DARK}", srcset=dark_narrow),
            element("source", media=NARROW, srcset=narrow),
            element("source", media=IS_DARK, srcset=dark_wide),
            element("img", src=wide, alt=alt),
        ),
        element(
            "figcaption",
            f"Dashed: one round of reranking. Solid, in the same colour: adaptive search measured against it."
            f" Bands: {SURE} intervals.",
        ),
    )


def _results(comparison: Comparison) -> Markup:
    head = element(
        "thead",
        element(
            "tr",
            element("th", "Strategy", scope="col", rowspan=2, class_="name"),
            element("th", "Calls", scope="col", rowspan=2),
            *(element("th", f"True top {k}", scope="colgroup", colspan=3) for k in comparison.ks),
            element("th", "ms", scope="col", rowspan=2),
        ),
        element("tr", *[_heads()] * len(comparison.ks)),
    )
    bodies = [element("tbody", *_budget_rows(comparison, budget)) for budget in comparison.budgets]
    exact = element(
        "tr",
        element("th", "Exact search", scope="row", class_="name"),
        element("td", number(comparison.items)),
        *[join(element("td", "100.0", class_="found"), element("td"), element("td"))] * len(comparison.ks),
        element("td", milliseconds(comparison.exact_seconds)),
    )
    caption = element("caption", "All results", class_="hidden")
    return element("table", caption, head, *bodies, element("tbody", exact, class_="exact"), class_="results")


def _heads() -> Markup:
    """The columns under each k."""
    others = (element("th", name, scope="col") for name in ("Interval", "Diff."))
    return join(element("th", "Found", scope="col", class_="found"), *others)


def _budget_rows(comparison: Comparison, budget: int) -> Iterator[Markup]:
    width = 3 + 3 * len(comparison.ks)
    title = element("span", f"Budget: {number(budget)} calls")
    yield element("tr", element("th", title, scope="rowgroup", colspan=width, class_="name"), class_="budget")
    for group in comparison.groups:
        yield _row(comparison, group.baseline, None, budget)
        for name in group.adaptive:
            yield _row(comparison, name, group.baseline, budget)


def _row(comparison: Comparison, name: str, baseline: str | None, budget: int) -> Markup:
    cost = comparison.cost(name, budget)
    return element(
        "tr",
        element("th", name, scope="row", class_="name"),
        element("td", number(cost.calls if cost else None)),
        *(_cells(comparison.result(name, budget, k), comparison.result(baseline, budget, k)) for k in comparison.ks),
        element("td", milliseconds(cost.total_seconds if cost else None)),
        class_="adaptive" if baseline else None,
    )


def _cells(result: Result | None, baseline: Result | None) -> Markup:
    if result is None:
        return join(element("td", MISSING, class_="found"), element("td"), element("td"))
    found = element("td", percent(result.recall), class_="found")
    interval = element("td", f"{percent(result.low)}–{percent(result.high)}", class_="interval")
    difference = points(result, baseline)
    sign = None if not difference else "better" if difference > 0 else "worse"
    return join(found, interval, element("td", signed(difference) if result.baseline else None, class_=sign))


def _times(comparison: Comparison) -> Markup:
    budget = comparison.budgets[-1]
    names = [name for group in comparison.groups for name in (group.baseline, *group.adaptive)]
    costs = [cost for name in names if (cost := comparison.cost(name, budget))]
    longest = max(sum(cost.seconds.values()) for cost in costs) or 1.0
    head = element(
        "tr",
        element("th", "Strategy", scope="col", class_="name"),
        element("th", "Scorer", scope="col", class_="key scorer"),
        element("th", "Search", scope="col", class_="key search"),
    )
    rows = [_time_row(cost, longest) for cost in costs]
    return element(
        "section",
        element("h2", f"Where the time goes at {number(budget)} calls"),
        element(
            "p", "Milliseconds per query, one query at a time. Search is all that is not the scorer.", class_="quiet"
        ),
        element("table", element("thead", head), element("tbody", *rows), class_="times"),
    )


def _time_row(cost: Result, longest: float) -> Markup:
    parts = {name: cost.seconds.get(name) for name in ("scorer", "search")}
    bars = [
        element("i", class_=name, style=f"width:{100 * (seconds or 0) / longest:.2f}%")
        for name, seconds in parts.items()
    ]
    numbers = [element("td", milliseconds(seconds)) for seconds in parts.values()]
    bar = element("span", *bars, class_="bar", aria_hidden="true")
    title = element("th", cost.strategy, bar, scope="row", class_="name")
    return element("tr", title, *numbers, class_="adaptive" if cost.baseline else None)


def _answers(comparison: Comparison) -> Markup | None:
    if not comparison.answers:
        return None
    return element(
        "section",
        element("h2", "Some answers, side by side"),
        element("p", "✓ is in the exact top. The number is the cross-encoder’s score.", class_="quiet"),
        *map(_answer, comparison.answers),
    )


def _answer(answer: Answer) -> Markup:
    relevant = answer.relevant and element("p", "Relevant: ", element("b", answer.relevant), class_="relevant")
    columns = [
        element("div", element("h4", name, _caught(lines)), element("ol", *map(_line, lines)))
        for name, lines in answer.columns.items()
    ]
    return element(
        "article", element("h3", "“", answer.query, "”"), relevant, element("div", *columns, class_="columns")
    )


def _caught(lines: Sequence[Line]) -> Markup:
    return element("small", f"{sum(line.in_truth for line in lines)} of {len(lines)} ✓")


def _line(line: Line) -> Markup:
    mark = element("abbr", "✓", title="in the exact top") if line.in_truth else None
    text = element("span", line.text, class_="text")
    return element("li", text, element("span", mark, f" {line.score:.2f}", class_="score"))


def _method(comparison: Comparison) -> Markup:
    data = {"items": comparison.items, **comparison.data}
    if comparison.speed:
        data["scorer time"] = f"{describe_speed(comparison.speed)}, for scores were cached"
    rows = [join(element("dt", name), element("dd", _value(value))) for name, value in data.items()]
    return element(
        "section",
        element("h2", "How this was measured"),
        element("dl", *rows),
        element("h3", "Found"),
        element(
            "p",
            "Exact search scores every item with the cross-encoder: its k best are the true top k of a query."
            " What a strategy found is the share of them among the items that it scored within its budget."
            " A budget smaller than k cannot find them all.",
        ),
        element("h3", "Interval"),
        element(
            "p",
            f"The queries are drawn anew with replacement {number(DRAWS)} times; the interval holds the middle"
            f" {SURE} of the means. It says how much the mean depends on which queries were asked, each strategy"
            " by itself: two strategies met the same queries, so their difference is surer than two intervals suggest.",
        ),
        _repeat(comparison.command),
    )


def _repeat(command: str | None) -> Markup:
    shown = element("pre", element("code", command), tabindex=0) if command else element("p", MISSING)
    return join(element("h3", "Repeat it"), shown)


def _value(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:,g}"
