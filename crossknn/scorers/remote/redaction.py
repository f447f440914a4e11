"""Masking of secrets in what a server says, whole or in pieces, as they are or encoded."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from html import unescape
from urllib.parse import SplitResult, parse_qsl, unquote

MASK = "•••"
MIN_SECRET = 6  # characters; shorter words are no secrets
PIECE = 8  # characters of a secret that are masked wherever they stand
SPACE_ESCAPES = "nrtbf"
TOKEN = re.compile(  # a character as JSON, URLs and HTML may write it
    r"\\+u[0-9a-fA-F]{4}|\\+x[0-9a-fA-F]{2}|\\+[^\\]|%[0-9a-fA-F]{2}|&#?\w{1,8};|.", re.DOTALL
)


class Redaction:
    """Masks every piece of some secrets.

    A piece counts if it has 8 characters, or half of a shorter secret, with or without white space between them, in
    any case, and escaped as in JSON, URLs or HTML, or in base64 or hexadecimal digits.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self._pieces: dict[int, set[str]] = {}  # by length
        for secret in set(secrets):
            if len(secret) >= MIN_SECRET:
                length = min(PIECE, max(MIN_SECRET, len(secret) // 2))
                for form in encoded_forms(secret.casefold(), secret):
                    found = (form[start : start + length] for start in range(len(form) - length + 1))
                    self._pieces.setdefault(length, set()).update(found)

    def mask(self, text: str) -> str:
        """The text without the secrets."""
        characters = [(plain, found.span()) for found in TOKEN.finditer(text) for plain in decode(found[0])]
        plain = "".join(character for character, _ in characters)
        spans: list[tuple[int, int]] = []  # of the text, ascending
        for start in range(len(plain)):
            for length, pieces in self._pieces.items():
                if plain[start : start + length] in pieces:
                    spans.append((characters[start][1][0], characters[start + length - 1][1][1]))
        masked: list[str] = []
        end = 0
        for first, last in spans:
            if first > end or not masked:
                masked += [text[end:first], MASK]
            end = max(end, last)
        return "".join([*masked, text[end:]])


def decode(token: str) -> str:
    """The characters that a token stands for, in lower case; none for white space."""
    if token.startswith("\\"):
        escaped = token.lstrip("\\")
        plain = chr(int(escaped[1:], 16)) if len(escaped) > 1 else "" if escaped in SPACE_ESCAPES else escaped
    elif token.startswith("%"):
        plain = unquote(token)
    elif token.startswith("&"):
        plain = unescape(token)
    else:
        plain = token
    return "".join(plain.split()).casefold()


def encoded_forms(plain: str, secret: str) -> list[str]:
    """A secret as it is, and encoded, in lower case; base64 depends on where in a text it begins."""
    data = secret.encode()
    forms = [plain, data.hex()]
    for offset in range(3):
        whole = b64encode(b"\0" * offset + data).decode()
        inner = whole[-(-offset * 4 // 3) : len(whole) - (0 if (offset + len(data)) % 3 == 0 else 4)]
        forms += [inner.casefold(), inner.translate(str.maketrans("+/", "-_")).casefold()]
    return forms


def find_secrets(
    headers: Mapping[str, str], plain: Iterable[str], url: SplitResult, proxy: SplitResult | None
) -> set[str]:
    """Every word of headers that are not `plain`, every value of a query string, and what a proxy asks for."""
    words = {word for name, value in headers.items() if name not in plain for word in value.split()} - {"Bearer"}
    words |= {value for _, value in parse_qsl(url.query)}
    return words | ({unquote(proxy.username or ""), unquote(proxy.password or "")} if proxy else set())
