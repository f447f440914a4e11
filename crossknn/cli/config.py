"""`crossknn.toml`: a corpus, its models, fields, search settings and limits, which stand in for options not given."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, Final, Self

from typer import Context, Option

from crossknn.errors import InputError

FILE_NAME: Final = "crossknn.toml"
MAX_BYTES: Final = 1 << 14  # dotted keys take time that grows with the square of their length
PATHS: Final = ("scorer", "encoder", "cache")  # keys that may name a file or folder
SECRET: Final = re.compile(r"key|token|secret|passw|credential|authorization|headers?$", re.IGNORECASE)
SERVER_URL: Final = re.compile(r"https?://", re.IGNORECASE)
CORPUS_SUFFIXES: Final = (".ck", ".jsonl", ".json", ".csv", ".tsv", ".parquet", ".txt", ".gz")
# By table, the keys and the options that they stand for.
OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "models": {
        key: key
        for key in (
            *("scorer", "encoder", "device", "dtype", "template", "instruction", "true_token", "false_token"),
            *("long_items", "max_item_chars", "fallback_score", "cache"),
            *("price_per_1000", "price_per_million_tokens", "spend_limit"),
        )
    },
    "fields": {"id": "id_field", "text": "text_field", "keep": "field"},
    "search": {
        key: key
        for key in (
            *("k", "budget", "strategy", "rounds", "retriever", "stop_at", "deadline", "rank_by"),
            *("min_score", "min_probability", "diversity"),
        )
    },
    "limits": {
        key: key
        for key in (
            *("max_k", "max_budget", "max_queries", "max_pairs", "max_filter_ids", "max_text_bytes", "max_body_bytes"),
            *("max_deadline", "max_connections", "workers", "waiting", "batch", "header_timeout", "body_timeout"),
            *("write_timeout", "scorer_timeout"),
        )
    },
}
TABLES: Final = {  # by command, what it takes
    "build": ("models", "fields"),
    "plan": ("models", "fields"),
    "add": ("models", "fields"),
    "learn": ("models",),
    "score": ("models",),
    "match": ("models", "fields"),
    "search": ("models", "fields", "search"),
    "serve": ("models", "fields", "limits"),
    "mcp": ("models", "fields"),
}
CORPUS: Final = {
    "match": "corpus",
    "search": "corpus",
    "serve": "corpus",
    "mcp": "corpus",
    "info": "folder",
    "learn": "folder",
}  # by command, the argument


@dataclass(frozen=True)
class Config:
    """The content of a file.

    Attributes:
        path: The file.
        corpus: An index, or a file of items.
        options: By table, the values of options by name.
    """

    path: Path
    corpus: Path | None
    options: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, path: Path) -> Self:
        """The file, if it holds known keys only."""
        content = _parse(path)
        known = ["corpus", *OPTIONS]
        for name, value in content.items():
            if name not in known:
                raise _unknown(path, name, known)
            if name != "corpus" and not isinstance(value, dict):
                raise InputError(f"{path}: {name} must be a table, [{name}].")
        corpus = content.pop("corpus", None)
        if corpus is not None and (not isinstance(corpus, str) or "\0" in corpus):
            raise InputError(f"{path}: corpus must be the path of an index or of items, in quotes.")
        options = {table: _read_table(path, table, values) for table, values in content.items()}
        return cls(path, None if corpus is None else path.parent / corpus, options)

    def defaults(self, command: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        """The values of the command's parameters, whose names `parameters` has by the names of their options."""
        found: dict[str, Any] = {}
        for table in TABLES.get(command, ()):
            for option, value in self.options.get(table, {}).items():
                if option in parameters:
                    found[parameters[option]] = value
        if self.corpus is not None and command in CORPUS:
            found[CORPUS[command]] = str(self.corpus)
        return found


def configurable(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option --config, and with the file's values for options that are not given."""

    @wraps(command)
    def run(*, config_file: Path | None, **values: Any) -> None:  # noqa: ARG001
        command(**values)

    parameters = list(signature(command, eval_str=True).parameters.values())
    parameters.append(Parameter("config_file", Parameter.KEYWORD_ONLY, default=None, annotation=_CONFIG))
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = signature(command).replace(  # type: ignore[attr-defined]
        parameters=[parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
    )
    return run


def complete(context: Context) -> None:
    """Settle, after a command line was read, what the file's corpus and fields stand for."""
    name, values = str(context.command.name), context.params
    config = context.meta.get(FILE_NAME)
    if not isinstance(config, Config):
        return
    if name == "search" and config.corpus is not None and not _from_file(context, "corpus"):
        first = str(values["corpus"])
        if not _is_path(first):  # it is a query, and the corpus is the file's
            values["queries"] = [first, *(values["queries"] or [])]
            values["corpus"] = config.corpus
    scorer = str(values.get("scorer"))
    if _from_file(context, "scorer") and SERVER_URL.match(scorer):
        from crossknn.cli.console import say

        if values.get("config_file") is None:  # it may have come with the folder
            raise InputError(
                f"{config.path}: models.scorer is a server, which gets queries, items and the key. "
                f"Name the file, --config {config.path}, or the server, --scorer {scorer}."
            )
        say(f"scorer of {config.path}: {scorer}")
    if values.get("example") and _from_file(context, "corpus"):
        values["corpus"] = None
    corpus = values.get("corpus")
    if isinstance(corpus, Path) and os.path.lexists(corpus / "index.json"):  # an index has read its items
        for field in OPTIONS["fields"].values():
            if _from_file(context, field):
                values[field] = None


def _load(context: Context, path: Path | None) -> Path | None:
    """Take the file's values as the defaults of the command's options."""
    if context.resilient_parsing:
        return path
    chosen = Path(FILE_NAME) if path is None and os.path.lexists(FILE_NAME) else path
    if chosen is not None:
        config = Config.read(chosen)
        context.meta[FILE_NAME] = config
        context.default_map = config.defaults(str(context.command.name), _parameters(context))
    return path


_CONFIG = Annotated[
    Path | None,
    Option(
        "--config",
        metavar="FILE",
        callback=_load,
        is_eager=True,
        help=f"File of options: corpus, models, fields, limits. Default: {FILE_NAME}, if there is one.",
    ),
]


def explain_invalid(context: Context, error: Any) -> InputError | None:
    """The error for a value of the file that an option does not take; None for one of the command line."""
    config, parameter = context.meta.get(FILE_NAME), getattr(error, "param", None)
    if not isinstance(config, Config) or parameter is None or not _from_file(context, str(parameter.name)):
        return None
    names = {parameter: option for option, parameter in _parameters(context).items()}
    keys = {option: f"{table}.{key}" for table, keys in OPTIONS.items() for key, option in keys.items()}
    key = keys.get(names.get(str(parameter.name), ""), "corpus")
    return InputError(f"{config.path}: {key} is not valid: {error.message}")


def _parameters(context: Context) -> dict[str, str]:
    """The parameters of the command by their options, without dashes."""
    named = [(max(one.opts, key=len), str(one.name)) for one in context.command.params]
    return {option.lstrip("-").replace("-", "_"): name for option, name in named if option.startswith("-")}


def _from_file(context: Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "DEFAULT_MAP"


def _is_path(text: str) -> bool:
    """Whether an argument is, or should be, the path of a corpus rather than a query."""
    if os.path.lexists(text):
        return True
    return not re.search(r"\s", text) and (os.sep in text or text.endswith(CORPUS_SUFFIXES))


def _parse(path: Path) -> dict[str, Any]:
    import tomllib

    from crossknn.storage.regular_files import open_regular

    try:
        with open_regular(path) as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file. Give a TOML file with --config.") from error
    if len(content) > MAX_BYTES:
        raise InputError(f"{path}: has more than {MAX_BYTES:,} bytes.")
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # of TOML, of UTF-8, or of a number of thousands of digits
        raise InputError(f"{path}: is no TOML file ({error}).") from None


def _read_table(path: Path, table: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a table as options take them."""
    keys = OPTIONS[table]
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key not in keys:
            raise _unknown(path, f"{table}.{key}", [f"{table}.{one}" for one in keys])
        found[keys[key]] = _read_value(path, f"{table}.{key}", value)
    return found


def _read_value(path: Path, name: str, value: Any) -> Any:
    table, _, key = name.partition(".")
    if name in ("fields.text", "fields.keep"):
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not names or not all(isinstance(one, str) for one in names):
            raise InputError(f"{path}: {name} must be the name of a field, or a list of names.")
        return names
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"{path}: {name} must be a text or a number, got {type(value).__name__}.")
    if isinstance(value, int) and abs(value) > sys.maxsize:
        raise InputError(f"{path}: {name} must be a number of at most 64 bits.")
    if isinstance(value, str) and "\0" in value:
        raise InputError(f"{path}: {name} must not contain a zero character.")
    if table == "models" and key in PATHS and isinstance(value, str):
        return _resolve(path, name, value)
    return str(value)


def _resolve(path: Path, name: str, value: str) -> str:
    """A file or folder relative to that of `path`; any other name as it is."""
    if SERVER_URL.match(value):
        if re.search(r"[@?]", value.partition("#")[0]):
            raise InputError(
                f"{path}: {name} must be a URL without a user, a password or a query, which may be secret: give such a "
                "URL in the environment, as CROSSKNN_SCORER."
            )
        return value
    inside = path.parent / value
    return str(inside) if name == "models.cache" or inside.is_dir() else value


def _unknown(path: Path, name: str, known: list[str]) -> InputError:
    shown = name if name.isprintable() and len(name) <= 80 else ascii(name)[:80]
    if SECRET.search(name):
        return InputError(
            f"{path}: {shown} is not read: the file never holds keys. Set the environment variable CROSSKNN_API_KEY."
        )
    elsewhere = [f"{table}.{key}" for table, keys in OPTIONS.items() for key in keys]
    near = get_close_matches(name, [*known, *elsewhere], n=1, cutoff=0.0)
    last = name.rpartition(".")[2]
    near = [one for one in elsewhere if one.rpartition(".")[2] == last] or near
    return InputError(f"{path}: unknown key {shown}. The nearest is {near[0]}.")
