"""The report as one HTML page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files

from crossknn.evaluate.compare import PARTS, Result
from crossknn.evaluate.comparison import Answer, Comparison, Line
from crossknn.evaluate.measures import DRAWS, LEVEL
from crossknn.evaluate.report.findings import explain_oracles, headline, tally
from crossknn.evaluate.report.format import (
    MISSING,
    PERCENT,
    describe_speed,
    milliseconds,
    number,
    percent,
    points,
    signed,
)
from crossknn.evaluate.report.markup import Markup, element, join
from crossknn.evaluate.report.pictures import Picture, make_pictures, show
from crossknn.evaluate.report.study_sections import quality_section, scrolling, study_sections

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
SURE = f"{100 * LEVEL:.0f}{PERCENT}"


def page(comparison: Comparison, pictures: Mapping[str, Picture] | None = None) -> str:
    """The whole page; it makes no request of any kind and works from a file.

    `pictures` are those of `make_pictures`, where they are made already.
    """
    drawn = pictures or make_pictures(comparison)
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
    sections = [
        _recall(comparison, drawn["recall"]),
        quality_section(comparison, drawn),
        *(study_sections(comparison.studies, drawn) if comparison.studies else ()),
        _times(comparison.attainable, drawn.get("latency")),
        _answers(comparison),
        _method(comparison),
    ]
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


def _recall(comparison: Comparison, picture: Picture) -> Markup:
    return element(
        "section",
        element("h2", "What is found within a budget"),
        show(picture),
        scrolling("Results", _results(comparison)),
        element(
            "p",
            f"Found: mean share of the true top k, in percent, with its {SURE} interval."
            " Diff.: percentage points above (+) or below (−) the baseline, the row that an indented row stands"
            " under. ms: milliseconds per query, scorer, solve and search together.",
            f" {oracles}" if (oracles := explain_oracles(comparison)) else None,
            class_="quiet note",
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
        class_="adaptive oracle" if cost and cost.oracle else "adaptive" if baseline else None,
    )


def _cells(result: Result | None, baseline: Result | None) -> Markup:
    if result is None:
        return join(element("td", MISSING, class_="found"), element("td"), element("td"))
    found = element("td", percent(result.recall), class_="found")
    interval = element("td", f"{percent(result.low)}–{percent(result.high)}", class_="interval")
    difference = points(result, baseline)
    sign = None if not difference else "better" if difference > 0 else "worse"
    return join(found, interval, element("td", signed(difference) if result.baseline else None, class_=sign))


def _times(comparison: Comparison, picture: Picture | None) -> Markup:
    budget = comparison.budgets[-1]
    costs = [cost for name in comparison.strategies if (cost := comparison.cost(name, budget))]
    longest = max(sum(cost.seconds.values()) for cost in costs) or 1.0
    head = element(
        "tr",
        element("th", "Strategy", scope="col", class_="name"),
        *(element("th", part.capitalize(), scope="col", class_=f"key {part}") for part in PARTS),
    )
    rows = [_time_row(cost, longest) for cost in costs]
    return element(
        "section",
        element("h2", f"Where the time goes at {number(budget)} calls"),
        element(
            "p",
            "Milliseconds per query, one query at a time. Solve is what a strategy makes of the scores to go on,"
            " such as a regression; search is all the rest.",
            class_="quiet",
        ),
        element("table", element("thead", head), element("tbody", *rows), class_="times"),
        show(picture) if picture else None,
    )


def _time_row(cost: Result, longest: float) -> Markup:
    parts = {part: cost.seconds.get(part) for part in PARTS}
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
