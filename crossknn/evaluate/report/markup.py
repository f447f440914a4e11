"""HTML in which every text is escaped: only what `element` made counts as HTML."""

from __future__ import annotations

from html import escape

VOID = {"img", "link", "meta", "source"}  # elements without an end


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, /, *children: str | None, **attributes: str | int | None) -> Markup:
    """`<name attributes>children</name>`; None is left out, and any child that is not markup is escaped.

    Attribute names may end in `_` (`class_`), and their other underscores become dashes.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    end = "" if name in VOID else f"</{name}>"
    return Markup(f"<{name}{given}>{join(*children)}{end}")


def join(*children: str | None) -> Markup:
    """The children one after the other, escaped where they are not markup."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children if child))
