"""Files that nobody else should read."""

import stat
from pathlib import Path

import pytest

from penstock.machine.private import make_private_file, private_file, private_folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_folder_and_all_in_it_become_private(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "a" / "kv", tmp_path / "elsewhere"
    (folder / "slots").mkdir(parents=True)
    (folder / "slots" / "said").write_text("secret")
    elsewhere.write_text("not ours")
    (folder / "link").symlink_to(elsewhere)
    folder.chmod(0o755)
    before = mode(elsewhere)
    private_folder(folder)
    assert [mode(folder), mode(folder / "slots"), mode(folder / "slots" / "said")] == [0o700, 0o700, 0o600]
    assert mode(elsewhere) == before


def test_new_files_are_private(tmp_path: Path) -> None:
    private_file(tmp_path / "a").close()
    make_private_file(tmp_path / "b")
    assert [mode(tmp_path / name) for name in "ab"] == [0o600, 0o600]
    (tmp_path / "old").write_text("x")
    (tmp_path / "old").chmod(0o644)
    with private_file(tmp_path / "old", "ab") as file:
        file.write(b"y")
    assert (mode(tmp_path / "old"), (tmp_path / "old").read_text()) == (0o600, "xy")


def test_a_folder_that_stays_open_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    tmp_path.chmod(0o755)
    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.warns(
        UserWarning, match="others may be able to read what is saved here: Operation not permitted"
    ):
        private_folder(tmp_path)
