"""Files: read once and whole, no output is lost."""

import errno
import os
import tempfile
import threading
from pathlib import Path

import pytest

from anonface.errors import ImageError, OutputError
from anonface.images import check_output, files, read_file, write_atomic, write_together


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_file_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"first")
    looks = iter([file.stat(), os.stat_result((*file.stat()[:6], 9, *file.stat()[7:]))])
    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", lambda descriptor: next(looks))
        with pytest.raises(ImageError, match="changed while it was read"):
            read_file(file)
    assert read_file(file) == b"first"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.jpg", "nul\0.jpg"):
        with pytest.raises(ImageError, match="cannot be read"):
            read_file(path)


def test_writes_and_refuses_to_overwrite(tmp_path: Path) -> None:
    file = tmp_path / "out.png"
    write_atomic(file, b"one")
    with pytest.raises(OutputError, match="exists"):
        write_atomic(file, b"two")
    assert file.read_bytes() == b"one"
    file.chmod(0o640)
    write_atomic(file, b"two", overwrite=True)
    assert file.read_bytes() == b"two" and file.stat().st_mode & 0o777 == 0o640
    assert names(tmp_path) == ["out.png"]


def test_new_files_follow_the_umask(tmp_path: Path) -> None:
    (tmp_path / "reference").touch()
    write_atomic(tmp_path / "out", b"x")
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "reference").stat().st_mode


def test_names_of_any_bytes(tmp_path: Path) -> None:
    for name in (b"caf\xe9\xff.png", b"-x.jpg", b"two\nlines.png", b"n" * 250):
        path = os.fsencode(tmp_path) + b"/" + name
        write_atomic(path, b"data")
        assert read_file(path) == b"data"
        with pytest.raises(OutputError) as caught:
            write_atomic(path, b"data")
        assert caught.value.message.isprintable()
    with pytest.raises(OutputError):
        write_atomic(os.fsencode(tmp_path) + b"/" + b"n" * 300, b"data")


def test_the_input_is_no_output(tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    photo.write_bytes(b"original")
    (tmp_path / "hard.png").hardlink_to(photo)
    (tmp_path / "soft.png").symlink_to(photo)
    for name in ("photo.png", "hard.png", "../" + tmp_path.name + "/photo.png"):
        with pytest.raises(OutputError, match="input itself"):
            check_output(tmp_path / name, [tmp_path / "missing", tmp_path / "soft.png"], overwrite=True)
    for overwrite in (True, False):
        for name in ("soft.png", "dangling.png"):
            (tmp_path / "dangling.png").unlink(missing_ok=True)
            (tmp_path / "dangling.png").symlink_to(tmp_path / "nowhere")
            with pytest.raises(OutputError, match="symbolic link"):
                check_output(tmp_path / name, [photo], overwrite)
            with pytest.raises(OutputError, match="symbolic link"):
                write_atomic(tmp_path / name, b"x", overwrite)
    assert photo.read_bytes() == b"original" and not (tmp_path / "nowhere").exists()


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="no folder"):
        check_output(tmp_path / "missing" / "out.png")
    with pytest.raises(OutputError):
        check_output(tmp_path / "file" / "out.png")
    with pytest.raises(OutputError, match="not a file"):
        check_output(tmp_path, overwrite=True)


def test_a_folder_that_cannot_be_read_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def no_folders(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags == os.O_RDONLY:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", no_folders)
    write_atomic(tmp_path / "out.png", b"data")
    assert (tmp_path / "out.png").read_bytes() == b"data"


def test_a_read_only_folder_is_found_early() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o555)
        was_root = os.getuid() == 0
        if was_root:
            os.setresuid(65534, 65534, 0)
        try:
            with pytest.raises(OutputError, match="not writable"):
                check_output(Path(folder) / "out.png")
        finally:
            if was_root:
                os.setresuid(0, 0, 0)
            Path(folder).chmod(0o755)


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_full_disk_leaves_the_old_file(overwrite: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "out.png"
    if overwrite:
        file.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space"):
        write_atomic(file, b"new", overwrite)
    assert names(tmp_path) == (["out.png"] if overwrite else [])
    if overwrite:
        assert file.read_bytes() == b"old"


def test_a_full_device_is_reported() -> None:
    with pytest.raises(OutputError):
        write_atomic("/dev/full", b"x" * 100, overwrite=True)


@pytest.mark.parametrize("links", [True, False])
def test_of_many_writers_one_wins(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    if not links:
        monkeypatch.setattr(Path, "hardlink_to", refuse)
    file, told, start = tmp_path / "out.png", [], threading.Barrier(8)

    def writer(number: int) -> None:
        start.wait()
        try:
            write_atomic(file, bytes([number]) * 100_000)
        except OutputError:
            told.append(number)

    threads = [threading.Thread(target=writer, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    content = file.read_bytes()
    assert len(told) == 7 and len(content) == 100_000 and len(set(content)) == 1 and content[0] not in told
    assert names(tmp_path) == ["out.png"]


def test_a_kill_leaves_the_old_file_or_the_new(tmp_path: Path) -> None:
    file = tmp_path / "out.png"
    for delay in range(12):
        file.write_bytes(b"old" * 1000)
        child = os.fork()
        if child == 0:
            write_atomic(file, b"new" * 1_000_000, overwrite=True)
            os._exit(0)
        threading.Event().wait(delay * 0.001)
        os.kill(child, 9)
        os.waitpid(child, 0)
        assert file.read_bytes() in (b"old" * 1000, b"new" * 1_000_000)


def test_files_written_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, photo = tmp_path / "a.anf", tmp_path / "a.png"
    write_together([(record, b"record"), (photo, b"photo")])
    assert (record.read_bytes(), photo.read_bytes()) == (b"record", b"photo")
    write_new = files._write_new

    def full(path: Path, data: bytes, mode: int | None) -> None:
        if data == b"new photo":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_new(path, data, mode)

    with monkeypatch.context() as patched:
        patched.setattr(files, "_write_new", full)
        with pytest.raises(OutputError, match=r"a\.png.*No space"):
            write_together([(record, b"new record"), (photo, b"new photo")], overwrite=True)
    assert (record.read_bytes(), photo.read_bytes()) == (b"record", b"photo")
    assert sorted(names(tmp_path)) == ["a.anf", "a.png"]


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_name_lost_to_somebody_else_takes_the_others_back(
    overwrite: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, photo = tmp_path / "a.anf", tmp_path / "a.png"
    write_new = files._write_new

    def overtaken(path: Path, data: bytes, mode: int | None) -> None:
        write_new(path, data, mode)
        if data == b"photo":
            photo.mkdir() if overwrite else photo.write_bytes(b"theirs")

    monkeypatch.setattr(files, "_write_new", overtaken)
    with pytest.raises(OutputError):
        write_together([(record, b"record"), (photo, b"photo")], overwrite)
    assert names(tmp_path) == ["a.png"] and (overwrite or photo.read_bytes() == b"theirs")


def test_without_hard_links_a_kill_leaves_no_empty_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    seen = []
    replace = Path.replace

    def watched(self: Path, target: Path) -> Path:
        seen.append(names(tmp_path))
        return replace(self, target)

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    monkeypatch.setattr(Path, "replace", watched)
    write_atomic(tmp_path / "out.png", b"data")
    assert len(seen) == 1 and "out.png" not in seen[0] and names(tmp_path) == ["out.png"]
    with pytest.raises(OutputError, match="exists"):
        write_atomic(tmp_path / "out.png", b"data")


def test_what_was_replaced_comes_back_if_a_later_file_cannot_be_written(tmp_path, monkeypatch):
    """A record without its photo would be worth nothing, and the photo nothing without its record."""
    record, photo = tmp_path / "a.anf", tmp_path / "a.png"
    for file in (record, photo):
        file.write_bytes(b"old")
    replace = Path.replace

    def failing(self, target):
        if Path(target) == photo:
            raise PermissionError(1, "Operation not permitted")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(OutputError, match="not permitted"):
        write_together([(record, b"new"), (photo, b"new")], overwrite=True)
    assert record.read_bytes() == photo.read_bytes() == b"old"
    monkeypatch.undo()
    write_together([(record, b"new"), (photo, b"new")], overwrite=True)
    assert record.read_bytes() == photo.read_bytes() == b"new"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.anf", "a.png"]
