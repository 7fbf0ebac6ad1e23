"""A data directory that is damaged, foreign or open to others."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stowplan.apiserver import ApiServer, Request, Response
from stowplan.apiserver.durable import FILE, DurableStore
from stowplan.errors import InputError

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


async def fill(folder: Path, count: int = 300) -> list[dict[str, object]]:
    store = DurableStore(folder)
    server = ApiServer(store)
    for start in range(0, count, 50):
        bodies = [
            {"metadata": {"name": f"m{number}"}, "data": {"x": f"{number}" * 100}}
            for number in range(start, start + 50)
        ]
        await asyncio.gather(*(server.handle(Request.of("POST", CONFIG_MAPS, body)) for body in bodies))
    found = await items(server)
    store.close()
    return found


async def items(server: ApiServer) -> list[dict[str, object]]:
    answer = await server.handle(Request.of("GET", CONFIG_MAPS))
    assert isinstance(answer, Response)
    found: list[dict[str, object]] = answer.json()["items"]
    return found


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, object]]]:
    folder = tmp_path_factory.mktemp("filled")
    return folder, asyncio.run(fill(folder))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def truncate_to_pages(path: Path) -> None:
    os.truncate(path, 4096 * 5)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def zero_a_page(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(bytes(4096))


def write_text(path: Path) -> None:
    path.write_text("notes\n")


def other_program(path: Path) -> None:
    path.unlink()
    database = sqlite3.connect(path)
    database.execute("create table songs (name text)")
    database.commit()
    database.close()


def other_columns(path: Path) -> None:
    path.unlink()
    database = sqlite3.connect(path)
    database.execute("create table objects (name text, body blob)")
    database.commit()
    database.close()


def flip_a_value(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b"100" * 100) + 50] ^= 0x02  # a digit that is still a digit
    path.write_bytes(data)


def make_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


HARMS = [
    truncate, truncate_to_pages, empty, zero_a_page, write_text, other_program, other_columns, flip_a_value,
    make_a_folder, make_a_pipe,
]  # fmt: skip


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_database_is_named_and_left_alone(
    filled: tuple[Path, object], tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    path = tmp_path / "data" / FILE
    shutil.copytree(filled[0], path.parent)
    harm(path)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(InputError) as error:
        DurableStore(path.parent)
    assert str(path) in str(error.value)
    assert "move it away" in str(error.value) or "restore" in str(error.value)
    assert (path.read_bytes() if path.is_file() else b"") == before
    others = [each for each in path.parent.iterdir() if each.name != FILE]
    # From Python 3.12 on SQLite does not clean up, which might change the database: its empty log stays.
    assert [(each.name, each.stat().st_size) for each in others] in ([], [(f"{FILE}-wal", 0)])


def test_flipped_bits_are_noticed_or_harmless(
    filled: tuple[Path, list[dict[str, object]]], tmp_path: Path
) -> None:
    """Whichever byte is damaged, no object silently becomes another one."""
    draw = random.Random(1)
    path = tmp_path / FILE
    original = (filled[0] / FILE).read_bytes()
    noticed = 0
    for _ in range(150):
        data = bytearray(original)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        try:
            store = DurableStore(tmp_path)
        except InputError as error:
            assert str(path) in str(error)  # noqa: PT017  not every flip does harm
            noticed += 1
            continue
        assert asyncio.run(items(ApiServer(store))) == filled[1]
        store.close()
    assert noticed > 50


def test_a_log_without_its_database_is_not_mixed_into_a_new_one(tmp_path: Path) -> None:
    (tmp_path / f"{FILE}-wal").write_bytes(b"what was not yet copied")
    with pytest.raises(InputError, match="without its database"):
        DurableStore(tmp_path)
    assert (tmp_path / f"{FILE}-wal").read_bytes() == b"what was not yet copied"


async def test_a_database_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    kept = await fill(tmp_path, 50)
    database = sqlite3.connect(tmp_path / FILE)
    database.executescript(
        """
        create table older (
            collection text, namespace text, name text, body blob, primary key (collection, namespace, name)
        ) without rowid;
        insert into older select collection, namespace, name, body from objects;
        drop table objects;
        alter table older rename to objects;
        pragma application_id = 0;
        """
    )
    database.close()
    for _ in range(2):
        store = DurableStore(tmp_path)
        assert await items(ApiServer(store)) == kept
        store.close()


def test_up_says_what_is_damaged_without_a_traceback(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / FILE).write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    command = [str(Path(sys.executable).with_name("stowplan")), "up", "--data", str(data)]
    command += ["--kubeconfig", str(tmp_path / "kubeconfig")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode not in (0, -9)
    assert "Traceback" not in done.stderr
    assert str(data / FILE) in done.stderr
    assert "restore a backup" in done.stderr


# Who may read it.


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("is_there", [False, True])
async def test_only_its_owner_can_read_the_data(tmp_path: Path, is_there: bool) -> None:
    folder = tmp_path / "data"
    before = os.umask(0)
    try:
        if is_there:
            await fill(folder, 50)
            shutil.copy(folder / FILE, folder / f"{FILE}-copy")
            for each in (folder, *folder.iterdir()):
                each.chmod(0o777)
        store = DurableStore(folder)
        ApiServer(store)
        assert mode(folder) == 0o700
        found = {each.name: mode(each) for each in folder.iterdir() if not each.name.endswith("copy")}
        assert f"{FILE}-wal" in found
        assert set(found.values()) == {0o600}
        store.close()
    finally:
        os.umask(before)


def test_a_log_left_by_a_kill_is_closed_to_others(tmp_path: Path) -> None:
    code = f"""
import os, pathlib
os.umask(0)
from stowplan.apiserver import ApiServer
from stowplan.apiserver.durable import DurableStore
ApiServer(DurableStore(pathlib.Path({str(tmp_path)!r})))
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    for each in tmp_path.iterdir():
        each.chmod(0o644)
    store = DurableStore(tmp_path)
    assert {mode(each) for each in tmp_path.iterdir()} == {0o600}
    store.close()


def test_a_directory_that_others_use_is_not_taken_from_them(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("x")
    tmp_path.chmod(0o777)
    with pytest.raises(InputError, match="others may write"):
        DurableStore(tmp_path)
    assert mode(tmp_path) == 0o777
    tmp_path.chmod(0o755)
    DurableStore(tmp_path).close()
    assert mode(tmp_path) == 0o755
    assert mode(tmp_path / FILE) == 0o600


def test_a_database_is_not_followed_through_a_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    data = tmp_path / "data"
    data.mkdir()
    (data / FILE).symlink_to(target)
    with pytest.raises(InputError, match="regular file"):
        DurableStore(data)
    assert not target.exists()
    target.write_text("x")
    target.chmod(0o644)
    with pytest.raises(InputError, match="regular file"):
        DurableStore(data)
    assert mode(target) == 0o644
