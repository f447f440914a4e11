"""The report as files: a self-contained HTML page, its figures as PNG, and the numbers as JSON."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from crossknn._imports import import_extra
from crossknn.evaluate.comparison import TIME_PARTS, Comparison
from crossknn.evaluate.measures import DRAWS, LEVEL, MIN_QUERIES
from crossknn.evaluate.quality import best_first_stage, gains
from crossknn.evaluate.report import findings, formats
from crossknn.evaluate.report.plots import Plot, make_plots
from crossknn.storage.atomic import disk_errors, write_atomic

FORMATS: Final = (
    "decimals",
    "percent",
    "number",
    "short",
    "milliseconds",
    "signed",
    "value",
)  # filters of the template


def write_report(comparison: Comparison, folder: str | Path) -> Path:
    """Write `report.html`, `results.json`, and as PNG the recall, its reliability and each study into `folder`.

    The folder is created if it does not exist. Each file replaces an older one atomically.

    Returns:
        The path of the page.
    """
    folder, plots = Path(folder), make_plots(comparison)
    contents = {
        "results.json": json.dumps(comparison.to_json(), indent=1, ensure_ascii=False, allow_nan=False).encode(),
        **{f"{name}.png": plot.render("png") for name, plot in plots.items()},
        "report.html": render_page(comparison, plots).encode(),
    }
    with disk_errors(folder, "the report cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            write_atomic(folder / name, content)
    return folder / "report.html"


def render_page(comparison: Comparison, plots: Mapping[str, Plot] | None = None) -> str:
    """The HTML page, which loads nothing from elsewhere; with these plots, if they are drawn already."""
    jinja2 = import_extra("jinja2", extra="report")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {name: getattr(formats, name) for name in FORMATS} | {"embed": _embed}
    page: str = environment.get_template("page.html.j2").render(
        comparison=comparison,
        plots=make_plots(comparison) if plots is None else plots,
        studies=comparison.studies,
        findings=findings,
        gains=gains(comparison.quality) if comparison.quality else [],
        first_stage=best_first_stage(comparison.quality),
        facts=_facts(comparison),
        costs=_costs(comparison.attainable),
        time_parts=TIME_PARTS,
        draws=DRAWS,
        min_queries=MIN_QUERIES,
        confidence=f"{100 * LEVEL:.0f}{formats.PERCENT}",
    )
    return page


def _embed(plot: Plot) -> str:
    """The figure as a data URL."""
    return f"data:image/svg+xml;base64,{b64encode(plot.render('svg')).decode()}"


def _facts(comparison: Comparison) -> dict[str, Any]:
    """What is known about the run, by name."""
    facts: dict[str, Any] = {"items": comparison.items, **comparison.data}
    if comparison.speed:
        facts["scorer time"] = f"{formats.describe_speed(comparison.speed)}, because scores were cached"
    return facts


def _costs(comparison: Comparison) -> list[dict[str, Any]]:
    """The time of each strategy at the largest budget, and the length of its bars in percent of the longest."""
    found = (comparison.cost(name, comparison.budgets[-1]) for name in comparison.strategies)
    results = [result for result in found if result]
    longest = max(sum(result.seconds.values()) for result in results) or 1.0
    return [
        {"result": result, "widths": {part: 100 * result.seconds.get(part, 0.0) / longest for part in TIME_PARTS}}
        for result in results
    ]
