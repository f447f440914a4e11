"""docs/ablations.md: its tables are those of the result files."""

from benchmarks import ablation_page
from benchmarks.tables import fill


def test_the_tables_are_those_of_the_result_files():
    page = ablation_page.PAGE.read_text(encoding="utf-8")
    assert fill(page, ablation_page.tables()) == page
    assert page.count("| posterior, prior |") == 7  # strategies, five numbers of rounds, quality
