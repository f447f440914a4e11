"""Damage to every file of an index and of a work folder."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import crossknn as ck
from benchmarks.faults.commands import run, server
from benchmarks.faults.kills import hits_of
from benchmarks.faults.report import Lost, Report, expect
from benchmarks.faults.world import BUDGET, MODELS, TAUGHT, World, content, copy, work_of
from crossknn.errors import CrossKnnError, InputError
from crossknn.models.hub import EMBEDDED
from crossknn.storage.atomic_dir import read_folder, write_folder

ANSWER_SECONDS = 60.0  # after which looking at an index counts as hung
STRANGE: tuple[Any, ...] = (None, -1, 0, 2**31, 2**63, 1e308, "", "x", [], {}, [[[[]]]], True, "é" * 1000)


def flip_bit(data: bytes, moments: random.Random) -> bytes:
    place = moments.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << moments.randrange(8)]) + data[place + 1 :]


def cut_short(data: bytes, moments: random.Random) -> bytes:
    return data[: moments.randrange(len(data))]


def zero_block(data: bytes, moments: random.Random) -> bytes:
    start = moments.randrange(len(data))
    length = min(len(data) - start, moments.choice([1, 64, 4096]))
    return data[:start] + bytes(length) + data[start + length :]


def append_bytes(data: bytes, moments: random.Random) -> bytes:
    return data + moments.randbytes(moments.choice([1, 8, 4096]))


IN_PLACE = {"bit flipped": flip_bit, "cut short": cut_short, "block zeroed": zero_block, "bytes appended": append_bytes}


def damage(path: Path, how: str, moments: random.Random) -> None:
    if how in IN_PLACE:
        path.write_bytes(IN_PLACE[how](path.read_bytes(), moments))
        return
    path.unlink()
    if how == "a folder in its place":
        path.mkdir()


HOW = (*IN_PLACE, "missing", "a folder in its place")


def try_damage(report: Report, world: World) -> None:
    sources = {"index": world.built("plain"), "index with an adapter": world.built("taught", *TAUGHT)}
    times = 1 if world.quick else 8
    inspectors = Inspectors(world, report.workers)
    for name, source in sources.items():
        report.try_all(name, index_trials(world, inspectors, source, times if name == "index" else times // 2 or 1))
    source = sources["index"]
    report.try_all("index, its checksums made right", crafted_trials(world, inspectors, source, 6 * times))
    report.try_all("index, facts changed", facts_trials(world, inspectors, source, 12 * times))
    inspectors.close()
    report.try_all("index, on the command line", command_trials(world, source))
    for name, source in sources.items():
        options = TAUGHT if name != "index" else ()
        report.try_all(name.replace("index", "work folder"), work_trials(world, source, options))
    report.try_all("cache", cache_trials(world, sources["index"], times))


class Inspectors:
    """Processes that open, verify and search indexes; one that dies or hangs is a loss."""

    def __init__(self, world: World, count: int) -> None:
        self._world, self._free = world, SimpleQueue[tuple[Any, Connection]]()
        for _ in range(count):
            self._free.put(self._start())

    def look(self, folder: Path) -> tuple[str, Any]:
        """What verification says, and the hits, or why there are none."""
        process, pipe = self._free.get()
        try:
            pipe.send(folder)
            if not pipe.poll(ANSWER_SECONDS):
                raise Lost(f"opening {folder.name} hung")
            found: tuple[str, Any] = pipe.recv()
        except (Lost, EOFError, OSError) as error:
            process.kill()
            process.join()
            process, pipe = self._start()
            raise Lost(f"the process that opened {folder.name} ended: {error!r}") from error
        finally:
            self._free.put((process, pipe))
        return found

    def close(self) -> None:
        while not self._free.empty():
            process, _ = self._free.get()
            process.kill()
            process.join()

    def _start(self) -> tuple[Any, Connection]:
        ours, theirs = server.Pipe()
        process = server.Process(target=_inspect, args=(theirs, self._world.queries))
        process.start()
        theirs.close()
        return process, ours


def _inspect(pipe: Connection, queries: list[str]) -> None:
    models = {"scorer": ck.CrossEncoder(EMBEDDED, device="cpu"), "encoder": ck.SentenceEncoder(EMBEDDED, device="cpu")}
    while True:
        folder = pipe.recv()
        pipe.send((_verify(folder), _search(folder, queries, models)))


def _verify(folder: Path) -> str:
    try:
        ck.Index.load(folder).verify()
    except InputError as error:
        return f"refused: {error}"
    except Exception as error:
        return f"raised {error!r}"
    return "whole"


def _search(folder: Path, queries: list[str], models: dict[str, Any]) -> Any:
    try:
        searcher = ck.Searcher(ck.Index.load(folder), **models, device="cpu")
        found = searcher.search_many(queries, k=10, budget=BUDGET)
    except CrossKnnError as error:
        return f"refused: {error}"
    except Exception as error:
        return f"raised {error!r}"
    return [[(hit.id, round(hit.score, 5)) for hit in hits] for hits in found]


def index_trials(world: World, inspectors: Inspectors, source: Path, times: int) -> Iterator[Callable[[], str]]:
    """Every file, damaged in every way, some ways several times."""
    hits = world.hits(source)

    def trial(file: Path, how: str, number: int) -> str:
        folder = world.path(f"damaged-{source.stem}-{file.name}-{how}-{number}")
        shutil.copytree(source, folder)
        damage(folder / file.name, how, random.Random(f"{world.seed} {folder.name}"))
        verified, found = inspectors.look(folder)
        shutil.rmtree(folder)
        what = f"{file.name}, {how}, try {number}"
        if verified == "whole":
            expect(found == hits, f"{what}: verified as whole, but the hits are others: {found!s:.300}")
            return "the same hits"
        expect(verified.startswith("refused"), f"{what}: verification {verified}")
        expect(str(folder) in verified, f"{what}: the refusal names no file: {verified}")
        expect(not str(found).startswith("raised"), f"{what}: a search {found}")
        return "refused"

    for file in sorted(source.iterdir()):
        for how in HOW if not file.name.startswith(".") else ():
            for number in range(times if how in IN_PLACE else 1):
                yield partial(trial, file, how, number)


def crafted_trials(world: World, inspectors: Inspectors, source: Path, times: int) -> Iterator[Callable[[], str]]:
    """Files that are damaged before their checksums are computed: refused, or searched without a crash."""
    opened = read_folder(source)

    def trial(name: str, number: int) -> str:
        folder = world.path(f"crafted-{name}-{number}")
        moments = random.Random(f"{world.seed} {folder.name}")

        def write(path: Path, of: Path, *, bad: bool) -> None:
            data = of.read_bytes()
            path.write_bytes(IN_PLACE[moments.choice(list(IN_PLACE))](data, moments) if bad else data)

        files = {other: partial(write, of=path, bad=other == name) for other, path in opened.files.items()}
        with suppress(InputError):  # the writer reads what it has written
            write_folder(folder, opened.facts, files)
        return _survives(inspectors, folder)

    for name in opened.files:
        for number in range(times):
            yield partial(trial, name, number)


def facts_trials(world: World, inspectors: Inspectors, source: Path, times: int) -> Iterator[Callable[[], str]]:
    """A strange value in the place of one fact of the manifest, with the right checksum."""
    opened = read_folder(source)

    def trial(number: int) -> str:
        folder = world.path(f"facts-{number}")
        moments = random.Random(f"{world.seed} {folder.name}")
        facts = json.loads(json.dumps(opened.facts))
        place, keys = facts, []
        while True:
            keys.append(moments.choice(list(place)))
            inner = place[keys[-1]]
            if not isinstance(inner, dict) or not inner or moments.random() < 0.2:
                break
            place = inner
        place[keys[-1]] = moments.choice(STRANGE)
        files = {name: partial(shutil.copyfile, path) for name, path in opened.files.items()}
        with suppress(InputError):
            write_folder(folder, facts, files)
        return _survives(inspectors, folder, f"{'.'.join(keys)} = {place[keys[-1]]!s:.20}")

    for number in range(times):
        yield partial(trial, number)


def _survives(inspectors: Inspectors, folder: Path, what: str = "") -> str:
    verified, found = inspectors.look(folder)
    shutil.rmtree(folder)
    expect(not verified.startswith("raised"), f"{folder.name} {what}: verification {verified}")
    expect(not str(found).startswith("raised"), f"{folder.name} {what}: a search {found}")
    return "refused" if "refused" in (verified[:7], str(found)[:7]) else "searched"


def command_trials(world: World, source: Path) -> Iterator[Callable[[], None]]:
    """`crossknn verify` and `info` end with exit code 2 and one sentence."""

    def trial(file: Path) -> None:
        folder = world.path(f"command-{file.name}")
        shutil.copytree(source, folder)
        damage(folder / file.name, "bit flipped", random.Random(f"{world.seed} {file.name}"))
        outcome = run(["verify", folder], world.logs)
        expect(outcome.code == 2, f"{file.name}: `crossknn verify` ended with {outcome.code}: {outcome.errors[-300:]}")
        expect("Traceback" not in outcome.errors and "error: " in outcome.errors, f"no sentence: {outcome.errors}")
        expect(run(["info", folder], world.logs).code in (0, 2), "`crossknn info` failed")

    for file in sorted(source.iterdir()):
        if not file.name.startswith("."):
            yield partial(trial, file)


def work_trials(world: World, source: Path, options: tuple[object, ...]) -> Iterator[Callable[[], str]]:
    """A build computes again what is damaged, or names the file to delete; then the index is the same."""
    work, whole = work_of(source), content(source)

    def trial(file: Path, how: str) -> str:
        name = str(file.relative_to(work))
        folder = copy(source, world.path(f"work-{source.stem}-{name.replace('/', '-')}-{how}.ck"))
        path = work_of(folder) / name
        damage(path, how, random.Random(f"{world.seed} {path}"))
        verified = run(["verify", folder, "--work-dir", work_of(folder)], world.logs)
        expect(verified.code in (0, 2), f"{name}, {how}: `crossknn verify` ended with {verified.code}")
        shutil.rmtree(folder)
        again = run(world.build(folder, *options), world.logs)
        outcome = "computed again" if again.code == 0 else "refused, then computed again"
        for _ in range(2):  # it may name further files that go with the first
            if again.code == 2:
                expect(path.name in again.errors, f"{name}, {how}: the refusal names no file: {again.errors[-300:]}")
                _delete_named(path.parent, again.errors)
                again = run(world.build(folder, *options), world.logs)
        expect(again.code == 0, f"{name}, {how}: the build ended with {again.code}: {again.errors[-300:]}")
        expect(content(folder) == whole, f"{name}, {how}: another index")
        shutil.rmtree(folder)
        shutil.rmtree(work_of(folder))
        return outcome

    files = [file for file in sorted(work.rglob("*")) if file.is_file() and file.stat().st_size]
    for number, file in enumerate(_sample(files, 4 if world.quick else 10)):
        for how in HOW[number % 2 :: 2] if not world.quick else HOW[number : number + 1]:
            yield partial(trial, file, how)


def _delete_named(folder: Path, message: str) -> None:
    """Do what a refusal says: delete the files that it names."""
    for path in folder.iterdir():
        if re.search(rf"{re.escape(path.name)}(?![\w.]*\w)", message):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def cache_trials(world: World, index: Path, times: int) -> Iterator[Callable[[], str]]:
    """A search with a damaged cache finds the same hits, or names the cache."""
    whole = world.path("undamaged.db")
    options = ["--queries", world.path("test.txt"), "--budget", BUDGET, *MODELS, "--json", "--cache"]
    wanted = hits_of(run(["search", index, *options, whole], world.logs).output)

    def trial(how: str, number: int) -> str:
        cache = world.path(f"damaged-{how}-{number}.db")
        shutil.copyfile(whole, cache)
        damage(cache, how, random.Random(f"{world.seed} {cache.name}"))
        outcome = run(["search", index, *options, cache], world.logs)
        if outcome.code == 2:
            expect(cache.name in outcome.errors, f"{how}: the refusal names no file: {outcome.errors[-300:]}")
            return "refused"
        expect(outcome.code == 0, f"{how}: the search ended with {outcome.code}: {outcome.errors[-300:]}")
        expect(hits_of(outcome.output) == wanted, f"{how}, try {number}: other hits from a damaged cache")
        return "the same hits"

    for how in HOW:
        for number in range(times if how in IN_PLACE else 1):
            yield partial(trial, how, number)


def _sample(files: list[Path], most: int) -> list[Path]:
    """One file of each kind, by its suffix and folder, then others."""
    kinds = {(file.suffix, file.parent): file for file in files}
    return [*kinds.values(), *(file for file in files if file not in kinds.values())][:most]
