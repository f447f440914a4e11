"""The benchmark of faults counts what is lost, whatever a trial raises."""

import pytest

from benchmarks.fault_tables import fault_rows
from benchmarks.faults.report import Lost, Report, expect


def test_what_holds_and_what_is_lost_is_counted():
    report = Report()
    report.group = "kills"

    def lose():
        expect(1 + 1 == 2, "arithmetic")
        expect(False, "the index is another")

    report.try_all("build", [lambda: "resumed", lambda: "resumed", lambda: None, lose, lambda: 1 / 0])
    report.skip("teach", "no encoder")
    built, taught = report.rows()
    assert (built["tried"], built["held"], built["lost"]) == (5, 3, 2)
    assert built["outcomes"] == {"resumed": 2}
    assert {message.split("(")[0] for message in built["messages"]} == {"the index is another", "ZeroDivisionError"}
    assert (taught["tried"], taught["skipped"]) == (0, "no encoder")
    assert [row[1:] for row in fault_rows(report.rows())] == [["1", "5", "3", "2"]] * 2


def test_a_loss_is_an_exception_of_its_own():
    with pytest.raises(Lost, match="nothing there"):
        expect([], "nothing there")
