"""The sections of the page about quality and about the studies: a picture each, and its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from crossknn.evaluate.compare import Quality
from crossknn.evaluate.comparison import Comparison
from crossknn.evaluate.report.findings import name_peaks
from crossknn.evaluate.report.format import number, percent
from crossknn.evaluate.report.markup import Markup, element
from crossknn.evaluate.report.pictures import Picture, show
from crossknn.evaluate.study_results import STEPS, Indexed, Point, Studies, Sweep


def quality_section(comparison: Comparison, pictures: Mapping[str, Picture]) -> Markup | None:
    """How relevant what was found is; None where nobody judged it."""
    if not comparison.quality:
        return None
    return element(
        "section",
        element("h2", "How relevant it is"),
        element("p", "By the judgments of the data. Exact search shows what the cross-encoder itself is worth."),
        show(pictures["quality"]) if "quality" in pictures else None,
        scrolling("Quality", _quality_table(comparison)),
    )


def study_sections(studies: Studies, pictures: Mapping[str, Picture]) -> Iterator[Markup]:
    """What was studied beyond budgets, and in one line what could not be."""
    if studies.rounds:
        yield _sweep_section("How many rounds", studies.rounds, "rounds", pictures["rounds"])
    if studies.mix:
        yield _sweep_section("How much of the encoder’s vector", studies.mix, "λ", pictures["mix"])
    if studies.sampling:
        chosen = [pictures[name] for name in ("sampling", "indexing", "steps") if name in pictures]
        yield element(
            "section",
            element("h2", "What offline calls are worth"),
            element("p", name_peaks(studies.sampling.calls, "offline calls per item")),
            *map(show, chosen),
            _numbers(_sweep_table(studies.sampling.calls), _index_table(studies.sampling.indexes)),
        )
    if studies.distributions:
        heading = element("h2", "Scores and similarities")
        yield element("section", heading, show(pictures["distributions"]))
    if studies.left_out:
        reasons = "; ".join(f"{name}, for {reason}" for name, reason in studies.left_out.items())
        yield element("p", f"Left out: {reasons}.", class_="quiet note")


def scrolling(label: str, table: Markup) -> Markup:
    """A table that scrolls in its own place where it is too wide."""
    return element("div", table, class_="scroll", role="region", aria_label=label, tabindex=0)


def _sweep_section(title: str, sweep: Sweep, setting: str, picture: Picture) -> Markup:
    return element(
        "section",
        element("h2", title),
        element("p", name_peaks(sweep, setting)),
        show(picture),
        _numbers(_sweep_table(sweep)),
    )


def _numbers(*tables: Markup) -> Markup:
    return element("details", element("summary", "Numbers"), *(scrolling("Numbers", table) for table in tables))


def _sweep_table(sweep: Sweep) -> Markup:
    """A row for each strategy and a column for each value, k by k; what has no values has one wide column."""
    values = [point.at for point in sweep.curves[0].points]
    bodies = []
    for k in dict.fromkeys(curve.k for curve in sweep.curves):
        rows = [_row(curve.strategy, *map(_cell, curve.points)) for curve in sweep.curves if curve.k == k]
        rows += [_row(level.strategy, _cell(level.points[0], len(values))) for level in sweep.levels if level.k == k]
        bodies.append(element("tbody", _heading(f"True top {k}", len(values) + 1), *rows))
    return _table("Found, %", [f"{value:.3g}" for value in values], bodies)


def _cell(point: Point, columns: int = 1) -> Markup:
    interval = element("small", f" {percent(point.low)}–{percent(point.high)}", class_="interval")
    return element("td", percent(point.recall), interval, colspan=columns if columns > 1 else None)


def _index_table(indexes: Sequence[Indexed]) -> Markup:
    steps = [step for step in STEPS if any(step in index.seconds for index in indexes)]
    rows = [
        _row(
            f"{index.sampling}, {index.calls_per_item:.3g} calls per item",
            element("td", number(index.calls)),
            *(element("td", f"{index.seconds[step]:,.2f}") for step in steps),
        )
        for index in sorted(indexes, key=lambda index: index.sampling)
    ]
    return _table("Pairs chosen", ["calls", *(f"{step}, s" for step in steps)], [element("tbody", *rows)])


def _quality_table(comparison: Comparison) -> Markup:
    """Every strategy within every budget, and exact search last."""
    measures = list(comparison.quality[0].values)
    bodies = []
    for budget in [*comparison.budgets, None]:
        rows = [_quality_row(one) for one in comparison.quality if one.budget == budget]
        title = "Exact search" if budget is None else f"Budget: {number(budget)} calls"
        bodies.append(element("tbody", _heading(title, len(measures) + 1), *rows))
    return _table("Strategy", measures, bodies)


def _quality_row(one: Quality) -> Markup:
    return _row(one.strategy, *(element("td", f"{value:.3f}") for value in one.values.values()))


def _table(first: str, heads: Sequence[str], bodies: Sequence[Markup]) -> Markup:
    columns = [element("th", head, scope="col") for head in heads]
    head = element("tr", element("th", first, scope="col", class_="name"), *columns)
    return element("table", element("thead", head), *bodies, class_="results")


def _heading(title: str, columns: int) -> Markup:
    named = element("th", element("span", title), scope="rowgroup", colspan=columns, class_="name")
    return element("tr", named, class_="budget")


def _row(name: str, *cells: Markup) -> Markup:
    return element("tr", element("th", name, scope="row", class_="name"), *cells)
